"""A model folder's weights cut into files of another size, one file's worth in memory at a time."""

from __future__ import annotations

import shutil
from itertools import pairwise
from pathlib import Path
from typing import Any

from llmsys_exp.inputs.weight_files import stored_tensors, weight_files
from llmsys_exp.workers.files import whole_folder
from llmsys_exp.workers.shards import INDEX, ShardWriter, told_when_full


def is_cut_to(folder: Path, shard_bytes: int) -> bool:
    """Whether no file of several weights is larger than that, and no two neighbours could be one."""
    sizes: dict[str, list[int]] = {file.name: [] for file in weight_files(folder)}
    for one in stored_tensors(folder).values():
        sizes[one.file.name].append(one.nbytes)
    whole = [sum(each) for each in sizes.values()]
    if any(sum(each) > shard_bytes and len(each) > 1 for each in sizes.values()):
        return False
    return all(a + b > shard_bytes for a, b in pairwise(whole))


def reshard(folder: Path, tokenizer: Any, shard_bytes: int) -> None:
    """Write the folder anew; the old one stays until the new one is whole."""
    from safetensors import safe_open

    with whole_folder(folder) as temporary, told_when_full(folder):
        for file in folder.iterdir():
            if file.suffix != ".safetensors" and file.name != INDEX and file.is_file():
                shutil.copy2(file, temporary / file.name)
        writer = ShardWriter(temporary, shard_bytes)
        for file in weight_files(folder):
            with safe_open(file, "pt") as weights:
                for name in weights.keys():  # noqa: SIM118 - no mapping
                    writer.add(name, weights.get_tensor(name))
        writer.close()
        tokenizer.save_pretrained(temporary)
