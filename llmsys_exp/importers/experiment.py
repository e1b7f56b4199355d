"""Makes an experiment of what was imported: overrides put in, hardware settled, checked, written."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.experiment_file import check_free, check_savable, experiment_path, write_experiment
from llmsys_exp.config.groups import Groups
from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.importers.hardware import hardware_option
from llmsys_exp.importers.imported import Imported, Unmapped
from llmsys_exp.plan import Plan
from llmsys_exp.plan.resolve import forecast_settled, settle
from llmsys_exp.report.console import clean

HARDWARE = "hardware"
MOST_COMMENT = 100
SETTLED = {
    ("model", "model.path", "model.entry"): ("model_name_or_path", "base_model", "base_model_name_or_path"),
    ("data", "data.train", "data.dataset_info"): ("dataset", "datasets", "data_path", "pretraining_dataset"),
}
"""Override -> keys of a source that ask for it."""
_ROWS = ("name", "train", "dataset_info", "format", "columns", "subset", "split", "score")
REPLACED: dict[str, str | tuple[str, ...]] = {
    "model": "model.",
    "offload": "offload.",
    "data": tuple(f"data.{name}" for name in _ROWS),
}
"""Group -> settings that go with its old option, and would win over a new one."""


@dataclass(frozen=True)
class Experiment:
    """An imported file as an experiment that composes."""

    imported: Imported
    config: Config
    plan: Plan | None
    refusal: str = ""
    """Why the plan refuses it, where it does."""

    @property
    def overrides(self) -> list[str]:
        """Hydra overrides of the whole."""
        return self.imported.overrides()


def model_shape(overrides: Sequence[str]) -> Mapping[str, Any] | None:
    """Return the shape of a model that the command line names, for files that name none."""
    named = [
        text
        for text in overrides
        if text.partition("=")[0] in ("model", "model.path", "model.entry", "model.id")
    ]
    if not named:
        return None
    from llmsys_exp.plan.case import hf_config

    return hf_config(compose_config(named))


def build(imported: Imported, overrides: Sequence[str]) -> Experiment:
    """Put overrides over what was imported, settle the hardware, compose and plan.

    Raises:
        ConfigError: when it does not compose; what a plan refuses is kept as text.
    """
    merged = with_overrides(imported, overrides)
    config = compose_config(merged.overrides())
    try:
        # by formula alone: a simulation would take longer than whoever imports a file expects
        return Experiment(merged, config, forecast_settled(settle(config)))
    except UserError as error:
        return Experiment(merged, config, None, str(error))


def with_overrides(imported: Imported, overrides: Sequence[str]) -> Imported:
    """Put overrides over what was imported, and name hardware where nothing does.

    Raises:
        ConfigError: for overrides that are none.
    """
    check_savable(overrides)
    merged = _over(imported, overrides)
    if HARDWARE not in merged.groups and "hardware.gpu" not in merged.settings:
        option, note = hardware_option()
        merged = replace(merged, groups={**merged.groups, HARDWARE: option}, notes=(*merged.notes, note))
    return merged


def _over(imported: Imported, overrides: Sequence[str]) -> Imported:
    """Overrides win, and a setting below a group that is chosen anew goes with the old choice."""
    from hydra.core.override_parser.overrides_parser import OverridesParser

    from llmsys_exp.config.problems import override_problems
    from llmsys_exp.errors import ConfigError

    known = Groups.shipped()
    problems = override_problems(overrides, known)
    if problems:
        raise ConfigError(problems)
    groups, settings = dict(imported.groups), dict(imported.settings)
    unmapped = list(imported.unmapped)
    for one in OverridesParser.create().parse_overrides(list(overrides)):
        key = one.key_or_group
        unmapped = [entry for entry in unmapped if not _settles(key, entry)]
        if key == "data.train":
            settings.pop("data.dataset_info", None)  # both would say what to learn from
        if key not in known.names():
            settings[key] = one.value()
            continue
        groups[key] = str(one.value())
        settings = {
            name: value for name, value in settings.items() if not name.startswith(REPLACED.get(key, "-"))
        }
    return replace(imported, groups=groups, settings=settings, unmapped=tuple(unmapped))


def _settles(key: str, entry: Unmapped) -> bool:
    """Whether an override answers what an unmapped key asked for."""
    return any(key in settings and entry.key in names for settings, names in SETTLED.items())


def target(text: str, *, force: bool) -> Path:
    """Return where the experiment goes: NAME, or a path that ends in .yaml.

    Raises:
        UserError: for a name that cannot be one, and when something is there already.
    """
    if "/" in text or text.endswith((".yaml", ".yml")):
        path = Path(text).expanduser()
        if path.suffix != ".yaml":
            raise UserError(f"-o {text} does not end in .yaml", do="experiment=FILE takes .yaml files")
        experiment_path(path.stem)  # refuses stems that cannot be names
    else:
        path = experiment_path(text)
    check_free(path, force=force)
    return path


def write(experiment: Experiment, path: Path, *, force: bool) -> None:
    """Write the experiment, with what is lost as comments."""
    imported = experiment.imported
    groups = [f"{group}={option}" for group, option in imported.groups.items()]
    write_experiment(path, groups, imported.settings, comment=_comment(imported), force=force)


def _comment(imported: Imported) -> str:
    lines = [f"From {imported.source.name} ({imported.format})."]
    if imported.lost:
        lines.append("Not carried over:")
        lines += [f"  {one.key}: {one.why}" for one in imported.lost[:MOST_COMMENT]]
    return "\n".join(" ".join(clean(line).splitlines()) for line in lines)  # YAML has no control characters


def command(path: Path) -> str:
    """Return the command that plans the experiment."""
    if path == experiment_path(path.stem) and "experiments" in path.parts:
        return f"llmsys plan experiment={path.stem}"
    return f"llmsys plan experiment={path.absolute()}"
