"""A training job as the planner sees it: parsed, typed, checked.

The keys are those of the case format (docs/case-format.md). Unknown keys and contradictions are refused
with the reason; all problems of a case are reported together.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum
from typing import Any, cast

from planner.architecture.families import architecture_of
from planner.architecture.spec import Architecture
from planner.errors import CaseError, did_you_mean
from planner.tables import gpu_names
from planner.units import DTYPE_BYTES, GIB


class Method(Enum):
    """What is trained."""

    full = "full"
    freeze = "freeze"
    lora = "lora"
    qlora = "qlora"


@dataclass(frozen=True)
class Lora:
    """Adapters as peft makes them."""

    r: int = 8
    target_modules: str | tuple[str, ...] = "all-linear"
    dropout: float = 0.0
    adapter_dtype: str = "bf16"


@dataclass(frozen=True)
class Quantization:
    """A quantised base as bitsandbytes makes it."""

    bits: int = 4
    quant_type: str = "nf4"
    double_quant: bool = True
    prepare_for_kbit_training: bool = True


@dataclass(frozen=True)
class ZeroSettings:
    """The part of DeepSpeed's `zero_optimization` that moves memory. Counts are elements.

    Defaults: DeepSpeed 0.19.8 `runtime/zero/config.py`. `overlap_comm` None means DeepSpeed's own
    default: on at stage 3, off below.
    """

    overlap_comm: bool | None = None
    contiguous_gradients: bool = True
    reduce_scatter: bool = True
    reduce_bucket_size: int = 500_000_000
    allgather_bucket_size: int = 500_000_000
    sub_group_size: int = 1_000_000_000
    stage3_prefetch_bucket_size: int = 50_000_000
    stage3_param_persistence_threshold: int = 100_000
    stage3_max_live_parameters: int = 1_000_000_000
    stage3_max_reuse_distance: int = 1_000_000_000
    stage3_gather_16bit_weights_on_model_save: bool = False


@dataclass(frozen=True)
class TrainingCase:
    """One training job. `micro_batch`, `seq_len` and `grad_accum` are per GPU."""

    architecture: Architecture
    method: Method
    world_size: int = 1
    zero_stage: int = 0
    offload_optimizer: str = "none"
    offload_param: str = "none"
    micro_batch: int = 1
    seq_len: int = 512
    grad_accum: int = 1
    gradient_checkpointing: bool = False
    attention: str = "sdpa"
    dtype: str = "bf16"
    optimizer: str = "deepspeed_adamw"
    liger: bool = False
    padded: bool = False
    outputs_kept: bool = False
    expandable_segments: bool = False
    memory_limit_bytes: int | None = None
    device: str = "h200"
    freeze_last_layers: int = 0
    lora: Lora | None = None
    quantization: Quantization | None = None
    zero: ZeroSettings = field(default_factory=ZeroSettings)

    @property
    def tokens(self) -> int:
        """Tokens of one micro-batch."""
        return self.micro_batch * self.seq_len

    @property
    def overlaps(self) -> bool:
        """Whether gradients are reduced while backward goes on."""
        given = self.zero.overlap_comm
        return self.zero_stage == 3 if given is None else given


_CHOICES: dict[str, tuple[Any, ...]] = {
    "method": tuple(m.value for m in Method),
    "zero_stage": (0, 1, 2, 3),
    "offload_optimizer": ("none", "cpu", "nvme"),
    "offload_param": ("none", "cpu", "nvme"),
    "attention": ("sdpa", "eager", "flash_attention_2"),
    "dtype": ("bf16", "fp16", "fp32"),
    "optimizer": ("deepspeed_adamw", "torch_adamw"),
}
_COUNTS = {"world_size": 65_536, "micro_batch": 65_536, "seq_len": 1 << 24, "grad_accum": 65_536}
_MOST_GIB = 1_000_000
_ZERO_FLAGS = (
    "overlap_comm",
    "contiguous_gradients",
    "reduce_scatter",
    "stage3_gather_16bit_weights_on_model_save",
)
_FLAGS = ("gradient_checkpointing", "liger", "padded", "outputs_kept", "expandable_segments")
_OTHER = ("hf_config", "lora", "quantization", "freeze", "deepspeed", "memory_limit_gib", "gpu", "kind")
KEYS = (*_CHOICES, *_COUNTS, *_FLAGS, *_OTHER)


def parse_training_case(case: Mapping[str, Any]) -> TrainingCase:
    """Check a case and give it types.

    Raises:
        CaseError: naming every problem of the case.
    """
    problems = [f"unknown key {key!r}. {did_you_mean(key, KEYS)}" for key in case if key not in KEYS]
    problems += _wrong_values(case)
    parsed: dict[str, Any] = {}
    for name, read in _SECTIONS.items():
        try:
            parsed[name] = read(case)
        except CaseError as error:
            problems += error.problems
    problems += _contradictions(case)
    problems += _too_many_layers(parsed)
    if problems:
        raise CaseError(*problems)
    plain = {k: case[k] for k in (*_CHOICES, *_COUNTS, *_FLAGS) if k in case and k != "method"}
    return TrainingCase(method=Method(case["method"]), **plain, **parsed)


def _wrong_values(case: Mapping[str, Any]) -> list[str]:
    problems: list[str] = []
    if "method" not in case:
        problems.append(f"no method. {did_you_mean('', _CHOICES['method'])}")
    for key, valid in _CHOICES.items():
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


def _contradictions(case: Mapping[str, Any]) -> list[str]:
    stage, method = case.get("zero_stage", 0), case.get("method")
    optimizer, param = case.get("offload_optimizer", "none"), case.get("offload_param", "none")
    problems: list[str] = []
    if optimizer != "none" and stage == 0:
        problems.append(
            "offload_optimizer needs zero_stage 1, 2 or 3: at stage 0 DeepSpeed does not shard it"
        )
    if optimizer == "nvme" and stage in (1, 2):
        problems.append("offload_optimizer nvme needs zero_stage 3: below it DeepSpeed silently uses the cpu")
    if param != "none" and stage != 3:
        problems.append("offload_param needs zero_stage 3: below it DeepSpeed ignores it")
    if param == "nvme" and method in ("lora", "qlora", "freeze"):
        problems.append("offload_param nvme fails with frozen weights in DeepSpeed 0.19; use cpu")
    if method in ("lora", "qlora") and case.get("lora") is None:
        problems.append(f"method {method} needs a lora section")
    if method == "qlora" and case.get("quantization") is None:
        problems.append("method qlora needs a quantization section")
    if method in ("full", "freeze") and (case.get("quantization") or case.get("lora")):
        problems.append(f"method {method} takes neither a lora nor a quantization section")
    if method == "qlora" and stage == 3:
        problems.append(
            "qlora at zero_stage 3 is not supported: transformers skips zero.Init for quantised models"
        )
    return problems


def _too_many_layers(parsed: Mapping[str, Any]) -> list[str]:
    architecture, trained = parsed.get("architecture"), parsed.get("freeze_last_layers", 0)
    if architecture is None or trained <= architecture.layers:
        return []
    return [f"freeze.last_layers is {trained}, but the model has {architecture.layers} layers"]


def _section(case: Mapping[str, Any], key: str, valid: tuple[str, ...]) -> Mapping[str, Any] | None:
    given = case.get(key)
    if given is None:
        return None
    if not isinstance(given, Mapping):
        raise CaseError(f"{key} must be a mapping")
    section = cast("Mapping[str, Any]", given)
    for name in section:
        if name not in valid:
            raise CaseError(f"unknown key {key}.{name}. {did_you_mean(str(name), valid)}")
    return section


def _architecture(case: Mapping[str, Any]) -> Architecture:
    config = case.get("hf_config")
    if not isinstance(config, Mapping):
        raise CaseError("no hf_config: the model's config.json as a mapping")
    return architecture_of(cast("Mapping[str, Any]", config))


def _lora(case: Mapping[str, Any]) -> Lora | None:
    section = _section(case, "lora", ("r", "alpha", "target_modules", "dropout", "adapter_dtype"))
    if section is None:
        return None
    rank, dropout = section.get("r", 8), section.get("dropout", 0.0)
    if isinstance(rank, bool) or not isinstance(rank, int) or not 0 < rank <= 65_536:
        raise CaseError(f"lora.r is {rank!r}; it must be a whole number from 1 to 65536")
    if isinstance(dropout, bool) or not isinstance(dropout, (int, float)) or not 0 <= dropout < 1:
        raise CaseError(f"lora.dropout is {dropout!r}; a dropout rate lies in [0, 1)")
    targets = section.get("target_modules", "all-linear")
    adapter_dtype = section.get("adapter_dtype", case.get("dtype", "bf16"))
    if adapter_dtype not in ("fp32", "bf16", "fp16"):
        raise CaseError(f"lora.adapter_dtype is {adapter_dtype!r}; known: bf16, fp16, fp32")
    return Lora(rank, _targets(targets), float(dropout), adapter_dtype)


def _targets(given: Any) -> str | tuple[str, ...]:
    if isinstance(given, str) and given:
        return given
    names = tuple(cast("list[Any]", given)) if isinstance(given, (list, tuple)) else ()
    if not names or not all(isinstance(name, str) and name for name in names):
        raise CaseError(
            f"lora.target_modules is {given!r}; it must be all-linear or a list of at least one module name"
        )
    return names


def _quantization(case: Mapping[str, Any]) -> Quantization | None:
    valid = ("bits", "quant_type", "double_quant", "prepare_for_kbit_training")
    section = _section(case, "quantization", valid)
    if section is None:
        return None
    problems: list[str] = []
    for key, known in {"bits": (4, 8), "quant_type": ("nf4", "fp4")}.items():
        if key in section and (section[key] not in known or isinstance(section[key], float)):
            problems.append(f"quantization.{key} is {section[key]!r}; known: {', '.join(map(str, known))}")
    for key in ("double_quant", "prepare_for_kbit_training"):
        if not isinstance(section.get(key, False), bool):
            problems.append(f"quantization.{key} is {section[key]!r}; it must be true or false")
    if problems:
        raise CaseError(*problems)
    return Quantization(**section)


def _zero(case: Mapping[str, Any]) -> ZeroSettings:
    deepspeed = case.get("deepspeed")
    if deepspeed is None:
        return ZeroSettings()
    if not isinstance(deepspeed, Mapping):
        raise CaseError("deepspeed must be a mapping")
    valid = tuple(ZeroSettings.__dataclass_fields__)
    known = (*valid, "stage", "offload_optimizer", "offload_param")
    section = _section(cast("Mapping[str, Any]", deepspeed), "zero_optimization", known)
    settings: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in (section or {}).items():
        if key not in valid:
            continue
        if key not in _ZERO_FLAGS:
            if _is_count(value):
                settings[key] = int(value)
            else:
                problems.append(
                    f"deepspeed.zero_optimization.{key} is {value!r}; it must be a count of elements"
                )
        elif isinstance(value, bool) or (value is None and key == "overlap_comm"):
            settings[key] = value
        else:
            problems.append(f"deepspeed.zero_optimization.{key} is {value!r}; it must be true or false")
    if problems:
        raise CaseError(*problems)
    return ZeroSettings(**settings)


def _is_count(value: Any) -> bool:
    """Whether it counts elements; DeepSpeed's own files write 5e8, so a float may."""
    return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 1e15


def _freeze(case: Mapping[str, Any]) -> int:
    layers = (_section(case, "freeze", ("last_layers",)) or {}).get("last_layers", 2)
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
    "quantization": _quantization,
    "zero": _zero,
    "freeze_last_layers": _freeze,
    "memory_limit_bytes": _limit,
    "device": _device,
}
assert set(DTYPE_BYTES) >= set(_CHOICES["dtype"])
