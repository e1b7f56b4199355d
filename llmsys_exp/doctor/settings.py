"""Variables of the environment that are known to break runs, slow them down, or make forecasts wrong."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from llmsys_exp.doctor.finding import OK, Finding, Reporter
from llmsys_exp.doctor.look import Look
from llmsys_exp.launch.gpus import MIG, VISIBLE, visible_entries

_SAY = Reporter("settings")
ARCH_LIST = "TORCH_CUDA_ARCH_LIST"
_ARCH = re.compile(r"\d+\.\d+(\+PTX)?")
_NETWORK = Path("/sys/class/net")
ALLOCATOR = ("PYTORCH_CUDA_ALLOC_CONF", "PYTORCH_ALLOC_CONF")
SLOW: Mapping[str, tuple[str, str]] = {
    "NCCL_P2P_DISABLE": ("1", "GPUs talk through main memory, several times slower"),
    "NCCL_SHM_DISABLE": ("1", "ranks without links between their GPUs talk through the network"),
    "NCCL_IB_DISABLE": ("1", "machines talk over Ethernet"),
    "CUDA_LAUNCH_BLOCKING": ("1", "every kernel waits for the one before: for debugging only"),
    "TORCH_NCCL_BLOCKING_WAIT": ("1", "the host waits in every collective"),
    "TORCH_DISTRIBUTED_DEBUG": ("DETAIL", "every collective is checked on all ranks"),
    "DS_SKIP_CUDA_CHECK": ("1", "operators may be built with an nvcc of another CUDA than torch's"),
}
"""Variable -> the value that is worth a note, and what it does."""
RANK_VARIABLES = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT")


def check(look: Look) -> Iterator[Finding]:
    """Go through the variables that are set."""
    found = [finding for one in _CHECKS for finding in one(look)]
    yield from found
    if all(one.state == OK for one in found):
        yield _SAY.ok("variables", "No variable is set that is known to do harm")


def unread_archs(text: str) -> list[str]:
    """Return the parts of TORCH_CUDA_ARCH_LIST that DeepSpeed's builder cannot read.

    DeepSpeed 0.19.8 `ops/op_builder/builder.py: compute_capability_args` splits at blanks and semicolons, and
    takes the numbers on both sides of the dot: 9.0a, Hopper, native and a number alone end it.

    >>> unread_archs("8.0;9.0+PTX"), unread_archs("9.0a"), unread_archs("10.0+PTX 0a")
    ([], ['9.0a'], ['0a'])
    """
    return [part for part in re.split(r"[ ;]+", text.strip()) if part and not _ARCH.fullmatch(part)]


def _arch_list(look: Look) -> Iterator[Finding]:
    text = look.env.get(ARCH_LIST, "").strip()
    if not text:
        return
    bad = unread_archs(text)
    here = sorted(
        {gpu["compute_cap"] for gpu in look.gpus if re.fullmatch(r"\d+\.\d+", gpu.get("compute_cap", ""))}
    )
    fix = f'export {ARCH_LIST}="{";".join(here)}"' if here else f"unset {ARCH_LIST}"
    if bad:
        said = f"{ARCH_LIST}={text}: DeepSpeed cannot read {', '.join(bad)}, and builds no operator"
        yield _SAY.either(bool(look.gpus), ARCH_LIST, said, fix)
        return
    parts = [part for part in re.split(r"[ ;]+", text) if part]
    missing = [one for one in here if not any(_runs_on(part, one) for part in parts)]
    if missing:
        said = f"{ARCH_LIST}={text} makes nothing that runs on compute capability {', '.join(missing)}"
        yield _SAY.problem(ARCH_LIST, said, fix)


def _runs_on(part: str, capability: str) -> bool:
    """Code of a capability runs on later ones of its generation; with +PTX, on all later ones."""
    built, card = (tuple(map(int, one.removesuffix("+PTX").split("."))) for one in (part, capability))
    return built <= card and (built[0] == card[0] or part.endswith("+PTX"))


def _visible(look: Look) -> Iterator[Finding]:
    text = look.env.get(VISIBLE)
    if text is None:
        return
    entries = [part.strip() for part in text.split(",") if part.strip()]
    fix = f"unset {VISIBLE}, or name GPUs as nvidia-smi -L does"
    if not entries:
        if look.gpus:
            yield _SAY.problem(VISIBLE, f"{VISIBLE} is empty and hides all {len(look.gpus)} GPUs", fix)
        return
    kinds = {
        "a number" if one.isdigit() else "a MIG slice" if one.startswith(MIG) else "a name" for one in entries
    }
    if len(kinds) > 1:
        said = f"{VISIBLE}={text} mixes {' and '.join(sorted(kinds))}: CUDA reads one kind only"
        yield _SAY.either(bool(look.gpus), VISIBLE, said, fix)
        return
    seen = visible_entries(look.env, look.cards) or ()
    if look.cards is not None and len(seen) < len(entries):
        said = f"{VISIBLE}={text}: {entries[len(seen)]} is no GPU here, and CUDA stops reading there"
        yield _SAY.problem(VISIBLE, said, fix)
    elif len(set(entries)) < len(entries):
        yield _SAY.problem(VISIBLE, f"{VISIBLE}={text} names a GPU twice, which CUDA refuses", fix)


def _allocator(look: Look) -> Iterator[Finding]:
    for name in ALLOCATOR:
        text = look.env.get(name, "")
        if not text or text == "expandable_segments:True":
            continue
        if "expandable_segments:False" in text or "cudaMallocAsync" in text:
            said = f"{name}={text} contradicts training.expandable_segments, which plans choose on GPUs"
            yield _SAY.note(name, said, f"unset {name}, or training.expandable_segments=false")
        else:
            said = f"{name}={text}: forecasts count with torch's defaults and with expandable segments"
            yield _SAY.note(name, said, f"unset {name}")


def _slow(look: Look) -> Iterator[Finding]:
    for name, (value, effect) in SLOW.items():
        if look.env.get(name, "").upper() == value:
            yield _SAY.note(name, f"{name}={value}: {effect}", f"unset {name}")


def _network(look: Look) -> Iterator[Finding]:
    """NCCL waits for a long time where its interface does not exist."""
    name = "NCCL_SOCKET_IFNAME"
    text = look.env.get(name, "")
    wanted = [part.strip().lstrip("=") for part in text.split(",") if part.strip()]
    if not wanted or text.startswith("^") or not _NETWORK.is_dir():
        return
    here = sorted(one.name for one in _NETWORK.iterdir())
    if not any(one.startswith(tuple(wanted)) for one in here):
        said = f"{name}={text} names no interface of this machine ({', '.join(here)})"
        yield _SAY.either(bool(look.gpus), name, said, f"unset {name}")


def _threads(look: Look) -> Iterator[Finding]:
    text, cores = look.env.get("OMP_NUM_THREADS"), len(os.sched_getaffinity(0))
    if text is None:
        yield _SAY.ok(
            "OMP_NUM_THREADS", f"OMP_NUM_THREADS is not set: each rank gets its share of {cores} cores"
        )
    elif not text.isdecimal() or int(text) == 0:
        yield _SAY.problem("OMP_NUM_THREADS", f"OMP_NUM_THREADS={text} is no number", "unset OMP_NUM_THREADS")
    elif int(text) > cores:
        said = f"OMP_NUM_THREADS={text} and {cores} cores: threads fight for them"
        yield _SAY.note("OMP_NUM_THREADS", said, "unset OMP_NUM_THREADS")
    elif int(text) == 1 and cores > 8:
        said = f"OMP_NUM_THREADS=1 of {cores} cores: an optimizer on the CPU steps on one of them"
        yield _SAY.note("OMP_NUM_THREADS", said, "unset OMP_NUM_THREADS")


def _hub(look: Look) -> Iterator[Finding]:
    for name in ("TRANSFORMERS_OFFLINE", "HF_HUB_OFFLINE", "HF_DATASETS_OFFLINE"):
        if look.env.get(name, "").upper() in ("1", "ON", "YES", "TRUE"):
            yield _SAY.ok(name, f"{name} is set: nothing is downloaded, and workers never do")


def _others(look: Look) -> Iterator[Finding]:
    env = look.env
    if env.get("DS_ACCELERATOR", "cuda") != "cuda" and look.gpus:
        said = f"DS_ACCELERATOR={env['DS_ACCELERATOR']}, and there are GPUs"
        yield _SAY.problem("DS_ACCELERATOR", said, "unset DS_ACCELERATOR")
    ranks = [name for name in RANK_VARIABLES if name in env]
    if ranks:
        said = f"{', '.join(ranks)} set here: left from a launcher, and read by whatever starts ranks"
        yield _SAY.note("ranks", said, f"unset {' '.join(ranks)}")
    temporary = env.get("TMPDIR")
    if temporary and not Path(temporary).is_dir():
        yield _SAY.problem("TMPDIR", f"TMPDIR={temporary} is no folder", "unset TMPDIR")
    if env.get("LD_PRELOAD"):
        yield _SAY.note("LD_PRELOAD", "LD_PRELOAD puts libraries before torch's own", "unset LD_PRELOAD")
    yield from _libraries(env)


def _libraries(env: Mapping[str, str]) -> Iterator[Finding]:
    """Torch brings its CUDA libraries; those of a search path are taken in their place."""
    for folder in filter(None, env.get("LD_LIBRARY_PATH", "").split(os.pathsep)):
        found = next(
            (name for name in ("libnccl.so.2", "libcudnn.so.9") if (Path(folder) / name).exists()), None
        )
        if found:
            said = f"LD_LIBRARY_PATH has {found} in {folder}, which hides the one that torch was built with"
            yield _SAY.note("LD_LIBRARY_PATH", said, "unset LD_LIBRARY_PATH")
            return


_CHECKS: tuple[Callable[[Look], Iterator[Finding]], ...] = (
    *(_arch_list, _visible, _allocator, _slow, _network, _threads, _hub, _others),
)
