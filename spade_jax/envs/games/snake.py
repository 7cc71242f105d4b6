"""Two snakes on a grid; both move at once."""

from __future__ import annotations

from spade_jax.envs.games.base import Game, winner_return

MOVES = {"[up]": (0, -1), "[down]": (0, 1), "[left]": (-1, 0), "[right]": (1, 0)}

Cell = tuple[int, int]  # column, row


class Snake(Game):
    """Both seats choose, then both snakes move: the second seat is not shown what the first one chose.

    Args:
      seed: of the apples.
      size: cells of one side of the grid.
      apples: on the grid at a time.
      rounds: after which the longer snake wins.

    Attributes:
      size: cells of one side.
      snakes: cells of each snake, head first.
      apples: cells.
    """

    name = "snake"

    def __init__(self, seed: int, *, size: int = 6, apples: int = 2, rounds: int = 30):
        super().__init__(seed)
        if size < 4:
            raise ValueError(f"games.snake.size={size} has no room for two snakes; use at least 4")
        if not 1 <= apples <= size:
            raise ValueError(f"games.snake.apples={apples} is out of range; use 1 to {size}, the side of the grid")
        if rounds < 1:
            raise ValueError(f"games.snake.rounds={rounds} moves nobody; use at least 1")
        self.size, self._rounds, self._round = size, rounds, 1
        self.snakes: list[list[Cell]] = [[(1, 1)], [(size - 2, size - 2)]]
        self.apples: list[Cell] = []
        self._chosen: str | None = None
        self._grow_apples(apples)

    def _grow_apples(self, count: int) -> None:
        while len(self.apples) < count:
            taken = {*self.apples, *self.snakes[0], *self.snakes[1]}
            free = [(x, y) for y in range(self.size) for x in range(self.size) if (x, y) not in taken]
            if not free:
                return
            self.apples.append(self._rng.choice(free))

    def rules(self) -> str:
        return (
            f"Snake on a grid of {self.size} x {self.size}. Both snakes move at once. A snake that leaves the grid "
            f"or hits a snake dies; an apple makes it one cell longer. The survivor wins; after {self._rounds} rounds "
            "the longer snake does. Answer [up], [down], [left] or [right]."
        )

    def observe(self, player: int) -> str:
        grid = {cell: "*" for cell in self.apples}
        for seat, (head, body) in enumerate((("Y", "y"), ("Z", "z"))):
            cells = self.snakes[player if seat == 0 else 1 - player]
            grid |= dict.fromkeys(cells[1:], body) | {cells[0]: head}
        rows = "\n".join("".join(grid.get((x, y), ".") for x in range(self.size)) for y in range(self.size))
        return f"Round {self._round} of {self._rounds}. You: Y (head), y. Opponent: Z, z. Apples: *.\n{rows}"

    def legal_actions(self) -> tuple[str, ...]:
        return () if self.player is None else tuple(MOVES)

    def _play(self, action: str) -> None:
        if self.player == 0:
            self._chosen, self.player = action, 1
            return
        before = [snake[0] for snake in self.snakes]
        heads = [
            (x + MOVES[move][0], y + MOVES[move][1])
            for (x, y), move in zip(before, (self._chosen, action), strict=True)
        ]
        for snake, head in zip(self.snakes, heads, strict=True):
            snake.insert(0, head)
            if head not in self.apples:
                snake.pop()
        wanted = len(self.apples)
        self.apples = [apple for apple in self.apples if apple not in heads]
        clash = heads[0] == heads[1] or heads == before[::-1]  # onto one cell, or through each other
        dead = [clash or self._hits(head) for head in heads]
        self._grow_apples(wanted)
        self._chosen, self.player = None, 0
        if any(dead):
            self._end(float(dead[1]) - float(dead[0]))
        elif self._round == self._rounds:
            self._end(winner_return(len(self.snakes[0]) - len(self.snakes[1])))
        else:
            self._round += 1

    def _hits(self, head: Cell) -> bool:
        x, y = head
        outside = not (0 <= x < self.size and 0 <= y < self.size)
        return outside or head in self.snakes[0][1:] or head in self.snakes[1][1:]
