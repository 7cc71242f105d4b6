from __future__ import annotations

import hashlib

import pytest

from spade_jax.designer import parse

PROGRAM = """\
import random
from collections import deque

class Helper:
    pass

class Game:
    def __init__(self, **kwargs):
        super().__init__()
    def reset(self, seed=None):
        return type(self).__name__ + " ____ __", {}
    def step(self, action):
        return "", 0.0, True, False, {}
"""


def rejected(source: str) -> parse.ProgramError:
    with pytest.raises(parse.ProgramError) as caught:
        parse.parse_program(source)
    return caught.value


def test_the_environment_class_is_the_first_with_reset_and_step():
    program = parse.parse_program(PROGRAM)
    assert (program.class_name, program.has_solution) == ("Game", False)
    assert program.id == hashlib.sha256(PROGRAM.encode()).hexdigest()
    assert parse.parse_program(PROGRAM + "    def solution(self):\n        return []\n").has_solution


@pytest.mark.parametrize(
    "source",
    [
        "def f(:",
        "x = 1",
        "class A:\n    def reset(self): pass\n",
        "x = '\0'",
        "-" * 50_000 + "1",
        "(" * 5000,
        "x = " + "9" * 5000,
        "a" * (parse.MAX_SOURCE_CHARS + 1),
        "x = '\ud800'",
        PROGRAM.replace("Game", "G" * 65),
        PROGRAM.replace("Game", "Spiel\u00e4"),
    ],
)
def test_unparsable(source):
    error = rejected(source)
    assert error.failure == "unparsable"
    assert len(str(error)) < 300


def test_empty():
    assert rejected(" \n").failure == "no_code"


@pytest.mark.parametrize(
    ("line", "evidence"),
    [
        ("import os", "import of os"),
        ("import time", "import of time"),
        ("import os.path as random", "import of os.path"),
        ("from subprocess import run", "import from subprocess"),
        ("from . import x", "import from None"),
        ("from random import _os", "import of _os from random"),
        ("from enum import sys", "import of sys from enum"),
        ("random._os.system('x')", "attribute _os"),
        ("eval('1')", "use of eval"),
        ("f = open", "use of open"),
        ("__import__('os')", "use of __import__"),
        ("__builtins__", "use of __builtins__"),
        ("().__class__", "attribute __class__"),
        ("f'{().__class__}'", "attribute __class__"),
        ("'{0.__class__}'.format(1)", "text __class__"),
        ("getattr(1, '_x')", "getattr of _x"),
        ("getattr(1, 'a' + 'b')", "getattr with a computed name"),
        ("(x for x in []).gi_frame", "attribute gi_frame"),
        ("def __getattr__(name): pass", "method __getattr__"),
        ("globals()", "use of globals"),
    ],
)
def test_banned(line, evidence):
    error = rejected(f"{PROGRAM}\n{line}\n")
    assert error.failure == "banned"
    assert str(error) == f"line 15: {evidence}"


def test_harmless_neighbours_of_the_banned_are_allowed():
    fine = "import collections.abc\nself_sys = 1\nx = getattr(1, 'real', 0)\nif __name__ == '__main__':\n    pass\n"
    parse.parse_program(fine + PROGRAM.replace("pass", "def f(self):\n        self.sys = self.__private = 1"))


def test_every_allowed_import_can_be_imported():
    for name in parse.ALLOWED_IMPORTS:
        __import__(name)


TOOL = """\
from toolkit import ToolEnvironment


class Stock(ToolEnvironment):
    def setup(self, rng):
        pass

    def read(self, item: str):
        return item
"""


def test_a_tool_program_is_a_subclass_of_our_base_class():
    program = parse.parse_program(TOOL, "tool")
    assert (program.class_name, program.has_solution) == ("Stock", True)
    qualified = TOOL.replace("from toolkit import ToolEnvironment", "import toolkit").replace("(Tool", "(toolkit.Tool")
    assert parse.parse_program(qualified, "tool").class_name == "Stock"


@pytest.mark.parametrize(
    ("source", "kind", "failure", "evidence"),
    [
        (TOOL, "game", "banned", "import from toolkit"),
        (TOOL.replace("(ToolEnvironment)", ""), "tool", "unparsable", "no class of ToolEnvironment defines setup"),
        (TOOL.replace("def setup", "def set_up"), "tool", "unparsable", "no class of ToolEnvironment defines setup"),
        (TOOL.replace("def read", "def step"), "tool", "banned", "method step, which the base class"),
        (TOOL.replace("def read", "def solution"), "tool", "banned", "method solution, which the base class"),
        (
            TOOL.replace("import ToolEnvironment", "import ToolEnvironment, _inside"),
            "tool",
            "banned",
            "import of _inside",
        ),
        (TOOL.replace("return item", "import os"), "tool", "banned", "import of os"),
    ],
)
def test_tool_programs_that_are_refused(source, kind, failure, evidence):
    with pytest.raises(parse.ProgramError, match=evidence) as error:
        parse.parse_program(source, kind)
    assert error.value.failure == failure
