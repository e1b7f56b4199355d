"""The training command of a script: launcher, GPUs, program, flags."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import PurePosixPath
from typing import Any

from llmsys_exp.importers.shell import Found
from llmsys_exp.importers.shell_condition import UNKNOWN

LAUNCHERS = ("deepspeed", "torchrun", "accelerate", "llamafactory-cli", "lmf", "axolotl", "python")
_PYTHON = re.compile(r"python(\d(\.\d+)?)?")
RANKS = ("--num_gpus", "--nproc_per_node", "--nproc-per-node", "--num_processes")
NODES = ("--num_nodes", "--nnodes", "--num_machines")
_ONLY_TALK = ("echo", "printf", "cat", "ls", "pip", "which", "pkill", "killall")
LAUNCH_MODULES = ("torch.distributed.run", "torch.distributed.launch", "deepspeed.launcher.runner")


@dataclass(frozen=True)
class Launch:
    """One training command."""

    launcher: str
    program: str
    """The script, module or verb that trains."""
    flags: dict[str, Any]
    """Flag without dashes -> text, list of texts, or True where it stands alone."""
    files: tuple[str, ...]
    """Words after the program that belong to no flag."""
    gpus: int | None = None
    nodes: int | None = None
    own: dict[str, str] = field(default_factory=dict)
    """Flags of the launcher that say where the program's configuration is (accelerate)."""


def find_launch(command: Found) -> Launch | None:
    """Return the training command in a command, behind words such as `nohup`; None where there is none."""
    words = command.words
    if words[0] in _ONLY_TALK:
        return None
    at = next((index for index, word in enumerate(words) if _launcher(word)), None)
    if at is None:
        return None
    launcher = _launcher(words[at])
    rest = words[at + 1 :]
    if launcher == "python" and rest[:1] == ["-m"] and len(rest) > 1 and rest[1] in LAUNCH_MODULES:
        launcher, rest = ("deepspeed" if "deepspeed" in rest[1] else "torchrun"), rest[2:]
    if launcher in ("llamafactory-cli", "lmf", "axolotl"):
        return _verb(launcher, rest)
    return _program(launcher, rest, command.env)


def _launcher(word: str) -> str:
    name = PurePosixPath(word).name if word else ""
    return "python" if _PYTHON.fullmatch(name) else name if name in LAUNCHERS else ""


def _verb(launcher: str, rest: Sequence[str]) -> Launch | None:
    if rest[:1] != ["train"]:
        return None
    flags, files = read_flags(rest[1:])
    return Launch(launcher, "train", flags, tuple(files))


def _program(launcher: str, rest: Sequence[str], env: Mapping[str, str]) -> Launch | None:
    at = next((index for index, word in enumerate(rest) if word.endswith(".py") or word == "-m"), None)
    if at is None:
        return None
    own, _ = read_flags([word for word in rest[:at] if word != "launch"])
    program = rest[at] if rest[at] != "-m" else (rest[at + 1] if at + 1 < len(rest) else "")
    flags, files = read_flags(rest[at + 1 + (rest[at] == "-m") :])
    kept = {key: str(value) for key, value in own.items() if isinstance(value, str)}
    ranks = _count(kept, RANKS) or _named(kept.get("include", "")) or _visible(launcher, env)
    return Launch(launcher, program, flags, tuple(files), ranks, _count(kept, NODES), kept)


def _count(flags: Mapping[str, str], names: Sequence[str]) -> int | None:
    for name in names:
        text = flags.get(name.lstrip("-").replace("-", "_"), "")
        if text.isdigit() and int(text) > 0:
            return int(text)
    return None


def _named(include: str) -> int | None:
    """GPUs of `--include localhost:0,1,2`."""
    _, colon, numbers = include.partition(":")
    return len(numbers.split(",")) if colon and "@" not in include else None


def _visible(launcher: str, env: Mapping[str, str]) -> int | None:
    entries = [one for one in env.get("CUDA_VISIBLE_DEVICES", "").split(",") if one]
    if UNKNOWN in "".join(entries) or not entries:
        return 1 if launcher == "python" else None
    return 1 if launcher == "python" else len(entries)


def read_flags(words: Sequence[str]) -> tuple[dict[str, Any], list[str]]:
    """Return flags with what stands behind them, and the words before the first flag.

    >>> read_flags(["a.yaml", "--lr", "1e-4", "--data_path", "x", "y", "--fast", "--n=-1"])
    ({'lr': '1e-4', 'data_path': ['x', 'y'], 'fast': True, 'n': '-1'}, ['a.yaml'])
    """
    flags: dict[str, Any] = {}
    loose: list[str] = []
    name = ""
    for word in words:
        if word.startswith("--") and len(word) > 2:
            name, equals, value = word[2:].partition("=")
            name = name.replace("-", "_")
            flags[name] = value if equals else True
        elif not name:
            loose.append(word)
        elif flags[name] is True:
            flags[name] = word
        else:
            held = flags[name]
            flags[name] = [*held, word] if isinstance(held, list) else [held, word]
    return flags, loose
