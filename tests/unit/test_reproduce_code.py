"""Code of then: differences found in a repository of its own, and laid out as a worktree."""

from __future__ import annotations

import hashlib
import subprocess
from pathlib import Path

import pytest
from records import write_manifest

from llmsys_exp.errors import UserError
from llmsys_exp.evidence.changes import find_changes
from llmsys_exp.evidence.code import make_patch
from llmsys_exp.evidence.git import Repository, find_repository
from llmsys_exp.reproduce.check import patch_of
from llmsys_exp.reproduce.drift import Drift, Effect
from llmsys_exp.reproduce.drifts.code import code_drifts
from llmsys_exp.reproduce.logged import read_logged
from llmsys_exp.reproduce.repository import add_worktree, has_commit, move_worktree, remove_worktree

LOOP = "llmsys_exp/workers/training/loop.py"


def git(folder: Path, *arguments: str) -> None:
    who = ("-c", "user.name=A", "-c", "user.email=a@example.org")
    subprocess.run(["git", *who, *arguments], cwd=folder, check=True, capture_output=True)


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    root = tmp_path / "checkout"
    for name, text in ((LOOP, "a = 1\nb = 2\n"), ("docs/x.md", "words\n"), ("planner/p.py", "c = 3\n")):
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text, encoding="utf-8")
    git(root.parent, "init", "-q", "checkout")
    git(root, "add", ".")
    git(root, "commit", "-q", "-m", "one")
    found = find_repository(root)
    assert found is not None
    return found


def state(repository: Repository, folder: Path) -> tuple[dict[str, object], Path | None]:
    """What a record says of the code, with the file of its changes."""
    patch = make_patch(repository, find_changes(repository, []))
    file = folder / "code.patch"
    if not patch:
        return {"of": "llmsys", "commit": repository.commit, "dirty": False}, None
    file.write_bytes(patch)
    known = {"patch": file.name, "patch_sha256": hashlib.sha256(patch).hexdigest()}
    return {"of": "llmsys", "commit": repository.commit, "dirty": True, **known}, file


def drifts_between(
    repository: Repository, then: tuple[dict[str, object], Path | None], folder: Path
) -> list[Drift]:
    now, patch_now = state(repository, folder)
    return list(code_drifts(then[0], now, repository=repository, patch=then[1], patch_now=patch_now))


def test_a_changed_line_is_found_with_its_file_and_what_it_may_change(repository: Repository, tmp_path: Path):
    then = state(repository, tmp_path)
    assert drifts_between(repository, then, tmp_path) == []
    (repository.root / LOOP).write_text("a = 1\nb = 3\n", encoding="utf-8")
    (repository.root / "docs/x.md").write_text("other words\n", encoding="utf-8")
    changed, harmless = drifts_between(repository, then, tmp_path)
    assert (changed.key, changed.effect) == (LOOP, Effect.NUMBERS)
    assert "+1 -1" in changed.what
    assert harmless.effect is Effect.NOTHING


def test_a_new_file_and_one_change_on_top_of_another_are_found(repository: Repository, tmp_path: Path):
    (repository.root / LOOP).write_text("a = 1\nb = 3\n", encoding="utf-8")
    folder = tmp_path / "then"
    folder.mkdir()
    then = state(repository, folder)
    assert drifts_between(repository, then, tmp_path) == []
    (repository.root / "llmsys_exp/workers/new.py").write_text("d = 4\n", encoding="utf-8")
    (repository.root / "planner/p.py").write_text("c = 4\n", encoding="utf-8")
    found = {one.key: one for one in drifts_between(repository, then, tmp_path)}
    assert set(found) == {"llmsys_exp/workers/new.py", "planner"}
    assert (found["planner"].effect, found["planner"].shows_in) == (Effect.NOTHING, ("forecast",))
    status = repository.ask("status", "--porcelain")
    assert b"?? llmsys_exp/workers/new.py" in status  # nothing was staged


def test_commits_are_compared_and_unknown_ones_are_named(repository: Repository, tmp_path: Path):
    then = state(repository, tmp_path)
    (repository.root / LOOP).write_text("a = 9\n", encoding="utf-8")
    git(repository.root, "commit", "-qam", "two")
    later = find_repository(repository.root)
    assert later is not None
    assert [one.key for one in drifts_between(later, then, tmp_path)] == [LOOP]
    unknown = {"of": "llmsys", "commit": "f" * 40}, None
    (found,) = drifts_between(later, unknown, tmp_path)
    assert found.effect is Effect.NUMBERS
    assert "does not hold it" in found.what
    assert not has_commit(later, "HEAD; rm -rf x")
    assert not has_commit(later, "--help")


def test_changes_that_were_not_kept_are_told_of(repository: Repository, tmp_path: Path):
    then = {"of": "llmsys", "commit": repository.commit, "dirty": True, "patch": None}, None
    found = drifts_between(repository, then, tmp_path)
    assert ["does not hold" in one.what for one in found] == [True]


def test_the_code_of_then_is_laid_out_kept_and_removed(repository: Repository, tmp_path: Path):
    (repository.root / "llmsys_exp/workers/new.py").write_text("d = 4\n", encoding="utf-8")
    (repository.root / LOOP).write_text("a = 1\nb = 3\n", encoding="utf-8")
    _, patch = state(repository, tmp_path)
    hook = repository.root / ".git/hooks/post-checkout"
    hook.write_text(f"#!/bin/sh\ntouch {tmp_path}/ran\n", encoding="utf-8")
    hook.chmod(0o755)
    (repository.root / LOOP).write_text("a = 1\nb = 99\n", encoding="utf-8")
    folder, kept = tmp_path / "laid", tmp_path / "kept"
    add_worktree(repository, folder, repository.commit, patch)
    assert (folder / LOOP).read_text(encoding="utf-8") == "a = 1\nb = 3\n"
    assert (folder / "llmsys_exp/workers/new.py").is_file()
    assert not (tmp_path / "ran").exists()
    move_worktree(repository, folder, kept)
    assert (kept / LOOP).is_file()
    remove_worktree(repository, kept)
    assert not kept.exists()
    assert (repository.root / LOOP).read_text(encoding="utf-8") == "a = 1\nb = 99\n"


def test_a_patch_that_does_not_apply_leaves_nothing_behind(repository: Repository, tmp_path: Path):
    patch = tmp_path / "bad.patch"
    patch.write_text("--- a/none\n+++ b/none\n@@ -1 +1 @@\n-x\n+y\n", encoding="utf-8")
    with pytest.raises(UserError, match="cannot be laid out"):
        add_worktree(repository, tmp_path / "laid", repository.commit, patch)
    assert not (tmp_path / "laid").exists()


def test_a_patch_that_leaves_its_tree_is_refused(repository: Repository, tmp_path: Path):
    patch = tmp_path / "out.patch"
    patch.write_text(
        "diff --git a/../../evil b/../../evil\nnew file mode 100644\n--- /dev/null\n+++ b/../../evil\n"
        "@@ -0,0 +1 @@\n+x\n",
        encoding="utf-8",
    )
    with pytest.raises(UserError, match="cannot be laid out"):
        add_worktree(repository, tmp_path / "a" / "laid", repository.commit, patch)
    assert not (tmp_path / "evil").exists()


def test_a_recorded_patch_is_taken_only_as_it_was_written(tmp_path: Path):
    run = tmp_path / "tiny" / "run"
    code = {"commit": "0" * 40, "patch": "code.patch", "patch_sha256": hashlib.sha256(b"x").hexdigest()}
    file = write_manifest(run, code=code)
    (run / "job.json").write_text("{}", encoding="utf-8")
    with pytest.raises(UserError, match="are gone"):
        patch_of(read_logged(file))
    (run / "code.patch").write_bytes(b"x")
    assert patch_of(read_logged(file)) == run / "code.patch"
    (run / "code.patch").write_bytes(b"y")
    with pytest.raises(UserError, match="edited since"):
        patch_of(read_logged(file))
    outside = write_manifest(run, code={**code, "patch": "../../x.patch"})
    with pytest.raises(UserError, match="outside of the run folder"):
        patch_of(read_logged(outside))
