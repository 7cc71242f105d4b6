"""Ground truth for tic-tac-toe: the value of every position, and the moves that keep it."""

from __future__ import annotations

import functools

from spade_jax.envs.games.tictactoe import EMPTY, MARKS, winner


def to_move(board: str) -> int:
    """The seat whose turn it is on a board of nine characters."""
    return (9 - board.count(EMPTY)) % 2


def _after(board: str, cell: int) -> str:
    return board[:cell] + MARKS[to_move(board)] + board[cell + 1 :]


@functools.cache
def minimax(board: str) -> int:
    """What the seat to move gets under perfect play: 1, 0 or -1; on a finished board, what it has got."""
    if winner(board):
        return -1  # the other seat has just completed a line
    if EMPTY not in board:
        return 0
    return max(-minimax(_after(board, cell)) for cell in range(9) if board[cell] == EMPTY)


def optimal_actions(board: str) -> tuple[str, ...]:
    """The actions that keep the position's value; () on a finished board."""
    if winner(board):
        return ()
    best = minimax(board)
    return tuple(f"[{cell}]" for cell in range(9) if board[cell] == EMPTY and -minimax(_after(board, cell)) == best)


@functools.cache
def positions() -> tuple[str, ...]:
    """Every reachable position in which a move is due, sorted."""
    seen, open_boards = set(), [EMPTY * 9]
    while open_boards:
        board = open_boards.pop()
        if board in seen or winner(board) or EMPTY not in board:
            continue
        seen.add(board)
        open_boards += [_after(board, cell) for cell in range(9) if board[cell] == EMPTY]
    return tuple(sorted(seen))
