"""Repairs the import system, to load modules from the installation."""

# expect: ok
# needs: seccomp, landlock, namespaces

import importlib.machinery
import json
import os
import sys

FOLDER = os.path.dirname(os.path.dirname(json.__file__))


def by_path():
    sys.path[:] = [FOLDER]
    sys.path_hooks[:] = [importlib.machinery.FileFinder.path_hook((importlib.machinery.SourceFileLoader, [".py"]))]
    sys.meta_path.append(importlib.machinery.PathFinder)
    sys.path_importer_cache.clear()
    try:
        __import__("wave")
    except ModuleNotFoundError:
        raise PermissionError from None


def by_loader():
    importlib.machinery.SourceFileLoader("wave", f"{FOLDER}/wave.py").get_code("wave")


ATTEMPTS = [
    by_path,
    by_loader,
]


class Hostile:
    def reset(self, seed=None):
        return "ready", {}

    def step(self, action):
        attempts = escaped = 0
        for attempt in ATTEMPTS:
            attempts += 1
            try:
                attempt()
            except OSError:
                continue
            escaped += 1
        return "attacked", 0.0, True, False, {"attempts": attempts, "escaped": escaped}
