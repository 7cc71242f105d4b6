"""From a source text to a program: static checks only, nothing is executed.

The checks here are hygiene: they keep out programs that could not work in the sandbox
and cheap cheats. They are not a security wall; the sandbox is.
"""

from __future__ import annotations

import ast
import dataclasses
import re
import warnings

from spade_jax.envs import tools
from spade_jax.envs.contract import REQUIRED_METHODS, environment_id

MAX_SOURCE_CHARS = 60_000
MAX_CLASS_NAME_CHARS = 64


def _names(text: str) -> frozenset[str]:
    return frozenset(text.split())


ALLOWED_IMPORTS = _names(
    """
    __future__ bisect collections copy dataclasses decimal enum fractions functools heapq itertools json math operator
    random re statistics string textwrap typing
    """
)
_ALLOWED_SUBMODULES = frozenset({"collections.abc"})
TOOL_IMPORTS = ALLOWED_IMPORTS | {tools.MODULE}  # of a tool-use program

# What the base class of tool-use programs does itself.
_HARNESS_METHODS = {name for name in vars(tools.ToolEnvironment) if not name.startswith("_")} - {
    "setup",
    "secrets",
    "max_turns",
}

_BANNED_NAMES = _names(
    """
    breakpoint compile delattr dir eval exec exit globals help input locals memoryview open quit setattr vars
    """
)
# Attributes that lead out of the program: modules that allowed modules import, frames and code objects.
_BANNED_ATTRIBUTES = _names(
    """
    _os _sys _inspect _thread bltns builtins codecs ctypes importlib inspect os subprocess sys sysconfig
    ag_frame cr_frame f_back f_builtins f_globals f_locals gi_frame gi_code func_globals mro tb_frame tb_next
    """
)
_ALLOWED_DUNDER_ATTRIBUTES = frozenset({"__init__", "__name__"})
_ALLOWED_DUNDER_NAMES = frozenset({"__name__"})
_ALLOWED_DUNDER_METHODS = _names(
    """
    __init__ __post_init__ __repr__ __str__ __eq__ __ne__ __lt__ __le__ __gt__ __ge__ __hash__ __bool__ __len__
    __iter__ __next__ __contains__ __getitem__ __setitem__ __call__ __add__ __sub__ __mul__ __neg__ __slots__
    """
)
# In text a dunder name is a format-string walk ("{0.__class__}"); a row of underscores is a hangman board.
_DUNDER_TEXT = re.compile(r"__(?!init__|name__|main__)[A-Za-z]\w*?__")


class ProgramError(ValueError):
    """A program that is rejected unread; `failure` is its class, the message the evidence."""

    def __init__(self, failure: str, evidence: str):
        super().__init__(evidence)
        self.failure = failure


@dataclasses.dataclass(frozen=True)
class Program:
    """A program that passed the static checks.

    Attributes:
      source: Python source text, untrusted.
      class_name: the environment class: the first with `reset` and `step`, or the first
        subclass of `ToolEnvironment` with `setup`.
      has_solution: whether that class has a `solution`; a tool-use program always has.
      has_secrets: whether it defines `secrets`.
    """

    source: str
    class_name: str
    has_solution: bool
    has_secrets: bool

    @property
    def id(self) -> str:
        return environment_id(self.source)


def parse_program(source: str, kind: str = "game") -> Program:
    """Checks a source text of a "game" or "tool" program.

    Raises:
      ProgramError: "no_code", "unparsable" or "banned".
    """
    if not source.strip():
        raise ProgramError("no_code", "the program is empty")
    if len(source) > MAX_SOURCE_CHARS:
        raise ProgramError("unparsable", f"{len(source)} characters of source; the limit is {MAX_SOURCE_CHARS}")
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # invalid escapes and the like are the program's own matter
            tree = ast.parse(source)
    except SyntaxError as error:
        raise ProgramError("unparsable", f"line {error.lineno}: {error.msg}") from None
    except (ValueError, RecursionError, MemoryError) as error:
        raise ProgramError("unparsable", f"{type(error).__name__}: {error}") from None

    imports = (TOOL_IMPORTS if kind == "tool" else ALLOWED_IMPORTS) | _ALLOWED_SUBMODULES
    for node in ast.walk(tree):
        if offence := _offence(node, imports):
            raise ProgramError("banned", f"line {getattr(node, 'lineno', 0)}: {offence}")

    for node in tree.body:
        if isinstance(node, ast.ClassDef):
            methods = {item.name for item in node.body if isinstance(item, ast.FunctionDef)}
            if _is_tool_program(node, methods) if kind == "tool" else methods.issuperset(REQUIRED_METHODS):
                break
    else:
        missing = "class of ToolEnvironment defines setup" if kind == "tool" else "class defines reset and step"
        raise ProgramError("unparsable", f"no {missing}")
    if kind == "tool" and (taken := methods & _HARNESS_METHODS):
        raise ProgramError("banned", f"method {min(taken)}, which the base class keeps for itself")
    # The name is shown in prompts, so it stays short and plain.
    if len(node.name) > MAX_CLASS_NAME_CHARS or not node.name.isascii():
        raise ProgramError(
            "unparsable", f"class name {node.name[:20]!a}... is not {MAX_CLASS_NAME_CHARS} ASCII letters"
        )
    return Program(source, node.name, kind == "tool" or "solution" in methods, "secrets" in methods)


def _is_tool_program(node: ast.ClassDef, methods: set[str]) -> bool:
    """Whether a class is written as a direct subclass of our base class."""
    bases = {ast.unparse(base) for base in node.bases}
    return "setup" in methods and bool(bases & {"ToolEnvironment", f"{tools.MODULE}.ToolEnvironment"})


def _offence(node: ast.AST, imports: frozenset[str]) -> str | None:
    """What is banned about one node, if anything; `imports` are the modules it may import."""
    match node:
        case ast.Import(names=names):
            for alias in names:
                if alias.name not in imports:
                    return f"import of {alias.name}"
        case ast.ImportFrom(module=module, names=names, level=level):
            if level or module not in imports:
                return f"import from {module}"
            for alias in names:
                if alias.name in _BANNED_ATTRIBUTES or alias.name.startswith("_"):
                    return f"import of {alias.name} from {module}"
        case ast.Name(id=name):
            if name in _BANNED_NAMES or (_is_dunder(name) and name not in _ALLOWED_DUNDER_NAMES):
                return f"use of {name}"
        case ast.Attribute(attr=attr, value=value):
            own = isinstance(value, ast.Name) and value.id == "self"
            if (attr in _BANNED_ATTRIBUTES and not own) or (
                _is_dunder(attr) and attr not in _ALLOWED_DUNDER_ATTRIBUTES
            ):
                return f"attribute {attr}"
        case ast.FunctionDef(name=name) | ast.AsyncFunctionDef(name=name):
            if _is_dunder(name) and name not in _ALLOWED_DUNDER_METHODS:
                return f"method {name}"
        case ast.Constant(value=str(text)):
            if match := _DUNDER_TEXT.search(text):
                return f"text {match[0]}"
        case ast.Call(func=ast.Name(id="getattr"), args=args):
            if len(args) < 2 or not (isinstance(args[1], ast.Constant) and isinstance(args[1].value, str)):
                return "getattr with a computed name"
            if args[1].value.startswith("_") or args[1].value in _BANNED_ATTRIBUTES:
                return f"getattr of {args[1].value}"
    return None


def _is_dunder(name: str) -> bool:
    return len(name) > 4 and name.startswith("__") and name.endswith("__")
