"""GPTQModel: quantise a model folder, and load what came out."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from llmsys_exp.config.schema import GptqConfig
from llmsys_exp.errors import JobError
from llmsys_exp.inputs.weight_files import stored_tensors
from llmsys_exp.workers.data.example import Example
from llmsys_exp.workers.files import write_json

PACKED = ".qweight"


def prepare_environment() -> None:
    """Settle what GPTQModel reads when it is imported. Variables that the user has set stay as they are."""
    # its pool asks for two loaders among the workers on the host, and takes one on a machine of two cores
    os.environ.setdefault("GPTQMODEL_CPU_WORKERS", str(max(2, (os.cpu_count() or 2) // 2)))
    # else the first use of every quantised layer compiles, which takes longer than the answers here
    os.environ.setdefault("TORCHDYNAMO_DISABLE", "1")


def quantise(
    source: Path,
    target: Path,
    calibration: Sequence[Example],
    settings: GptqConfig,
    *,
    device: Any,
    shard_bytes: int,
    trust: bool,
) -> None:
    """Quantise the model of one folder into another that exists already."""
    from gptqmodel import GPTQModel, QuantizeConfig

    config = QuantizeConfig(
        bits=settings.bits,
        group_size=settings.group_size,
        desc_act=settings.desc_act,
        # its reordering within groups needs groups, and is another way to do what desc_act does
        act_group_aware=not settings.desc_act and settings.group_size > 0,
        sym=settings.sym,
        damp_percent=settings.damp,
        # packing in C++ would be compiled first
        pack_impl="original",
        offload_to_disk_path=str(target / "offload"),
    )
    model = GPTQModel.load(str(source), config, device=str(device), trust_remote_code=trust)
    rows = [{"input_ids": one.ids.tolist(), "attention_mask": [1] * len(one.ids)} for one in calibration]
    model.quantize(rows, batch_size=1, calibration_data_min_length=1)
    model.save(str(target), max_shard_size=shard_bytes)
    _forget_places(target)


def _forget_places(folder: Path) -> None:
    """Take the folder of the finished layers out of the description: a path of this machine, gone by now."""
    own = folder / "quantize_config.json"
    for file in (own, folder / "config.json"):
        settings = json.loads(file.read_text(encoding="utf-8"))
        described = settings if file == own else settings["quantization_config"]
        described["meta"].pop("offload_to_disk_path", None)
        write_json(file, settings)


def load_quantised(folder: Path, *, device: Any, trust: bool) -> Any:
    """Load a quantised folder with the kernel that runs everywhere."""
    from gptqmodel import BACKEND, GPTQModel

    loaded = GPTQModel.load(str(folder), device=str(device), backend=BACKEND.TORCH, trust_remote_code=trust)
    return loaded.model.eval()


def check_packed(folder: Path, bits: int) -> dict[str, Any]:
    """Return how many matrices are packed, and how large the files are.

    Raises:
        JobError: when none is.
    """
    tensors = stored_tensors(folder)
    packed = [one for name, one in tensors.items() if name.endswith(PACKED)]
    if not packed:
        raise JobError("No weight was quantised", kind="quantize", where=str(folder))
    return {
        "bits": bits,
        "packed_matrices": len(packed),
        "packed_bytes": sum(one.nbytes for one in packed),
        "weights_bytes": sum(one.nbytes for one in tensors.values()),
    }
