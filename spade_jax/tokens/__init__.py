"""Tokenizers, chat templates and the parsing of what a policy writes."""
