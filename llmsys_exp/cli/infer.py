"""`llmsys infer`: answer prompts with the configured model, in a run folder of its own."""

from __future__ import annotations

from collections.abc import Sequence

from llmsys_exp.cli.hydra_verb import run_verb
from llmsys_exp.cli.train import end_point, run_point
from llmsys_exp.config.schema import Step


def run(arguments: Sequence[str]) -> int:
    """Run one point or many."""
    return run_verb("infer", arguments, lambda request: run_point(request, [Step.infer]), end_point)
