"""How JAX is set up for a run."""

import os
import subprocess
import sys
from pathlib import Path

PROGRAM = """
import jax, jax.numpy as jnp
from sherd.runtime.jax_settings import prepare_jax
prepare_jax()
jax.jit(jax.grad(lambda w: jnp.tanh(jnp.tanh(jnp.ones((8, 4)) @ w) @ w.T).sum()))(jnp.ones((4, 16)))
"""


def test_small_programs_are_kept_for_the_next_run(tmp_path: Path) -> None:
    # A run has some thirty programs, and most are as small as this one.
    ours = {name: text for name, text in os.environ.items() if not name.startswith("JAX_")}
    environment = {**ours, "JAX_PLATFORMS": "cpu", "XDG_CACHE_HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-c", PROGRAM], env=environment, check=True)
    assert list((tmp_path / "sherd" / "xla").glob("jit__lambda*"))
