"""Which steps may follow one another."""

from __future__ import annotations

from collections.abc import Sequence

from llmsys_exp.config.schema import Step
from llmsys_exp.errors import UserError


def check_steps(steps: Sequence[Step]) -> None:
    """Refuse lists of steps that cannot be run one after the other.

    Raises:
        UserError: naming the step.
    """
    if not steps:
        raise UserError(
            "steps is empty", do="Name at least one of train, export, quantize, infer, parallelism"
        )
    if Step.export in steps and Step.train not in steps:
        raise UserError(
            "The step export has nothing to merge without the step train",
            where="steps",
            do="Add train, or merge a finished run with `llmsys export RUN_FOLDER`",
        )
    if Step.quantize in steps and Step.export not in steps[: list(steps).index(Step.quantize)]:
        raise UserError(
            "The step quantize has nothing to quantise without the step export before it",
            where="steps",
            do="Write steps=[train,export,quantize], or `llmsys export RUN_FOLDER export.gptq.bits=4`",
        )
    if len(set(steps)) != len(steps):
        raise UserError("A step is named twice", where="steps", do="Name each step once")
