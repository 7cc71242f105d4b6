"""The pieces of `report.html`: what is read, how it is drawn, how hostile text is shown."""
