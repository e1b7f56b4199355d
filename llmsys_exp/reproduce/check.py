"""Everything that is not as it was when a run was recorded, found before anything is started."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.reproduce.drift import Drift, most_serious_first
from llmsys_exp.reproduce.drifts.code import code_drifts
from llmsys_exp.reproduce.drifts.files import data_drifts, model_drifts
from llmsys_exp.reproduce.drifts.machine import machine_drifts
from llmsys_exp.reproduce.drifts.packages import package_drifts, python_drifts, variable_drifts
from llmsys_exp.reproduce.drifts.plan import plan_drifts
from llmsys_exp.reproduce.drifts.record import record_drifts
from llmsys_exp.reproduce.effects import NUMBERS
from llmsys_exp.reproduce.guard import inside
from llmsys_exp.reproduce.logged import Logged
from llmsys_exp.reproduce.now import Now, code_now
from llmsys_exp.reproduce.repository import code_repository
from llmsys_exp.reproduce.settings import Recreated, unread
from llmsys_exp.runs.files import file_hash


@dataclass(frozen=True)
class Checked:
    """What was found before the start."""

    drifts: tuple[Drift, ...]
    """Most serious first."""

    @property
    def matters(self) -> bool:
        """Whether results may differ."""
        return any(one.matters for one in self.drifts)

    @property
    def blocking(self) -> list[Drift]:
        """Drifts with which nothing is run."""
        return [one for one in self.drifts if one.blocks]


def check(logged: Logged, recreated: Recreated, now: Now, *, code_of_then: bool = False) -> Checked:
    """Compare a record with what is there now, part by part.

    Args:
        logged: the run.
        recreated: its settings as they would be run.
        now: the same evidence, taken now.
        code_of_then: whether it will be run with the code of then, so that ours does not matter.
    """
    config = recreated.config
    on_gpu, ranks = logged.section("inputs").get("device") == "cuda", _ranks(logged)
    then, environment = logged.section("environment"), now.environment
    drifts = [
        *record_drifts(logged),
        *recreated.drifts,
        *data_drifts(logged.section("data"), now.data),
        *model_drifts(logged.section("model"), now.model),
        *package_drifts(then.get("packages") or {}, environment["packages"], whole=_whole(logged)),
        *_engine_packages(logged, now),
        *python_drifts(then, environment),
        *machine_drifts(logged.section("machine"), now.machine, on_gpu=on_gpu, ranks=ranks),
        *_variables(logged, now, on_gpu=on_gpu, ranks=ranks),
    ]
    if not any(one.blocks and one.kind == "model" for one in drifts):
        as_recorded = not any(one.matters for one in recreated.drifts)
        drifts += plan_drifts(logged, config, as_recorded=as_recorded)
    if not code_of_then:
        drifts += _code(logged)
    return Checked(tuple(most_serious_first(_read_ones(drifts, config))))


def patch_of(logged: Logged) -> Path | None:
    """Return the uncommitted changes that a run was recorded with; None where there were none.

    Raises:
        UserError: when the file lies elsewhere, is gone or was changed since.
    """
    code = logged.section("code")
    name = code.get("patch")
    if name is None:
        return None
    if logged.paths is None:
        raise UserError("The changes that the code had are not beside this manifest", where=str(logged.file))
    path = inside(logged.paths.folder, name, "code.patch")
    if not path.is_file():
        raise UserError("The changes that the code had are gone", where=str(path))
    if file_hash(path) != code.get("patch_sha256"):
        raise UserError(
            "The changes that the code had were edited since",
            where=str(path),
            why="Its SHA-256 is not the one in the manifest",
            do="Put the file back as llmsys wrote it",
        )
    return path


def _code(logged: Logged) -> list[Drift]:
    then = logged.section("code")
    if not then:
        return []
    try:
        patch = patch_of(logged)
    except UserError as error:
        return [Drift("code", "code.patch", str(error), NUMBERS.effect, NUMBERS.shows_in)]
    repository = code_repository()
    with code_now() as (code, patch_now):
        return list(code_drifts(then, code, repository=repository, patch=patch, patch_now=patch_now))


def _engine_packages(logged: Logged, now: Now) -> list[Drift]:
    """Packages of an engine that has an interpreter of its own."""
    others = logged.section("environment").get("interpreter_of") or {}
    found: list[Drift] = []
    for role, told in others.items():
        if isinstance(told, dict) and isinstance(told.get("packages"), dict):
            today = now.engine_packages.get(role)
            found += package_drifts(told["packages"], today, whole=True) if today is not None else []
    return found


def _variables(logged: Logged, now: Now, *, on_gpu: bool, ranks: int) -> list[Drift]:
    then = logged.section("environment").get("variables")
    if not isinstance(then, dict) or not then:
        return []
    return list(variable_drifts(then, now.environment["variables"], on_gpu=on_gpu, ranks=ranks))


def _whole(logged: Logged) -> bool:
    """Whether the record names every package: version 1 named ten."""
    return len(logged.section("environment").get("packages") or {}) > 12


def _ranks(logged: Logged) -> int:
    return int(logged.section("inputs").get("world_size") or 1)


def _read_ones(drifts: Sequence[Drift], config: Config) -> list[Drift]:
    """Leave out settings that no step of the run reads."""
    sections = unread(config)
    about_settings = ("settings", "command line", "plan")
    return [
        one for one in drifts if not (one.kind in about_settings and one.key.partition(".")[0] in sections)
    ]
