"""Checkpoints, metrics, seeds, config checks: what a run needs beside the method."""
