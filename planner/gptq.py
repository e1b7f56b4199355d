"""What quantising a finished model with GPTQ needs: GPU memory, main memory, disk.

Sources: GPTQModel 7.5.0. `looper/stage_inputs_capture.py: cache_inputs` keeps the calibration rows' hidden
states, and for each row the rotary table, in main memory, one row a batch; `models/base.py:
shell_module_materialize` brings one layer at a time from the files; `quantization/gptq.py: process_batch`
multiplies inputs in fp32 into a Hessian, `quantize` and `hessian_inverse` hold the copies counted below,
`__init__.py: _build_device_thread_pool` rounds up to four matrices of one device at once;
`looper/stage_layer.py` puts each finished layer on disk. It is an upper end: matrices that share an input are
taken to be rounded at one time. Packing: `utils/model.py: pack_module`, the `original` way.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from planner.network.gptq import gptq_parts
from planner.tables import CPU, constant_bytes
from planner.training_case import Quantization

FP32 = 4
AT_ONCE = 4
"""Matrices of one device that are rounded at the same time."""
HESSIANS = 4
"""The Hessian, its Cholesky factor, the inverse and the inverse's factor."""
WEIGHT_COPIES = 4
"""In fp32: the weight, its reordered copy, the rounded weight, the losses."""
ACTIVATIONS = 6
"""Tensors as wide as the widest matrix that a layer's forward holds for one row."""
PACKING_COPIES = 3
"""In main memory, of the one matrix that is packed: fp32, whole numbers, packed words."""
LAYER = re.compile(r"(.*?\.(?:layers|h|blocks)\.\d+)\.(.+)\.weight$")

Shape = tuple[int, ...]


@dataclass(frozen=True)
class GptqJob:
    """A model as its files say, and how it is to be quantised."""

    shapes: Mapping[str, Shape]
    """Every weight by name."""
    itemsize: int
    rows: int
    row_tokens: int
    """Tokens of the longest calibration row."""
    quantization: Quantization
    device: str

    @property
    def parameters(self) -> int:
        """All weights."""
        return sum(_numel(shape) for shape in self.shapes.values())


@dataclass
class Layer:
    """One decoder layer: matrices by the input they share, and elements of all its weights."""

    groups: dict[tuple[str, int], list[Shape]] = field(default_factory=lambda: {})
    elements: int = 0


@dataclass(frozen=True)
class GptqForecast:
    """Bytes by use and place. On the CPU what is listed for the GPU lies in main memory too."""

    device: dict[str, int]
    host: dict[str, int]
    disk: dict[str, int]

    @property
    def device_bytes(self) -> int:
        """Peak of the GPU's allocator."""
        return sum(self.device.values())

    @property
    def host_bytes(self) -> int:
        """Peak of main memory."""
        return sum(self.host.values())

    @property
    def disk_bytes(self) -> int:
        """Most on disk at one time."""
        return sum(self.disk.values())


def forecast_gptq(job: GptqJob) -> GptqForecast:
    """Forecast a quantisation.

    >>> tiny = {"model.layers.0.mlp.up_proj.weight": (256, 128), "model.embed_tokens.weight": (100, 128)}
    >>> job = GptqJob(tiny, 2, rows=4, row_tokens=8, quantization=Quantization(kind="gptq"), device="cuda")
    >>> forecast_gptq(job).device["Hessians of one input"]
    262144
    """
    layers = list(read_layers(job.shapes).values())
    device = _on_device(job, layers)
    host = _on_host(job, layers)
    if job.device == CPU:
        host |= {f"layer: {use}": size for use, size in device.items()}
    packed = packed_bytes(job)
    disk = {"quantised model": packed, "finished layers, until they are saved": packed}
    return GptqForecast({} if job.device == CPU else device, host, disk)


def read_layers(shapes: Mapping[str, Shape]) -> dict[str, Layer]:
    """Sort weights into layers; what stands outside of them is left out."""
    layers: dict[str, Layer] = {}
    for name, shape in shapes.items():
        found = LAYER.match(name)
        if found is None:
            continue
        layer = layers.setdefault(found[1], Layer())
        layer.elements += _numel(shape)
        if len(shape) == 2:
            part, _, own = found[2].rpartition(".")
            # what leads out of attention has an input of its own, however wide
            key = (found[2] if own in ("o_proj", "out_proj", "dense", "c_proj") else part, shape[1])
            layer.groups.setdefault(key, []).append(shape)
    return layers


def packed_bytes(job: GptqJob) -> int:
    """Bytes of the quantised model: layer matrices packed, everything else as it was."""
    total = 0
    for name, shape in job.shapes.items():
        inside = len(shape) == 2 and LAYER.match(name) is not None
        size = sum(gptq_parts(shape, job.quantization)) if inside else _numel(shape) * job.itemsize
        total += size
    return total


def _on_device(job: GptqJob, layers: Iterable[Layer]) -> dict[str, int]:
    weights = hessians = copies = widest = 0
    for layer in layers:
        weights = max(weights, layer.elements * job.itemsize)
        for shapes in layer.groups.values():
            busy = sorted(shapes, key=_numel, reverse=True)[:AT_ONCE]
            squares = sum(HESSIANS * FP32 * shape[1] ** 2 for shape in busy)
            held = sum(WEIGHT_COPIES * FP32 * _numel(shape) for shape in busy)
            if squares + held > hessians + copies:
                hessians, copies = squares, held
            widest = max(widest, *(max(shape) for shape in shapes))
    row = job.row_tokens * widest
    return {
        "weights of one layer": weights,
        "Hessians of one input": hessians,
        "weights being rounded (fp32)": copies,
        "activations of one row": row * (ACTIVATIONS * job.itemsize + FP32),
    }


def _on_host(job: GptqJob, layers: list[Layer]) -> dict[str, int]:
    inside = sum(layer.elements for layer in layers)
    hidden = max(
        (shape[1] for layer in layers for key in layer.groups for shape in layer.groups[key]), default=0
    )
    hidden = min(hidden, _embedding_width(job.shapes) or hidden)
    largest = max((_numel(s) for layer in layers for each in layer.groups.values() for s in each), default=0)
    process = "cpu_process_rss_gib" if job.device == CPU else "process_rss_gib"
    return {
        "process": constant_bytes(process),
        "embedding, head and norms": (job.parameters - inside) * job.itemsize,
        # inputs of a layer and its outputs, which are the next one's inputs
        "calibration activations": 2 * job.rows * job.row_tokens * hidden * job.itemsize,
        "matrix being packed": PACKING_COPIES * FP32 * largest,
    }


def _embedding_width(shapes: Mapping[str, Shape]) -> int:
    return next((shape[1] for name, shape in shapes.items() if "embed" in name and len(shape) == 2), 0)


def _numel(shape: Shape) -> int:
    total = 1
    for size in shape:
        total *= size
    return total
