"""The base class of tool-use programs; a program imports it as `toolkit`.

A tool-use program is a subclass of `ToolEnvironment` with a method `setup(rng)` and one
public method per tool. The signature's annotations and the docstring are the tool's
function-calling schema, so that a schema and its method cannot disagree:

    from toolkit import ToolEnvironment


    class Stock(ToolEnvironment):
        def setup(self, rng):
            self.stock = {"rope": rng.randint(1, 9), "lamp": rng.randint(1, 9)}
            goal = self.stock["rope"] + 3
            self.ask("Add 3 rope.", lambda: self.stock["rope"] == goal, ["add", "rope", 3])
            ...

        def add(self, item: str, count: int):
            \"\"\"Adds to the stock of an item.\"\"\"
            self.stock[item] += count

The user's messages are revealed one at a time. The agent calls tools with
`<tool_call>{"name": ..., "arguments": {...}}</tool_call>` and finishes a message with
`<answer>done</answer>`: its criterion is judged then, and an episode whose criterion does
not hold has failed. The score is 1 once every message has been satisfied, before that 0.

Standard library only: the sandbox's fork server loads this file by its path. A tool-use
program shares a process with it and may rewrite it, so nothing here guards anything; it
gives honest programs clear errors, and spares them the protocol.
"""

from __future__ import annotations

import json
import math
import random
import types
import typing

MODULE = "toolkit"  # the name that programs import this file under
MIN_TOOLS, MAX_TOOLS = 3, 8
MIN_MESSAGES, MAX_MESSAGES = 3, 5
DONE = "done"

MAX_CALL_CHARS = 4000
MAX_RESULT_CHARS = 1000
_MAX_INT = 2**53  # beyond, JSON readers disagree
_SHOWN_CHARS = 40

_TYPES = {str: "string", int: "integer", float: "number", bool: "boolean", list: "array", dict: "object"}
_CALL_FORM = '{"name": TOOL, "arguments": {...}}'


class ToolEnvironment:
    """What a tool-use program subclasses; presents the environment contract to the harness.

    Attributes:
      max_turns: replies of the agent until the episode ends; a program may set its own.
    """

    max_turns = 20

    def __init__(self, max_turns: int | None = None, **kwargs):
        if max_turns is not None:
            self.max_turns = max_turns
        self._schemas = tool_schemas(type(self))
        self._messages: list[_Message] = []
        self._current = self._turn = 0
        self._over = False

    # -- what a program writes ------------------------------------------------

    def setup(self, rng: random.Random) -> None:
        """Draws the backend's state from `rng` and declares the messages with `ask`, in order."""
        raise NotImplementedError(f"{type(self).__name__} has no setup(self, rng)")

    def ask(self, text: str, criterion: typing.Callable[[], bool], *calls: list) -> None:
        """Declares the next message of the user.

        Args:
          text: one request.
          criterion: whether the state now satisfies it; false before anything was done.
          *calls: the reference, tool calls that satisfy it: [tool, value, ...] with the
            values in the order of the tool's parameters.

        Raises:
          ValueError: an empty text, no calls, or a call that its schema does not allow.
        """
        where = f"message {len(self._messages) + 1}"
        if not isinstance(text, str) or not text.strip():
            raise ValueError(f"{where} has no text")
        if not callable(criterion):
            raise ValueError(f"{where} has no criterion; give a function, e.g. lambda: self.x == 1")
        if not calls:
            raise ValueError(f"{where} has no reference calls")
        self._messages.append(_Message(text, criterion, [self._reference(where, call) for call in calls]))

    # -- the environment contract ---------------------------------------------

    def reset(self, seed: int | None = None) -> tuple[str, dict]:
        """A new instance. Raises ValueError where the program breaks the tool-use contract."""
        self._messages, self._current, self._turn, self._over = [], 0, 0, False
        self.setup(random.Random(seed))
        _within("tools", len(self._schemas), MIN_TOOLS, MAX_TOOLS)
        _within("messages", len(self._messages), MIN_MESSAGES, MAX_MESSAGES)
        met = self._met()
        if any(met):
            raise ValueError(f"message {met.index(True) + 1} is satisfied before anything was done")
        listed = "\n".join(signature(schema) for schema in self._schemas.values())
        info = {"tools": list(self._schemas.values()), "message": 0, "messages": len(met), "criteria": met}
        return f"Tools:\n{listed}\nUser: {self._messages[0].text}", info

    def step(self, action: str) -> tuple[str, float, bool, bool, dict]:
        """One reply of the agent: a tool call, the end of a message, or something else, which costs a turn."""
        self._turn += 1
        refused = False
        if self._over:
            observation = "The conversation is over."
        elif (answer := _inside(action, "answer")) is not None:
            if answer.strip(" .!\n").lower() == DONE:
                observation = self._finish_message()
            else:
                observation, refused = f"Error: answer {DONE} once the request is carried out.", True
        else:
            try:
                observation = f"Result: {self._call(action)}"
            except _Refused as error:
                observation, refused = f"Error: {error}", True
        won = self._current == len(self._messages)
        self._over = self._over or won or self._turn >= self.max_turns
        info = {"success": won, "message": self._current, "criteria": self._met(), "error": refused}
        return observation, float(won), self._over, False, info

    def solution(self) -> list[str]:
        """The reference: every message's calls as JSON, each message closed by "done"."""
        commands = []
        for message in self._messages:
            commands += [json.dumps({"name": name, "arguments": values}) for name, values in message.calls]
            commands.append(DONE)
        return commands

    def secrets(self) -> list[str]:
        """Texts that must not be shown unearned; a program may name some."""
        return []

    def close(self) -> None:
        """Frees nothing."""

    # -- inside ---------------------------------------------------------------

    def _reference(self, where: str, call: list) -> tuple[str, dict]:
        if not isinstance(call, (list, tuple)) or not call or call[0] not in self._schemas:
            raise ValueError(f"{where}: {call!a:.80} is no call; write [tool, value, ...]")
        name, *values = call
        parameters = self._schemas[name]["parameters"]
        if len(values) > len(parameters["properties"]):
            raise ValueError(f"{where}: {name} takes {len(parameters['properties'])} values, not {len(values)}")
        arguments = dict(zip(parameters["properties"], values, strict=False))
        if error := argument_error(self._schemas[name], arguments):
            raise ValueError(f"{where}: {error}")
        return name, arguments

    def _met(self) -> list[bool]:
        return [bool(message.criterion()) for message in self._messages]

    def _finish_message(self) -> str:
        if not self._messages[self._current].criterion():
            self._over = True
            return "That was not carried out."
        self._current += 1
        if self._current == len(self._messages):
            return "All is carried out."
        return f"User: {self._messages[self._current].text}"

    def _call(self, action: str) -> str:
        """The result of a call as text; _Refused where it is malformed or names nothing that exists."""
        text = _inside(action, "tool_call")
        if text is None:
            raise _Refused(f"no tool call and no answer; call a tool with {_CALL_FORM} or answer {DONE}")
        name, arguments = _read_call(text)
        if name not in self._schemas:
            raise _Refused(f"no tool is called {name!a:.40}; there are {', '.join(self._schemas)}")
        if error := argument_error(self._schemas[name], arguments):
            raise _Refused(error)
        try:
            result = getattr(self, name)(**arguments)
        except LookupError as error:
            # Programs look things up by the agent's words; a word they don't know is the agent's mistake.
            key = error.args[0] if isinstance(error, KeyError) and error.args else None
            raise _Refused(f"{_shown(key)} is unknown" if isinstance(key, (str, int)) else "no such entry") from None
        if result is None:
            return "ok"
        shown = result if isinstance(result, str) else json.dumps(result, ensure_ascii=False, allow_nan=False)
        if len(shown) > MAX_RESULT_CHARS:
            return f"{shown[:MAX_RESULT_CHARS]}... ({len(shown)} characters)"
        return shown


class _Refused(Exception):
    """A call that is not carried out; the text tells the agent why."""


class _Message:
    def __init__(self, text: str, criterion: typing.Callable[[], bool], calls: list[tuple[str, dict]]):
        self.text, self.criterion, self.calls = text, criterion, calls


# ---------------------------------------------------------------------------
# Schemas.
# ---------------------------------------------------------------------------


def tool_schemas(program: type) -> dict[str, dict]:
    """{tool: function-calling schema} of a program's public methods, in the order they are written.

    Raises:
      TypeError: a parameter without a supported annotation, or `*args`, `**kwargs`.
    """
    schemas = {}
    for owner in reversed(program.__mro__):
        if owner is ToolEnvironment or not issubclass(owner, ToolEnvironment):
            continue
        for name, method in vars(owner).items():
            if (
                isinstance(method, types.FunctionType)
                and not name.startswith("_")
                and not hasattr(ToolEnvironment, name)
            ):
                schemas[name] = _schema(name, method)
    return schemas


def _schema(name: str, method: types.FunctionType) -> dict:
    code = method.__code__
    flags = 0x04 | 0x08  # *args, **kwargs
    if code.co_flags & flags or code.co_kwonlyargcount or code.co_posonlyargcount or not code.co_argcount:
        raise TypeError(f"tool {name}: write its parameters as plain names after self")
    names = code.co_varnames[1 : code.co_argcount]
    hints = typing.get_type_hints(method)
    if missing := [parameter for parameter in names if parameter not in hints]:
        raise TypeError(f"tool {name}: parameter {missing[0]} has no annotation; write e.g. {missing[0]}: str")
    required = names[: len(names) - len(method.__defaults__ or ())]
    return {
        "name": name,
        "description": " ".join((method.__doc__ or "").split()),
        "parameters": {
            "type": "object",
            "properties": {
                parameter: _type_schema(f"tool {name}: {parameter}", hints[parameter]) for parameter in names
            },
            "required": list(required),
        },
    }


def _type_schema(where: str, annotation: typing.Any) -> dict:
    origin, arguments = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is typing.Literal:
        kinds = {type(choice) for choice in arguments}
        if len(kinds) == 1 and kinds <= {str, int}:
            return {"type": _TYPES[kinds.pop()], "enum": list(arguments)}
    elif origin in (typing.Union, types.UnionType):  # `str | None`: left out, never null
        others = [choice for choice in arguments if choice is not types.NoneType]
        if len(others) == 1:
            return _type_schema(where, others[0])
    elif origin is list and len(arguments) == 1:
        return {"type": "array", "items": _type_schema(where, arguments[0])}
    elif (origin or annotation) in _TYPES:
        return {"type": _TYPES[origin or annotation]}
    raise TypeError(f"{where}: annotation {annotation!a:.60} has no JSON type; use str, int, float, bool, list or dict")


def signature(schema: dict) -> str:
    """A schema in one line: `add(item: string, count?: integer): Adds to the stock.`"""
    parameters = schema["parameters"]
    shown = ", ".join(
        f"{name}{'' if name in parameters['required'] else '?'}: {_type_text(kind)}"
        for name, kind in parameters["properties"].items()
    )
    description = f": {schema['description']}" if schema["description"] else ""
    return f"{schema['name']}({shown}){description}"


def _type_text(schema: dict) -> str:
    if "enum" in schema:
        return "|".join(map(json.dumps, schema["enum"]))
    return f"[{_type_text(schema['items'])}]" if "items" in schema else schema["type"]


def argument_error(schema: dict, arguments: dict) -> str | None:
    """What a schema says against `arguments`, naming tool and argument; None where they fit."""
    name, properties = schema["name"], schema["parameters"]["properties"]
    for argument, value in arguments.items():
        if argument not in properties:
            known = ", ".join(properties) or "none"
            return f"{name} has no argument {_shown(argument)}; it takes {known}"
        if error := _value_error(properties[argument], value):
            return f"{name}: {argument} {error}"
    for argument in schema["parameters"]["required"]:
        if argument not in arguments:
            return f"{name} needs {argument} ({_type_text(properties[argument])})"
    return None


def _value_error(schema: dict, value: typing.Any) -> str | None:
    expected = schema["type"]
    actual = _TYPES.get(type(value), "null" if value is None else type(value).__name__)
    if actual != expected and not (expected == "number" and actual == "integer"):
        return f"must be {expected}, not {actual}"
    if "enum" in schema and value not in schema["enum"]:
        return f"must be one of {_type_text(schema).replace('|', ', ')}"
    if expected == "array" and "items" in schema:
        return next((error for item in value if (error := _value_error(schema["items"], item))), None)
    return None


# ---------------------------------------------------------------------------
# The agent's reply.
# ---------------------------------------------------------------------------


def _inside(action: str, tag: str) -> str | None:
    """What stands in `<tag>...</tag>`, where the whole action is that."""
    text, opening, closing = action.strip(), f"<{tag}>", f"</{tag}>"
    if text.startswith(opening) and text.endswith(closing) and len(text) >= len(opening) + len(closing):
        return text[len(opening) : -len(closing)]
    return None


def _read_call(text: str) -> tuple[str, dict]:
    """(tool, arguments) of a call; _Refused where it is not one JSON object of that form."""
    if len(text) > MAX_CALL_CHARS:
        raise _Refused(f"the call has {len(text)} characters; the limit is {MAX_CALL_CHARS}")
    try:
        call = json.loads(text, parse_int=_read_int, parse_float=_read_float, parse_constant=_read_float)
        text = json.dumps(call, ensure_ascii=False)
        text.encode()  # half a surrogate pair is JSON, but no text that could be shown again
    except json.JSONDecodeError as error:
        raise _Refused(f"the call is not JSON: {error.msg} at character {error.pos}") from None
    except UnicodeEncodeError:
        raise _Refused("the call is not JSON: it holds half a character") from None
    except ValueError as error:
        raise _Refused(f"the call is not JSON: {error}") from None
    except RecursionError:
        raise _Refused("the call is not JSON: it is nested too deeply") from None
    if not isinstance(call, dict) or set(call) - {"arguments"} != {"name"} or not isinstance(call["name"], str):
        raise _Refused(f"a call has the form {_CALL_FORM}")
    arguments = call.get("arguments", {})
    if not isinstance(arguments, dict):
        raise _Refused(f"arguments must be an object; a call has the form {_CALL_FORM}")
    return call["name"], arguments


def _read_int(digits: str) -> int:
    if len(digits) > 17 or abs(int(digits)) > _MAX_INT:
        raise ValueError("a number is too large")
    return int(digits)


def _read_float(digits: str) -> float:
    number = float(digits)
    if not math.isfinite(number):
        raise ValueError(f"{digits[:_SHOWN_CHARS]} is no number")
    return number


def _shown(value: object) -> str:
    text = ascii(value)
    return text if len(text) <= _SHOWN_CHARS else f"{text[:_SHOWN_CHARS]}..."


def _within(what: str, count: int, low: int, high: int) -> None:
    if not low <= count <= high:
        raise ValueError(f"{count} {what}; a program has {low} to {high}")
