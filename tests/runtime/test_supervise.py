"""Workers and their supervisor, with real processes and real signals."""

from __future__ import annotations

import gc
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from pathlib import Path

import pytest
from leaks import descendants, no_leaks, processes, settles, shared_memory  # noqa: F401

from sherd.errors import RunError, UsageError
from sherd.runtime import child
from sherd.runtime.supervise import Ended, Failed, Restarted, Said, Supervisor
from sherd.runtime.worker import WorkerSpec

pytestmark = pytest.mark.usefixtures("no_leaks")
linux = pytest.mark.skipif(sys.platform != "linux", reason="reads /proc")
SUPPORT = str(Path(__file__).parent.parent / "support")


def spec(entry, payload=None, replica=0, **rest):
    return WorkerSpec("actors", replica, "actor", f"entries:{entry}", payload, **rest)


def until(supervisor, kind, count=1, seconds=20.0):
    """All events up to the `count`-th one of a kind."""
    found = []
    end = time.monotonic() + seconds
    while sum(isinstance(event, kind) for event in found) < count:
        assert time.monotonic() < end, f"no {kind.__name__} among {found}"
        found += supervisor.events(0.5)
    return found


def last(events, kind):
    return [event for event in events if isinstance(event, kind)][-1]


@pytest.fixture
def supervise():
    """Makes supervisors and closes them."""
    made = []

    def make(*specs, **rest):
        made.append(Supervisor(specs, **rest))
        made[-1].start()
        return made[-1]

    yield make
    for supervisor in made:
        supervisor.close(patience=2.0)


def test_workers_speak_count_and_end(supervise):
    crew = supervise(spec("finish", 8), spec("finish", 9, replica=1))
    events = until(crew, Ended, 2)
    assert sorted(event.worker.name for event in events if isinstance(event, Said)) == [
        "actors[0]",
        "actors[1]",
    ]
    assert crew.running == []
    assert crew.events(30.0) == []  # nothing can happen any more: there is nothing to wait for
    crew.close()
    assert [crew.board.row(index).steps for index in (0, 1)] == [8, 9]
    assert crew.board.row(0).iterations == 1
    assert crew.board.row(0).busy > 0
    assert crew.board.row(0).alive == 0


def test_messages_come_before_the_end_and_in_order(supervise):
    events = until(supervise(spec("finish", 1)), Ended)
    assert [type(event) for event in events] == [Said, Ended]


def test_stop_is_an_orderly_end(supervise):
    crew = supervise(spec("loop"))
    until(crew, Said)
    assert crew.board.row(0).alive == 1
    crew.stop()
    events = until(crew, Ended)
    assert last(events, Said).message == "stopped"


def test_close_ends_everybody_soon(supervise):
    crew = supervise(spec("loop"), spec("loop", replica=1))
    until(crew, Said, 2)
    before = time.monotonic()
    crew.close()
    assert time.monotonic() - before < 1.5
    assert crew.running == []
    crew.close()  # again: nothing happens


def test_close_right_after_start(supervise):
    supervise(spec("loop"), spec("loop", replica=1)).close()


@pytest.mark.parametrize("payload", ["", "stubborn"])
def test_close_insists(supervise, payload):
    crew = supervise(spec("deaf", payload))
    until(crew, Said)
    before = time.monotonic()
    crew.close(patience=0.2)
    took = time.monotonic() - before
    assert took < 1.0 if payload == "" else 1.0 < took < 3.0


def test_close_while_a_worker_is_stuck_in_sending(supervise):
    crew = supervise(spec("talk", 1_000_000))
    assert len(last(until(crew, Said), Said).message) == 1_000_000
    time.sleep(0.3)  # nobody reads: the pipe is full
    before = time.monotonic()
    crew.close()
    assert time.monotonic() - before < 1.5


def test_killed_in_mid_run_without_a_budget(supervise):
    crew = supervise(spec("loop"))
    until(crew, Said)
    os.kill(crew.pid("actors[0]"), signal.SIGKILL)
    failed = last(until(crew, Failed, seconds=3.0), Failed)
    assert (failed.cause, failed.traceback, failed.worker.name) == ("exited with SIGKILL", "", "actors[0]")
    assert crew.running == []


def test_killed_at_start_up_is_restarted_by_budget(supervise):
    dead = []
    crew = supervise(spec("loop", "here", restarts=2), on_death=lambda worker: dead.append(worker.name))
    os.kill(crew.pid("actors[0]"), signal.SIGKILL)
    restarted = last(until(crew, Restarted), Restarted)
    assert (restarted.cause, restarted.attempt) == ("exited with SIGKILL", 1)
    assert last(until(crew, Said), Said).message == ("hello", 1, "here")
    for attempt in (2, 3):
        os.kill(crew.pid("actors[0]"), signal.SIGKILL)
        events = until(crew, Restarted if attempt == 2 else Failed)
    assert last(events, Failed).cause == "died 3 times; exited with SIGKILL"
    assert dead == ["actors[0]"] * 3


def test_others_go_on_while_one_is_restarted(supervise):
    crew = supervise(spec("loop", restarts=1), spec("loop", replica=1))
    until(crew, Said, 2)
    other = crew.pid("actors[1]")
    os.kill(crew.pid("actors[0]"), signal.SIGKILL)
    until(crew, Said)
    assert crew.pid("actors[1]") == other
    assert len(crew.running) == 2


@pytest.mark.parametrize(
    ("payload", "cause"),
    [
        ("usage", "the horizon is wrong\n  fix: make it 8"),
        ("run", "the world failed\n  at train.py:3"),
        ("other", "ValueError: no such thing"),
    ],
)
def test_an_exception_is_told_with_its_traceback(supervise, payload, cause):
    failed = last(until(supervise(spec("fail", payload)), Failed), Failed)
    assert failed.cause == cause
    assert "in fail" in failed.traceback
    assert failed.usage == (payload == "usage")


def test_an_exception_uses_the_budget_but_a_usage_error_does_not(supervise):
    assert (
        last(until(supervise(spec("fail_once", restarts=1)), Ended), Restarted).cause
        == "ValueError: at first"
    )
    events = until(supervise(spec("fail", "usage", restarts=3)), Failed)
    assert [type(event) for event in events] == [Failed]


def test_the_orderly_way_to_leave(supervise):
    assert [type(event) for event in until(supervise(spec("leave", "closed")), Ended)] == [Ended]


# An environment that calls sys.exit() when its window is closed must not end its process unnoticed.
LEAVING = [(0, "SystemExit: 0"), (3, "SystemExit: 3"), ("os._exit", "exited with code 0")]


@pytest.mark.parametrize(("payload", "cause"), LEAVING)
def test_disorderly_ways_to_leave(supervise, payload, cause):
    assert last(until(supervise(spec("leave", payload)), Failed), Failed).cause == cause


def test_an_entry_that_does_not_exist(supervise):
    failed = last(until(supervise(spec("nothing")), Failed), Failed)
    assert "AttributeError" in failed.cause
    assert "nothing" in failed.cause


@linux
def test_a_stopped_worker_is_killed_and_restarted(supervise):
    crew = supervise(spec("loop", restarts=1))
    until(crew, Said)
    os.kill(crew.pid("actors[0]"), signal.SIGSTOP)
    before = time.monotonic()
    events = until(crew, Restarted)
    assert last(events, Restarted).cause == "is stopped (SIGSTOP)"
    assert 2.9 < time.monotonic() - before < 7.0
    until(crew, Said)


@linux
def test_stopped_in_the_middle_of_a_message(supervise):
    crew = supervise(spec("half_a_message"))
    events = until(crew, Failed)
    assert [type(event) for event in events] == [Said, Failed]
    assert events[1].cause == "is stopped (SIGSTOP)"


@linux
def test_a_death_is_seen_even_if_a_grandchild_holds_the_files(supervise):
    crew = supervise(spec("with_child"))
    grandchild = last(until(crew, Said), Said).message
    try:
        os.kill(crew.pid("actors[0]"), signal.SIGKILL)
        assert last(until(crew, Failed, seconds=4.0), Failed).cause == "exited with SIGKILL"
    finally:
        os.kill(grandchild, signal.SIGKILL)


def test_what_cannot_be_sent_is_a_usage_error(supervise):
    with pytest.raises(UsageError, match=r"actors\[1\].*cannot be sent(?s:.*)lambda") as caught:
        supervise(spec("loop"), spec("loop", lambda: None, replica=1))
    assert "fix:" in str(caught.value)
    assert not descendants()
    assert not shared_memory()


def test_an_interrupt_in_the_middle_of_starting_leaves_nobody(supervise, monkeypatch):
    start = child._SPAWN.Process.start

    def interrupted(process):
        start(process)
        if process.name == "actors[1]":
            raise KeyboardInterrupt

    monkeypatch.setattr(child._SPAWN.Process, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        supervise(spec("deaf", "stubborn"), spec("deaf", "stubborn", replica=1))
    assert not descendants()
    assert not shared_memory()


def test_a_process_that_cannot_be_started_uses_the_budget(supervise, monkeypatch):
    def refused(process):
        raise BlockingIOError("no more processes")

    monkeypatch.setattr(child._SPAWN.Process, "start", refused)
    events = supervise(spec("loop", restarts=1)).events(1.0)
    assert [type(event) for event in events] == [Restarted, Failed]
    assert events[1].cause == "died 2 times; could not be started: no more processes"


def test_two_workers_of_one_name():
    with pytest.raises(UsageError, match=r"actors\[0\]"):
        Supervisor([spec("loop"), spec("loop")])


def test_a_message_that_cannot_be_read_is_a_run_error():
    from multiprocessing import Pipe

    from sherd.runtime.mail import Inbox

    reader, writer = Pipe(duplex=False)
    os.write(writer.fileno(), b"\x02" + (4).to_bytes(8, "big") + b"junk")
    with pytest.raises(RunError, match="cannot be read"):
        Inbox(reader).read()
    writer.close()


@pytest.mark.skipif(not hasattr(os, "SCHED_IDLE"), reason="this system knows no processes that yield to all")
def test_who_shall_yield_does(supervise):
    assert last(until(supervise(spec("describe_process", yields=True)), Said), Said).message["yields"]


def test_what_the_process_is_made_of(supervise):
    chosen = (min(os.sched_getaffinity(0)),) if hasattr(os, "sched_getaffinity") else ()
    crew = supervise(
        spec("describe_process", b"x" * 3_000_000, cores=chosen, threads=3, environ=(("A", "b"),))
    )
    found = last(until(crew, Said), Said).message
    assert found["modules"] == []
    assert found["environ"]["OMP_NUM_THREADS"] == "3"
    assert found["environ"]["A"] == "b"
    assert "--xla_cpu_multi_thread_eigen=true" in found["environ"]["XLA_FLAGS"]
    assert os.environ.get("XLA_FLAGS", "") in found["environ"]["XLA_FLAGS"]
    assert not chosen or found["cores"] == set(chosen)
    assert not found["yields"]
    assert found["blocked"]
    assert len(found["payload"]) == 3_000_000
    assert os.environ.get("OMP_NUM_THREADS") != "3"
    assert signal.SIGINT not in signal.pthread_sigmask(signal.SIG_BLOCK, [])


def test_a_large_payload_does_not_delay_the_start(supervise):
    """What does not fit into a pipe would be read only when the worker has come up, one after the other."""
    before = time.monotonic()
    crew = supervise(*(spec("finish", 1, replica=index) for index in range(3)))
    small = time.monotonic() - before
    crew.close()
    before = time.monotonic()
    crew = supervise(*(spec("loop", b"x" * 1_000_000, replica=index) for index in range(3)))
    assert time.monotonic() - before < small + 0.15
    crew.kill()


def test_a_simulator_is_up_within_a_second(supervise):
    before = time.monotonic()
    up, _, jax = last(until(supervise(spec("simulate")), Said), Said).message
    assert up - before < 2.0  # usually 0.2 s; the machine may be busy
    assert not jax


def test_started_in_a_thread_that_ends(supervise):
    """The kernel's parent-death signal looks at the thread that started the process."""
    crew = []

    def start():
        crew.append(supervise(spec("loop")))
        until(crew[0], Said)

    thread = threading.Thread(target=start)
    thread.start()
    thread.join()
    assert crew[0].events(0.5) == []


def test_a_forgotten_supervisor_cleans_up():
    crew = Supervisor([spec("loop")])
    crew.start()
    assert descendants()
    del crew
    gc.collect()
    assert not descendants()
    assert not shared_memory()


def test_kill_is_immediate_and_final(supervise):
    crew = supervise(spec("deaf", "stubborn"))
    until(crew, Said)
    before = time.monotonic()
    crew.kill()
    assert time.monotonic() - before < 0.5
    assert crew.events(5.0) == []


SCRIPT = """
    import os, signal, sys, time
    sys.path.insert(0, {support!r})
    from sherd.runtime.supervise import Said, Supervisor
    from sherd.runtime.worker import WorkerSpec

    class Mine:
        value = 7

    def main(payload=None, entry="loop"):
        specs = [WorkerSpec("actors", i, "actor", "entries:" + entry, payload, restarts=1) for i in range(2)]
        crew = Supervisor(specs)
        crew.start()
        heard = []
        while len(heard) < 2:
            heard += [event.message for event in crew.events(10.0) if isinstance(event, Said)]
        return crew, heard
"""


class Script:
    """A program of its own that supervises two workers; stands in for the user's."""

    def __init__(self, tmp_path, body, **rest):
        path = tmp_path / "script.py"
        path.write_text(textwrap.dedent(SCRIPT).format(support=SUPPORT) + textwrap.dedent(body))
        self.process = subprocess.Popen(
            [sys.executable, str(path)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, **rest
        )

    def line(self):
        return self.process.stdout.readline().strip()

    def end(self, number=None):
        """Send a signal and wait: exit code, the rest of stdout, stderr."""
        if number is not None:
            self.process.send_signal(number)
        out, err = self.process.communicate(timeout=20)
        return self.process.returncode, out, err


@pytest.fixture
def program(tmp_path):
    """Makes such programs, and ends those that a failed test left."""
    made = []

    def make(body, **rest):
        made.append(Script(tmp_path, body, **rest))
        return made[-1]

    yield make
    for script in made:
        script.process.kill()
        script.process.communicate()


RUNNING = """
    if __name__ == "__main__":
        crew, _ = main()
        print(*[crew.pid(f"actors[{i}]") for i in range(2)], flush=True)
        THEN
"""


def gone(pids):
    """Whether these processes end soon; what an orphan leaves for init to collect is not ours."""
    return settles(
        lambda: not [pid for pid, (_, name) in processes().items() if pid in pids and "[Z]" not in name]
    )


@linux
@pytest.mark.parametrize(("number", "stopped"), [(signal.SIGKILL, False), (signal.SIGTERM, True)])
def test_nobody_outlives_a_killed_parent(program, number, stopped):
    script = program(RUNNING.replace("THEN", "time.sleep(60)"))
    pids = [int(pid) for pid in script.line().split()]
    assert set(pids) <= descendants(script.process.pid).keys()
    assert shared_memory(script.process.pid)
    if stopped:
        os.kill(pids[0], signal.SIGSTOP)
    script.end(number)
    assert gone(pids)
    assert settles(lambda: not shared_memory(script.process.pid), 3.0)


@linux
def test_an_exit_without_close_leaves_nothing(program):
    script = program(RUNNING.replace("THEN", "sys.exit(5)"))
    pids = [int(pid) for pid in script.line().split()]
    assert script.end() == (5, "", "")
    assert gone(pids)
    assert not shared_memory(script.process.pid)


@linux
def test_ctrl_c_reaches_only_the_parent(program):
    then = """try:
            print(crew.events(20.0), flush=True)
        except KeyboardInterrupt:
            print("interrupted", crew.events(0.3), len(crew.running), flush=True)
            crew.stop()
            while crew.running:
                print(*[event.message for event in crew.events(5.0) if isinstance(event, Said)], flush=True)
            crew.close()"""
    script = program(RUNNING.replace("THEN", then), start_new_session=True)
    pids = [int(pid) for pid in script.line().split()]
    time.sleep(0.2)
    os.killpg(script.process.pid, signal.SIGINT)
    code, out, err = script.end()
    assert (code, err) == (0, "")
    assert out.startswith("interrupted [] 2\n")
    assert out.split().count("stopped") == 2
    assert gone(pids)


@linux
def test_time_in_which_the_parent_was_stopped_too_does_not_count(program):
    """Ctrl-Z and `fg`: the parent wakes up and finds its workers stopped for longer than it allows."""
    then = """found, end = [], time.monotonic() + 6.5
        while time.monotonic() < end:
            found += crew.events(0.2)
        print(found, len(crew.running), flush=True)
        crew.close()"""
    script = program(RUNNING.replace("THEN", then))
    pids = [int(pid) for pid in script.line().split()]
    everybody = [*pids, script.process.pid]
    for pid in everybody:
        os.kill(pid, signal.SIGSTOP)
        if pid == pids[-1]:
            time.sleep(1.2)  # the parent sees them stopped
    time.sleep(3.2)
    for pid in reversed(everybody):
        os.kill(pid, signal.SIGCONT)
        if pid == script.process.pid:
            time.sleep(0.3)  # the parent runs first, and looks at them
    assert script.end() == (0, "[] 2\n", "")


def test_the_users_script_is_imported_only_if_it_is_needed(program):
    body = """
    sys.stdout.write(f"imported as {__name__}\\n")  # one write: two workers share the pipe
    sys.stdout.flush()
    if __name__ == "__main__":
        crew, heard = main([1, 2], "describe_process")
        print([found["script"] for found in heard], flush=True)
        crew.close()
        crew, heard = main(Mine(), "describe_process")
        print([(found["script"], type(found["payload"]).__name__) for found in heard], flush=True)
        crew.close()
    """
    code, out, err = program(body).end()
    assert code == 0
    assert out.splitlines() == [
        "imported as __main__",
        "[False, False]",
        "[(True, 'Mine'), (True, 'Mine')]",
    ]
    # What workers print goes to standard error: standard output is for the results of the run.
    assert err.splitlines() == ["imported as __mp_main__"] * 2


def test_a_script_without_its_guard_is_told_so(program):
    body = """
    crew = Supervisor([WorkerSpec("actors", 0, "actor", "entries:loop", Mine())])
    crew.start()
    print(*crew.events(10.0), flush=True)
    crew.close()
    """
    code, out, err = program(body).end()
    assert (code, err) == (0, "")
    assert "usage=True" in out
    assert "__name__" in out


def test_what_an_interactive_session_defines():
    code = textwrap.dedent(SCRIPT).format(support=SUPPORT) + "main(Mine())"
    done = subprocess.run([sys.executable, "-"], input=code, capture_output=True, text=True, timeout=20)
    assert done.returncode == 1
    assert "interactive session" in done.stderr
    assert done.stderr.splitlines()[-1].strip().startswith("fix:")
