"""Reports of iterations: at once where somebody may wait for a row, some at a time where nobody does."""

from __future__ import annotations

import pytest

from sherd.executors import reports
from sherd.executors.reports import Reports


@pytest.fixture
def now(monkeypatch):
    clock = [0.0]
    monkeypatch.setattr(reports.time, "monotonic", lambda: clock[0])
    return clock


def test_every_report_is_sent_at_once_where_somebody_may_wait(now):
    sent = []
    mine = Reports(sent.append, seconds=0.0)
    for number in range(3):
        mine.add(number, {"loss": 0.5})
    assert sent == [("iterations", [(number, {"loss": 0.5})]) for number in range(3)]


def test_fast_iterations_are_reported_together_and_none_is_lost(now):
    sent = []
    mine = Reports(sent.append, seconds=0.02)
    for number in range(100):
        now[0] += 0.003
        mine.add(number, {})
    mine.flush()
    mine.flush()
    assert [number for _, together in sent for number, _ in together] == list(range(100))
    assert len(sent) == 100 // 7 + 1  # a seventh iteration is the first after 20 ms


def test_a_slow_iteration_is_reported_when_it_is_made(now):
    sent = []
    mine = Reports(sent.append, seconds=0.02)
    now[0] = 1.0
    mine.add(0, {})
    assert sent == [("iterations", [(0, {})])]
