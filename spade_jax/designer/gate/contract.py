"""Does it work at all, and twice alike: checks `contract` and `determinism`."""

from __future__ import annotations

from spade_jax.designer.gate.actions import GARBAGE, listed_actions
from spade_jax.designer.gate.session import MAIN, OTHER, TWIN, Outcome, Rejected, Session, box


def check_contract(session: Session) -> Outcome:
    """Constructs, resets and survives commands that make no sense."""
    tried = 0
    for index in range(2):
        yield from session.reset(MAIN, index)
        for action in GARBAGE:
            step = yield from session.step(MAIN, action)
            tried += 1
            if step.done:
                yield from session.reset(MAIN, index)
    return True, f"constructs, resets, survives {tried} garbage commands"


def check_determinism(session: Session) -> Outcome:
    """The same seeds and actions in two fresh processes of different hash seeds."""
    compared = 0
    for index in range(session.config.determinism_seeds):
        first = yield from session.reset(TWIN, index)
        scripts = [[*GARBAGE[:3], *map(box, listed_actions(first)), *GARBAGE[3:6]]]
        if session.program.has_solution:
            solution = yield from session.solution(TWIN)
            scripts.append([box(command) for command in solution])
        for script in scripts:
            traces = []
            for child in (TWIN, OTHER):
                observation = yield from session.reset(child, index)
                steps = yield from session.play(child, script)
                traces.append([observation, *(step.facts() for step in steps)])
            for turn, (one, other) in enumerate(zip(*traces, strict=False)):
                if one != other:
                    raise Rejected(
                        "nondeterministic",
                        f"seed {session.seed(index)}, turn {turn}: two processes say {one!a:.100} and {other!a:.100}",
                    )
            compared += len(traces[0])
    return True, f"{compared} replies equal in two processes"
