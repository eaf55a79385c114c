"""Between what bounds the hyper-parameters of the built-in algorithms lie, by the name of the field."""

from __future__ import annotations

import dataclasses
import math

from sherd.author import Algorithm
from sherd.errors import UsageError

_COUNTS = """horizon epochs minibatches updates batch capacity sync n_step atoms sequence stride delay hidden
memory_units"""
_NOT_NEGATIVE = """learning_rate warm_up burn_in clip value_clip value_cost max_grad_norm target_kl noise
smoothing smoothing_clip temperature adam_epsilon explore_until alpha clip_rho clip_c clip_policy_rho"""
_SHARES = "discount gae_lambda trace_lambda tau epsilon_start epsilon_end beta eta"

RANGES = {
    **dict.fromkeys(_COUNTS.split(), (1, math.inf)),
    **dict.fromkeys(_NOT_NEGATIVE.split(), (0, math.inf)),
    **dict.fromkeys(_SHARES.split(), (0, 1)),
}


def require_ranges(algorithm: Algorithm) -> None:
    """Raise if a built-in algorithm's field lies outside its range; a user's own may mean anything."""
    if not type(algorithm).__module__.startswith(f"{__package__}."):
        return
    for field in dataclasses.fields(algorithm):
        least, most = RANGES.get(field.name, (-math.inf, math.inf))
        value = getattr(algorithm, field.name)
        for number in value if isinstance(value, tuple) else (value,):
            if isinstance(number, int | float) and not least <= number <= most:
                allowed = f"at least {least}" if most == math.inf else f"from {least} to {most}"
                flag = f"--algo.{field.name.replace('_', '-')}"
                raise UsageError(f"{field.name} is {number}, but must be {allowed}\n  fix: change {flag}")
