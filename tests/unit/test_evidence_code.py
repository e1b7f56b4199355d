"""The patch of a checkout: it applies, it holds no secret, and git's own files stay as they are."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from llmsys_exp.evidence import changes, code
from llmsys_exp.evidence.code import code_facts

KEY = "hf_" + "aB3" * 12


def git(folder: Path, *arguments: str) -> str:
    done = subprocess.run(
        ["git", "-c", "user.name=n", "-c", "user.email=n@x", "-C", str(folder), *arguments],
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout


def write(root: Path, name: str, content: str | bytes) -> None:
    (root / name).parent.mkdir(parents=True, exist_ok=True)
    (root / name).write_bytes(content.encode() if isinstance(content, str) else content)


@pytest.fixture
def checkout(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A repository with a commit; llmsys itself counts as installed."""
    monkeypatch.setattr(code, "PACKAGE", tmp_path / "site-packages")
    root = tmp_path / "mine"
    for name in ("train.py", "old name.py", "gone.py", "run.sh", "deep/er/x.py"):
        write(root, name, "".join(f"{name} line {number}\n" for number in range(30)))
    write(root, "picture.bin", bytes(range(256)) * 8)
    write(root, ".gitignore", "ignored/\n")
    git(root, "init", "-q", "-b", "work")
    git(root, "add", "-A")
    git(root, "commit", "-qm", "first")
    return root


def change(root: Path) -> None:
    write(root, "train.py", (root / "train.py").read_text().replace("line 7", "line seven"))
    write(root, "picture.bin", bytes(reversed(range(256))) * 9)
    (root / "old name.py").rename(root / "new name.py")
    (root / "gone.py").unlink()
    (root / "run.sh").chmod(0o755)
    write(root, "mine own/neu é.yaml", "a: 1\n")
    write(root, "no newline.txt", "end")
    write(root, "empty.py", "")
    write(root, 'tab\tquote".py', "x = 1\r\n")
    write(root, "raw.npy", b"\x00\x01\xff" * 100)
    (root / "link.py").symlink_to("train.py")
    write(root, "deep/er/x.py", "staged\n")
    git(root, "add", "deep/er/x.py")
    write(root, "deep/er/x.py", "staged and changed again\n")
    write(root, "ignored/large.py", "no")


def files_of(root: Path) -> dict[str, bytes | str]:
    names = [one for one in root.rglob("*") if ".git" not in one.relative_to(root).parts and not one.is_dir()]
    return {
        str(one.relative_to(root)): os.readlink(one) if one.is_symlink() else one.read_bytes()
        for one in names
    }


def test_the_patch_turns_the_commit_into_the_checkout(checkout: Path, tmp_path: Path):
    change(checkout)
    index, objects = (checkout / ".git/index").read_bytes(), sorted((checkout / ".git/objects").rglob("*"))
    notes: list[str] = []
    facts = code_facts(tmp_path / "code.patch", notes, folder=checkout / "deep")
    assert notes == [] and facts is not None
    assert (checkout / ".git/index").read_bytes() == index
    assert sorted((checkout / ".git/objects").rglob("*")) == objects
    assert (facts["of"], facts["branch"], facts["dirty"], facts["left_out"]) == ("folder", "work", True, [])
    assert facts["commit"] == git(checkout, "rev-parse", "HEAD").strip()
    assert "mine own/neu é.yaml" in facts["untracked"] and "train.py" not in facts["untracked"]
    again = tmp_path / "again"
    git(tmp_path, "clone", "-q", str(checkout), str(again))
    git(again, "apply", str(tmp_path / "code.patch"))
    wanted = files_of(checkout)
    del wanted["ignored/large.py"]
    assert files_of(again) == wanted
    assert (again / "run.sh").stat().st_mode & 0o100


def test_settings_of_the_user_do_not_change_the_patch(checkout: Path, tmp_path: Path):
    change(checkout)
    code_facts(tmp_path / "plain.patch", [], folder=checkout)
    for setting in (
        ("diff.noprefix", "true"),
        ("diff.mnemonicPrefix", "true"),
        ("color.diff", "always"),
        ("diff.external", "false"),
        ("apply.whitespace", "error"),
        ("diff.renames", "copies"),
        ("core.fsmonitor", "/bin/false"),
    ):
        git(checkout, "config", *setting)
    notes: list[str] = []
    code_facts(tmp_path / "set.patch", notes, folder=checkout)
    assert notes == []
    assert (tmp_path / "set.patch").read_bytes() == (tmp_path / "plain.patch").read_bytes()


def test_secrets_are_named_and_nowhere_else(checkout: Path, tmp_path: Path):
    write(checkout, "was.py", f"TOKEN = '{KEY}'\n" + "x\n" * 9)
    write(checkout, "old.py", f"old = '{KEY}'\n" + "x\n" * 9)
    git(checkout, "add", "-A")
    git(checkout, "commit", "-qm", "second")
    write(checkout, "was.py", "x\n" * 9)  # the key is in what was removed
    write(checkout, "train.py", f"login('{KEY}')\n")
    write(checkout, "new.yaml", "db:\n  pass" + "word: correct-horse\n")
    write(checkout, ".env", "A=1")
    write(checkout, "keys/id_rsa", "nothing")
    write(checkout, "old.py", f"old = '{KEY}'\n" + "x\n" * 9 + "new\n")  # the key is not near the change
    header = "Authorization: " + "Bearer "
    write(checkout, "call.txt", header + "abcdEFGH1234ijklMNOP\n")
    write(checkout, "hosts.txt", "machine a.b\n  login me\n  pass" + "word correct-horse\n")
    random = "0123456789abcdef" * 2
    write(checkout, "env.py", "os.environ['WANDB_API_" + f"KEY'] = '{random}'\n")
    write(checkout, "log.py", f"wandb.login(key='{random}')\n")
    write(checkout, "go.sh", f"train --wandb-key {random}\n")
    write(checkout, "good.py", f"token = tokenizer(text)\n# {header}TOKEN\n")
    facts = code_facts(tmp_path / "code.patch", [], folder=checkout)
    assert facts is not None
    left = {one["path"]: one["why"] for one in facts["left_out"]}
    assert set(left) == {
        *(
            "was.py",
            "train.py",
            "new.yaml",
            ".env",
            "keys/id_rsa",
            "call.txt",
            "hosts.txt",
            "env.py",
            "log.py",
            "go.sh",
        )
    }
    assert "secret" in left["was.py"] and "named like" in left[".env"]
    patch = (tmp_path / "code.patch").read_text()
    assert facts["untracked"] == ["good.py"] and "good.py" in patch
    assert "+new" in patch
    for hidden in (KEY, "correct-horse", "id_rsa", "was.py"):
        assert hidden not in patch
    assert KEY not in str(facts)


def test_large_files_other_repositories_and_run_folders_stay_out(checkout: Path, tmp_path: Path, monkeypatch):
    monkeypatch.setattr(changes, "FILE_BYTES", 1000)
    monkeypatch.setattr(changes, "UNTRACKED_BYTES", 1500)
    write(checkout, "train.py", "x" * 2000)
    write(checkout, "huge.py", "y" * 2000)
    write(checkout, "one.py", "a" * 900)
    write(checkout, "two.dat", "b" * 300)
    write(checkout, "three.dat", "c" * 900)
    write(checkout, "outputs/run/log.txt", "d")
    git(checkout, "init", "-q", str(checkout / "other"))
    write(checkout, "other/x.py", "e")
    git(checkout / "other", "add", "-A")
    git(checkout / "other", "commit", "-qm", "own")
    facts = code_facts(tmp_path / "code.patch", [], folder=checkout, skip=[checkout / "outputs"])
    assert facts is not None and facts["untracked"] == ["one.py", "two.dat"]
    left = {one["path"]: one["why"] for one in facts["left_out"]}
    assert left == {
        "train.py": "2,000 bytes",
        "huge.py": "2,000 bytes",
        "three.dat": "the patch has no room for more new files",
        "other/": changes.OWN_REPOSITORY,
    }


def test_many_changed_files_go_in_until_there_is_no_room(checkout: Path, tmp_path: Path, monkeypatch):
    change(checkout)
    monkeypatch.setattr(changes, "TRACKED_BYTES", 2500)
    facts = code_facts(tmp_path / "code.patch", [], folder=checkout)
    assert facts is not None
    assert [one["path"] for one in facts["left_out"]] == ["picture.bin", "train.py"]
    assert "+staged and changed again" in (tmp_path / "code.patch").read_text()
    again = tmp_path / "again"
    git(tmp_path, "clone", "-q", str(checkout), str(again))
    git(again, "apply", str(tmp_path / "code.patch"))
    monkeypatch.setattr(code, "PATCH_BYTES", 100)
    notes: list[str] = []
    facts = code_facts(tmp_path / "code.patch", notes, folder=checkout)
    assert facts is not None and facts["dirty"] and facts["patch"] is None and "100 are the most" in notes[0]


def test_a_clean_checkout_and_none_at_all(checkout: Path, tmp_path: Path):
    os.utime(checkout / "train.py", (5, 5))  # another time stamp is no change
    facts = code_facts(tmp_path / "code.patch", [], folder=checkout)
    assert facts is not None and (facts["dirty"], facts["patch"]) == (False, None)
    assert not (tmp_path / "code.patch").exists()
    notes: list[str] = []
    assert code_facts(tmp_path / "code.patch", notes, folder=tmp_path) is None and notes == []


def test_what_git_cannot_say_is_a_note(checkout: Path, tmp_path: Path, monkeypatch):
    notes: list[str] = []
    git(tmp_path, "init", "-q", str(tmp_path / "fresh"))
    assert code_facts(tmp_path / "code.patch", notes, folder=tmp_path / "fresh") is None
    assert "has no commit yet" in notes[-1]
    (checkout / ".git" / "index").write_bytes(b"broken")
    facts = code_facts(tmp_path / "code.patch", notes, folder=checkout)
    assert facts is not None and facts["commit"] and facts["dirty"] is None and "index" in notes[-1]
    monkeypatch.setenv("PATH", str(tmp_path))
    assert code_facts(tmp_path / "code.patch", notes, folder=checkout) is None
    assert notes[-1] == "code: git is not installed"


def test_a_patch_that_does_not_apply_is_noted(checkout: Path, tmp_path: Path, monkeypatch):
    change(checkout)
    monkeypatch.setattr(
        code, "make_patch", lambda *_: b"diff --git a/x b/x\n--- a/x\n+++ b/x\n@@ -1 +1 @@\n-a\n+b\n"
    )
    notes: list[str] = []
    assert code_facts(tmp_path / "code.patch", notes, folder=checkout)
    assert notes and notes[0].startswith("patch of the code: git apply")


def test_llmsys_in_a_checkout_comes_before_the_folder(checkout: Path, tmp_path: Path, monkeypatch):
    program = tmp_path / "program"
    write(program, "llmsys_exp/errors.py", "x")
    git(tmp_path, "init", "-q", str(program))
    git(program, "add", "-A")
    git(program, "commit", "-qm", "p")
    monkeypatch.setattr(code, "PACKAGE", program / "llmsys_exp")
    facts = code_facts(tmp_path / "code.patch", [], folder=checkout)
    assert facts is not None and facts["of"] == "llmsys"
    assert facts["commit"] == git(program, "rev-parse", "HEAD").strip()
    assert facts["beside"]["commit"] == git(checkout, "rev-parse", "HEAD").strip()
    # merely lying in a checkout, as an environment does, is not being part of it
    write(checkout, "ignored/lib/llmsys_exp/errors.py", "x")
    monkeypatch.setattr(code, "PACKAGE", checkout / "ignored/lib/llmsys_exp")
    assert (code_facts(tmp_path / "code.patch", [], folder=checkout) or {})["of"] == "folder"
