"""Which settings to take: the fastest that fit, method by method, and what faster ones lack."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.schema import Config, MethodKind
from llmsys_exp.errors import ConfigError, UserError
from llmsys_exp.plan.recommend_simulated import SimulatedAdvice, recommend_simulated
from llmsys_exp.plan.resolve import CPU, Opened, open_job
from llmsys_exp.plan.simulations import Simulations
from llmsys_exp.plan.unknown import is_unknown_model
from planner.choose import axes_of, sizes_of
from planner.liger import LIGER_FAMILIES
from planner.search import Answer, Found, Miss, Room, kind, options, search
from planner.training_case import TrainingCase
from planner.units import gib

METHODS = (MethodKind.full, MethodKind.lora, MethodKind.qlora)
FASTER_SHOWN = 3
FASTER = 0.005  # less is no reason to look further


@dataclass(frozen=True)
class Advice:
    """What was found for one method."""

    config: Config
    job: Opened | None
    found: Found | None
    refused: str = ""

    @property
    def room(self) -> Room:
        """What a GPU and a node may take."""
        return Room(None) if self.job is None else self.job.room

    @property
    def method(self) -> str:
        """Name of the method."""
        return self.config.method.kind.value

    @property
    def faster(self) -> list[Miss]:
        """Of each kind that would be faster than the best answer, the setting that lacks least."""
        if self.found is None:
            return []
        best = max((answer.tokens_per_s for answer in self.found.answers), default=0.0)
        nearest: dict[TrainingCase, Miss] = {}
        for miss in sorted(self.found.misses, key=lambda miss: miss.option.peak_bytes):
            if miss.option.tokens_per_s > best * (1 + FASTER):
                nearest.setdefault(kind(miss.option.case), miss)
        return list(nearest.values())[:FASTER_SHOWN]

    @property
    def fits(self) -> bool:
        """Whether anything does."""
        return self.found is not None and bool(self.found.answers)

    def chosen(self) -> tuple[dict[str, Any], str]:
        """The settings of the best answer, and a comment on it."""
        assert self.found is not None
        answer = self.found.answers[0]
        settings = settings_of(answer.case, on_cpu=self.config.hardware.gpu == CPU)
        settings["training.dtype"] = self.config.training.dtype.value
        return settings, (
            f"Recommended: {answer.step_s:.2f} s a step, {answer.tokens_per_s:,.0f} tokens/s (estimates), "
            f"{answer.label} in the memory of {self.config.hardware.gpu}."
        )

    def to_dict(self) -> dict[str, Any]:
        """Plain values for `--json`."""
        if self.found is None:
            return {"method": self.method, "refused": self.refused}
        budget = self.room.gpu_bytes
        return {
            "method": self.method,
            "budget_gib": None if budget is None else round(gib(budget), 3),
            "considered": self.found.considered,
            "played": self.found.played,
            "answers": [_answer_to_dict(self, answer) for answer in self.found.answers],
            "faster": [
                {
                    "settings": settings_of(miss.option.case),
                    "needs_about_gib": round(gib(miss.needs_bytes), 3),
                    "where": miss.where,
                    "tokens_per_s": round(miss.option.tokens_per_s),
                }
                for miss in self.faster
            ],
        }


def recommend(
    overrides: Sequence[str], *, best: int, tell: Callable[[str], None] = lambda text: None
) -> list[Advice] | list[SimulatedAdvice]:
    """Search every method that the overrides leave open; a family that no formula knows is simulated.

    Args:
        overrides: the job.
        best: answers for each method.
        tell: hears what is simulated.

    Raises:
        UserError: when no method can be planned at all, with the reasons.
    """
    config = compose_config(overrides)
    if is_unknown_model(config):
        if config.hardware.gpu == CPU:
            raise UserError(
                "Nothing is recommended for this model on the CPU",
                where=f"model.path={config.model.path}",
                why="Its family is not known to the formula, and only jobs on GPUs are simulated",
                do="Name a GPU, such as hardware=a100_80gb, or train it with what you give: gate=off",
            )
        simulations = Simulations(tell, keep=True)
        return recommend_simulated(overrides, _methods(overrides), best=best, simulations=simulations)
    advice = [_for_method(overrides, method, best) for method in _methods(overrides)]
    if all(item.found is None for item in advice):
        raise ConfigError([UserError(reason) for reason in dict.fromkeys(item.refused for item in advice)])
    return advice


def _methods(overrides: Sequence[str]) -> list[MethodKind | None]:
    """None: the method is given."""
    return [None] if names_method(overrides) else list(METHODS)


def names_method(overrides: Sequence[str]) -> bool:
    """Whether the overrides say what is trained."""
    keys = {text.lstrip("+").partition("=")[0] for text in overrides}
    return bool(keys & {"method", "method.kind", "experiment"})


def _for_method(overrides: Sequence[str], method: MethodKind | None, best: int) -> Advice:
    config = compose_config([*overrides, *([] if method is None else [f"method={method.value}"])])
    given = {text.lstrip("+").partition("=")[0] for text in overrides}
    try:
        job = open_job(config)
        free = dict(job.free)
        family = job.case.architecture.model_type
        if "training.liger" not in given and config.hardware.gpu != CPU and family in LIGER_FAMILIES:
            free["liger"] = (False, True)
        sizes = sizes_of(job.case, free, config.training.global_batch)
        candidates = options([job.case], axes_of(free), sizes)
    except UserError as error:
        if method is None:
            raise
        return Advice(config, None, None, refused=str(error))
    return Advice(job.config, job, search(candidates, job.room, wanted=best))


def settings_of(case: TrainingCase, *, on_cpu: bool = False) -> dict[str, Any]:
    """The settings of the configuration that stand for a chosen case."""
    settings: dict[str, Any] = {
        "zero.stage": case.zero_stage,
        "offload.optimizer": case.offload_optimizer,
        "offload.param": case.offload_param,
        "training.micro_batch": case.micro_batch,
        "training.grad_accum": case.grad_accum,
        "training.gradient_checkpointing": case.gradient_checkpointing,
    }
    if not on_cpu:
        settings["training.liger"] = case.liger
        settings["training.expandable_segments"] = case.expandable_segments
    return settings


def _answer_to_dict(advice: Advice, answer: Answer) -> dict[str, Any]:
    budget = advice.room.gpu_bytes
    required = answer.forecast.required_bytes
    return {
        "settings": settings_of(answer.case, on_cpu=advice.config.hardware.gpu == CPU),
        "verdict": answer.label,
        "needs_gib": round(gib(required), 3),
        "headroom_gib": None if budget is None else round(gib(budget - required), 3),
        "host_gib": round(gib(answer.forecast.host_peak_bytes), 3),
        "step_s": round(answer.step_s, 4),
        "tokens_per_s": round(answer.tokens_per_s),
    }
