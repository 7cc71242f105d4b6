"""Can it be won, not for nothing, and in more than one way: checks `solvable`, `nontrivial` and `varied`."""

from __future__ import annotations

import random
from collections.abc import Callable

from spade_jax.designer.gate.actions import listed_actions
from spade_jax.designer.gate.session import MAIN, Ask, Outcome, Rejected, Session, box
from spade_jax.designer.gate.tools import TOOL_POLICIES
from spade_jax.envs.contract import succeeded

_Policy = Callable[[str, str, random.Random], str]  # (first observation, last one, generator) -> command


def check_solvable(session: Session) -> Outcome:
    """`solution()` wins on every seed; None where the program has no `solution`."""
    if not session.program.has_solution:
        return None, "the program defines no solution()"
    lengths = []
    for index in range(session.config.solvable_seeds):
        _, commands = yield from session.solve(MAIN, session.seed(index))
        where = f"seed {session.seed(index)}"
        if len(commands) > session.config.max_turns:
            raise Rejected(
                "unsolvable", f"{where}: solution() takes {len(commands)} turns of {session.config.max_turns}"
            )
        session.require_win((yield from session.play(MAIN, commands)) if commands else [], session.seed(index))
        lengths.append(len(commands))
    return True, f"solution() wins on {len(lengths)} seeds in {min(lengths)}-{max(lengths)} turns"


def check_nontrivial(session: Session) -> Outcome:
    """Policies that understand nothing score next to nothing.

    A policy that scores on the first seeds gets the rest as well before it counts as
    winning: of few seeds, one lucky guess would already condemn a sound program.
    """
    averages = {}
    policies = _POLICIES | (TOOL_POLICIES if session.config.kind == "tool" else {})
    for name, policy in policies.items():
        scores: list[float] = []
        for seeds in (session.config.seeds, session.config.trivial_seeds):
            for index in range(len(scores), seeds):
                scores.append((yield from _mindless_score(session, policy, index)))
            averages[name] = sum(scores) / len(scores)
            if averages[name] <= session.config.trivial_score:
                break
        else:
            raise Rejected("trivial", f'policy "{name}" averages {averages[name]:.2f} over {len(scores)} seeds')
    return True, ", ".join(f"{name} {average:.2f}" for name, average in averages.items())


def _mindless_score(session: Session, policy: _Policy, index: int) -> Ask:
    """The last reward of one episode, clipped to [0, 1]; 1 for a success, whatever its reward."""
    rng = random.Random(session.seed(index))
    first = observation = yield from session.reset(MAIN, index)
    score = 0.0
    left = session.config.max_turns
    while left:
        # A policy that does not look at the last reply is played in one go.
        count = 1 if policy in _WATCHFUL else left
        actions = [box(policy(first, observation, rng)) for _ in range(count)]
        steps = yield from session.respond(MAIN, actions)
        last = steps[-1]
        observation, left = last.observation, left - count
        score = 1.0 if succeeded(last.reward, last.terminated, last.info) else last.reward
        if last.done:
            break
    return min(max(score, 0.0), 1.0)


def check_varied(session: Session) -> Outcome:
    """Different seeds give different instances with different solutions."""
    observations, solutions = set(), set()
    for index in range(session.config.seeds):
        if session.program.has_solution:
            first, solution = yield from session.solve(MAIN, session.seed(index))
            solutions.add(tuple(solution))
        else:
            first = yield from session.reset(MAIN, index)
        observations.add(first)
    counted = f"{len(observations)} first observations over {session.config.seeds} seeds"
    if len(observations) < session.config.distinct_observations:
        raise Rejected("not_varied", f"{counted}; {session.config.distinct_observations} are needed")
    if len(solutions) == 1:
        raise Rejected("not_varied", f"one solution for all {session.config.seeds} seeds: {min(solutions)!a:.100}")
    return True, f"{counted}, {len(solutions)} solutions"


def _listed_or(first: str, observation: str, fallback: str) -> list[str]:
    return listed_actions(observation) or listed_actions(first) or [fallback]


# Where nothing is listed, a word that means nothing stands in.
_POLICIES: dict[str, _Policy] = {
    "empty": lambda first, last, rng: "",
    "echo": lambda first, last, rng: last,
    "repeat-one": lambda first, last, rng: _listed_or(first, first, "look")[0],
    "done": lambda first, last, rng: "done",
    "random-listed-action": lambda first, last, rng: rng.choice(_listed_or(first, last, "look")),
}
_WATCHFUL = (_POLICIES["echo"], _POLICIES["random-listed-action"])
