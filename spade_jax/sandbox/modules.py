"""The modules a program may import: the fork server loads them, once.

Then imports are frozen, so this list is complete: anything else raises
ModuleNotFoundError, on every machine alike. That also makes the sandbox
independent of whether a child may read the Python installation.
"""

from __future__ import annotations

import importlib
import importlib.machinery
import importlib.util
import os
import sys

PROGRAM_MODULES = (
    "__future__",
    "abc",
    "array",
    "base64",
    "binascii",
    "bisect",
    "calendar",
    "cmath",
    "collections",
    "collections.abc",
    "colorsys",
    "contextlib",
    "copy",
    "dataclasses",
    "datetime",
    "decimal",
    "difflib",
    "enum",
    "fractions",
    "functools",
    "hashlib",
    "heapq",
    "itertools",
    "json",
    "keyword",
    "math",
    "numbers",
    "operator",
    "pprint",
    "queue",
    "random",
    "re",
    "secrets",
    "statistics",
    "string",
    "struct",
    "textwrap",
    "time",
    "traceback",
    "types",
    "typing",
    "unicodedata",
    "uuid",
    "zlib",
)

# Loaded by the standard library on first use rather than on import, so that they
# must be there before imports freeze. `_pylong` (3.12) converts huge integers.
LAZY_MODULES = (
    "_pylong",
    "_strptime",
    "encodings.ascii",
    "encodings.hex_codec",
    "encodings.idna",
    "encodings.latin_1",
    "encodings.punycode",
    "encodings.raw_unicode_escape",
    "encodings.rot_13",
    "encodings.unicode_escape",
    "encodings.utf_16",
    "encodings.utf_32",
    "linecache",
    "locale",
    "tokenize",
    "warnings",
)

# Files of ours that programs import as top-level modules: {name: path inside the package}.
# They are loaded by path, since nothing else of the package may be reachable in a child.
PROVIDED_MODULES = {"toolkit": os.path.join("envs", "tools.py")}


def load_and_freeze() -> None:
    """Loads the modules, then leaves this process no way to find any other."""
    for name in PROGRAM_MODULES:
        importlib.import_module(name)
    for name in LAZY_MODULES:
        try:
            importlib.import_module(name)
        except ModuleNotFoundError:
            continue  # not in this version of Python
    package = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    for name, path in PROVIDED_MODULES.items():
        spec = importlib.util.spec_from_file_location(name, os.path.join(package, path))
        module = sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
    sys.meta_path[:] = [importlib.machinery.BuiltinImporter]
    sys.path[:] = []
    sys.path_hooks[:] = []
    sys.path_importer_cache.clear()
