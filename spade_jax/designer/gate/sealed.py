"""Is the answer kept: check `sealed`, of the observations and, once there is one, of the hint.

Programs may list what commands there are and hints may say what form they have, so a
command in a text is no leak by itself. A leak is the answer of one instance:
- in an observation, where a rule that needs no thought reads off all that differs between
  instances (`reading.common_rule`), or a string that the program itself calls secret, or the seed;
- in a hint, where it holds an instance's whole answer or a declared secret, or where a
  policy that merely repeats what the hint says wins.

The reverse is unsound as well: a pass word that nothing shows, which only the source or
the hint tells. It makes regret out of nothing, whether the solution needs it or it opens
a back door.
"""

from __future__ import annotations

import ast
import collections
import dataclasses
import os
import re
from collections.abc import Iterator, Sequence

from spade_jax.designer.gate import reading
from spade_jax.designer.gate.actions import listed_actions
from spade_jax.designer.gate.session import MAIN, TWIN, Ask, Outcome, Rejected, Session
from spade_jax.envs.contract import succeeded

_UNEARNED = ("", "help", "look", "hint")  # commands that earn nothing, tried in this order
_READ_SHARE = 0.9  # of the seeds that a rule must serve
_SHORT = 4  # letters and digits below which a string stands somewhere by chance
_SHORT_SHARE = 0.5  # of the seeds on which a short string must be found to count
_FIRST_PARROT_SEEDS = 4  # where a policy that repeats the hint wins nothing, it is not tried on more
_GUESSABLE_SEEDS = (0, 1, 42)  # instances that an author is likeliest to have worked out by hand
_WRONG_COMMANDS = 2  # of another instance, after which the answer must not be shown either
_WORD_CHARS = 40  # of a text in the source that may be a pass word
_MOST_WORDS = 40  # texts that are tried as pass words


@dataclasses.dataclass(frozen=True)
class _Instance:
    """What one seed shows.

    Attributes:
      seed: the seed.
      stages: the first observation and those after each of `_UNEARNED`, until the end.
      commands: the solution; () without one.
      secrets: what the program declares.
      replies: the observations that the solution's commands but the last are answered with.
    """

    seed: int
    stages: tuple[str, ...]
    commands: tuple[str, ...]
    secrets: tuple[str, ...]
    replies: tuple[str, ...]

    def shown(self, commands: int | None = None) -> str:
        """Everything that is shown before the solution's command of that number, or at all."""
        return "\n".join((*self.stages, *self.replies[:commands])).casefold()


def check_sealed(session: Session) -> Outcome:
    """Neither the observations nor the hint, where there is one, give an answer away."""
    instances = yield from _instances(session, [session.seed(index) for index in range(session.config.sealed_seeds)])
    for stage in range(1 + len(_UNEARNED)):
        texts = [instance.stages[stage] if stage < len(instance.stages) else "" for instance in instances]
        where = "the first observation" if stage == 0 else f"the observation after {stage} useless command(s)"
        _require_no_seed(instances, texts, where)
        _require_no_secret([[i.secrets, text] for i, text in zip(instances, texts, strict=True)], where)
        rule = _readable(instances, texts)
        if rule and (stage == 0 or (yield from _still_wins(session, [_UNEARNED[:stage]] * len(instances)))):
            raise Rejected("leak", f"{where} shows the solution: {rule}")
    if session.program.has_solution and session.config.kind == "game":  # tool use has `reference` for this
        yield from _require_silence(session, instances)
        _require_shown(instances)
        yield from _require_no_pass_word(session, instances, _texts(session.program.source))
    if session.hint is not None:
        yield from _check_hint(session, instances)
    if not session.program.has_solution and not session.program.has_secrets:
        return None, "the program names neither a solution nor secrets to look for"
    where = "the observations" if session.hint is None else "the observations and the hint"
    return True, f"no answer of {len(instances)} seeds in {where}"


def check_hint(session: Session) -> Outcome:
    """The hint alone, of a program that has passed the rest."""
    instances = yield from _instances(session, [session.seed(index) for index in range(session.config.sealed_seeds)])
    yield from _check_hint(session, instances)
    return True, f"no answer of {len(instances)} seeds in the hint"


def _instances(session: Session, seeds: Sequence[int]) -> Ask:
    """One `_Instance` per seed."""
    found = []
    for seed in seeds:
        commands, secrets, replies = (), (), ()
        if session.program.has_solution:
            commands = tuple((yield from session.solve(MAIN, seed))[1])
            steps = (yield from session.play(MAIN, commands)) if commands else []
            session.require_win(steps, seed)  # or what is looked for is no answer
            replies = tuple(step.observation for step in steps[:-1])
        if session.program.has_secrets:
            secrets = tuple((yield from session.secrets(MAIN, seed)))
        first, steps = yield from session.episode(MAIN, seed, _UNEARNED)
        stages = [first, *(step.observation for step in steps if not step.done)]
        found.append(_Instance(seed, tuple(stages), commands, secrets, replies))
    return found


def _require_no_seed(instances: Sequence[_Instance], texts: Sequence[str], where: str) -> None:
    for instance, text in zip(instances, texts, strict=True):
        for number in re.findall(r"[0-9a-f]{6,}", text.casefold()):
            if any(number in form for form in (str(instance.seed), f"{instance.seed:x}")):
                raise Rejected("leak", f"{where} shows the seed: {number} of {instance.seed}")


def _require_no_secret(shown: Sequence[tuple[Sequence[str], str]], where: str) -> None:
    """`shown` is one (declared secrets, text) per seed."""
    short_hits = 0
    for secrets, text in shown:
        read = reading.readings(text)
        short = False
        for secret in secrets:
            wanted = reading.tokens(secret)
            disguise = next((name for name, words in read.items() if reading.contains(words, wanted)), None)
            if disguise is None and reading.shares_gram(text, secret):
                disguise = f"{reading.GRAM} letters in a row"
            if disguise and len(reading.normal(secret)) >= _SHORT:
                raise Rejected("leak", f"{where} shows the secret {secret!a:.60} ({disguise})")
            short |= disguise is not None
        short_hits += short
    if short_hits > _SHORT_SHARE * len(shown):
        raise Rejected("leak", f"{where} shows a secret on {short_hits} of {len(shown)} seeds")


def _readable(instances: Sequence[_Instance], texts: Sequence[str]) -> str:
    """How the whole solution is read off on nearly every seed; "" where it is not."""
    solved = [(i, text) for i, text in zip(instances, texts, strict=True) if i.commands and text]
    if len(solved) < _READ_SHARE * len(instances):
        return ""
    read = [reading.readings(text) for _, text in solved]
    if whole := reading.common_rule(read, [reading.tokens(" ".join(i.commands)) for i, _ in solved], _READ_SHARE):
        return f"{whole.disguise} {whole.kind} {whole.place}"
    lengths = collections.Counter(len(i.commands) for i, _ in solved)
    length, count = lengths.most_common(1)[0]
    if count < _READ_SHARE * len(solved):
        return ""
    kept = [k for k, (i, _) in enumerate(solved) if len(i.commands) == length]
    how, place = [], -1
    for slot in range(length):
        commands = [solved[k][0].commands[slot] for k in kept]
        if len(set(commands)) == 1:
            continue  # known once and for all
        wanted = _differing([reading.tokens(command) for command in commands])
        # Places must ascend: listed things that are wanted in another order are a puzzle.
        found = reading.common_rule([read[k] for k in kept], wanted, _READ_SHARE, beyond=place)
        if found is None:
            return ""
        how.append(f"command {slot + 1} {found.disguise} {found.kind} {found.place}")
        place = found.place if found.kind == reading.FROM_START else place
    return ", ".join(how)


def _differing(commands: Sequence[reading.Tokens]) -> list[reading.Tokens]:
    """The tokens of each command behind those that all of them begin with ("say 7", "say 9": "7", "9")."""
    same = 0
    shortest = min(len(command) for command in commands)
    while same < shortest - 1 and len({command[same] for command in commands}) == 1:
        same += 1
    return [command[same:] for command in commands]


def _still_wins(session: Session, useless: Sequence[Sequence[str]]) -> Ask:
    """Whether the solution still wins after the useless commands, of each seed, that made the program show it."""
    wins = 0
    for index in range(min(session.config.solvable_seeds, len(useless))):
        _, commands = yield from session.solve(MAIN, session.seed(index))
        wins += yield from _wins(session, index, [*useless[index], *commands])
    return wins > 0


def _wins(session: Session, index: int, commands: Sequence[str]) -> Ask:
    _, steps = yield from session.episode(MAIN, session.seed(index), commands)
    return bool(steps) and succeeded(steps[-1].reward, steps[-1].terminated, steps[-1].info)


def _require_silence(session: Session, instances: Sequence[_Instance]) -> Ask:
    """Wrong commands of the right form, another instance's, must not be answered with the solution."""
    wrong: list[list[str]] = []
    shown: list[tuple[str, ...]] = []
    for index, instance in enumerate(instances):
        other = _another(instances, index)
        wrong.append([command for command in other if command not in instance.commands][:_WRONG_COMMANDS])
        _, steps = yield from session.episode(MAIN, instance.seed, wrong[-1])
        shown.append(tuple(step.observation for step in steps if not step.done))
    for count in range(1, _WRONG_COMMANDS + 1):
        rule = _readable(instances, [texts[count - 1] if len(texts) >= count else "" for texts in shown])
        if rule and (yield from _still_wins(session, [commands[:count] for commands in wrong])):
            raise Rejected("leak", f"the observation after {count} wrong command(s) shows the solution: {rule}")


def _another(instances: Sequence[_Instance], index: int) -> tuple[str, ...]:
    """The solution of another instance; () where all are alike."""
    others = [instance.commands for instance in instances if instance.commands != instances[index].commands]
    return others[index % len(others)] if others else ()


def _require_shown(instances: Sequence[_Instance]) -> None:
    """What every instance's solution says must be known from what is shown; numbers can be worked out."""
    length, count = collections.Counter(len(i.commands) for i in instances).most_common(1)[0]
    if count < _READ_SHARE * len(instances):
        return
    alike = [instance for instance in instances if len(instance.commands) == length]
    for slot in range(length):
        commands = [instance.commands[slot].casefold() for instance in alike]
        begin = os.path.commonprefix(commands)
        end = "" if len(set(commands)) == 1 else os.path.commonprefix([command[::-1] for command in commands])[::-1]
        for part in re.findall(r"[^\W\d_]+|[^\w\s+.-]+", f"{begin} {end}"):
            if not any(part in instance.shown(slot) for instance in alike):
                raise Rejected(
                    "unsolvable", f"command {slot + 1} of every solution says {part!a:.60}, which nothing shows"
                )


def _texts(source: str) -> Iterator[str]:
    """Short texts in a program that may be commands; parts of formatted ones are not."""
    tree = ast.parse(source)
    formatted = {id(part) for node in ast.walk(tree) if isinstance(node, ast.JoinedStr) for part in ast.walk(node)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in formatted:
            yield node.value


def _require_no_pass_word(session: Session, instances: Sequence[_Instance], texts: Iterator[str]) -> Ask:
    """No text that nothing shows makes another instance's solution win."""
    shown = "\n".join(instance.shown() for instance in instances)
    words = [text for text in dict.fromkeys(map(str.strip, texts)) if text and len(text) <= _WORD_CHARS]
    for word in [word for word in words if word.casefold() not in shown][:_MOST_WORDS]:
        wins: list[bool] = []
        for seeds in (_FIRST_PARROT_SEEDS, session.config.sealed_seeds):
            for index in range(len(wins), min(seeds, len(instances))):
                wins.append((yield from _wins(session, index, [word, *_another(instances, index)])))
            if sum(wins) <= session.config.parrot_score * len(wins):
                break
        else:
            raise Rejected(
                "leak", f"after {word!a}, which nothing shows, a wrong answer wins on {sum(wins)} of {len(wins)} seeds"
            )


def _check_hint(session: Session, instances: Sequence[_Instance]) -> Ask:
    hint = session.hint
    guessable = yield from _instances(session, _GUESSABLE_SEEDS)
    instances = [*instances, *guessable]
    _require_no_secret([(i.secrets, hint) for i in instances], "the hint")
    solved = [i for i in instances if i.commands]
    read = reading.readings(hint)
    counts = collections.Counter(i.commands for i in solved)
    many = len(counts) >= 0.75 * len(solved)  # so many answers that a hint does not name one by chance
    rare = collections.Counter(command for i in solved for command in set(i.commands))
    short_hits = 0
    for instance in solved:
        telling = [command for command in instance.commands if rare[command] == 1]
        for wanted, exact in ((" ".join(instance.commands), True), (" ".join(telling), False)):
            size = len(reading.normal(wanted))
            if not size or (not exact and len(telling) > 1):
                continue
            disguise = next((n for n, words in read.items() if reading.contains(words, reading.tokens(wanted))), None)
            if disguise is None and many and reading.shares_gram(hint, wanted):
                disguise = f"{reading.GRAM} letters in a row"
            if disguise and many and counts[instance.commands] == 1 and size >= _SHORT:
                raise Rejected("leak", f"the hint holds the answer {wanted!a:.60} of seed {instance.seed} ({disguise})")
            if disguise and exact:
                short_hits += 1
    if short_hits > _SHORT_SHARE * len(instances):
        raise Rejected("leak", f"the hint holds the whole answer on {short_hits} of {len(instances)} seeds")
    pool = sorted({command for i in solved for command in i.commands}, key=len, reverse=True)
    if solved and session.config.kind == "game":
        words = [*listed_actions(hint), *re.findall(r"\w+", hint)]
        yield from _require_no_pass_word(session, instances[: session.config.sealed_seeds], iter(words))
    for name, commands in _parrots(hint, read, pool).items():
        # Rollouts play in fresh processes, so a program may tell them from this one.
        traces = []
        for child in (MAIN, TWIN):
            session.renew(TWIN)
            _, steps = yield from session.episode(child, session.seed(0), commands)
            traces.append([step.facts() for step in steps])
        if traces[0] != traces[1]:
            raise Rejected("nondeterministic", f"saying {name} is answered otherwise in a fresh process")
        wins: list[bool] = []
        for seeds in (_FIRST_PARROT_SEEDS, session.config.seeds, session.config.trivial_seeds):
            for index in range(len(wins), seeds):
                _, steps = yield from session.episode(MAIN, session.seed(index), commands)
                wins.append(succeeded(steps[-1].reward, steps[-1].terminated, steps[-1].info))
            if sum(wins) <= session.config.parrot_score * len(wins):
                break
        else:
            raise Rejected("leak", f"saying {name} wins on {sum(wins)} of {len(wins)} seeds")


def _parrots(hint: str, read: dict[str, reading.Tokens], pool: Sequence[str]) -> dict[str, list[str]]:
    """{name: commands} that repeat the hint without understanding it."""
    scripts = {"the whole hint": [hint]}
    scripts["what the hint quotes and then its words"] = [*listed_actions(hint), *re.findall(r"\w+", hint)]
    for disguise, words in read.items():
        scripts[f"the hint's words ({disguise})"] = list(words)
        named = [(place, command) for command in pool if (place := _place(words, reading.tokens(command))) >= 0]
        scripts[f"the commands that the hint names ({disguise})"] = [command for _, command in sorted(named)]
    distinct: dict[tuple[str, ...], str] = {}
    for name, commands in scripts.items():
        if commands:
            distinct.setdefault(tuple(dict.fromkeys(commands)), name)
    return {name: list(commands) for commands, name in distinct.items()}


def _place(words: reading.Tokens, wanted: reading.Tokens) -> int:
    for place in range(len(words) - len(wanted) + 1 if wanted else 0):
        if words[place : place + len(wanted)] == wanted:
            return place
    return -1
