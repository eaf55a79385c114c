"""The parameter store: versions of one set of arrays, written by one process and read by many.

A version never changes. It is written into the oldest of a few slots, which is marked as unfinished before
and as finished after; only then is it announced. Writing never waits for readers: a reader copies the newest
version out and looks at the slot's mark again, and if the writer came round meanwhile it copies the next one.
A writer that is killed in the middle leaves a slot marked as unfinished, which nobody reads.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from sherd.errors import UsageError
from sherd.runtime.shared import (
    WORD,
    Arena,
    ArenaPlan,
    Arrays,
    Bell,
    Field,
    Watch,
    fence,
    fill_with_magic,
    wait_until,
)
from sherd.runtime.streams import Stream, StreamSpec, make_streams

NOTHING = -1


@dataclass(frozen=True)
class StoreSpec:
    """What a store holds, and how many processes read it."""

    name: str
    fields: tuple[Field, ...]
    readers: int
    slots: int = 4

    def __post_init__(self) -> None:
        if self.slots < 2:
            raise UsageError(f"store {self.name!r} needs two slots: one to read while the other is written")


class StoreLayout:
    """Where everything of a store lies, in bytes from its own beginning."""

    def __init__(self, spec: StoreSpec) -> None:
        plan = ArenaPlan()
        self.count = plan.reserve(WORD)
        self.marks = [plan.reserve(WORD) for _ in range(spec.slots)]
        self.versions = [plan.reserve(WORD) for _ in range(spec.slots)]
        self.fields = [[plan.reserve(field.nbytes) for field in spec.fields] for _ in range(spec.slots)]
        self.size = plan.size


class Store:
    """A handle to be passed to processes; each makes its own `writer` or `reader` of it.

    Publication number n (from 0) lies in slot n % slots, and that slot's mark is then n. Numbers, unlike
    versions, are never used twice, so equal marks mean that nothing was written in between.

    >>> arena, _, stores = build_all([], [StoreSpec("params", (Field((2,), "float32"),), readers=1)])
    >>> store = stores["params"]
    >>> store.writer().publish([np.ones(2, "float32")], version=5)
    >>> reader = store.reader(0, watch=lambda: None)
    >>> reader.latest(), reader.have, reader.latest()
    ([array([1., 1.], dtype=float32)], 5, None)
    >>> arena.unlink()
    """

    def __init__(self, spec: StoreSpec, arena: Arena, base: int, bells: tuple[Bell, ...]) -> None:
        self.spec, self.arena, self.base, self.bells = spec, arena, base, bells
        layout, self.words = StoreLayout(spec), arena.words
        self.count_at = (base + layout.count) // WORD
        self.marks_at = [(base + offset) // WORD for offset in layout.marks]
        self.versions_at = [(base + offset) // WORD for offset in layout.versions]
        self._offsets = layout.fields
        self._looks: list[Arrays] = []  # for whoever looks from outside, again and again

    def __reduce__(self) -> tuple[Any, ...]:
        return Store, (self.spec, self.arena, self.base, self.bells)

    @staticmethod
    def plan(spec: StoreSpec, plan: ArenaPlan) -> int:
        """Reserve a store's memory; the offset at which it begins."""
        return plan.reserve(StoreLayout(spec).size)

    def views(self, writeable: bool) -> list[Arrays]:
        """For every slot, its arrays."""
        return [
            [
                self.arena.array(self.base + offset, field.shape, field.dtype, writeable)
                for field, offset in zip(self.spec.fields, offsets)
            ]
            for offsets in self._offsets
        ]

    def prepare(self) -> None:
        """Mark all slots as unfinished and never written (in the creator, before anybody reads)."""
        for at in self.marks_at:
            self.words[at] = NOTHING
        for arrays in self.views(writeable=True):
            for array in arrays:
                fill_with_magic(array)

    @property
    def version(self) -> int:
        """The newest announced version, -1: none; a look from outside, for staleness and display."""
        count = self.words[self.count_at]
        return self.words[self.versions_at[(count - 1) % self.spec.slots]] if count else NOTHING

    def writer(self) -> StoreWriter:
        """The only writer's end."""
        return StoreWriter(self)

    def reader(self, index: int, watch: Watch) -> StoreReader:
        """The end of reader `index`."""
        return StoreReader(self, index, watch)

    def copy_out(self, number: int, views: list[Arrays]) -> tuple[int, Arrays] | None:
        """Version and private copies of one publication; None if it is unfinished or was overwritten."""
        words, slot = self.words, number % self.spec.slots
        if words[self.marks_at[slot]] != number:
            return None
        fence()  # the mark was there before I looked at the data
        version = words[self.versions_at[slot]]
        # Fresh memory every time: JAX may go on looking into an array that it was given.
        copies = [array.copy() for array in views[slot]]
        fence()  # I have read all of it before I look at the mark again
        return (version, copies) if words[self.marks_at[slot]] == number else None

    def read_any(self) -> tuple[int, Arrays] | None:
        """The newest complete version, also after the writer was killed; None if there never was one."""
        views = self._looks = self._looks or self.views(writeable=False)
        while (newest := max(self.words[at] for at in self.marks_at)) != NOTHING:
            found = self.copy_out(newest, views)
            if found is not None:
                return found
        return None

    def wake(self) -> None:
        """Ring every reader's bell."""
        for bell in self.bells:
            bell.ring()


class StoreWriter:
    """Publishes versions; never waits."""

    def __init__(self, store: Store) -> None:
        self._store, self._words = store, store.words
        self._views = store.views(writeable=True)
        self._rings = [bell.ring for bell in store.bells]
        self._expected = [(field.shape, np.dtype(field.dtype)) for field in store.spec.fields]
        count = self._words[store.count_at]
        # An earlier process may have been killed after it finished a version and before it announced it.
        finished = self._words[store.marks_at[count % store.spec.slots]] == count
        self._count = self._words[store.count_at] = count + finished

    def publish(self, arrays: Sequence[np.ndarray[Any, Any]], version: int) -> None:
        """Make a new version the newest."""
        store, words, number = self._store, self._words, self._count
        self._check(arrays)
        slot = number % store.spec.slots
        words[store.marks_at[slot]] = NOTHING
        fence()  # unfinished, before the first byte changes
        words[store.versions_at[slot]] = version
        for view, array in zip(self._views[slot], arrays):
            view[...] = array
        fence()  # all of it is there before the mark says so
        words[store.marks_at[slot]] = number
        fence()
        self._count = words[store.count_at] = number + 1
        for ring in self._rings:
            ring()

    def _check(self, arrays: Sequence[np.ndarray[Any, Any]]) -> None:
        given = [(array.shape, array.dtype) for array in arrays]
        if given != self._expected:
            raise UsageError(f"store {self._store.spec.name!r} holds {self._expected}, but was given {given}")


class StoreReader:
    """One reader's end: private copies of the newest version, never torn."""

    def __init__(self, store: Store, index: int, watch: Watch) -> None:
        if not 0 <= index < store.spec.readers:
            raise UsageError(f"store {store.spec.name!r} has no reader {index}")
        self._store, self._watch, self._bell = store, watch, store.bells[index]
        self._words, self._views = store.words, store.views(writeable=False)
        self._count = 0  # publications seen
        self._current: Arrays = []
        self.have = NOTHING
        self.waited = 0.0

    def latest(self) -> Arrays | None:
        """The newest version if I do not have it yet. The copies are mine: they never change."""
        while self._words[self._store.count_at] != self._count:
            while self._bell.pick_up(False):  # before I look: a ring that comes later must stay
                pass
            count = self._words[self._store.count_at]
            fence()
            found = self._store.copy_out(count - 1, self._views)
            if found is not None:
                self.have, self._current = found
                self._count = count
                return self._current
            self._watch()
        return None

    def wait(self, version: int) -> Arrays:
        """Block until there is this version or a newer one; the newest."""
        if not self._reached(version):
            self.waited += wait_until(lambda: self._reached(version), self._bell, self._watch)
        return self._current

    def _reached(self, version: int) -> bool:
        self.latest()
        return self.have >= version


def build_all(
    streams: Sequence[StreamSpec],
    stores: Sequence[StoreSpec] = (),
    groups: Mapping[str, Sequence[str]] | None = None,
) -> tuple[Arena, dict[str, Stream], dict[str, Store]]:
    """One arena for a whole run, with its streams and its stores."""
    plan = ArenaPlan()
    stream_bases = [Stream.plan(spec, plan) for spec in streams]
    store_bases = [Store.plan(spec, plan) for spec in stores]
    arena = Arena.create(plan.size)
    built = {
        spec.name: Store(spec, arena, base, tuple(Bell() for _ in range(spec.readers)))
        for spec, base in zip(stores, store_bases)
    }
    for store in built.values():
        store.prepare()
    return arena, make_streams(streams, stream_bases, arena, groups), built
