"""A matrix of shares as a self-contained SVG."""

from __future__ import annotations

import html
from collections.abc import Sequence

import numpy as np

_CELL, _MARGIN, _CHAR = 56, 16, 7.2  # pixels
_LOW, _MIDDLE, _HIGH = (178, 76, 60), (245, 243, 238), (38, 102, 148)  # of a share of 0, .5 and 1


def heat_map(names: Sequence[str], share_KxK: np.ndarray, title: str) -> str:
    """SVG text: a coloured cell with its number for every finite share in [0, 1]; rows and columns have one order."""
    left = _MARGIN + max(map(len, names)) * _CHAR + 24
    top = _MARGIN + 44
    size = _CELL * len(names)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{left + size + _MARGIN:.0f}" height="{top + size + _MARGIN}" '
        'font-family="system-ui, sans-serif" font-size="12">',
        '<rect width="100%" height="100%" fill="white"/>',
        f'<text x="{_MARGIN}" y="{_MARGIN + 8}" font-size="14">{html.escape(title)}</text>',
    ]
    for i, name in enumerate(names):
        middle = top + (i + 0.5) * _CELL
        label = f"{i} {html.escape(name)}"
        parts.append(f'<text x="{left - 8:.1f}" y="{middle + 4}" text-anchor="end">{label}</text>')
        parts.append(f'<text x="{left + (i + 0.5) * _CELL:.1f}" y="{top - 8}" text-anchor="middle">{i}</text>')
        for j, share in enumerate(share_KxK[i]):
            if not np.isfinite(share):
                continue
            x, y = left + j * _CELL, top + i * _CELL
            ink = "white" if abs(share - 0.5) > 0.3 else "#222"
            parts.append(
                f'<rect x="{x:.1f}" y="{y}" width="{_CELL - 2}" height="{_CELL - 2}" fill="{_colour(share)}"/>'
                f'<text x="{x + _CELL / 2 - 1:.1f}" y="{y + _CELL / 2 + 3}" text-anchor="middle" fill="{ink}">'
                f"{share:.2f}</text>"
            )
    return "\n".join([*parts, "</svg>"]) + "\n"


def _colour(share: float) -> str:
    end, weight = (_HIGH, 2 * share - 1) if share > 0.5 else (_LOW, 1 - 2 * share)
    return "#" + "".join(f"{round(m + weight * (e - m)):02x}" for m, e in zip(_MIDDLE, end, strict=True))
