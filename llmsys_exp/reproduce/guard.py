"""A manifest is data: what would run a program, load code or leave the run folder is refused.

A manifest may come from somebody else. What it names is looked at and compared; of the few settings that make
workers start programs, load code or talk to machines, none is taken over unless the user says so.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from copy import deepcopy
from pathlib import Path, PurePosixPath
from typing import Any

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config
from llmsys_exp.errors import UserError
from llmsys_exp.evidence.secrets import LEFT_OUT

TRUST = "--trust"
DEEPEST = 40
_HARMLESS_VARIABLE = re.compile(
    r"OMP_NUM_THREADS|MKL_NUM_THREADS|CUDA_VISIBLE_DEVICES|CUDA_DEVICE_ORDER|CUBLAS_WORKSPACE_CONFIG"
    r"|PYTORCH_(CUDA_)?ALLOC_CONF|TOKENIZERS_PARALLELISM|FLASH_ATTENTION_DETERMINISTIC"
    r"|NCCL_(ALGO|PROTO|DEBUG|P2P_DISABLE|P2P_LEVEL|IB_DISABLE|SHM_DISABLE|NVLS_ENABLE|SOCKET_IFNAME|BUFFSIZE)"
)
"""Variables that choose among what libraries do by themselves; others may name code to load."""
_ARGUMENT = re.compile(r"enable_\w+|disable_\w+|\w+_backend|\w+_size|\w+_tokens|max_\w+|random_seed|dtype")
"""Arguments of SGLang that choose among what it does by itself."""


def check_plain(content: Any, where: str) -> None:
    """Refuse values that another program might take for instructions.

    Raises:
        UserError: naming the first.
    """
    for key, value in _leaves(content, where):
        name = key.rpartition(".")[2]
        if name in ("_target_", "_partial_", "_args_"):
            raise _refused(f"{key} asks for code to be called", where)
        if isinstance(value, str) and "${" in value:
            raise _refused(f"{key} holds an interpolation: {value[:60]!r}", where)


def check_settings(config: Mapping[str, Any], *, given: Sequence[str], trusted: bool, where: str) -> None:
    """Refuse settings with which a run would start programs, load code or talk to machines.

    Args:
        config: settings as the manifest has them.
        given: keys that the command line sets itself, which the user thus asks for.
        trusted: `--trust`: all but the model's own code is taken over.
        where: the manifest, for the message.

    Raises:
        UserError: naming all of them.
    """
    model = config.get("model") or {}
    if model.get("trust_remote_code") and "model.trust_remote_code" not in given:
        raise UserError(
            "The run executed Python code that came with its model",
            where=f"model.trust_remote_code in {where}",
            why="A manifest is data and cannot ask for that",
            do="Read that code, then add model.trust_remote_code=true to the command line",
        )
    found = [(key, text) for key, text in _powerful(config) if key not in given]
    if found and not trusted:
        told = "; ".join(f"{key}={text}" for key, text in found)
        raise UserError(
            f"The manifest names programs, variables or servers of its own: {told}",
            where=where,
            why="A manifest is data: what it names is not started or loaded by itself",
            do=f"Add {TRUST} if it is yours, or set {found[0][0]} on the command line",
        )


def without_powers(config: Config) -> Config:
    """Return settings with which looking at a run starts no program of the manifest's choosing."""
    plain = deepcopy(config)
    plain.launcher.python = plain.launcher.hostfile = plain.launcher.master_addr = None
    plain.launcher.env = {}
    plain.inference.sglang.python = plain.inference.server.url = None
    plain.inference.sglang.arguments = {}
    return plain


def check_secrets(config: Config, where: str) -> None:
    """Refuse settings whose value the record leaves out.

    Raises:
        UserError: naming the first.
    """
    for key, value in _leaves(to_plain(config), where):
        if value == LEFT_OUT:
            raise UserError(
                f"The record does not hold the value of {key}",
                where=where,
                why="It looked like a secret",
                do=f"Give it again: {key}=...",
            )


def inside(folder: Path, name: Any, what: str) -> Path:
    """Return the path of a file that a manifest says lies in its run folder.

    Raises:
        UserError: when it would lie elsewhere, by its name or behind a link.
    """
    path = PurePosixPath(str(name))
    outside = path.is_absolute() or ".." in path.parts or "\0" in str(name)
    if outside or not (folder / path).resolve().is_relative_to(folder.resolve()):
        raise _refused(f"{what} lies outside of the run folder: {str(name)[:80]!r}", str(folder))
    return folder / path


def _powerful(config: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    """Yield settings that name programs, code or machines."""
    launcher, inference = config.get("launcher") or {}, config.get("inference") or {}
    sglang, server = inference.get("sglang") or {}, inference.get("server") or {}
    for key, value in (
        ("launcher.python", launcher.get("python")),
        ("launcher.hostfile", launcher.get("hostfile")),
        ("launcher.master_addr", launcher.get("master_addr")),
        ("inference.sglang.python", sglang.get("python")),
        ("inference.server.url", server.get("url")),
    ):
        if value is not None:
            yield key, str(value)
    for name, value in (launcher.get("env") or {}).items():
        if not _HARMLESS_VARIABLE.fullmatch(str(name)):
            yield f"launcher.env.{name}", str(value)
    for name, value in (sglang.get("arguments") or {}).items():
        if not _ARGUMENT.fullmatch(str(name)):
            yield f"inference.sglang.arguments.{name}", str(value)


def _leaves(content: Any, where: str, at: str = "", depth: int = 0) -> Iterator[tuple[str, Any]]:
    if depth > DEEPEST:
        raise _refused(f"{at[:80]} is nested more than {DEEPEST} deep", where)
    if isinstance(content, Mapping):
        for key, value in content.items():
            name = f"{at}.{key}" if at else str(key)
            yield name, None
            yield from _leaves(value, where, name, depth + 1)
    elif isinstance(content, (list, tuple)):
        for number, value in enumerate(content):
            yield from _leaves(value, where, f"{at}[{number}]", depth + 1)
    else:
        yield at, content


def _refused(what: str, where: str) -> UserError:
    return UserError(what, where=where, why="A manifest is data: nothing in it is executed or looked up")
