"""Tic-tac-toe: nine cells, three in a row."""

from __future__ import annotations

from spade_jax.envs.games.base import Game

LINES = ((0, 1, 2), (3, 4, 5), (6, 7, 8), (0, 3, 6), (1, 4, 7), (2, 5, 8), (0, 4, 8), (2, 4, 6))
MARKS = "OX"  # of the first seat and of the second
EMPTY = "."


def winner(board: str) -> str | None:
    """The mark that has a line on a board of nine characters, None where neither has."""
    for a, b, c in LINES:
        if board[a] != EMPTY and board[a] == board[b] == board[c]:
            return board[a]
    return None


class TicTacToe(Game):
    """Attributes:
    board: nine characters, row by row: "O", "X" or ".".
    """

    name = "tictactoe"

    def __init__(self, seed: int):
        super().__init__(seed)
        self.board = EMPTY * 9

    def rules(self) -> str:
        return (
            "Tic-tac-toe. Cells are numbered 0 to 8, row by row. Take turns to mark an empty cell; three of your "
            "marks in a row, column or diagonal win. Answer with a cell, such as [4]."
        )

    def observe(self, player: int) -> str:
        cells = [str(i) if mark == EMPTY else mark for i, mark in enumerate(self.board)]
        rows = "\n".join(" ".join(cells[start : start + 3]) for start in (0, 3, 6))
        return f"You play {MARKS[player]}.\n{rows}"

    def legal_actions(self) -> tuple[str, ...]:
        if self.player is None:
            return ()
        return tuple(f"[{i}]" for i, mark in enumerate(self.board) if mark == EMPTY)

    def _play(self, action: str) -> None:
        cell = int(action[1:-1])
        self.board = self.board[:cell] + MARKS[self.player] + self.board[cell + 1 :]
        if winner(self.board):
            self._end(1.0 if self.player == 0 else -1.0)
        elif EMPTY not in self.board:
            self._end(0.0)
        else:
            self.player = 1 - self.player
