"""Does it work at all, and twice alike: checks `contract` and `determinism`."""

from __future__ import annotations

from spade_jax.designer.gate.actions import GARBAGE, PLAIN_GARBAGE, listed_actions
from spade_jax.designer.gate.session import MAIN, OTHER, TWIN, Outcome, Rejected, Session


def check_contract(session: Session) -> Outcome:
    """Constructs, resets and survives commands that make no sense."""
    for index in range(2):
        left = list(GARBAGE)
        while left:  # an episode that ends early takes only some
            yield from session.reset(MAIN, index)
            left = left[len((yield from session.respond(MAIN, left))) :]
    return True, f"constructs, resets, survives {2 * len(GARBAGE)} garbage commands"


def check_determinism(session: Session) -> Outcome:
    """The same seeds and actions in two fresh processes of different hash seeds."""
    compared = 0
    for index in range(session.config.determinism_seeds):
        seed, solution = session.seed(index), []
        if session.program.has_solution:
            first, solution = yield from session.solve(TWIN, seed)
        else:
            first = yield from session.reset(TWIN, index)
        for script in ([*PLAIN_GARBAGE, *listed_actions(first)], solution):
            traces = []
            for child in (TWIN, OTHER):
                observation, steps = yield from session.episode(child, seed, script)
                traces.append([observation, *(step.facts() for step in steps)])
            for turn, (one, other) in enumerate(zip(*traces, strict=False)):
                if one != other:
                    raise Rejected(
                        "nondeterministic",
                        f"seed {session.seed(index)}, turn {turn}: two processes say {one!a:.100} and {other!a:.100}",
                    )
            compared += len(traces[0])
    return True, f"{compared} replies equal in two processes"
