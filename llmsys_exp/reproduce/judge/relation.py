"""How the machine and software of today stand to those of a run: that decides how near figures can come."""

from __future__ import annotations

from collections.abc import Sequence

from llmsys_exp.config.schema import Config
from llmsys_exp.plan.case import world_size
from llmsys_exp.reproduce.drift import Drift, Effect
from llmsys_exp.reproduce.logged import Logged
from llmsys_exp.reproduce.tolerances import Relation

OWN_PACKAGES = ("llmsys-exp",)
"""Drift there is a cause to find and no noise to allow for."""


def relation_of(logged: Logged, config: Config, drifts: Sequence[Drift]) -> Relation:
    """Return the relation for the tolerances.

    Args:
        logged: the run.
        config: what is run now.
        drifts: what differs. Drift of settings, data and code allows nothing: failures are blamed on it.
    """
    if _world_of(logged) != world_size(config):
        return Relation.other_world
    noise = [one for one in drifts if one.effect is Effect.NUMBERS and _is_noise(one)]
    if any(one.key in ("gpus", "cpu_name", "device", "hardware.gpu") for one in noise):
        return Relation.other
    knows_machine = bool(logged.section("machine").get("cpu_name"))
    if noise or not knows_machine:
        return Relation.same_kind
    deterministic = bool((logged.config.get("training") or {}).get("deterministic"))
    return Relation.same_bits if deterministic and config.training.deterministic else Relation.same_machine


def _is_noise(one: Drift) -> bool:
    if one.kind == "packages":
        return one.key not in OWN_PACKAGES
    return one.kind in ("python", "hardware", "driver", "variables") or one.key == "hardware.gpu"


def _world_of(logged: Logged) -> int:
    hardware = logged.config.get("hardware") or {}
    return int(hardware.get("gpus_per_node", 1)) * int(hardware.get("nodes", 1))
