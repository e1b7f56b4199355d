"""How engines store weights: bytes of one matrix under each way of quantising.

Source: SGLang 0.5.17 `srt/layers/quantization/` (`fp8.py: create_fp8_weight_`, `w8a8_int8.py`,
`awq/schemes`, `gptq/schemes`, `mxfp4.py`): what `create_weights` registers. Embeddings, norms, the router and
the head stay in the model's type.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, cast

from planner.errors import CaseError, did_you_mean
from planner.network.quantized import quantized_parts
from planner.training_case import Quantization
from planner.units import ceil_div

FP32 = 4
GROUP_DTYPE = 2  # scales of a group are kept in the model's 16-bit type
MXFP4_BLOCK = 32
METHODS = {
    "fp8": "fp8",
    "w8a8_fp8": "w8a8",
    "w8a8_int8": "w8a8",
    "int8": "w8a8",
    "awq": "awq",
    "awq_marlin": "awq",
    "gptq": "gptq",
    "gptq_marlin": "gptq",
    "mxfp4": "mxfp4",
    "compressed-tensors": "compressed",
    "bitsandbytes": "bnb",
}
"""Name in `quantization_config.quant_method` or on SGLang's command line -> way of storing."""

_BNB_BITS = {"load_in_4bit": 4, "load_in_8bit": 8}


@dataclass(frozen=True)
class WeightFormat:
    """One way of storing linear weights. `online`: the engine quantises a plain checkpoint at load."""

    kind: str = "none"
    bits: int = 16
    group: int = 0
    block: tuple[int, int] | None = None
    double_quant: bool = False
    online: bool = False

    @property
    def experts_only(self) -> bool:
        """Gpt-oss quantises its experts and nothing else."""
        return self.kind == "mxfp4"

    def matrix_bytes(self, out: int, into: int, itemsize: int) -> int:
        """Stored bytes of one matrix with scales and zeros.

        >>> WeightFormat("gptq", bits=4, group=128).matrix_bytes(1024, 1024, 2) / 1024**2
        0.5234375
        """
        size = out * into
        if self.kind == "none":
            return size * itemsize
        if self.kind == "fp8":
            rows, columns = self.block or (out, into)
            return size + FP32 * ceil_div(out, rows) * ceil_div(into, columns)
        if self.kind == "w8a8":
            return size + FP32 * out
        if self.kind == "mxfp4":
            return ceil_div(size, 2) + ceil_div(size, MXFP4_BLOCK)
        if self.kind == "bnb":
            plan = Quantization(bits=self.bits, double_quant=self.double_quant)
            return sum(quantized_parts(size, out, plan))
        return self._grouped(out, into)

    def _grouped(self, out: int, into: int) -> int:
        """AWQ and GPTQ: packed integers, a scale and a packed zero per group; GPTQ an index per input too."""
        groups = ceil_div(into, self.group) if self.group else 1
        packed = ceil_div(out * into * self.bits, 8)
        zeros = 0 if self.kind == "packed" else ceil_div(groups * out * self.bits, 8)
        index = 4 * into if self.kind == "gptq" else 0
        return packed + GROUP_DTYPE * groups * out + zeros + index


UNQUANTISED = WeightFormat()


def weight_format(asked: Any, stated: Mapping[str, Any]) -> WeightFormat:
    """The format of a case.

    Args:
        asked: the case's `quantization`: a method's name, a mapping like `quantization_config`, or None.
        stated: `quantization_config` of the model.

    Raises:
        CaseError: for an unknown method, or one that contradicts the checkpoint.
    """
    if asked is None:
        return UNQUANTISED if not stated else _of_config(stated, "hf_config.quantization_config")
    if isinstance(asked, Mapping):
        if stated:
            raise CaseError("quantization and hf_config.quantization_config are both mappings; keep one")
        return _of_config(cast("Mapping[str, Any]", asked), "quantization")
    if not isinstance(asked, str) or asked not in METHODS:
        raise CaseError(f"quantization is {asked!r}. {did_you_mean(str(asked), METHODS)}")
    if not stated:
        return _of_config({"quant_method": asked}, "quantization", online=asked in ("fp8", "bitsandbytes"))
    found = _of_config(stated, "hf_config.quantization_config")
    if METHODS[asked] != found.kind and METHODS[asked] != "compressed":
        raise CaseError(
            f"quantization is {asked!r}, but the checkpoint says {stated.get('quant_method')!r}; "
            "leave quantization out"
        )
    return found


def _of_config(config: Mapping[str, Any], where: str, *, online: bool = False) -> WeightFormat:
    name = config.get("quant_method", "bitsandbytes" if "bits" in config else None)
    if not isinstance(name, str) or name not in METHODS:
        raise CaseError(f"{where}.quant_method is {name!r}. {did_you_mean(str(name), METHODS)}")
    kind = METHODS[name]
    if kind == "compressed":
        return _compressed(config, where)
    if kind == "bnb":
        return _bitsandbytes(config, where, online=online)
    if kind == "fp8":
        return WeightFormat(
            "fp8", bits=8, block=_block(config.get("weight_block_size"), where), online=online
        )
    if kind in ("awq", "gptq"):
        return _packed(config, kind, where)
    return WeightFormat(kind, bits=4 if kind == "mxfp4" else 8)


def _packed(config: Mapping[str, Any], kind: str, where: str) -> WeightFormat:
    bits = config.get("bits", config.get("w_bit", 4))
    group = config.get("group_size", config.get("q_group_size", 128))
    if isinstance(bits, bool) or bits not in (2, 3, 4, 8):
        raise CaseError(f"{where}.bits is {bits!r}; known: 2, 3, 4, 8")
    if isinstance(group, bool) or not isinstance(group, int) or not (group == -1 or 0 < group <= 1 << 20):
        raise CaseError(f"{where}.group_size is {group!r}; it must be -1 or a whole number above 0")
    return WeightFormat(kind, bits=int(bits), group=max(group, 0))


def _block(value: Any, where: str) -> tuple[int, int] | None:
    if value is None:
        return None
    sizes = cast("list[Any]", value) if isinstance(value, (list, tuple)) else []
    if len(sizes) != 2 or not all(isinstance(n, int) and 0 < n <= 1 << 20 for n in sizes):
        raise CaseError(
            f"{where}.weight_block_size is {value!r}; it must be two whole numbers, as [128, 128]"
        )
    return sizes[0], sizes[1]


def _bitsandbytes(config: Mapping[str, Any], where: str, *, online: bool) -> WeightFormat:
    loads = next((bits for key, bits in _BNB_BITS.items() if config.get(key)), 4)
    bits = config.get("bits", loads)
    if isinstance(bits, bool) or bits not in (4, 8):
        raise CaseError(f"{where}.bits is {bits!r}; bitsandbytes knows 4 and 8")
    double = config.get("double_quant", config.get("bnb_4bit_use_double_quant", False))
    if not isinstance(double, bool):
        raise CaseError(f"{where}.double_quant is {double!r}; it must be true or false")
    return WeightFormat("bnb", bits=int(bits), double_quant=double, online=online)


def _compressed(config: Mapping[str, Any], where: str) -> WeightFormat:
    """Compressed-tensors: the first group decides; several unlike groups are refused."""
    groups = _mapping(config.get("config_groups"))
    weights = [_mapping(_mapping(group).get("weights")) for group in groups.values()]
    kinds = {(repr(one.get("num_bits")), repr(one.get("group_size"))) for one in weights}
    if len(kinds) != 1:
        raise CaseError(f"{where}.config_groups: one kind of weights.num_bits is needed, found {len(kinds)}")
    bits, group = weights[0].get("num_bits"), weights[0].get("group_size")
    if bits == 8:
        return WeightFormat("w8a8", bits=8)
    if bits != 4 or not isinstance(group, int) or group < 1:
        raise CaseError(f"{where}: num_bits {bits!r} with group_size {group!r} is not supported")
    return WeightFormat("packed", bits=4, group=group)


def _mapping(value: Any) -> Mapping[str, Any]:
    return cast("Mapping[str, Any]", value) if isinstance(value, Mapping) else {}
