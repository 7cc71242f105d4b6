"""Statistics of matches: intervals of shares, and Elo ratings.

Axis legend: K players.
"""

from __future__ import annotations

import math

import numpy as np

_Z = 1.959964  # two-sided 95 %
_ELO_PER_NAT = 400 / math.log(10)  # a rating difference of 400 is odds of 10 to 1


def wilson_interval(count: float, total: int) -> tuple[float, float]:
    """95 % Wilson score interval of a share (Wilson 1927); (0, 1) where nothing was counted."""
    if total == 0:
        return 0.0, 1.0
    share = count / total
    centre = share + _Z**2 / (2 * total)
    spread = _Z * math.sqrt(share * (1 - share) / total + _Z**2 / (4 * total**2))
    scale = 1 + _Z**2 / total
    return max(0.0, (centre - spread) / scale), min(1.0, (centre + spread) / scale)


def elo(score_KxK: np.ndarray, games_KxK: np.ndarray, *, prior_games: float = 1.0, steps: int = 100) -> np.ndarray:
    """float64[K] Elo ratings of mean 0, the most probable under the Bradley-Terry model.

    Args:
      score_KxK: score_KxK[i, j] is what i scored against j: 1 for a win, 1/2 for a draw.
      games_KxK: games that i and j played, symmetric, 0 on the diagonal.
      prior_games: every pair that met is counted this many further draws, which keeps a player who lost all of its
        games at a finite rating.
      steps: of Newton's method, at most.

    Raises:
      ValueError: the scores of a pair do not add up to its games.
    """
    if not np.allclose(score_KxK + score_KxK.T, games_KxK):
        raise ValueError("the scores of a pair must add up to its games; count a draw as half a point for both")
    games_KxK = games_KxK + prior_games * (games_KxK > 0)
    score_K = (score_KxK + prior_games / 2 * (games_KxK > 0)).sum(axis=1)
    theta_K = np.zeros(len(score_K))
    for _ in range(steps):
        expected_KxK = 1 / (1 + np.exp(theta_K[None, :] - theta_K[:, None]))
        gradient_K = score_K - (games_KxK * expected_KxK).sum(axis=1)
        weight_KxK = games_KxK * expected_KxK * (1 - expected_KxK)
        hessian_KxK = np.diag(weight_KxK.sum(axis=1)) - weight_KxK
        # Ratings are fixed up to a constant: the pseudo-inverse takes the step of mean 0.
        step_K = np.linalg.pinv(hessian_KxK) @ gradient_K
        theta_K = theta_K + np.clip(step_K, -1.0, 1.0)
        if np.abs(step_K).max(initial=0.0) < 1e-10:
            break
    return _ELO_PER_NAT * (theta_K - theta_K.mean())
