"""How many rows to wait for: the number with which loops are fastest, also when that changes."""

from __future__ import annotations

import pytest

from sherd.lower.patience import Patience


def loops(patience, count, seconds):
    """The numbers that so many loops wait for, where a loop takes `seconds` of its number."""
    chosen = []
    for _ in range(count):
        chosen.append(patience.rows)
        patience.took(seconds(patience.rows))
    return chosen


@pytest.mark.parametrize("best", [32, 16, 4, 2])
def test_the_fastest_is_taken_and_others_are_tried_now_and_then(best):
    chosen = loops(Patience(32), 200, lambda rows: 1.0 if rows == best else 1.2)
    assert set(chosen[:13]) == {32, 16, 4, 2}
    assert chosen[13:].count(best) >= 0.95 * 187
    assert {best} < set(chosen[13:])


def test_the_first_loop_compiles_and_does_not_count():
    times = iter([100.0] + [1.0] * 200)
    patience = Patience(32)
    first = patience.rows
    chosen = loops(patience, 100, lambda rows: next(times) * (0.9 if rows == first else 1.0))
    assert chosen[-1] == first


def test_one_that_becomes_faster_is_found():
    patience = Patience(32)
    loops(patience, 50, lambda rows: float(rows))
    chosen = loops(patience, 1000, lambda rows: 1.0 / rows)
    assert chosen[-30:].count(32) >= 28


def test_one_slow_loop_is_forgiven():
    patience = Patience(32)
    loops(patience, 20, lambda rows: float(rows))
    patience.took(1000.0)
    assert patience.rows == 2


def test_a_single_row_leaves_no_choice():
    assert set(loops(Patience(1), 50, float)) == {1}
