"""The life of a worker as a state machine: no processes here, only what happens and what is to be done."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from sherd.runtime.lifecycle import (
    Bury,
    Cause,
    Closing,
    Died,
    Kill,
    Life,
    Looked,
    Phase,
    Raised,
    Returned,
    Spawn,
    Spoke,
    Started,
    TellEnded,
    TellFailed,
    TellRestarted,
    begin,
    step,
)

KILLED = Cause("exited with SIGKILL")
causes = st.builds(Cause, st.sampled_from(["exited with SIGKILL", "ValueError: x"]), usage=st.booleans())
happenings = st.one_of(
    st.sampled_from([Started(), Spoke(), Returned(), Closing()]),
    st.builds(Raised, causes),
    st.builds(Died, causes),
    st.builds(Looked, st.booleans(), st.floats(0.0, 1.5)),
)


def live(*story, budget=0):
    """The life after a story, and the instructions of its last line."""
    life, todo = begin(budget)
    for happening in story:
        life, todo = step(life, happening)
    return life, todo


def spawns(instructions):
    return [instruction for instruction in instructions if isinstance(instruction, Spawn)]


@given(st.integers(0, 4), st.lists(happenings, max_size=60))
def test_the_budget_is_never_exceeded_and_the_end_is_final(budget, story):
    life, done = begin(budget)
    ends = 0
    for happening in story:
        over = life.over
        life, todo = step(life, happening)
        assert not (over and todo)
        ends += sum(isinstance(instruction, TellEnded | TellFailed) for instruction in todo)
        done += todo
    assert [spawn.attempt for spawn in spawns(done)] == list(range(len(spawns(done))))
    assert len(spawns(done)) <= budget + 1
    assert life.attempt == len(spawns(done)) - 1
    assert ends <= 1


@given(st.integers(0, 4), st.lists(happenings, max_size=30))
def test_every_path_ends_once_its_processes_die(budget, story):
    life, _ = live(*story, budget=budget)
    for _ in range(budget + 1):
        life, _ = step(life, Started())
        life, _ = step(life, Died(KILLED))
    assert life.over


@given(st.lists(happenings, max_size=30))
def test_every_death_that_is_not_orderly_is_told(story):
    """Either the run was closing, or a worker that is over has told how."""
    life, done = begin(1)
    for happening in story:
        life, todo = step(life, happening)
        done += todo
    told = any(isinstance(instruction, TellEnded | TellFailed) for instruction in done)
    assert told == life.over or life.closing


def test_a_death_beyond_the_budget_says_how_often():
    assert live(Started(), Died(KILLED))[1] == [Bury(), TellFailed(KILLED)]
    life, todo = live(Started(), Died(KILLED), Started(), Spoke(), Died(KILLED), budget=1)
    assert life.phase is Phase.FAILED
    assert todo == [Bury(), TellFailed(Cause("died 2 times; exited with SIGKILL"))]


def test_a_restart_is_told_before_it_is_done():
    life, todo = live(Started(), Died(KILLED), budget=2)
    assert todo == [Bury(), TellRestarted("exited with SIGKILL", 1), Spawn(1)]
    assert life.phase is Phase.RESTARTING
    assert step(life, Started())[0].phase is Phase.STARTING


def test_what_the_user_must_fix_is_not_tried_again():
    wrong = Cause("the horizon is wrong", "Traceback", usage=True)
    life, todo = live(Started(), Raised(wrong), Died(Cause("exited with code 1")), budget=5)
    assert life.phase is Phase.FAILED
    assert todo == [Bury(), TellFailed(wrong)]


def test_the_first_cause_wins():
    error = Cause("ValueError: x", "Traceback")
    _, todo = live(Started(), Raised(error), Died(Cause("exited with code 1")))
    assert todo == [Bury(), TellFailed(error)]


def test_a_stopped_worker_is_given_three_seconds():
    stopped = Looked(still=True, seconds=1.0)
    story = [Started(), Spoke(), stopped, stopped, stopped]
    life, todo = live(*story)
    assert (life.phase, todo) == (Phase.STOPPED, [])
    life, todo = live(*story, stopped)
    assert (life.phase, todo) == (Phase.DYING, [Kill()])
    assert step(life, Died(KILLED))[1] == [Bury(), TellFailed(Cause("is stopped (SIGSTOP)"))]


def test_a_worker_that_goes_on_is_forgiven():
    stopped, moving = Looked(True, 1.5), Looked(False, 1.0)
    life, _ = live(Started(), Spoke(), stopped, stopped, moving)
    assert (life.phase, life.still) == (Phase.RUNNING, 0.0)
    life, todo = live(Started(), stopped, stopped, moving, stopped, stopped)
    assert (life.phase, todo) == (Phase.STOPPED, [])
    assert live(Started(), stopped, moving)[0].phase is Phase.STARTING


def test_while_closing_deaths_are_nothing_to_report():
    life, todo = live(Started(), Closing(), Died(KILLED), budget=3)
    assert (life.phase, todo) == (Phase.ENDED, [Bury()])


def test_nothing_leaves_the_end():
    for phase in (Phase.ENDED, Phase.FAILED):
        life = Life(phase=phase)
        assert step(life, Died(KILLED)) == (life, [])
