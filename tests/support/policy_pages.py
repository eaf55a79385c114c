"""What the pages about distribution policies show: generated from the policies themselves."""

from __future__ import annotations

import ast
import functools
import inspect
import re
from itertools import pairwise

import sherd
from sherd.algorithms.dqn import DQN
from sherd.algorithms.ppo import PPO
from sherd.envs import describe
from sherd.optimise import optimise
from sherd.policies import BUILT_IN, DistributionPolicy
from sherd.policies.draw import draw_cut
from sherd.policies.partition import Fragments, partition
from sherd.policies.traffic import size, traffic

# The settings that each page shows.
SHOWN: dict[str, DistributionPolicy] = {
    "Single": BUILT_IN["Single"](),
    "SingleLearnerCoarse": BUILT_IN["SingleLearnerCoarse"](actors=4),
    "SingleLearnerFine": BUILT_IN["SingleLearnerFine"](actors=2),
    "MultiLearner": BUILT_IN["MultiLearner"](learners=2),
    "Fused": BUILT_IN["Fused"](devices=2),
    "Environments": BUILT_IN["Environments"](actors=4, policies=2),
    "Central": BUILT_IN["Central"](workers=2),
    "ReplayShards": BUILT_IN["ReplayShards"](actors=4, shards=2),
}


def page_name(policy: str) -> str:
    """The name of a policy's page and picture: `SingleLearnerFine` is `single-learner-fine`."""
    return re.sub(r"(?<=[a-z])(?=[A-Z])", "-", policy).lower()


@functools.cache
def cut(policy: str) -> Fragments:
    """PPO (or DQN, where there is replay to show) with 8 environments, cut as the policy's page shows it."""
    env = "graph/CartPole-v1" if policy == "Fused" else "CartPole-v1"
    algorithm = DQN(prioritised=True) if policy == "ReplayShards" else PPO()
    return optimise(partition(sherd.trace(algorithm, describe(env), envs=8), SHOWN[policy]))


def cut_text(policy: str) -> str:
    """What `sherd graph --policy` prints before it comes to the programs."""
    return "```text\n" + str(cut(policy)).partition("\nprogram ")[0].strip() + "\n```\n"


def cut_picture(policy: str) -> str:
    """What `sherd graph --policy --svg` draws."""
    return draw_cut(cut(policy))


def settings(kind: type, heading: str = "setting") -> str:
    """The fields of a dataclass, from the strings below them."""
    lines = [f"| {heading} | default | meaning |", "|---|---|---|"]
    (written,) = ast.parse(inspect.getsource(kind)).body
    body = written.body if isinstance(written, ast.ClassDef) else []
    for field, text in pairwise(body):
        if isinstance(field, ast.AnnAssign) and field.value is not None:
            assert isinstance(text, ast.Expr), f"{ast.unparse(field)} has no explanation"
            meaning = ast.literal_eval(text.value)
            lines.append(f"| `{ast.unparse(field.target)}` | `{ast.unparse(field.value)}` | {meaning} |")
    return "\n".join(lines) + "\n"


def overview() -> str:
    """All policies in a table: their fragments, and what crosses in an iteration."""
    lines = ["| policy | fragments | messages in an iteration | bytes |", "|---|---|---|---|"]
    for name in BUILT_IN:
        parts = [f"({_work(f.roles)}) x {f.replicas}" for f in cut(name).fragments]
        moved = traffic(cut(name))
        count, held = sum(one.times for one in moved), sum(one.per_iteration for one in moved)
        crossing = f"{count:,} | {size(held)}" if moved else "none | none"
        lines.append(f"| [`{name}`]({page_name(name)}.md) | {', '.join(parts)} | {crossing} |")
    return "\n".join(lines) + "\n"


def _work(roles: tuple[str, ...]) -> str:
    """Roles in short: what is replay's or learning's own is `learn`."""
    short = [role for role in roles if role not in ("replay", "eval")]
    return " ".join(short or roles).replace("learn grad apply", "learn").replace("learn grad", "grad")
