"""Plans for a model whose family no formula knows: simulated, or not forecast at all where that is wanted."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import planner
from llmsys_exp.config.schema import AUTO, Config, Device, GatePolicy
from llmsys_exp.config.tree import copy_of, put_at, value_at
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.batch import settle_batch
from llmsys_exp.plan.case import CPU, hf_config, in_settings, world_size
from llmsys_exp.plan.case_mlp import is_mlp
from llmsys_exp.plan.checks import check_settings
from llmsys_exp.plan.settling import (
    DEFAULT_BUCKET,
    Choice,
    settle_bucket_size,
    settle_dtype,
    settle_expandable,
    settle_optimizer,
    shown,
)
from llmsys_exp.plan.simulated import (
    MICRO,
    OPTIMIZER,
    PARAM,
    RECOMPUTE,
    STAGE,
    Search,
    is_open,
)
from llmsys_exp.plan.simulations import Simulations
from planner.errors import CaseError, NotSimulated
from planner.forecasting import is_unknown
from planner.simulate.quiet import same_environment

if TYPE_CHECKING:
    from planner.simulate.tier import Simulation


@dataclass(frozen=True)
class Unknown:
    """What a plan of such a model is made of; `why_not` says why nothing is forecast, where nothing is."""

    config: Config
    choices: tuple[Choice, ...]
    simulation: Simulation | None
    verdict: planner.Verdict | None
    why_not: str = ""


class NotForecast(UserError):
    """Nothing can be forecast; `startable` says whether all that a forecast would choose is given."""

    def __init__(self, what: str, *, where: str, do: str, startable: bool) -> None:
        super().__init__(what, where=where, do=do)
        self.startable = startable


def is_unknown_model(config: Config) -> bool:
    """Whether a model is of a family that the formula does not know; one that cannot be read is not."""
    if config.model.path is None or config.model.entry is not None or is_mlp(config):
        return False
    try:
        return is_unknown({"hf_config": hf_config(config)})
    except UserError:
        return False


def settle_unknown(config: Config, simulations: Simulations) -> Unknown:
    """Choose every open setting by simulations.

    Args:
        config: with `auto` in it or without.
        simulations: runs them.

    Raises:
        ConfigError: naming everything that contradicts or is unknown.
        NotForecast: where nothing can be forecast, and the gate does not let that pass.
    """
    check_settings(config)
    config = copy_of(config)
    choices: list[Choice] = []
    settle_dtype(config, choices)
    settle_optimizer(config, choices)
    settle_expandable(config, choices)
    search = Search(config, simulations)
    try:
        # torch and DeepSpeed set variables of their own, which are not for the workers that may follow
        with same_environment():
            settle_bucket_size(config, choices, search.trained_numel)
            found, verdict = search.run(choices)
    except NotSimulated as error:
        return _not_forecast(config, choices, str(error))
    except CaseError as error:
        raise ConfigError([UserError(in_settings(problem)) for problem in error.problems]) from error
    return Unknown(config, tuple(choices), found, verdict)


def _not_forecast(config: Config, choices: list[Choice], why: str) -> Unknown:
    """Let a job pass without a forecast where the gate does and all that one would choose is given."""
    _settle_the_obvious(config, choices)
    missing = {key: value for key, value in _samples(config).items() if is_open(config, key)}
    closed = config.gate.policy in (GatePolicy.error, GatePolicy.skip)
    on_nvme = Device.nvme in (config.offload.optimizer, config.offload.param)
    if closed or missing or on_nvme:
        wanted = {"gate": "off"} if closed else {}
        given = " ".join(f"{key}={value}" for key, value in {**wanted, **missing}.items())
        do = f"Change that, or to run it all the same give {given}"
        raise NotForecast(
            f"Nothing is forecast for this model: its family is not known to the formula, and {why}",
            where=f"model.path={config.model.path}",
            do=do if given else "Set the offload to cpu or none",
            startable=not missing and not on_nvme,
        )
    for key in (STAGE, OPTIMIZER, PARAM, RECOMPUTE):
        if key not in {choice.key for choice in choices}:
            choices.append(Choice(key, shown(value_at(config, key)), "as set", True))
    settle_batch(config, int(config.training.micro_batch), choices, make=Choice)
    return Unknown(config, tuple(choices), None, None, why)


def _settle_the_obvious(config: Config, choices: list[Choice]) -> None:
    """What has one sensible value: on the CPU nothing is offloaded, and one rank shards nothing."""
    on_cpu = config.hardware.gpu == CPU
    single = on_cpu and world_size(config) == 1
    known: dict[str, tuple[bool, Any, str]] = {
        OPTIMIZER: (on_cpu, Device.none, "the CPU has nowhere to offload to"),
        PARAM: (on_cpu, Device.none, "the CPU has nowhere to offload to"),
        STAGE: (single, 0, "one rank shares nothing out"),
    }
    for key, (applies, value, why) in known.items():
        if applies and is_open(config, key):
            put_at(config, key, value)
            choices.append(Choice(key, shown(value), why, False))
    if config.zero.reduce_bucket_size == AUTO:  # where torch is missing
        config.zero.reduce_bucket_size = DEFAULT_BUCKET
        why = "DeepSpeed's default; what is trained cannot be counted here"
        choices.append(Choice("zero.reduce_bucket_size", DEFAULT_BUCKET, why, False))


def _samples(config: Config) -> dict[str, Any]:
    """Settings that a forecast would choose, each with a careful value."""
    stage = 0 if world_size(config) == 1 else 2
    return {STAGE: stage, OPTIMIZER: "none", PARAM: "none", RECOMPUTE: "true", MICRO: 1}
