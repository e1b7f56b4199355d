"""What a run and the checkpoint that it goes on from must agree in."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from llmsys_exp.config.schema import Config
from llmsys_exp.errors import JobError
from llmsys_exp.runs.checkpoints import Checkpoint
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.resume_rules import changes, fixed_settings

DATA = {
    "global_batch": "the sequences of an optimizer step",
    "fingerprint": "the training data, its template or its tokenizer",
}
SETTINGS = "settings"


def facts_of(config: Config, *, global_batch: int, fingerprint: str) -> dict[str, Any]:
    """Return what is written into every checkpoint of a run, to be compared when it goes on."""
    return {"global_batch": global_batch, "fingerprint": fingerprint, SETTINGS: fixed_settings(config)}


def check_agreement(checkpoint: Checkpoint, facts: Mapping[str, Any], paths: RunPaths) -> None:
    """Refuse to go on as another run than the one that wrote the checkpoint, naming all that is different.

    Raises:
        JobError: of the kind `resume`.
    """
    state = checkpoint.state
    changed = [text for key, text in DATA.items() if state.get(key) != facts[key]]
    changed += _changed_settings(state.get(SETTINGS), facts[SETTINGS])
    if changed:
        raise JobError(
            f"The run cannot go on from {checkpoint.folder.name}; changed since: {', '.join(changed)}",
            kind="resume",
            where=str(paths.folder),
            do="Put them back as they were, or start a new run",
        )


def no_whole_checkpoint(paths: RunPaths, problems: list[str]) -> JobError:
    """Say that there is nothing to go on from."""
    what = f"No checkpoint is whole: {'; '.join(problems)}" if problems else "There is no checkpoint"
    return JobError(
        what,
        kind="checkpoint",
        where=str(paths.checkpoints),
        do="Start a new run with the same settings; to start this one again from step 0 by its launch.sh, "
        "remove the folder first",
    )


def _changed_settings(before: Any, now: dict[str, Any]) -> list[str]:
    if isinstance(before, Mapping):
        return changes(before, now)
    return ["the way in which settings are kept in a checkpoint"]
