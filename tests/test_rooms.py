"""Who may import whom: the table of rooms, held against the source."""

from __future__ import annotations

import ast
import pathlib
import subprocess
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[1]
PACKAGE = ROOT / "spade_jax"

# Room -> what it may import of this package beside itself and `structs`, which everyone may. "room.module" allows
# one module of a room. A room that is not in here is a room nobody has thought about.
MAY_IMPORT = {
    "structs": set(),
    "tokens": set(),
    "sandbox": set(),
    "policy": set(),
    "envs": {"sandbox"},
    "sampler": {"policy"},
    "learner": {"policy"},
    "designer": {"tokens", "sandbox", "envs"},
    "runtime": set(),
    "rollout": {
        "sampler", "sandbox", "envs", "tokens", "designer", "runtime.hosts", "runtime.seeds", "runtime.flops",
        "runtime.metrics",
    },
    "evals": {"rollout", "sampler", "sandbox", "envs", "tokens", "designer", "runtime.seeds"},
    "reporting": {"designer", "runtime"},
}  # fmt: skip
BINARIES = {"train", "evaluate", "warmstart", "report", "check_env", "sandbox_probe", "export", "plan"}
# These may import every room, and none of them a binary.
COMPOSITION = BINARIES | {"arena", "compose", "opponents", "session", "spiral"}

NEVER_JAX = ("structs", "tokens", "sandbox", "envs", "designer", "reporting")
JAX = {"jax", "jaxlib", "flax", "optax", "orbax", "chex"}


def modules() -> dict[str, pathlib.Path]:
    """{"room.module": path}, e.g. "designer.gate" and "designer" for its __init__."""
    found = {}
    for path in sorted(PACKAGE.rglob("*.py")):
        parts = path.relative_to(PACKAGE).with_suffix("").parts
        name = ".".join(part for part in parts if part != "__init__")
        if name:
            found[name] = path
    return found


MODULES = modules()


def imports(path: pathlib.Path) -> set[str]:
    """Absolute names of everything that a file imports, wherever in it the statement stands."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: relative import; write spade_jax.room"
            names |= {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def ours(path: pathlib.Path) -> set[str]:
    """The modules of this package among them, e.g. {"designer.gate"}; a function counts as its module."""
    found = set()
    for name in imports(path):
        package, _, inner = name.partition(".")
        if package == "spade_jax" and inner:
            while inner not in MODULES:
                inner = inner.rpartition(".")[0]
                assert inner, f"{path}: no module of spade_jax is named in {name}"
            found.add(inner)
    return found


def room(module: str) -> str:
    return module.partition(".")[0]


def test_every_module_is_in_a_room():
    assert {room(name) for name in MODULES} == set(MAY_IMPORT) | COMPOSITION


@pytest.mark.parametrize("name", MODULES)
def test_imports_follow_the_table(name):
    imported = ours(MODULES[name])
    if room(name) in COMPOSITION:
        assert not {other for other in imported if other in BINARIES}
        return
    allowed = MAY_IMPORT[room(name)] | ({room(name), "structs"} if name != "structs" else set())
    wrong = {other for other in imported if not {other, room(other)} & allowed}
    assert not wrong, f"{name} may import {sorted(allowed)}"


def test_nobody_imports_configs_tests_or_launch():
    for name, path in MODULES.items():
        assert not {"configs", "tests", "launch"} & {imported.partition(".")[0] for imported in imports(path)}, name


@pytest.mark.parametrize("name", [name for name in MODULES if room(name) in NEVER_JAX])
def test_no_jax_is_written(name):
    assert not JAX & {imported.partition(".")[0] for imported in imports(MODULES[name])}


def test_no_jax_is_loaded():
    """What counts is what is loaded in the end, libraries of others included."""
    names = [f"spade_jax.{name}" for name in MODULES if room(name) in NEVER_JAX]
    code = f"import importlib, sys\nfor name in {names}: importlib.import_module(name)\nprint({JAX} & set(sys.modules))"
    loaded = subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True)
    assert loaded.stdout == "set()\n"


def test_every_file_is_in_the_table_of_its_room():
    for folder in sorted(path for path in PACKAGE.iterdir() if (path / "__init__.py").exists()):
        text = (folder / "README.md").read_text(encoding="utf-8")
        missing = [path.name for path in sorted(folder.glob("*.py")) if f"| `{path.name}` |" not in text]
        assert missing in ([], ["__init__.py"]), f"{folder.name}/README.md has no row for {missing}"
