"""The part of a plan that is about answering prompts: what the engine of a configuration would need."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

from llmsys_exp.config.schema import Config, Step

if TYPE_CHECKING:
    from llmsys_exp.plan.serving import ServingPlan


def only_serves(config: Config) -> bool:
    """Whether nothing is trained: a model that is too large to be trained may well be served."""
    return list(config.steps) == [Step.infer]


def plan_serving(
    config: Config, *, tell: Callable[[str], None] = lambda text: None, formula: bool = False
) -> ServingPlan | None:
    """Plan the engine of the step `infer`; None where there is no such step, or nothing of its own to plan.

    After training, the transformers engine needs less than training did.

    Args:
        config: of the whole run.
        tell: hears what is simulated, where no formula knows the model.
        formula: simulate nothing.

    Raises:
        UserError: naming what contradicts or cannot start.
    """
    from llmsys_exp.inputs.data_files import PROMPT_KINDS, find_file
    from llmsys_exp.launch.sglang import chosen_python, sglang_version
    from llmsys_exp.plan.case_mlp import check_mlp_steps
    from llmsys_exp.plan.checks import check_inference
    from llmsys_exp.plan.serving import serving_plan
    from llmsys_exp.plan.serving_case import starts_sglang

    ours = starts_sglang(config)
    if Step.infer not in config.steps or not (ours or only_serves(config)):
        return None
    check_mlp_steps(config, [Step.infer])
    check_inference(config)
    asked = config.inference.prompts
    named = None if asked is None else find_file(asked, "inference.prompts", kinds=PROMPT_KINDS)
    python = chosen_python(config)
    return serving_plan(
        config,
        prompts_file=named,
        python=python if ours else None,
        engine_version=sglang_version(python) if ours else None,
        tell=tell,
        formula=formula,
    )
