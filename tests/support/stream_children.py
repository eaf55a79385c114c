"""What the stream and store tests share, and what their child processes do."""

from __future__ import annotations

import os
import time
from multiprocessing import get_context

import numpy as np

from sherd.runtime.shared import Closed, Field
from sherd.runtime.streams import StreamSpec

SPAWN = get_context("spawn")


def start(target, *args):
    """A started process of the spawn context."""
    process = SPAWN.Process(target=target, args=args, daemon=True)
    process.start()
    return process


def patience(seconds=20.0):
    """A watch that ends a wait with an error, so that a broken stream cannot hang the tests."""
    ends = time.monotonic() + seconds

    def watch():
        if time.monotonic() > ends:
            raise TimeoutError("waited in vain")

    return watch


def orphaned():
    """A watch that raises once the parent is gone."""
    parent = os.getppid()

    def watch():
        if os.getppid() != parent:
            raise Closed

    return watch


def value(writer, message):
    return message * 10 + writer


def never():
    raise Closed


def spec_of(writers=1, slots=2, name="rollouts", rows_each=2):
    """Two fields: one with the environments in front, one with time in front."""
    rows = tuple((i * rows_each, (i + 1) * rows_each) for i in range(writers))
    total = writers * rows_each
    fields = (Field((total, 3), "float32", 0), Field((5, total), "int32", 1))
    return StreamSpec(name, fields, rows, slots)


def put(writer, number, tag=0):
    for array in writer.slot():
        array[...] = number
    writer.publish(tag)


def expected(writers, number, rows_each=2):
    return np.repeat([value(writer, number) for writer in range(writers)], rows_each)


def assert_message(arrays, writers, number):
    rows = expected(writers, number)
    np.testing.assert_array_equal(arrays[0], np.repeat(rows[:, None], 3, 1))
    np.testing.assert_array_equal(arrays[1], np.repeat(rows[None], 5, 0))


def write_messages(stream, index, count):
    """Publish until `count` messages were published under this index, by this process or earlier ones."""
    writer = stream.writer(index, patience())
    while writer.published < count:
        number = writer.published
        for array in writer.slot():
            array[...] = value(index, number)
        writer.publish(tag=number)


def write_half(stream, index, said):
    """Publish one message, write half of the next, say so, and never go on."""
    write_messages(stream, index, stream.counts().published + 1)
    array = stream.writer(index, patience()).slot()[0]
    array[: len(array) // 2] = -99.0
    said.set()
    time.sleep(60)


def take_and_keep(stream, said):
    """Take a message, never release it."""
    stream.reader(patience()).take()
    said.set()
    time.sleep(60)


def wait_for_ever(stream, said):
    """Wait for a message that never comes; leave when the parent is gone."""
    reader = stream.reader(orphaned())
    said.set()
    try:
        reader.take()
    except Closed:
        os._exit(0)


def publish_versions(store, first, count):
    """Publish versions whose arrays hold the version's number, as fast as possible."""
    writer = store.writer()
    for version in range(first, first + count):
        writer.publish([np.full(f.shape, version, f.dtype) for f in store.spec.fields], version)


class Unfinished:
    """An array that says when it is about to be copied, and then never is."""

    def __init__(self, array, said):
        self.shape, self.dtype, self._said = array.shape, array.dtype, said

    def __array__(self, dtype=None, copy=None):
        self._said.set()
        time.sleep(60)


def publish_half(store, version, said):
    """Publish one version, then half of the next, say so, and never go on."""
    writer = store.writer()
    arrays = [np.full(f.shape, version, f.dtype) for f in store.spec.fields]
    writer.publish(arrays, version)
    writer.publish([arrays[0] + 1, Unfinished(arrays[1], said)], version + 1)
