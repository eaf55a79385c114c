"""Event files, read back record by record."""

from __future__ import annotations

import math
import struct
from pathlib import Path

import pytest
from tensorboardX.crc32c import crc32c
from tensorboardX.proto.event_pb2 import Event

from sherd.runtime.status import FragmentStatus
from sherd.runtime.tensorboard import TensorBoardSink


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


def masked(data: bytes) -> int:
    """The checksum of the TFRecord format."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def read_events(file: Path) -> list[Event]:
    """Every event of a file: length, its checksum, the message, its checksum."""
    content, events = file.read_bytes(), []
    while content:
        length, length_crc = struct.unpack("<QI", content[:12])
        message, (crc,) = content[12 : 12 + length], struct.unpack("<I", content[12 + length : 16 + length])
        assert (length_crc, crc) == (masked(content[:8]), masked(message))
        events.append(Event.FromString(message))
        content = content[16 + length :]
    return events


def read_scalars(directory: Path) -> list[tuple[int, dict[str, float]]]:
    """(step, values) of every event but the header, of all files in order."""
    scalars = []
    for file in sorted(directory.glob("events.out.tfevents.*")):
        header, *events = read_events(file)
        assert header.file_version == "brain.Event:2"
        scalars += [(event.step, {v.tag: v.simple_value for v in event.summary.value}) for event in events]
    return scalars


def test_rows_become_grouped_scalars_over_steps(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path / "new" / "folder")
    row = {
        "iteration": 1,
        "steps": 2048,
        "seconds": 0.5,
        "episode_return": 12.5,
        "episodes": 3,
        "policy_loss": -0.25,
    }
    sink.iteration(row)
    expected = {
        "time/iteration": 1,
        "time/seconds": 0.5,
        "episode/return": 12.5,
        "episode/count": 3,
        "loss/policy_loss": -0.25,
    }
    assert read_scalars(tmp_path / "new" / "folder") == [(2048, expected)]  # flushed before close
    sink.close()
    sink.close()
    assert read_scalars(tmp_path / "new" / "folder") == [(2048, expected)]


@pytest.mark.parametrize("end", ["finish", "close"])
def test_at_most_five_rows_per_second_and_always_the_last(tmp_path: Path, end: str) -> None:
    clock = Clock()
    sink = TensorBoardSink(tmp_path, clock=clock)
    for step in range(1, 1001):
        clock.now = step / 1000
        sink.iteration({"steps": step, "loss": step})
    written = read_scalars(tmp_path)
    assert [step for step, _ in written] == [1, 201, 401, 601, 801]
    sink.finish({}) if end == "finish" else sink.close()
    sink.close()
    assert read_scalars(tmp_path) == [*written, (1000, {"loss/loss": 1000})]


def test_a_rare_return_survives_the_rows_held_back(tmp_path: Path) -> None:
    clock = Clock()
    sink = TensorBoardSink(tmp_path, clock=clock)
    for step in range(1, 401):
        clock.now = step / 1000
        sink.iteration({"steps": step, "loss": math.nan, "episode_return": 7.0 if step == 150 else math.nan})
    sink.close()
    assert read_scalars(tmp_path) == [(201, {"episode/return": 7.0})]


def test_fragments_become_scalars_of_the_next_row(tmp_path: Path) -> None:
    sink = TensorBoardSink(tmp_path)
    sink.fragments([FragmentStatus("actors", "actor", 2, 64.0, "steps/s", 0.75, 0.25, 0.0, None, 1)])
    sink.iteration({"steps": 8, "restarts": 1})
    of_actors = {"per_second": 64, "busy": 0.75, "waiting": 0.25, "sending": 0, "restarts": 1}
    expected = {f"fragment/actors/{name}": value for name, value in of_actors.items()}
    assert read_scalars(tmp_path) == [(8, {**expected, "processes/restarts": 1})]
    sink.close()


def test_two_writers_at_once_keep_their_own_files(tmp_path: Path) -> None:
    for step in (1, 2):
        sink = TensorBoardSink(tmp_path)
        sink.iteration({"steps": step, "loss": 1.0})
        sink.close()
    assert [step for step, _ in read_scalars(tmp_path)] == [1, 2]
