"""Ask git, and let nothing of the user's settings, hooks or variables change what it answers."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path

from llmsys_exp.evidence.errors import EvidenceError

TIMEOUT_S = 20
_SETTINGS = (
    *("core.fsmonitor=false", "core.quotePath=true", "color.ui=false"),
    *("diff.suppressBlankEmpty=false", "diff.autoRefreshIndex=true"),
)


class Repository:
    """A checkout with a commit."""

    def __init__(self, root: Path, commit: str) -> None:
        self.root, self.commit = root, commit

    def ask(
        self, *arguments: str, stdin: bytes | None = None, variables: Mapping[str, str] | None = None
    ) -> bytes:
        """Return what git prints; paths are taken literally, from the root.

        Raises:
            EvidenceError: with git's own first line.
        """
        return _git(self.root, arguments, stdin=stdin, variables=variables)

    def path(self, name: str) -> Path:
        """Return where git keeps one of its own files, such as `index`."""
        return self.root / os.fsdecode(self.ask("rev-parse", "--git-path", name)).rstrip("\n")

    @property
    def branch(self) -> str | None:
        """The branch; None for a commit that was checked out by itself."""
        try:
            return os.fsdecode(self.ask("symbolic-ref", "--short", "-q", "HEAD")).strip() or None
        except EvidenceError:
            return None


def find_repository(folder: Path) -> Repository | None:
    """Return the checkout around a folder; None where there is none.

    Raises:
        EvidenceError: when git is missing or refuses, or there is no commit yet.
    """
    if not any((one / ".git").exists() for one in (folder, *folder.parents)):
        return None
    root = os.fsdecode(_git(folder, ["rev-parse", "--show-toplevel"])).rstrip("\n")
    try:
        commit = os.fsdecode(_git(folder, ["rev-parse", "--verify", "HEAD^{commit}"])).strip()
    except EvidenceError as error:
        raise EvidenceError(f"the repository {root} has no commit yet") from error
    return Repository(Path(root), commit)


def _git(
    folder: Path,
    arguments: Sequence[str],
    *,
    stdin: bytes | None = None,
    variables: Mapping[str, str] | None = None,
) -> bytes:
    # a hook that starts us leaves variables that point git at its own index
    env = {key: value for key, value in os.environ.items() if not key.startswith("GIT_")}
    env |= {"GIT_OPTIONAL_LOCKS": "0", "GIT_LITERAL_PATHSPECS": "1", "LC_ALL": "C", **(variables or {})}
    settings = [part for one in _SETTINGS for part in ("-c", one)]
    try:
        done = subprocess.run(
            ["git", "-C", str(folder), *settings, *arguments],
            input=stdin,
            stdin=subprocess.DEVNULL if stdin is None else None,
            capture_output=True,
            timeout=TIMEOUT_S,
            env=env,
            check=False,
        )
    except FileNotFoundError as error:
        raise EvidenceError("git is not installed") from error
    except (OSError, subprocess.TimeoutExpired) as error:
        raise EvidenceError(f"git {arguments[0]}: {error}") from error
    if done.returncode != 0:
        lines = done.stderr.decode("utf-8", "replace").strip().splitlines()
        raise EvidenceError(
            f"git {arguments[0]}: {lines[0] if lines else f'it ended with {done.returncode}'}"
        )
    return done.stdout
