"""Kernels in C: where they come from, what they do without, and that batches and threads leave no trace."""

import functools
import os
import subprocess
import sys
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

import sherd
from sherd import run
from sherd.nn.native import convolve as primitives
from sherd.nn.native import library
from sherd.nn.native.convolve import convolve
from sherd.runtime.events import MemorySink

needed = pytest.mark.skipif(not library.available(), reason="no C compiler, or no AVX2")

# A change of weights after one step of gradients, and what was made, printed number by number.
STEP = """
import jax, jax.numpy as jnp, numpy as np
from sherd.nn.native.convolve import convolve
from sherd.runtime.events import MemorySink
images = jax.random.normal(jax.random.key(0), (13, 20, 20, 32))
kernel = jax.random.normal(jax.random.key(1), (4, 4, 32, 64))
loss = lambda kernel, images: (convolve(images, kernel, 2) ** 2).mean()
both = jax.jit(jax.grad(loss, (0, 1)))(kernel, images)
print(*(np.asarray(each).tobytes().hex() for each in both))
"""


def _plain(images, kernel, stride):
    order = ("NHWC", "HWIO", "NHWC")
    return jax.lax.conv_general_dilated(images, kernel, (stride,) * 2, "VALID", dimension_numbers=order)


@needed
@pytest.mark.parametrize(
    ("size", "stride", "channels", "outputs"), [(4, 2, 3, 7), (3, 1, 16, 48), (1, 1, 5, 96)]
)
def test_derivatives_of_second_order(size, stride, channels, outputs):
    images = jax.random.normal(jax.random.key(0), (3, 11, 9, channels))
    kernel = jax.random.normal(jax.random.key(1), (size, size, channels, outputs)) / size

    def squared_gradients(way):
        def loss(images, kernel):
            return jnp.sin(way(images, kernel, stride)).sum()

        gradients = jax.grad(loss, (0, 1))
        return lambda *given: sum(jnp.vdot(each, each) for each in gradients(*given))

    ours, theirs = (
        jax.jit(jax.grad(squared_gradients(way), (0, 1)))(images, kernel) for way in (convolve, _plain)
    )
    for one, two in zip(ours, theirs):
        np.testing.assert_allclose(one, two, rtol=1e-3, atol=1e-2)


@needed
def test_processors_without_avx512(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(library, "_FLAGS", (*library._FLAGS, "-mno-avx512f"))
    found = library.kernels.__wrapped__()
    monkeypatch.setattr(primitives, "kernels", lambda: found)
    images = jax.random.normal(jax.random.key(0), (5, 13, 12, 24))
    kernel = jax.random.normal(jax.random.key(1), (3, 3, 24, 40)) / 9

    def made_and_gradients(way):
        def loss(images, kernel):
            return (way(images, kernel, 2) ** 2).sum()

        return jax.jit(jax.value_and_grad(loss, (0, 1)))

    ours = made_and_gradients(convolve)
    assert found.targets["sherd_convolve"] in ours.lower(images, kernel).as_text()
    for one, two in zip(
        *(jax.tree.leaves(way(images, kernel)) for way in (ours, made_and_gradients(_plain)))
    ):
        np.testing.assert_allclose(one, two, rtol=1e-4, atol=1e-4)


@needed
def test_an_image_is_the_same_in_every_batch():
    images = jax.random.normal(jax.random.key(0), (9, 20, 20, 32))
    kernel = jax.random.normal(jax.random.key(1), (4, 4, 32, 64))
    together = convolve(images, kernel, 2)
    for batch in (1, 2, 5):
        np.testing.assert_array_equal(convolve(images[:batch], kernel, 2), together[:batch])


@needed
def test_threads_leave_no_trace():
    def made(cores):
        kept = {"PYTHONPATH": str(Path(__file__).parents[3])}
        command = [sys.executable, "-c", f"import os; os.sched_setaffinity(0, {cores}){STEP}"]
        ran = subprocess.run(command, env=os.environ | kept, check=True, capture_output=True, text=True)
        return ran.stdout

    all_cores = os.sched_getaffinity(0)
    assert made({min(all_cores)}) == made(all_cores)


def _refused():
    """Why there are no kernels, asked anew."""
    made = library.kernels.__wrapped__()
    assert not made.targets
    return made.reason


@needed
def test_without_a_compiler_there_are_none(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    with monkeypatch.context() as context:
        context.setenv("PATH", str(tmp_path))
        assert "no C compiler" in _refused()
    broken = tmp_path / "cc"
    broken.write_text("#!/bin/sh\nexit 1\n")
    broken.chmod(0o755)
    with monkeypatch.context() as context:
        context.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        assert f"{broken} cannot compile" in _refused()
    assert not list(tmp_path.rglob("*.so"))
    with monkeypatch.context() as context:
        context.setenv("XDG_CACHE_HOME", str(broken))  # not a folder
        assert str(broken) in _refused()
    monkeypatch.setenv("SHERD_NATIVE", "0")
    assert _refused() == ""


def test_a_run_says_if_it_does_without(monkeypatch):
    monkeypatch.setattr(run, "missed", lambda: "there is no C compiler")
    notes = []

    class Notes(MemorySink):
        def note(self, text):
            notes.append(text)

    sherd.train(
        "ppo", "graph/CartPole-v1", policy="Fused", sinks=[Notes()], steps=1024, envs=8, eval_episodes=0
    )
    assert "convolutions take longer, without kernels in C: there is no C compiler" in notes


@needed
def test_only_who_asked_misses_kernels(monkeypatch):
    library.available()
    assert library.missed() == ""
    monkeypatch.setattr(library, "kernels", functools.cache(lambda: library.Kernels({}, "no compiler")))
    assert library.missed() == ""
    library.available()
    assert library.missed() == "no compiler"


@needed
def test_what_was_compiled_is_kept(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    path = library.build()
    assert list((tmp_path / "sherd" / "native").iterdir()) == [path]
    made = path.stat().st_mtime_ns
    assert library.build() == path
    assert path.stat().st_mtime_ns == made
