"""Reads a training job from the case format (docs/case-format.md) and checks it.

Unknown keys and contradictions are refused with the reason; all problems of a case are reported together.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, cast

from planner.architecture.families import architecture_of
from planner.architecture.spec import Architecture
from planner.consistency import contradictions, misfits
from planner.errors import CaseError, did_you_mean
from planner.network.litgpt import litgpt_architecture
from planner.optimizers import optimizers
from planner.parsing_deepspeed import grad_accum_dtype, zero_settings
from planner.parsing_perceptron import is_perceptron, perceptron_architecture, perceptron_problems
from planner.parsing_sections import fsdp_settings, quantization_settings, section
from planner.tables import gpu_names
from planner.training_case import LIGER_KERNELS, Checkpointing, Lora, Method, TrainingCase
from planner.units import GIB

CHOICES: dict[str, tuple[Any, ...]] = {
    "method": tuple(m.value for m in Method),
    "zero_stage": (0, 1, 2, 3),
    "offload_optimizer": ("none", "cpu", "nvme"),
    "offload_param": ("none", "cpu", "nvme"),
    "attention": ("sdpa", "eager", "flash_attention_2"),
    "dtype": ("bf16", "fp16", "fp32"),
    "engine": ("deepspeed", "plain", "fsdp2"),
    "optimizer": tuple(optimizers()),
    "loss": ("stock", "chunked", "litgpt_chunked"),
    "attention_code": ("transformers", "litgpt"),
}
_COUNTS = {
    "world_size": 65_536,
    "micro_batch": 65_536,
    "seq_len": 1 << 24,
    "grad_accum": 65_536,
    "sequence_parallel": 1024,
}
_MOST_GIB = 1_000_000
_FLAGS = ("gradient_checkpointing", "liger", "padded", "packed", "outputs_kept", "expandable_segments")
_OTHER = (
    "hf_config",
    "layers",
    "lora",
    "quantization",
    "freeze",
    "deepspeed",
    "fsdp",
    "checkpointing",
    "liger_kernels",
    "memory_limit_gib",
    "gpu",
    "kind",
)
KEYS = (*CHOICES, *_COUNTS, *_FLAGS, *_OTHER)


def parse_training_case(
    case: Mapping[str, Any], *, architecture: Callable[[Mapping[str, Any]], Architecture] | None = None
) -> TrainingCase:
    """Check a case and give it types.

    Args:
        case: as written.
        architecture: reads the model; None: families that are known.

    Raises:
        CaseError: naming every problem of the case.
    """
    problems = [f"unknown key {key!r}. {did_you_mean(str(key), KEYS)}" for key in case if key not in KEYS]
    problems += _wrong_values(case)
    parsed: dict[str, Any] = {}
    sections = _SECTIONS if architecture is None else {**_SECTIONS, "architecture": architecture}
    for name, read in sections.items():
        try:
            parsed[name] = read(case)
        except CaseError as error:
            problems += error.problems
    problems += contradictions(case)
    problems += perceptron_problems(case)
    problems += misfits(case, parsed)
    if problems:
        raise CaseError(*problems)
    plain = {k: case[k] for k in (*CHOICES, *_COUNTS, *_FLAGS) if k in case and k != "method"}
    if is_perceptron(case):
        plain["seq_len"] = 1
    return TrainingCase(method=Method(case["method"]), **plain, **parsed)


def _wrong_values(case: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    if "method" not in case:
        problems.append(f"no method. {did_you_mean('', CHOICES['method'])}")
    for key, valid in CHOICES.items():
        if key in case and (case[key] not in valid or isinstance(case[key], bool)):
            problems.append(f"{key} is {case[key]!r}; known: {', '.join(map(str, valid))}")
    for key, most in _COUNTS.items():
        value = case.get(key, 1)
        if isinstance(value, bool) or not isinstance(value, int) or not 0 < value <= most:
            problems.append(f"{key} is {value!r}; it must be a whole number from 1 to {most}")
    for key in _FLAGS:
        if not isinstance(case.get(key, False), bool):
            problems.append(f"{key} is {case[key]!r}; it must be true or false")
    return problems


def _architecture(case: Mapping[str, Any]) -> Architecture:
    if is_perceptron(case):
        return perceptron_architecture(case)
    config = case.get("hf_config")
    if not isinstance(config, Mapping):
        raise CaseError("no hf_config: the model's config.json as a mapping")
    architecture = architecture_of(cast("Mapping[str, Any]", config))
    return litgpt_architecture(architecture) if case.get("attention_code") == "litgpt" else architecture


_LORA_FLAGS = ("use_dora", "use_rslora", "train_base")
_LORA_KEYS = ("r", "alpha", "target_modules", "dropout", "adapter_dtype", "modules_to_save", *_LORA_FLAGS)


def _lora(case: Mapping[str, Any]) -> Lora | None:
    given = section(case, "lora", _LORA_KEYS)
    if given is None:
        return None
    rank, dropout = given.get("r", 8), given.get("dropout", 0.0)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 < rank <= 65_536:
        raise CaseError(f"lora.r is {rank!r}; it must be a whole number from 1 to 65536")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise CaseError(f"lora.dropout is {dropout!r}; a dropout rate lies in [0, 1)")
    adapter_dtype = given.get("adapter_dtype", case.get("dtype", "bf16"))
    if adapter_dtype not in ("fp32", "bf16", "fp16"):
        raise CaseError(f"lora.adapter_dtype is {adapter_dtype!r}; known: bf16, fp16, fp32")
    flags = {key: given.get(key, False) for key in _LORA_FLAGS}
    for key, value in flags.items():
        if not isinstance(value, bool):
            raise CaseError(f"lora.{key} is {value!r}; it must be true or false")
    saved = _names(given.get("modules_to_save") or (), "lora.modules_to_save")
    targets = _targets(given.get("target_modules", "all-linear"))
    return Lora(rank, targets, float(dropout), adapter_dtype, modules_to_save=saved, **flags)


def _targets(given: Any) -> str | tuple[str, ...]:
    if isinstance(given, str) and given:
        return given
    names = _names(given, "lora.target_modules", more="all-linear or ")
    if not names:
        raise CaseError("lora.target_modules is empty; it must name at least one module, or be all-linear")
    return names


def _names(given: Any, key: str, *, more: str = "") -> tuple[str, ...]:
    names = tuple(cast("list[Any]", given)) if isinstance(given, (list, tuple)) else (None,)
    if not all(isinstance(name, str) and name for name in names):
        raise CaseError(f"{key} is {given!r}; it must be {more}a list of names")
    return cast("tuple[str, ...]", names)


def _checkpointing(case: Mapping[str, Any]) -> Checkpointing:
    given = section(case, "checkpointing", ("kind", "cpu")) or {}
    kind, cpu = given.get("kind", "non_reentrant"), given.get("cpu", False)
    kinds = ("non_reentrant", "reentrant", "deepspeed")
    if kind not in kinds:
        raise CaseError(f"checkpointing.kind is {kind!r}. {did_you_mean(str(kind), kinds)}")
    if not isinstance(cpu, bool):
        raise CaseError(f"checkpointing.cpu is {cpu!r}; it must be true or false")
    if cpu and kind != "deepspeed":
        raise CaseError("checkpointing.cpu is DeepSpeed's; it needs checkpointing.kind deepspeed")
    return Checkpointing(kind, cpu)


def _kernels(case: Mapping[str, Any]) -> tuple[str, ...]:
    given = case.get("liger_kernels")
    if given is None:
        return LIGER_KERNELS
    names = _names(given, "liger_kernels")
    for name in names:
        if name not in LIGER_KERNELS:
            raise CaseError(f"liger_kernels has {name!r}. {did_you_mean(name, LIGER_KERNELS)}")
    return names


def _freeze(case: Mapping[str, Any]) -> int:
    layers = (section(case, "freeze", ("last_layers",)) or {}).get("last_layers", 2)
    if isinstance(layers, bool) or not isinstance(layers, int) or layers < 1:
        raise CaseError(f"freeze.last_layers is {layers!r}; it must be a whole number above 0")
    return layers if case.get("method") == "freeze" else 0


def _limit(case: Mapping[str, Any]) -> int | None:
    value = case.get("memory_limit_gib")
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, (int, float)) or not 0 < value <= _MOST_GIB:
        raise CaseError(f"memory_limit_gib is {value!r}; it must be a number above 0, at most {_MOST_GIB}")
    return int(value * GIB)


def _device(case: Mapping[str, Any]) -> str:
    name = case.get("gpu")
    if name is None:
        return "h200"
    if name not in gpu_names():
        raise CaseError(f"GPU {name!r} is not in the table. {did_you_mean(str(name), gpu_names())}")
    return name


_SECTIONS = {
    "architecture": _architecture,
    "lora": _lora,
    "quantization": quantization_settings,
    "fsdp": fsdp_settings,
    "checkpointing": _checkpointing,
    "liger_kernels": _kernels,
    "grad_accum_dtype": grad_accum_dtype,
    "zero": zero_settings,
    "freeze_last_layers": _freeze,
    "memory_limit_bytes": _limit,
    "device": _device,
}
