"""The base class of tool-use programs: schemas, dispatch, messages."""

from __future__ import annotations

import ast
import json
import pathlib
import sys
from typing import Literal

import pytest

from spade_jax.envs import tools
from spade_jax.envs.tools import ToolEnvironment
from spade_jax.sandbox import Pool
from spade_jax.tokens import parsing


class Stock(ToolEnvironment):
    def setup(self, rng):
        self.stock = {"rope": rng.randint(1, 9), "lamp": rng.randint(1, 9)}
        self.unit = "box"
        goal = self.stock["rope"] + 3
        self.ask("Add 3 rope.", lambda: self.stock["rope"] == goal, ["add", "rope", 3])
        self.ask("Empty lamp.", lambda: self.stock["lamp"] == 0, ["read", "lamp"], ["put", "lamp", 0])
        self.ask("Count in bags.", lambda: self.unit == "bag", ["change", "bag"])

    def read(self, item: str):
        return self.stock[item]

    def add(self, item: str, count: int):
        """Adds to
        an item."""
        self.stock[item] += count

    def put(self, item: str, count: int, note: str = ""):
        self.stock[item] = count
        return {"item": item, "note": note}

    def change(self, unit: Literal["box", "bag"]):
        self.unit = unit

    def _helper(self):
        return 1


def started(program=Stock, seed=0):
    environment = program()
    return environment, *environment.reset(seed)


def call(name, **arguments):
    return parsing.action_for(json.dumps({"name": name, "arguments": arguments}), "tool")


END = parsing.action_for("done", "tool")


def test_the_first_observation_lists_the_tools_and_one_message():
    _, observation, info = started()
    assert observation == (
        "Tools:\nread(item: string)\nadd(item: string, count: integer): Adds to an item.\n"
        'put(item: string, count: integer, note?: string)\nchange(unit: "box"|"bag")\nUser: Add 3 rope.'
    )
    assert info["criteria"] == [False] * 3
    assert info["tools"][1] == {
        "name": "add",
        "description": "Adds to an item.",
        "parameters": {
            "type": "object",
            "properties": {"item": {"type": "string"}, "count": {"type": "integer"}},
            "required": ["item", "count"],
        },
    }


def test_the_reference_wins_and_its_criteria_flip_in_order():
    environment, _, _ = started()
    solution = environment.solution()
    assert solution[:2] == ['{"name": "add", "arguments": {"item": "rope", "count": 3}}', "done"]
    steps = [environment.step(parsing.action_for(command, "tool")) for command in solution]
    assert [step[1] for step in steps] == [0.0] * 6 + [1.0]
    assert [step[2] for step in steps] == [False] * 6 + [True]
    assert [sum(step[4]["criteria"]) for step in steps] == [1, 1, 1, 2, 2, 3, 3]
    assert [step[0] for step in steps][:2] == ["Result: ok", "User: Empty lamp."]
    assert steps[-1][4]["success"] is True


@pytest.mark.parametrize(
    ("action", "text"),
    [
        (call("fly"), "no tool is called 'fly'; there are read, add, put, change"),
        (call("_helper"), "no tool is called '_helper'"),
        (call("reset"), "no tool is called 'reset'"),
        (call("solution"), "no tool is called 'solution'"),
        (call("read"), "read needs item (string)"),
        (call("add", item="rope", count="3"), "add: count must be integer, not string"),
        (call("add", item="rope", count=3.0), "add: count must be integer, not number"),
        (call("add", item="rope", count=True), "add: count must be integer, not boolean"),
        (call("add", item=None, count=3), "add: item must be string, not null"),
        (call("read", item="rope", colour=1), "read has no argument 'colour'; it takes item"),
        (call("change", unit="crate"), 'change: unit must be one of "box", "bag"'),
        (call("read", item="hat"), "'hat' is unknown"),
        ("<tool_call>{</tool_call>", "the call is not JSON: Expecting property name"),
        ("<tool_call>[]</tool_call>", "a call has the form"),
        ('<tool_call>{"name": "read", "argument": {}}</tool_call>', "a call has the form"),
        ('<tool_call>{"name": ["read"]}</tool_call>', "a call has the form"),
        ('<tool_call>{"name": "read", "arguments": []}</tool_call>', "arguments must be an object"),
        (f"<tool_call>{'[' * 3900}</tool_call>", "the call is not JSON"),
        (f"<tool_call>{'[' * 5000}</tool_call>", "the call has 5000 characters; the limit is 4000"),
        ('<tool_call>{"name": "read", "arguments": {"item": "\\ud800"}}</tool_call>', "half a character"),
        ('<tool_call>{"name": "read", "arguments": {"item": NaN}}</tool_call>', "NaN is no number"),
        ('<tool_call>{"name": "read", "arguments": {"item": 1e999}}</tool_call>', "1e999 is no number"),
        (f'<tool_call>{{"name": "read", "arguments": {{"item": {"9" * 3000}}}}}</tool_call>', "a number is too large"),
        ("<answer>maybe</answer>", "answer done once the request is carried out"),
        ("hello", "no tool call and no answer"),
        ("\\boxed{done}", "no tool call and no answer"),
        ("", "no tool call and no answer"),
        ("<tool_call>", "no tool call and no answer"),
    ],
)
def test_mistakes_are_told_cost_a_turn_and_change_nothing(action, text):
    environment, _, _ = started()
    before = dict(environment.stock)
    observation, reward, terminated, truncated, info = environment.step(action)
    assert observation.startswith("Error: ") and text in observation
    assert (reward, terminated, truncated, info["error"], info["success"]) == (0.0, False, False, True, False)
    assert environment.stock == before
    observation.encode()


def test_done_too_early_ends_the_episode_without_reward():
    environment, _, _ = started()
    assert environment.step(END)[:3] == ("That was not carried out.", 0.0, True)
    for command in environment.solution():  # nothing after the end counts
        observation, reward, terminated, _, info = environment.step(parsing.action_for(command, "tool"))
        assert (observation, reward, terminated, info["success"]) == ("The conversation is over.", 0.0, True, False)


def test_turns_run_out():
    environment = Stock(max_turns=2)
    environment.reset(0)
    assert [environment.step(call("read", item="rope"))[2] for _ in range(2)] == [False, True]
    assert environment.step(call("add", item="rope", count=3))[0] == "The conversation is over."


def test_results_are_text_json_or_cut():
    environment, _, _ = started()
    assert environment.step(call("put", item="rope", count=1))[0] == 'Result: {"item": "rope", "note": ""}'
    long = environment.step(call("put", item="rope", count=1, note="n" * 3000))[0]
    assert len(long) < 1100 and long.endswith("... (3028 characters)")


def test_the_same_seed_gives_the_same_instance_and_the_global_generator_is_left_alone():
    import random

    state = random.getstate()
    assert started(seed=5)[1:] == started(seed=5)[1:]
    assert started(seed=5)[0].stock != started(seed=6)[0].stock
    assert random.getstate() == state


class _Broken(ToolEnvironment):
    """Three idle tools; `declare` gives the messages."""

    declare = staticmethod(lambda self: None)

    def setup(self, rng):
        self.x = 0
        type(self).declare(self)

    def one(self, n: int):
        self.x = n

    def two(self):
        pass

    def three(self):
        pass


def _three(self, *call, text="T", criterion=lambda: False):
    for _ in range(3):
        self.ask(text, criterion, *call)


@pytest.mark.parametrize(
    ("declare", "message"),
    [
        (lambda self: None, "0 messages; a program has 3 to 5"),
        (lambda self: _three(self), "message 1 has no reference calls"),
        (lambda self: _three(self, ["four"]), "message 1: .* is no call"),
        (lambda self: _three(self, "one"), "message 1: 'one' is no call"),
        (lambda self: _three(self, ["one"]), r"message 1: one needs n \(integer\)"),
        (lambda self: _three(self, ["one", "1"]), "message 1: one: n must be integer, not string"),
        (lambda self: _three(self, ["two", 1]), "message 1: two takes 0 values, not 1"),
        (lambda self: _three(self, ["two"], text=" "), "message 1 has no text"),
        (lambda self: _three(self, ["two"], criterion=True), "message 1 has no criterion"),
        (lambda self: _three(self, ["two"], criterion=lambda: self.x == 0), "message 1 is satisfied before anything"),
    ],
)
def test_a_program_that_breaks_the_contract_says_so_at_reset(declare, message):
    program = type("Broken", (_Broken,), {"declare": staticmethod(declare)})
    with pytest.raises(ValueError, match=message):
        program().reset(0)


def test_a_criterion_that_raises_does_so_at_reset():
    program = type("Broken", (_Broken,), {"declare": staticmethod(lambda s: _three(s, ["two"], criterion=lambda: s.y))})
    with pytest.raises(AttributeError):
        program().reset(0)


def test_the_number_of_tools_is_held():
    with pytest.raises(ValueError, match="9 tools; a program has 3 to 8"):
        extra = {f"more{i}": (lambda self: None) for i in range(6)}
        type("Broken", (_Broken,), {"declare": staticmethod(lambda s: _three(s, ["two"])), **extra})().reset(0)


def _unannotated(self, a):
    pass


def _starred(self, *a: int):
    pass


def _strange(self, a: set):
    pass


@pytest.mark.parametrize(
    ("method", "message"),
    [
        (_unannotated, "tool extra: parameter a has no annotation"),
        (_starred, "tool extra: write its parameters as plain names"),
        (_strange, "tool extra: a: annotation <class 'set'> has no JSON type"),
    ],
)
def test_signatures_without_a_schema(method, message):
    with pytest.raises(TypeError, match=message):
        type("Broken", (_Broken,), {"extra": method})()


def test_schemas_of_every_supported_annotation():
    class Kinds(_Broken):
        def four(self, a: float, b: bool, c: list[int], d: dict, e: str | None = None, f: Literal[1, 2] = 1):
            pass

    schema = tools.tool_schemas(Kinds)["four"]
    assert list(tools.tool_schemas(Kinds)) == ["one", "two", "three", "four"]
    assert tools.signature(schema) == "four(a: number, b: boolean, c: [integer], d: object, e?: string, f?: 1|2)"
    good = {"a": 1, "b": True, "c": [1, 2], "d": {}}
    assert tools.argument_error(schema, good) is None
    assert tools.argument_error(schema, {**good, "c": [1, "x"]}) == "four: c must be integer, not string"
    assert tools.argument_error(schema, {**good, "f": 3}) == "four: f must be one of 1, 2"


def test_it_needs_nothing_but_the_standard_library():
    tree = ast.parse(pathlib.Path(tools.__file__).read_text())
    imported = {a.name for n in ast.walk(tree) if isinstance(n, ast.Import) for a in n.names}
    imported |= {n.module for n in ast.walk(tree) if isinstance(n, ast.ImportFrom)}
    assert imported <= sys.stdlib_module_names


PROGRAM = """\
from toolkit import ToolEnvironment


class Lamps(ToolEnvironment):
    def setup(self, rng):
        self.lit = {}
        for lamp in rng.sample(range(90), 3):
            self.ask(f"Light {lamp}.", lambda lamp=lamp: lamp in self.lit, ["light", lamp])

    def light(self, lamp: int):
        self.lit[lamp] = 1

    def dark(self, lamp: int):
        del self.lit[lamp]

    def count(self):
        return len(self.lit)
"""


def test_the_sandbox_provides_it():
    with Pool() as pool:
        env = pool.open(PROGRAM, "Lamps")
        assert pool.call(env, "construct").ok
        observation, _ = pool.call(env, "reset", 3).value
        assert observation.startswith("Tools:\nlight(lamp: integer)\n")
        for command in pool.call(env, "solution").value:
            reply = pool.call(env, "step", parsing.action_for(command, "tool"))
            assert reply.ok, reply
        assert reply.value[1] == 1.0
        assert pool.call(env, "secrets").value == []
