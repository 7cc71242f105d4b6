"""Do the actions decide, and nothing but seed and actions: check `responsive`.

A return that is a function of seed and actions is the same in a process that has seen
nothing and in one that has seen many episodes, with and without a call of `solution()`
before, at once and later, and on an instance that is reset rather than made anew.
"""

from __future__ import annotations

import random
import re
from collections.abc import Sequence

from spade_jax.designer.gate.actions import PLAIN_GARBAGE, listed_actions
from spade_jax.designer.gate.session import MAIN, TWIN, Ask, Outcome, Rejected, Session, Step
from spade_jax.envs.contract import succeeded

# How a solution is perturbed.
_OTHERS = "another instance's solution"
_UNBOXED = "another instance's solution without boxes"
_CUT = "a solution without its last command"
_UNGUIDED_SCRIPTS = 4  # scripts per seed for a program without solution()


def check_responsive(session: Session) -> Outcome:
    """Replays agree whatever came before, and a perturbed solution loses."""
    if not session.program.has_solution:
        return (yield from _without_solution(session))
    solutions: list[list[str]] = []
    played: list[int] = []  # commands until the win
    for index in range(session.config.seeds):
        _, commands = yield from session.solve(MAIN, session.seed(index))
        solutions.append(commands)
        asked = (yield from session.play(MAIN, commands)) if commands else []
        session.require_win(asked, session.seed(index))
        played.append(len(asked))
        plain = yield from _replay(session, MAIN, index, solutions[index])
        _require_same(session, index, asked, plain, "after a call of solution()", "without one")
    wins: dict[str, list[bool]] = {_OTHERS: [], _UNBOXED: [], _CUT: []}
    for index, commands in enumerate(solutions):
        others = [other for other in solutions if other != commands]
        # Every one of them: where any command of the right form is a coin flip, a few fail by chance.
        for other in others:
            wins[_OTHERS].append(_won((yield from _replay(session, MAIN, index, other))))
        if others and session.config.kind == "game":  # an agent that forgets the box is passed on as it is
            yield from session.reset(MAIN, index)
            bare = others[index % len(others)][: session.config.max_turns]
            wins[_UNBOXED].append(_won((yield from session.respond(MAIN, bare))))
        cut = [*commands[: played[index] - 1], ""]
        steps = yield from _replay(session, MAIN, index, cut)
        wins[_CUT].append(_won(steps))
        if index < session.config.determinism_seeds:
            yield from _compare_with_fresh(session, index, cut, steps)
        # Wrong commands of the right form, one after the other, are what luck may hide behind. On every
        # seed: a few flips of a coin are the same twice often enough.
        wrong = [command for other in others for command in other]
        steps = yield from _replay(session, MAIN, index, wrong)
        again = yield from _replay(session, MAIN, index, wrong)
        _require_same(session, index, steps, again, "at once", "played again")
        if index < session.config.determinism_seeds:
            yield from _compare_with_fresh(session, index, wrong, steps)
    for index in range(session.config.determinism_seeds):
        for script in (solutions[index], [*PLAIN_GARBAGE, *solutions[index]]):
            steps = yield from _replay(session, MAIN, index, script)
            yield from _compare_with_fresh(session, index, script, steps)
            yield from _replay(session, MAIN, index, script)
            _, again = yield from session.episode(MAIN, session.seed(index), script, construct=False)
            _require_same(session, index, steps, again, "on a new instance", "on one that was reset")
    for name, outcomes in wins.items():
        share = session.config.other_wins if name == _OTHERS else session.config.perturbed_wins
        if outcomes and sum(outcomes) >= share * len(outcomes):
            raise Rejected("trivial", f"{name} wins {sum(outcomes)} of {len(outcomes)} times: actions hardly matter")
    shown = ", ".join(f"{name} wins {sum(outcomes)} of {len(outcomes)}" for name, outcomes in wins.items())
    return True, f"replays agree on {len(solutions)} seeds; {shown}"


def _without_solution(session: Session) -> Outcome:
    """Scripts of words from the observation: on some seed they must not all end alike, if any of them wins."""
    wins, telling = 0, False
    for index in range(session.config.seeds):
        rng = random.Random(session.seed(index))
        first = yield from session.reset(MAIN, index)
        words = [*listed_actions(first), *re.findall(r"\w+", first), *map(str, range(10))]
        outcomes = []
        for _ in range(_UNGUIDED_SCRIPTS):
            script = rng.choices(words, k=session.config.max_turns)
            steps = yield from _replay(session, MAIN, index, script)
            outcomes.append((_won(steps), steps[-1].reward))
        if index < session.config.determinism_seeds:
            yield from _compare_with_fresh(session, index, script, steps)
        wins += sum(won for won, _ in outcomes)
        telling |= len(set(outcomes)) > 1
    if wins and not telling:
        raise Rejected("trivial", f"{wins} random plays win, and no seed has plays that end differently")
    return (True if telling else None), f"{wins} random plays win over {session.config.seeds} seeds"


def _replay(session: Session, child: int, index: int, commands: Sequence[str]) -> Ask:
    _, steps = yield from session.episode(child, session.seed(index), commands)
    return steps


def _compare_with_fresh(session: Session, index: int, commands: Sequence[str], steps: Sequence[Step]) -> Ask:
    session.renew(TWIN)
    fresh = yield from _replay(session, TWIN, index, commands)
    _require_same(session, index, steps, fresh, "in a used process", "in a fresh one")


def _require_same(
    session: Session, index: int, one: Sequence[Step], other: Sequence[Step], how_one: str, how_other: str
) -> None:
    for turn, (a, b) in enumerate(zip(one, other, strict=False), 1):
        if a.facts() != b.facts():
            raise Rejected(
                "nondeterministic",
                f"seed {session.seed(index)}, turn {turn}: {how_one} {a.facts()!a:.90}, {how_other} {b.facts()!a:.90}",
            )


def _won(steps: Sequence[Step]) -> bool:
    last = steps[-1]
    return succeeded(last.reward, last.terminated, last.info)
