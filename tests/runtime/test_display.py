"""The display: plain lines, the live panel, and the terminal it gives back."""

from __future__ import annotations

import io
import math
import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from rich.console import Console

from sherd.runtime.display import Display
from sherd.runtime.events import METRICS, RunInfo
from sherd.runtime.progress import format_number, format_time, sparkline
from sherd.runtime.status import FragmentStatus

INFO = RunInfo("ppo", "CartPole-v1", "single", "inline", 7, 8, 10_000, 100)
FULL = dict.fromkeys(METRICS, 0.5)
ACTORS = FragmentStatus("actors", "actor", 2, 12_345.0, "steps/s", 0.75, 0.125, 0.125, None, 3, None)
LEARNER = FragmentStatus("learner", "learner", 1, 6.0, "updates/s", 0.25, 0.75, 0.0, 0.5, 0, 1.5)
HIDE, SHOW = "\x1b[?25l", "\x1b[?25h"


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def plain_display() -> tuple[Display, Clock, io.StringIO]:
    out, clock = io.StringIO(), Clock()
    display = Display(Console(file=out), clock=clock)
    display.start(INFO)
    return display, clock, out


def live_display(clock: Clock | None = None) -> tuple[Display, io.StringIO]:
    out = io.StringIO()
    console = Console(file=out, force_terminal=True, width=100, height=40, _environ={"TERM": "xterm"})
    return Display(console, clock=clock or time.monotonic), out


def visible(text: str) -> str:
    """The text without the terminal's control sequences."""
    return re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", text)


def test_plain_lines_come_every_two_seconds_first_and_last_always() -> None:
    display, clock, out = plain_display()
    for step in range(100, 5100, 100):
        clock.now += 0.1
        display.iteration({"steps": step, "steps_per_second": 1000.0})
    display.close()
    lines = out.getvalue().splitlines()
    assert lines[0] == "ppo on CartPole-v1  policy single (inline)  seed 7  8 environments"
    assert [line.split()[1] for line in lines[1:]] == [
        f"{n}/10,000" for n in ("100", "2,100", "4,100", "5,000")
    ]


def test_the_last_line_is_not_printed_twice() -> None:
    display, _, out = plain_display()
    display.iteration({"steps": 10_000})
    display.finish({"steps": 10_000})
    display.close()
    assert out.getvalue().count("10,000/10,000") == 1


def test_plain_line_says_what_is_not_known_with_a_dash() -> None:
    display, _, out = plain_display()
    display.iteration({"steps": 100, "loss": math.nan, "episode_return": math.nan})
    assert out.getvalue().splitlines()[1] == (
        "steps 100/10,000  1%  - steps/s  return -  loss -  elapsed 0:00  left -"
    )


def test_a_loss_stays_on_the_line_while_nothing_more_is_learnt() -> None:
    display, clock, out = plain_display()
    for loss in (math.nan, 2.5, math.nan):
        clock.now += 10
        display.iteration({"steps": 100, "loss": loss})
    assert [line.split("  ")[4] for line in out.getvalue().splitlines()[1:]] == [
        "loss -",
        "loss 2.5",
        "loss 2.5",
    ]


def test_of_several_losses_the_first_is_shown_with_its_name() -> None:
    display, _, out = plain_display()
    losses = {"own_loss": 1.0, "critic_loss": 44.4, "critic_update_scale": 1.0}
    display.iteration({"steps": 100, **losses, "actor_loss": 2.0, "actor_update_scale": 1.0})
    assert out.getvalue().splitlines()[1].split("  ")[4] == "critic_loss 44.4"


def test_remaining_time_leaves_the_compilation_out() -> None:
    display, clock, out = plain_display()
    clock.now = 60.0  # the first iteration compiled
    display.iteration({"steps": 100, "steps_per_second": 100 / 60})
    clock.now = 70.0
    display.iteration({"steps": 1100, "steps_per_second": 100.0})
    assert out.getvalue().splitlines()[2].endswith("elapsed 1:10  left 1:29")  # 8,900 steps at 100 per second


def test_the_return_is_the_mean_of_the_last_hundred_episodes() -> None:
    display, clock, out = plain_display()
    rows = [(-1000.0, 50), (1.0, 60), (math.nan, 0), (3.0, 40)]
    for value, episodes in rows:
        clock.now += 10
        display.iteration({"steps": 1, "episode_return": value, "episodes": episodes})
    assert "return 1.8 " in out.getvalue().splitlines()[-1]  # (60 * 1 + 40 * 3) / 100


def test_long_lines_and_markup_reach_a_file_as_they_are() -> None:
    display, _, out = plain_display()
    text = "[red]" + "word " * 60 + "[/nonsense] :smile: 3.14"
    display.note(text)
    assert out.getvalue().splitlines()[1] == f"note: {text}"
    assert "\x1b" not in out.getvalue()


def test_plain_summary_is_one_line_of_what_is_short() -> None:
    display, _, out = plain_display()
    summary = {
        "steps": 10_000,
        "return": np.float32(487.25),
        "run_dir": "runs/1",
        "ok": True,
        "loss": math.nan,
    }
    display.finish({**summary, "nested": {"a": 1}, "curve": np.arange(3), "none": None})
    assert out.getvalue().splitlines()[1] == (
        "finished  steps 10,000  return 487.2  run_dir runs/1  ok True  loss -"
    )


def test_plain_fragments_come_every_ten_seconds_and_not_at_the_end() -> None:
    display, clock, out = plain_display()
    for second in range(1, 36):
        clock.now = float(second)
        display.fragments([ACTORS, LEARNER])
    display.fragments([])
    display.finish({"steps": 1})
    lines = out.getvalue().splitlines()
    assert lines[1:-1] == 3 * [
        "fragments: actors x2 12.3k steps/s busy 75% wait 12% send 12% restarts 3"
        " | learner 6 updates/s busy 25% wait 75% send 0% queue 50% restarts 0 age 1.5"
    ]


def test_the_bottleneck_is_said_once_and_as_a_sentence() -> None:
    display, _, out = plain_display()
    display.finish({"steps": 8, "bottleneck": "bottleneck: learner (busy 95 %)"})
    assert out.getvalue().splitlines()[1:] == ["finished  steps 8", "bottleneck: learner (busy 95 %)"]


@pytest.mark.parametrize("width", [64, 80, 120])
@pytest.mark.parametrize("encoding", ["ascii", "utf-8"])
def test_the_panel_has_a_line_for_each_fragment(width: int, encoding: str) -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding=encoding, write_through=True)
    console = Console(file=out, force_terminal=True, width=width, height=40, _environ={"TERM": "xterm"})
    display = Display(console)
    display.start(INFO)
    display.iteration({"steps": 1})
    display.fragments([LEARNER])
    display.fragments([ACTORS, LEARNER, replace(LEARNER, name="x" * 99, busy=math.nan)])
    display.close()
    text = visible(raw.getvalue().decode(encoding))
    lines = [line[2:-2].split() for line in text[text.rindex("fragment") :].splitlines()]
    bars = ["######.+", "##......"] if encoding == "ascii" else ["██████░▒", "██░░░░░░"]
    bars = [bar if width >= 76 else "" for bar in bars]
    assert " ".join(lines[1][:-3]) == f"actors x2 12.3k steps/s {bars[0]} 75% 12% 12%".replace("  ", " ")
    assert lines[1][-3:] == ["-", "3", "-"]
    assert " ".join(lines[2]) == f"learner 6 updates/s {bars[1]} 25% 75% 0% 50% 0 1.5".replace("  ", " ")
    assert lines[3][0].startswith("xxx")
    assert lines[3][-6:] == ["-", "75%", "0%", "50%", "0", "1.5"]


share = st.floats() | st.floats(0, 1)


@given(
    st.lists(st.tuples(st.text(), st.integers(0, 99), st.floats(), share, share, share, st.none() | share)),
    st.integers(1, 120),
)
@settings(deadline=None)
def test_no_picture_breaks_either_form(found: list[tuple], width: int) -> None:
    statuses = [
        FragmentStatus(name, "actor", replicas, rate, "steps/s", busy, waiting, sending, queue, 0, queue)
        for name, replicas, rate, busy, waiting, sending, queue in found
    ]
    console = Console(file=io.StringIO(), force_terminal=True, width=width, _environ={"TERM": "xterm"})
    for display in (Display(Console(file=io.StringIO())), Display(console)):
        display.fragments(statuses)  # before the start: not shown
        display.start(INFO)
        display._next_fragments = 0.0
        display.fragments(statuses)
        display.close()


@given(
    st.lists(
        st.dictionaries(
            st.sampled_from([*METRICS, "my_metric [x]"]),
            st.floats() | st.integers() | st.none() | st.sampled_from(["fast", [], np.float32(1)]),
        ),
        max_size=5,
    ),
    st.integers(0, 3),
)
@settings(deadline=None)
def test_no_row_breaks_either_form(rows: list[dict], budget: int) -> None:
    info = RunInfo("a", "b", "c", "d", 0, 1, budget, 1)
    plain = Display(Console(file=io.StringIO()))
    live, _ = live_display()
    for display in (plain, live):
        display.start(info)
        for row in rows:
            display.iteration(row)
        display.finish(dict(rows[0]) if rows else {})


def test_live_panel_shows_the_run() -> None:
    clock = Clock()
    display, out = live_display(clock)
    display.start(INFO)
    assert "the first iteration compiles" in visible(out.getvalue())
    for step in range(1, 51):
        clock.now += 1.0
        display.iteration(
            {**FULL, "steps": 100 * step, "steps_per_second": 100.0, "episode_return": step, "episodes": 100}
        )
    display.note("half way")
    display.finish({"verdict": "fine"})
    text = visible(out.getvalue())
    last = text[text.rindex("ppo on CartPole-v1") :]
    for part in (
        "seed 7",
        " 50%",
        "elapsed 0:50",
        "left 0:50",
        "steps 5,000/10,000   100 steps/s",
        "return 50 ",
        sparkline([float(step) for step in range(1, 51)]),
        "episode length 0.5",
        "approx_kl",
        "update_scale",
        "fine",
    ):
        assert part in last
    assert "note: half way" in text


def test_the_panel_redraws_while_an_iteration_takes_long() -> None:
    display, out = live_display()
    display.start(INFO)
    started = time.monotonic()
    while (drawn := out.getvalue().count("ppo on CartPole-v1")) < 4 and time.monotonic() < started + 10:
        time.sleep(0.01)
    seconds = time.monotonic() - started
    display.close()
    assert drawn >= 4
    assert (drawn - 1) / seconds < 8


@pytest.mark.parametrize("end", ["finish", "close"])
def test_the_terminal_is_given_back(end: str) -> None:
    display, out = live_display()
    before = (sys.stdout, sys.stderr)
    display.start(INFO)
    display.iteration(FULL)
    assert HIDE in out.getvalue()
    assert SHOW not in out.getvalue()
    display.finish({}) if end == "finish" else display.close()
    display.close()
    assert out.getvalue().count(SHOW) == 1
    assert (sys.stdout, sys.stderr) == before


def test_an_ascii_terminal_gets_ascii() -> None:
    raw = io.BytesIO()
    out = io.TextIOWrapper(raw, encoding="ascii", write_through=True)
    display = Display(Console(file=out, force_terminal=True, width=100, _environ={"TERM": "xterm"}))
    display.start(INFO)
    for step in range(20):
        display.iteration({**FULL, "episode_return": float(step)})
    display.close()
    assert "_" in raw.getvalue().decode("ascii")


def test_noting_a_row_is_cheap() -> None:
    """The best of several rounds: the machine may be busy, the code may not be slow."""
    display, _ = live_display()
    display.start(INFO)
    rounds = []
    for _ in range(20):
        started = time.perf_counter()
        for step in range(100):
            display.iteration({**FULL, "steps": step, "episode_return": step, "episodes": 1})
        rounds.append((time.perf_counter() - started) / 100)
    display.close()
    assert min(rounds) < 50e-6


CHILD = """
import os, signal, sys, time
signal.signal(signal.SIGINT, signal.default_int_handler)  # a parent in the background leaves it ignored
from sherd.runtime.display import Display
from sherd.runtime.events import RunInfo
display = Display()
display.start(RunInfo("ppo", "CartPole-v1", "single", "inline", 7, 8, 10_000, 100))
print('{"result": 1}', flush=True)
display.iteration({"steps": 1})
ENDING
"""
ENDINGS = {
    "interrupt": "os.kill(os.getpid(), signal.SIGINT); time.sleep(10)",
    "error": "raise ValueError('boom')",
    "exit without close": "sys.exit(0)",
}


@pytest.mark.parametrize("ending", ENDINGS)
def test_a_real_terminal_is_restored_and_stdout_stays_pure(ending: str, tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    with open(tmp_path / "stdout", "wb") as stdout:
        child = subprocess.Popen(
            [sys.executable, "-c", CHILD.replace("ENDING", ENDINGS[ending])],
            stdout=stdout,
            stderr=theirs,
            env={**os.environ, "TERM": "xterm"},
        )
    os.close(theirs)
    try:
        seen = read_until_closed(ours)
        code = child.wait(timeout=10)
    finally:
        child.kill()
    assert code == {"interrupt": -signal.SIGINT, "error": 1}.get(ending, 0)
    assert (tmp_path / "stdout").read_bytes() == b'{"result": 1}\n'
    assert HIDE in seen
    assert seen.rindex(SHOW) > seen.rindex(HIDE)


def read_until_closed(descriptor: int, seconds: float = 20.0) -> str:
    """Everything that arrives at our end of the terminal until the child has gone."""
    seen, deadline = b"", time.monotonic() + seconds
    while time.monotonic() < deadline:
        if not select.select([descriptor], [], [], 0.2)[0]:
            continue
        try:
            seen += os.read(descriptor, 65536)
        except OSError:  # Linux's way to say that the other end is closed
            break
    os.close(descriptor)
    return seen.decode()


@given(st.lists(st.floats(-1e6, 1e6), max_size=100), st.integers(1, 40))
@settings(deadline=None)
def test_sparkline_keeps_its_width_and_its_extremes(values: list[float], width: int) -> None:
    line = sparkline(values, width)
    assert len(line) == min(width, len(values))
    if len(values) <= width and len(set(values)) > 1 and max(values) - min(values) > 1e-6:
        assert line[values.index(max(values))] == "█"
        assert line[values.index(min(values))] == "▁"


def test_numbers_and_times_for_people() -> None:
    assert [format_number(x) for x in (0.0, -45.26, 100.0, 12_345.6, 1e9, math.inf)] == [
        *("0", "-45.3", "100", "12,346", "1,000,000,000", "inf")
    ]
    assert [format_time(x) for x in (-1, 0.4, 59.6, 3600, math.inf)] == [
        "0:00",
        "0:00",
        "1:00",
        "1:00:00",
        "-",
    ]
