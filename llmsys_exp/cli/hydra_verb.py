"""The verbs that take a configuration: Hydra's grammar in, a `Request` out, for one point or for many.

Plain overrides go through Hydra's compose API, which composes once. Anything with a flag of Hydra's (`-m`,
`--cfg`, `--info` ...) goes through `hydra.main`, so that its command line stays what users know.
"""

from __future__ import annotations

import os
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

from llmsys_exp.cli.options import TABLE_FLAGS, Options, split_options, unknown_argument
from llmsys_exp.cli.plan_tiers import TIER_FLAGS
from llmsys_exp.config.schema import Config, GatePolicy
from llmsys_exp.errors import EXIT_DOES_NOT_FIT, EXIT_OK, ConfigError, DoesNotFit, UserError

if TYPE_CHECKING:
    from omegaconf import DictConfig


@dataclass(frozen=True)
class Request:
    """One point: its configuration and how it was asked for."""

    verb: str
    config: Config
    overrides: tuple[str, ...]
    hydra_files: dict[str, str]
    options: Options
    in_sweep: bool = False


@dataclass(frozen=True)
class Point:
    """What became of one point of a sweep."""

    overrides: tuple[str, ...]
    exit_code: int
    error: UserError | None = None


Task = Callable[[Request], int]
OnPoint = Callable[[Point, int], None]


def run_verb(verb: str, arguments: Sequence[str], task: Task, on_point: OnPoint) -> int:
    """Compose and call `task`, once or for every point of a sweep; return the exit code."""
    options, rest = split_options(arguments)
    if options.help:
        from llmsys_exp.cli.help import hydra_verb
        from llmsys_exp.cli.main import VERBS

        sys.stdout.write(hydra_verb(verb, VERBS[verb]))
        return EXIT_OK
    if any(text.startswith("-") for text in rest):
        return _Flagged(verb, options, rest, task, on_point).run()
    from llmsys_exp.config.compose import compose_tree

    return task(make_request(verb, compose_tree(rest), options))


def make_request(verb: str, tree: DictConfig, options: Options, *, in_sweep: bool = False) -> Request:
    """Split a composed tree into Hydra's part, kept as files, and the typed configuration."""
    from omegaconf import OmegaConf, open_dict

    from llmsys_exp.config.compose import to_config

    hydra = tree.hydra
    with open_dict(tree):
        del tree["hydra"]
    overrides = as_typed(hydra)
    files = (
        {}
        if verb == "plan"
        else {
            "config.yaml": OmegaConf.to_yaml(tree),
            "hydra.yaml": OmegaConf.to_yaml(OmegaConf.create({"hydra": OmegaConf.to_container(hydra)})),
            "overrides.yaml": OmegaConf.to_yaml(list(overrides)),
        }
    )
    return Request(verb, to_config(tree), overrides, files, options, in_sweep)


def as_typed(hydra: DictConfig) -> tuple[str, ...]:
    """Return the overrides as the user typed them: `${...}` in one is not to be looked up here."""
    from omegaconf import OmegaConf

    return tuple(str(text) for text in OmegaConf.to_container(hydra.overrides.task, resolve=False))


class _Flagged:
    """A command line with flags of Hydra's, run by `hydra.main`."""

    def __init__(
        self, verb: str, options: Options, rest: Sequence[str], task: Task, on_point: OnPoint
    ) -> None:
        self._verb, self._options, self._task, self._on_point = verb, options, task, on_point
        self._rest = list(rest)
        self._args = parse_flags(rest, verb)
        self._points: list[Point] = []
        self._failure: BaseException | None = None
        self._code = EXIT_OK

    def run(self) -> int:
        from llmsys_exp.config.compose import find_problems

        overrides, extra = self._args.overrides, self._extra_roots()
        if self._args.multirun:
            problems = find_problems(overrides, extra)
            if problems:
                raise ConfigError(problems)
        with TemporaryDirectory(prefix="llmsys-sweep-") as scratch, _command_line(self._argv(scratch)):
            self._call_hydra(overrides, extra)
        if self._failure is not None:
            raise self._failure
        return sweep_code(self._points) if self._points else self._code

    def _call_hydra(self, overrides: Sequence[str], extra: Sequence[Path]) -> None:
        import logging

        import hydra

        from llmsys_exp.config.compose import VERSION_BASE, check_added, explain, register_schema
        from llmsys_exp.config.experiment_path import register_experiments
        from llmsys_exp.config.folders import ROOT_CONFIG, conf_dir

        register_schema()
        register_experiments(overrides)
        check_added(overrides)
        logging.raiseExceptions = False  # Hydra logs --info; a reader that left (`| head`) is no error
        wrap = hydra.main(version_base=VERSION_BASE, config_path=str(conf_dir()), config_name=ROOT_CONFIG)
        try:
            wrap(self._job)()
        except SystemExit as ending:
            self._code = ending.code if isinstance(ending.code, int) else 1
        except Exception as error:
            raise explain(error, overrides, extra) from error

    def _job(self, tree: DictConfig) -> None:
        from hydra.core.hydra_config import HydraConfig
        from omegaconf import open_dict

        with open_dict(tree):
            tree["hydra"] = HydraConfig.get()
        overrides = as_typed(tree.hydra)
        # Hydra prints its own lines about an exception that leaves a job, so none may leave it.
        try:
            code = self._task(make_request(self._verb, tree, self._options, in_sweep=self._args.multirun))
            self._end_point(Point(overrides, code))
        except UserError as error:
            if not self._args.multirun:
                self._failure = error
                return
            self._end_point(Point(overrides, _point_code(error, tree), error))
        except Exception as error:
            self._failure = self._failure or error

    def _end_point(self, point: Point) -> None:
        if not self._args.multirun:
            self._code = point.exit_code
            return
        self._points.append(point)
        self._on_point(point, len(self._points))

    def _argv(self, scratch: str) -> list[str]:
        # Hydra's sweeper insists on a folder of its own; run folders are made by us.
        sweep = [f"hydra.sweep.dir={scratch}"] if self._args.multirun else []
        return [f"llmsys {self._verb}", *self._rest, *sweep]

    def _extra_roots(self) -> list[Path]:
        return [Path(self._args.config_dir).absolute()] if self._args.config_dir else []


def sweep_code(points: Sequence[Point]) -> int:
    """Return the exit code of a sweep: the worst of its points, or `does not fit` when all were skipped."""
    codes = [point.exit_code for point in points]
    if codes and all(isinstance(point.error, DoesNotFit) for point in points):
        return EXIT_DOES_NOT_FIT
    return max(codes, default=EXIT_OK)


def _point_code(error: UserError, tree: Any) -> int:
    skipped = isinstance(error, DoesNotFit) and tree.gate.policy is GatePolicy.skip
    return EXIT_OK if skipped else error.exit_code


def parse_flags(rest: Sequence[str], verb: str) -> Namespace:
    """Read the flags of Hydra's and the overrides beside them; refuse flags that nobody takes."""
    from hydra._internal.utils import get_args_parser

    parser = get_args_parser()
    known = [flag for action in parser._actions for flag in action.option_strings if flag.startswith("--")]
    for text in rest:
        flag = text.partition("=")[0]
        if text.startswith("--") and not any(name.startswith(flag) for name in known):
            ours = ["--json", "--verbose", *((*TABLE_FLAGS, *TIER_FLAGS) if verb == "plan" else ())]
            raise unknown_argument(flag, [*known, *ours], where=f"llmsys {verb}")
    try:
        return parser.parse_intermixed_args(list(rest))
    except SystemExit:
        raise UserError(
            "Hydra cannot read these flags", where=" ".join(rest), do=f"llmsys {verb} --help"
        ) from None


@contextmanager
def _command_line(argv: list[str]) -> Iterator[None]:
    """Give `hydra.main` the command line it reads from `sys.argv`, and let its errors reach us."""
    before, full_error = sys.argv, os.environ.get("HYDRA_FULL_ERROR")
    sys.argv, os.environ["HYDRA_FULL_ERROR"] = argv, "1"
    try:
        yield
    finally:
        sys.argv = before
        if full_error is None:
            del os.environ["HYDRA_FULL_ERROR"]
        else:
            os.environ["HYDRA_FULL_ERROR"] = full_error
