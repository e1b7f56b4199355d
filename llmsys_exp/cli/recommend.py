"""`llmsys recommend`: the fastest settings that fit, and what the faster ones lack. Starts nothing."""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from llmsys_exp.cli.options import split_options, take_values, unknown_argument
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, EXIT_OK, UserError
from llmsys_exp.report.console import Console

if TYPE_CHECKING:
    from llmsys_exp.plan.recommend import Advice
    from llmsys_exp.plan.recommend_simulated import SimulatedAdvice

BEST = 2
MOST = 20
FLAGS = ("--best", "--save", "--force", "--json", "--help")


def run(arguments: Sequence[str]) -> int:
    """Search, print, and write an experiment where asked."""
    options, rest = split_options(arguments)
    if options.help:
        from llmsys_exp.cli.help import hydra_verb
        from llmsys_exp.cli.main import VERBS

        sys.stdout.write(hydra_verb("recommend", VERBS["recommend"]))
        return EXIT_OK
    values, rest = take_values(rest, {"--best": "N", "--save": "NAME"})
    force, overrides = "--force" in rest, [text for text in rest if text != "--force"]
    for text in overrides:
        if text.startswith("-"):
            raise unknown_argument(text, FLAGS, where="llmsys recommend")
    save_to = _save_path(values.get("--save"), overrides, force=force)
    return _recommend(overrides, _count(values.get("--best")), save_to, force=force, as_json=options.json)


def _count(text: str | None) -> int:
    if text is None:
        return BEST
    if not (text.isascii() and text.isdigit()) or not 1 <= int(text) <= MOST:
        raise UserError(f"--best {text} is no number of answers", do=f"Give a whole number from 1 to {MOST}")
    return int(text)


def _save_path(name: str | None, overrides: Sequence[str], *, force: bool) -> Path | None:
    if name is None:
        return None
    from llmsys_exp.config.experiment_file import check_free, check_savable, experiment_path
    from llmsys_exp.plan.recommend import names_method

    if not names_method(overrides):
        raise UserError(
            "--save needs to know the method", why="Methods train different things", do="Add method=lora, say"
        )

    check_savable(overrides)
    path = experiment_path(name)
    check_free(path, force=force)
    return path


def _recommend(
    overrides: Sequence[str], best: int, save_to: Path | None, *, force: bool, as_json: bool
) -> int:
    from llmsys_exp.plan.recommend import recommend

    notes = Console.on(sys.stderr if as_json else sys.stdout)
    advice = recommend(overrides, best=best, tell=lambda text: notes.line(f"  {text}"))
    fitting = [item for item in advice if item.fits]
    if as_json:
        content = [item.to_dict() for item in advice]
        sys.stdout.write(json.dumps({"overrides": list(overrides), "methods": content}, indent=2) + "\n")
    else:
        from llmsys_exp.report.recommend_text import show

        show(Console.on(sys.stdout), advice)
    if not fitting:
        return EXIT_DOES_NOT_FIT
    if save_to is not None:
        _save(overrides, fitting[0], save_to, force=force, quiet=as_json)
    return EXIT_OK


def _save(
    overrides: Sequence[str], item: Advice | SimulatedAdvice, path: Path, *, force: bool, quiet: bool
) -> None:
    from llmsys_exp.config.experiment_file import USER_CONF, write_experiment

    settings, comment = item.chosen()
    write_experiment(path, overrides, settings, comment=comment, force=force)
    if not quiet:
        folder = f" --config-dir {USER_CONF}" if path.is_relative_to(USER_CONF) else ""
        print(f"Wrote {path}. Look at it with: llmsys plan experiment={path.stem}{folder}")
