"""These tests need torch and transformers, the extra [reference]; without them there is nothing to collect."""

from __future__ import annotations

import importlib.util

if not all(importlib.util.find_spec(name) for name in ("torch", "transformers")):
    collect_ignore_glob = ["test_*.py"]
