"""Run directories: real files, written and read back."""

from __future__ import annotations

import json
import math
import os
import platform
import tempfile
from importlib import metadata
from pathlib import Path
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import ml_dtypes
import numpy as np
import optax
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from sherd.errors import RunError, SherdError, UsageError
from sherd.runtime.rundir import MetricsSink, RunDirectory, environment_versions


class Pair(NamedTuple):
    mean: Any
    count: Any


DTYPES = [np.float32, np.float64, np.int8, np.int32, np.uint32, np.bool_, np.complex64, ml_dtypes.bfloat16]
DTYPES += [ml_dtypes.float8_e4m3fn, ml_dtypes.float8_e5m2, ml_dtypes.int4]


@st.composite
def arrays(draw: st.DrawFn) -> np.ndarray:
    """Any bits of any type, so that NaN payloads and signed zeros count too."""
    dtype = np.dtype(draw(st.sampled_from(DTYPES)))
    shape = draw(hnp.array_shapes(min_dims=0, max_dims=3, min_side=0, max_side=3))
    if dtype in (np.dtype(np.bool_), np.dtype(ml_dtypes.int4)):
        return draw(hnp.arrays(np.int8, shape, elements=st.integers(0, 1))).astype(dtype)
    size = math.prod(shape) * dtype.itemsize
    array = np.frombuffer(draw(st.binary(min_size=size, max_size=size)), dtype).reshape(shape)
    return array.T if draw(st.booleans()) else array


KEYS = st.text(max_size=5) | st.sampled_from(
    ["file", "a/b", "a", "b", "x", "x.npy", "..", "\0", "dtypes.json"]
)
TREES = st.recursive(
    arrays(),
    lambda inner: (
        st.dictionaries(KEYS, inner, max_size=4)
        | st.lists(inner, max_size=3)
        | st.tuples(inner, inner)
        | st.builds(Pair, inner, inner)
    ),
    max_leaves=8,
)


def assert_same(loaded: Any, saved: Any) -> None:
    """Same structure, types, shapes and bits."""
    assert jax.tree_util.tree_structure(loaded) == jax.tree_util.tree_structure(saved)
    for left, right in zip(jax.tree_util.tree_leaves(loaded), jax.tree_util.tree_leaves(saved)):
        assert isinstance(left, np.ndarray)
        right = np.asarray(right)
        assert (left.dtype, left.shape) == (right.dtype, right.shape)
        assert left.tobytes() == right.tobytes()


@pytest.fixture
def run(tmp_path: Path) -> RunDirectory:
    return RunDirectory.create(tmp_path / "run")


@given(TREES)
@settings(deadline=None, max_examples=150, suppress_health_check=[HealthCheck.too_slow])
def test_trees_come_back_bit_for_bit(tree: Any) -> None:
    with tempfile.TemporaryDirectory() as folder:
        run = RunDirectory(Path(folder))
        run.save_tree("params", tree)
        assert_same(run.load_tree("params", tree), tree)
        assert os.listdir(folder) == ["params.npz"]


def test_slashes_in_keys_do_not_confuse_leaves(run: RunDirectory) -> None:
    tree = {"a/b": np.zeros(1), "a": {"b": np.ones(1)}}  # Haiku's parameters have such keys
    run.save_tree("params", tree)
    assert_same(run.load_tree("params", tree), tree)


def test_a_tree_that_is_one_array_has_a_name(run: RunDirectory) -> None:
    run.save_tree("params", np.arange(3.0))
    with np.load(run.path / "params.npz") as saved:
        assert saved.files == ["array"]
    np.testing.assert_array_equal(run.load_tree("params", np.zeros(3)), np.arange(3.0))


def test_a_learner_state_comes_back_from_shapes_alone(run: RunDirectory) -> None:
    params = {"dense": {"kernel": jnp.ones((3, 2), jnp.bfloat16), "bias": jnp.zeros(2)}}
    optimiser = optax.chain(optax.clip_by_global_norm(1.0), optax.adam(1e-3))
    state = {"params": params, "optimiser": optimiser.init(params), "updates": 7}
    run.save_tree("learner", state)
    like = jax.tree_util.tree_map(
        lambda leaf: jax.ShapeDtypeStruct(np.shape(leaf), np.asarray(leaf).dtype), state
    )
    assert_same(run.load_tree("learner", like), state)


def test_numpy_alone_can_read_the_file_without_pickle(run: RunDirectory) -> None:
    run.save_tree("params", {"dense": {"kernel": jnp.arange(6.0).reshape(2, 3)}, "steps": (jnp.int32(4),)})
    with np.load(run.path / "params.npz", allow_pickle=False) as archive:
        assert archive.files == ["dense/kernel", "steps/0"]
        np.testing.assert_array_equal(archive["dense/kernel"], [[0, 1, 2], [3, 4, 5]])
        assert archive["steps/0"] == 4


@pytest.mark.parametrize(
    ("like", "message"),
    [
        (
            {"w": np.zeros((2, 4), np.float32), "b": np.zeros(3)},
            r"leaf 'w' is float32\[2, 3\], but float32\[2, 4\]",
        ),
        ({"w": np.zeros((2, 3)), "b": np.zeros(3)}, r"leaf 'w' is float32\[2, 3\], but float64\[2, 3\]"),
        ({"w": np.zeros((2, 3), np.float32)}, "it has 'b', which is not wanted"),
        ({"w": np.zeros((2, 3), np.float32), "b": np.zeros(3), "c": {"d": 1}}, "it lacks 'c/d'"),
    ],
)
def test_a_mismatch_names_the_leaf(run: RunDirectory, like: Any, message: str) -> None:
    run.save_tree("params", {"w": np.zeros((2, 3), np.float32), "b": np.zeros(3)})
    with pytest.raises(UsageError, match=message):
        run.load_tree("params", like)


@pytest.mark.parametrize("leaf", [object(), jax.random.key(0)], ids=["object", "key"])
def test_a_leaf_without_numbers_is_refused_and_nothing_is_left_behind(run: RunDirectory, leaf: Any) -> None:
    with pytest.raises(UsageError, match=r"leaf 'a/b' is .*not an array of numbers"):
        run.save_tree("params", {"a": {"b": leaf}})
    assert list(run.path.iterdir()) == []


def test_a_pickle_inside_a_file_is_never_loaded(run: RunDirectory) -> None:
    np.savez(run.path / "params.npz", a=np.array([{"evil": 1}], dtype=object))
    with pytest.raises(RunError, match="damaged"):
        run.load_tree("params", {"a": np.zeros(1)})


TREE = {"w": np.arange(12, dtype=np.float32).reshape(3, 4), "h": np.ones(3, ml_dtypes.bfloat16)}


def test_every_flipped_bit_is_reported_or_harmless(run: RunDirectory) -> None:
    run.save_tree("params", TREE)
    file = run.path / "params.npz"
    intact, reported = file.read_bytes(), 0
    for position in range(8 * len(intact)):
        content = bytearray(intact)
        content[position // 8] ^= 1 << position % 8
        file.write_bytes(content)
        try:
            loaded = run.load_tree("params", TREE)
        except SherdError:
            reported += 1
        else:
            assert_same(loaded, TREE)
    assert reported > 4 * len(intact)


@pytest.mark.parametrize("keep", [0, 1, 100, -1])
def test_a_cut_off_file_is_damaged(run: RunDirectory, keep: int) -> None:
    run.save_tree("params", TREE)
    content = (run.path / "params.npz").read_bytes()
    (run.path / "params.npz").write_bytes(content[:keep])
    with pytest.raises(RunError, match=r"params\.npz is damaged"):
        run.load_tree("params", TREE)


def test_a_failed_write_keeps_the_old_file(run: RunDirectory, monkeypatch: pytest.MonkeyPatch) -> None:
    run.save_tree("params", {"w": np.ones(2)})

    def full_disk(*_: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(os, "fsync", full_disk)
    with pytest.raises(OSError, match="disk full"):
        run.save_tree("params", {"w": np.zeros(2)})
    monkeypatch.undo()
    np.testing.assert_array_equal(run.load_tree("params", {"w": np.zeros(2)})["w"], [1, 1])
    assert [file.name for file in run.path.iterdir()] == ["params.npz"]


def test_a_missing_tree_hints_at_what_there_is(run: RunDirectory) -> None:
    with pytest.raises(UsageError, match=r"saved nothing: train again"):
        run.load_tree("params", {})
    run.save_tree("params", {})
    with pytest.raises(UsageError, match="did you mean 'params'"):
        run.load_tree("parms", {})


def test_create_refuses_a_run_and_says_what_to_do(tmp_path: Path) -> None:
    first = RunDirectory.create(tmp_path / "a" / "b")
    RunDirectory.create(first.path)
    first.write_config({"seed": 1})
    with pytest.raises(UsageError, match=r"already holds a run[\s\S]*another --run-dir, or delete"):
        RunDirectory.create(first.path)


def test_create_where_a_file_is_in_the_way(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    for path in (tmp_path / "file", tmp_path / "file" / "run"):
        with pytest.raises(UsageError, match="cannot create the run directory"):
            RunDirectory.create(path)


def test_open_needs_a_run(run: RunDirectory) -> None:
    for path in (run.path, run.path / "missing"):
        with pytest.raises(UsageError, match="is not a run"):
            RunDirectory.open(path)
    run.write_config({"seed": 1, "rate": math.nan})
    assert RunDirectory.open(str(run.path)).read_config() == {"seed": 1, "rate": None}


def test_json_files(run: RunDirectory) -> None:
    run.write_json("summary", {"returns": np.arange(3)})
    assert run.read_json("summary") == {"returns": [0, 1, 2]}
    (run.path / "summary.json").write_text('{"returns": [0,')
    with pytest.raises(RunError, match=r"summary\.json is damaged"):
        run.read_json("summary")
    with pytest.raises(UsageError, match=r"has no config\.json"):
        run.read_config()


def test_metrics_lines_are_on_disk_before_close_and_strict(run: RunDirectory) -> None:
    rows = [
        {"steps": 8, "episode_return": math.nan, "loss": 0.25},
        {"steps": np.int64(16), "episode_return": jnp.float32(3.5), "loss": math.inf},
    ]
    sink = MetricsSink(run.path)
    for row in rows:
        sink.iteration(row)
    text = (run.path / "metrics.jsonl").read_text()
    sink.close()
    sink.close()
    assert "NaN" not in text
    assert "Infinity" not in text
    assert text == (run.path / "metrics.jsonl").read_text()
    assert [json.loads(line) for line in text.splitlines()] == [
        {"steps": 8, "episode_return": None, "loss": 0.25},
        {"steps": 16, "episode_return": 3.5, "loss": None},
    ]


def test_metrics_of_a_resumed_run_are_appended(run: RunDirectory) -> None:
    for steps in (1, 2):
        sink = MetricsSink(run.path)
        sink.iteration({"steps": steps})
        sink.close()
    assert (run.path / "metrics.jsonl").read_text() == '{"steps": 1}\n{"steps": 2}\n'


def test_environment_versions_are_what_is_installed() -> None:
    versions = environment_versions()
    assert versions["python"] == platform.python_version()
    for package in ("sherd", "jax", "jaxlib", "flax", "optax", "gymnasium", "numpy"):
        assert versions[package] == metadata.version(package)
    assert versions["device_kind"] == jax.devices()[0].device_kind
    assert versions["cpu_count"] == os.cpu_count()
    json.dumps(versions)
