from __future__ import annotations

import pytest

from launch import hyper as h


def test_points():
    assert h.fixed("a.b", 1) == [{"a.b": 1}]
    assert h.sweep("a", range(2)) == [{"a": 0}, {"a": 1}]
    assert h.sweep("a", (1,)) + h.fixed("b", 2) == [{"a": 1}, {"b": 2}]


def test_product_varies_the_last_part_fastest():
    assert h.product(h.sweep("a", (1, 2)), h.sweep("b", "xy"), h.fixed("c", None)) == [
        {"a": 1, "b": "x", "c": None},
        {"a": 1, "b": "y", "c": None},
        {"a": 2, "b": "x", "c": None},
        {"a": 2, "b": "y", "c": None},
    ]


def test_zip_goes_side_by_side():
    points = h.zip(h.sweep("a", (1, 2)), h.product(h.fixed("b", 0), h.sweep("c", (3, 4))))
    assert points == [{"a": 1, "b": 0, "c": 3}, {"a": 2, "b": 0, "c": 4}]


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: h.zip(h.sweep("a", (1, 2)), h.fixed("b", 0)), "h.zip got parts of 2, 1 points"),
        (lambda: h.product(h.sweep("a", (1, 2)), h.fixed("a", 0)), "h.product sets a in two parts"),
        (lambda: h.product(h.sweep("a", ()), h.fixed("b", 0)), "h.product got an empty part"),
    ],
)
def test_mistakes_are_named(make, message):
    with pytest.raises(ValueError, match=message):
        make()
