"""The state of a run folder, from what it tells itself."""

from __future__ import annotations

from pathlib import Path

import pytest

from llmsys_exp.errors import JobError, UserError
from llmsys_exp.runs.files import read_json, write_json
from llmsys_exp.runs.folder import create_run_folder, create_sweep_folder
from llmsys_exp.runs.listing import list_runs
from llmsys_exp.runs.lock import locked
from llmsys_exp.runs.paths import RunPaths
from llmsys_exp.runs.status import recorded, state_of

ENDS = {
    "interrupted": (KeyboardInterrupt(), "stopped"),
    "stopped gently": (JobError("Stopped after step 3", kind="stopped"), "stopped"),
    "out of memory": (JobError("The GPU ran out of memory", kind="oom_gpu"), "failed (oom_gpu)"),
    "user": (UserError("There is no prompt file"), "failed (user)"),
    "bug": (ValueError("no"), "failed (bug)"),
}


@pytest.fixture
def paths(tmp_path: Path) -> RunPaths:
    made = create_run_folder(tmp_path, "mine", "aaaaaaaa")
    write_json(made.job, {})
    return made


@pytest.mark.parametrize(("error", "state"), ENDS.values(), ids=ENDS)
def test_how_a_run_ended_is_written_down(paths: RunPaths, error: BaseException, state: str) -> None:
    with pytest.raises(type(error)), locked(paths.lock), recorded(paths):
        assert state_of(paths) == "running"
        raise error
    assert state_of(paths) == state
    assert [row.state for row in list_runs(paths.folder.parents[1])] == [state]


def test_a_run_that_goes_on_has_no_end_yet(paths: RunPaths) -> None:
    with pytest.raises(UserError), recorded(paths):
        raise UserError("no")
    with locked(paths.lock), recorded(paths):
        assert state_of(paths) == "running"
        write_json(paths.manifest, {})
    assert state_of(paths) == "complete"
    assert read_json(paths.status) is None


def test_a_worker_that_outlives_its_command_still_runs(paths: RunPaths) -> None:
    with locked(paths.worker_lock):
        assert state_of(paths) == "running"
    assert state_of(paths) == "stopped"


def test_a_sweep_has_a_folder_that_is_no_run(tmp_path: Path) -> None:
    first, second = (create_sweep_folder(tmp_path, "mine") for _ in range(2))
    assert first != second
    assert first.parent == tmp_path / "mine"
    assert list_runs(tmp_path) == []
