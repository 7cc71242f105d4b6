"""Truth and deception: one player knows which of two statements is true and talks the other out of it, or into it."""

from __future__ import annotations

from spade_jax.envs.games.base import Game

# (true, false) statements of the same form.
STATEMENTS = (
    ("A spider has eight legs", "A spider has six legs"),
    ("The capital of Australia is Canberra", "The capital of Australia is Sydney"),
    ("Water boils at a lower temperature on a mountain", "Water boils at a higher temperature on a mountain"),
    ("Sound travels faster in water than in air", "Sound travels faster in air than in water"),
    ("Venus is hotter than Mercury", "Mercury is hotter than Venus"),
    ("A bat is a mammal", "A bat is a bird"),
    ("The heart has four chambers", "The heart has three chambers"),
    ("A whale breathes air", "A whale breathes water"),
    ("Gold is denser than lead", "Lead is denser than gold"),
    (
        "Light takes about eight minutes from the sun to the earth",
        "Light takes about an hour from the sun to the earth",
    ),
    ("A prime number has exactly two divisors", "A prime number has exactly three divisors"),
    ("The Danube flows into the Black Sea", "The Danube flows into the North Sea"),
)
CLAIMS = ("[Claim: 1]", "[Claim: 2]")
ASKS = ("[Ask: 1]", "[Ask: 2]")
GUESSES = ("[Guess: 1]", "[Guess: 2]")


class TruthAndDeception(Game):
    """The first seat claims, the second asks and at last guesses; the first one wins where the guess is wrong.

    Talk is limited to actions: what a player writes beside them never reaches the other.

    Args:
      seed: of the statements.
      rounds: of a claim and a question each, before the last claim and the guess.

    Attributes:
      statements: as shown to both.
      true: index of the true one, known to the first seat.
    """

    name = "truth_and_deception"

    def __init__(self, seed: int, *, rounds: int = 2):
        super().__init__(seed)
        if rounds < 0:
            raise ValueError(f"games.truth_and_deception.rounds={rounds} is negative; use 0 for a claim and a guess")
        self._rounds = rounds
        if self._rng.random() < 0.5:
            pair = self._rng.choice(STATEMENTS)
        else:  # endless, so that they cannot be learned by heart
            a, b = self._rng.randint(3, 19), self._rng.randint(3, 19)
            off = self._rng.choice((-10, -2, -1, 1, 2, 10))
            pair = (f"{a} times {b} is {a * b}", f"{a} times {b} is {a * b + off}")
        self.true = self._rng.randrange(2)
        self.statements = (pair[self.true], pair[1 - self.true])
        self._moves: list[tuple[int, str]] = []

    def rules(self) -> str:
        return (
            "Truth and deception. One of two statements is true. The deceiver knows which and wants the guesser to "
            "choose the other one; the guesser wants the true one. They take turns: the deceiver claims that a "
            "statement is true, [Claim: 1] or [Claim: 2]; the guesser asks about one, [Ask: 1] or [Ask: 2], and at "
            "last guesses, [Guess: 1] or [Guess: 2]."
        )

    def observe(self, player: int) -> str:
        moves = ", ".join(f"{'you' if seat == player else 'opponent'} {action}" for seat, action in self._moves)
        role = "the guesser"
        if player == 0:
            role = f"the deceiver. Statement {self.true + 1} is true"
        task = ("[Claim: ...]", "[Guess: ...]" if self._guessing else "[Ask: ...]")[player]
        return (
            f"You are {role}.\n1: {self.statements[0]}.\n2: {self.statements[1]}.\nMoves: {moves or 'none'}. "
            f"Answer {task}."
        )

    @property
    def _guessing(self) -> bool:
        """Whether the guesser's next move is the guess."""
        return len(self._moves) >= 2 * self._rounds

    def legal_actions(self) -> tuple[str, ...]:
        if self.player is None:
            return ()
        return CLAIMS if self.player == 0 else GUESSES if self._guessing else ASKS

    def _play(self, action: str) -> None:
        self._moves.append((self.player, action))
        if action in GUESSES:
            self._end(-1.0 if GUESSES.index(action) == self.true else 1.0)
        else:
            self.player = 1 - self.player
