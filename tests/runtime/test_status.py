"""The bottleneck sentence: who it names, what it advises, and when it names nobody."""

from __future__ import annotations

import math
import subprocess
import sys
from dataclasses import fields, replace
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sherd.runtime.status import FragmentStatus, average, bottleneck

KINDS = ("environment", "actor", "policy", "learner", "server", "main")


def status(name: str, kind: str, busy: float, waiting: float = 0.0, **rest: Any) -> FragmentStatus:
    whole: dict[str, Any] = {"replicas": 1, "per_second": 1.0, "unit": "steps/s", "sending": 0.0, **rest}
    return FragmentStatus(name=name, kind=kind, busy=busy, waiting=waiting, **whole)


def actors(busy: float, waiting: float = 0.0, **rest: Any) -> FragmentStatus:
    return status("actors", "actor", busy, waiting, **{"replicas": 2, **rest})


def learner(busy: float, waiting: float = 0.0, **rest: Any) -> FragmentStatus:
    return status("learner", "learner", busy, waiting, **rest)


SENTENCES = [
    (
        [actors(0.97), learner(0.29, 0.71)],
        "bottleneck: actors (2 replicas busy 97 % of the time, learner waits 71 %): "
        "more actors would help, if there are cores for them",
    ),
    (
        [actors(0.1, 0.9, replicas=1), learner(0.97)],
        "bottleneck: learner (busy 97 % of the time, actors wait 90 %): "
        "a faster device or a policy with several learners would help, more of the others would not",
    ),
    (
        [actors(0.3, sending=0.7), learner(0.95, queue=1.0)],
        "bottleneck: learner (busy 95 % of the time, queues into it full, actors are held up sending 70 %): "
        "a faster device or a policy with several learners would help, more of the others would not",
    ),
    (
        [actors(0.3, sending=0.7), learner(0.95, replicas=2)],
        "bottleneck: learner (2 replicas busy 95 % of the time, actors are held up sending 70 %): "
        "faster devices or more learners would help, more of the others would not",
    ),
    (
        [actors(0.4, 0.6), status("main", "main", 0.8), learner(0.1, 0.5)],
        "bottleneck: main (busy 80 % of the time, actors wait 60 %): "
        "a distribution policy that leaves less to the main process would help",
    ),
    (
        [actors(0.9), status("main", "main", 0.05, 0.95), learner(0.5, 0.4)],
        "bottleneck: actors (2 replicas busy 90 % of the time, learner waits 40 %): "
        "more actors would help, if there are cores for them",
    ),
    (
        [actors(0.9, queue=0.2), learner(0.85, queue=0.95)],
        "bottleneck: learner (busy 85 % of the time, queues into it full): "
        "a faster device or a policy with several learners would help, more of the others would not",
    ),
    (
        [actors(0.95), learner(0.9)],
        "no clear bottleneck: actors (2 replicas busy 95 %) and learner (busy 90 %) "
        "are equally loaded, so that only faster hardware would help",
    ),
    (
        [actors(0.52, 0.48), learner(0.48, 0.52)],
        "no clear bottleneck: actors (2 replicas busy 52 %) and learner (busy 48 %) "
        "take turns, and would be faster if they could overlap",
    ),
    (
        [actors(0.2, 0.8), learner(0.3, 0.7)],
        "no clear bottleneck: no fragment is busy more than 30 % of the time (actors wait 80 %), "
        "they wait for one another: more work in each message would help, e.g. more environments",
    ),
    (
        [actors(0.2, 0.2, sending=0.6), learner(0.3, 0.7)],
        "bottleneck: sending (actors spend 60 % of the time on it, no fragment is busy more than 30 %): "
        "fewer and larger messages would help",
    ),
    (
        [status("all", "learner", 0.99)],
        "everything ran in one process (busy 99 % of the time): it waits for no other; "
        "a distribution policy of several processes may use more cores",
    ),
    (
        [status("trainers", "learner", 0.8, 0.2, replicas=4)],
        "no clear bottleneck: 4 replicas of trainers share all the work "
        "(busy 80 %, waiting for one another 20 % of the time)",
    ),
    ([], "no clear bottleneck: the run was too short to be measured"),
]


@pytest.mark.parametrize(("statuses", "sentence"), SENTENCES, ids=lambda value: str(value)[:40])
def test_sentences(statuses: list[FragmentStatus], sentence: str) -> None:
    assert bottleneck(statuses) == sentence


def test_advice_knows_the_cores() -> None:
    crowd = [actors(0.97), learner(0.29, 0.71)]  # 2.23 cores are busy
    assert bottleneck(crowd, cores=2).endswith(
        "all 2 cores are in use, so more actors would help only on a larger machine"
    )
    assert bottleneck(crowd, cores=8).endswith("more actors would help, about 5.8 of 8 cores are free")


def test_cores_that_other_programs_use_are_not_free() -> None:
    crowd = [actors(0.97), learner(0.29, 0.71)]
    assert bottleneck(crowd, 8, idle=3.1).endswith("more actors would help, about 3.1 of 8 cores are free")
    assert bottleneck(crowd, 8, idle=0.2).endswith(
        "all 8 cores are in use, about 5.6 of them by other programs, so more actors would help only without "
        "those"
    )
    assert bottleneck(crowd, 8, idle=7.9) == bottleneck(crowd, 8)  # a container sees the whole machine's


share = st.floats(0, 1)
queue = st.none() | share
status_of = st.builds(
    FragmentStatus,
    name=st.sampled_from(["actors", "learner", "server", "simulators"]),
    kind=st.sampled_from([*KINDS, "something new"]),
    replicas=st.integers(1, 64),
    per_second=st.floats(0, 1e9),
    unit=st.just("steps/s"),
    busy=share | st.just(math.nan),
    waiting=share,
    sending=share,
    queue=queue,
    restarts=st.integers(0, 5),
    staleness=st.none() | st.floats(0, 100),
)
pictures_of = st.lists(st.lists(status_of, unique_by=lambda found: found.name, max_size=4), max_size=5)


@given(st.lists(status_of, max_size=5), st.none() | st.integers(1, 64))
@settings(deadline=None)
def test_whatever_happens_it_is_one_sentence(statuses: list[FragmentStatus], cores: int | None) -> None:
    sentence = bottleneck(statuses, cores)
    assert sentence.startswith(("bottleneck: ", "no clear bottleneck: ", "everything ran in one process"))
    assert "\n" not in sentence
    assert "nan" not in sentence


@given(st.lists(status_of, min_size=2, max_size=5, unique_by=lambda found: found.name))
@settings(deadline=None)
def test_who_is_named_is_about_the_busiest_in_any_order(statuses: list[FragmentStatus]) -> None:
    sentence = bottleneck(statuses)
    busy = {found.name: 0.0 if math.isnan(found.busy) else found.busy for found in statuses}
    named = sentence.removeprefix("bottleneck: ").split(" (")[0]
    if sentence.startswith("bottleneck: ") and named != "sending":
        assert busy[named] > max(busy.values()) - 0.15
        assert bottleneck(statuses[::-1]).startswith(f"bottleneck: {named} (")


@given(pictures_of)
@settings(deadline=None)
def test_an_average_lies_within_what_was_seen(pictures: list[list[FragmentStatus]]) -> None:
    averaged = average(pictures)
    names = dict.fromkeys(found.name for picture in pictures for found in picture)
    assert [mean.name for mean in averaged] == list(names)
    for mean in averaged:
        same = [found for picture in pictures for found in picture if found.name == mean.name]
        assert mean.restarts == same[-1].restarts
        for field in ("per_second", "busy", "waiting", "sending", "queue", "staleness"):
            known = [v for v in (getattr(found, field) for found in same) if v is not None and v == v]
            value = getattr(mean, field)
            if known:
                assert min(known) * (1 - 1e-9) <= value <= max(known) * (1 + 1e-9)
            else:
                assert value in (None, 0.0)


def test_who_sleeps_in_a_step_is_busy_and_uses_no_core() -> None:
    """A simulator that waits for a game server leaves its core to others."""
    crowd = [replace(actors(0.99, replicas=8), cores=0.4), replace(learner(0.1), cores=0.1)]
    assert bottleneck(crowd, cores=2).endswith("more actors would help, about 1.5 of 2 cores are free")


def test_an_average_is_the_mean_of_the_pictures_the_fragment_is_in() -> None:
    first, second = learner(0.2, 0.8, queue=0.5), learner(0.6, 0.4, queue=None, restarts=1)
    averaged = average([[first], [actors(1.0)], [second, actors(0.5)]])
    assert [round(mean.busy, 9) for mean in averaged] == [0.4, 0.75]
    assert (averaged[0].queue, averaged[0].restarts, averaged[0].staleness) == (0.5, 1, None)
    assert average([]) == []


def test_a_status_has_the_fields_that_sinks_read() -> None:
    assert [field.name for field in fields(FragmentStatus)] == [
        *("name", "kind", "replicas", "per_second", "unit", "busy", "waiting", "sending"),
        *("queue", "restarts", "staleness", "cores"),
    ]
    assert replace(learner(0.5), busy=0.6).busy == 0.6


def test_workers_can_import_it_without_jax_or_rich() -> None:
    code = "import sys, sherd.runtime.status, sherd.runtime.ledger, sherd.runtime.events\n"
    code += "print(sorted({'jax', 'rich', 'flax'} & set(sys.modules)))"
    found = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert found.stdout.strip() == "[]"
