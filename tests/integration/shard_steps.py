"""Train a tiny model under `fully_shard` on a fake process group and print the bytes that were alive.

Arguments: cases of VARIANTS; run by tests/integration/test_fsdp2_bytes.py. One process stands for rank 0: the fake
group moves nothing, but every tensor is made and freed as in a real job.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from typing import Any

CONFIG = {
    "model_type": "llama",
    "vocab_size": 4000,
    "hidden_size": 256,
    "intermediate_size": 704,
    "num_hidden_layers": 3,
    "num_attention_heads": 8,
    "num_key_value_heads": 2,
    "tie_word_embeddings": False,
}
TOKENS = 64
VARIANTS: dict[str, dict[str, Any]] = {
    "plain": {},
    "one rank": {"world_size": 1},
    "mixed, fp32 reduced": {"fsdp": {"fp32_params": True, "reduce_dtype": "fp32"}},
    "kept": {"fsdp": {"reshard_after_forward": False}},
    "no_sync, fp32 reduced": {
        "grad_accum": 2,
        "fsdp": {"sync_each_batch": False, "fp32_params": True, "reduce_dtype": "fp32"},
    },
    "frozen": {"method": "freeze", "freeze": {"last_layers": 2}},
    "foreach": {"fsdp": {"foreach": True}},
}


def live_counter() -> Any:
    """A dispatch mode that knows the storages of all tensors it has seen."""
    import torch
    from torch.multiprocessing.reductions import StorageWeakRef
    from torch.utils._python_dispatch import TorchDispatchMode
    from torch.utils._pytree import tree_iter

    class Live(TorchDispatchMode):
        def __init__(self) -> None:
            super().__init__()
            self.seen: dict[int, Any] = {}
            self.peak = 0

        def now(self) -> int:
            total, gone = 0, []
            for key, one in self.seen.items():
                storage = torch.UntypedStorage._new_with_weak_ptr(one.cdata)
                if storage is None:
                    gone.append(key)
                else:
                    total += storage.nbytes()
            for key in gone:
                del self.seen[key]
            return total

        def __torch_dispatch__(
            self, function: Callable[..., Any], types: Any, args: Any = (), kwargs: Any = None
        ) -> Any:
            out = function(*args, **(kwargs or {}))
            for one in tree_iter(out):
                if isinstance(one, torch.Tensor):
                    storage = getattr(one, "_local_tensor", one).untyped_storage()
                    self.seen[storage._cdata] = StorageWeakRef(storage)
            if not function.is_view:  # which allocates nothing
                self.peak = max(self.peak, self.now())
            return out

    return Live()


def sharded_model(case: dict[str, Any], ranks: int) -> Any:
    """The model as `fully_shard` leaves it."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard
    from transformers import LlamaConfig, LlamaForCausalLM

    settings = case.get("fsdp", {})
    wide = settings.get("fp32_params", False)
    torch.set_default_dtype(torch.float32 if wide else torch.bfloat16)
    shape = {key: value for key, value in CONFIG.items() if key != "model_type"}
    model = LlamaForCausalLM(LlamaConfig(**shape, attn_implementation="eager"))
    torch.set_default_dtype(torch.float32)
    trained = case.get("freeze", {}).get("last_layers", CONFIG["num_hidden_layers"])
    if "freeze" in case:
        model.model.requires_grad_(False)
        for layer in model.model.layers[-trained:]:
            layer.requires_grad_(True)
    types = {"fp32": torch.float32, None: None}
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if wide else None, reduce_dtype=types[settings.get("reduce_dtype")]
    )
    keys = {"mesh": init_device_mesh("cpu", (ranks,)), "mp_policy": policy}
    for layer in model.model.layers:
        fully_shard(layer, reshard_after_forward=settings.get("reshard_after_forward", True), **keys)
    fully_shard(model, **keys)
    model.gradient_checkpointing_enable({"use_reentrant": False})
    return model.train()


def steps(name: str) -> dict[str, int]:
    """Two steps of one variant: the peak of each phase above what is alive at rest before the first."""
    import torch

    case, live = VARIANTS[name], live_counter()
    ranks = case.get("world_size", 4)
    with live:
        model = sharded_model(case, ranks)
        trained = [p for p in model.parameters() if p.requires_grad]
        foreach = case.get("fsdp", {}).get("foreach")
        optimizer = torch.optim.AdamW(trained, foreach=foreach)
        found = {"rest": live.now()}
        for step in (1, 2):
            count = case.get("grad_accum", 1)
            peaks = {"forward": 0, "backward": 0}
            for micro in range(count):
                model.set_requires_gradient_sync(
                    micro == count - 1 or case.get("fsdp", {}).get("sync_each_batch", True)
                )
                _micro_batch(model, live, peaks)
            live.peak = live.now()
            optimizer.step()
            found |= {f"{phase} {step}": peak for phase, peak in peaks.items()} | {f"step {step}": live.peak}
            optimizer.zero_grad(set_to_none=True)
    return found


def _micro_batch(model: Any, live: Any, peaks: dict[str, int]) -> None:
    import torch

    ids = torch.zeros(1, TOKENS, dtype=torch.long)
    live.peak = live.now()
    loss = model(ids, labels=ids, use_cache=False).loss
    peaks["forward"] = max(peaks["forward"], live.peak)
    live.peak = live.now()
    loss.backward()
    peaks["backward"] = max(peaks["backward"], live.peak)


def main() -> None:
    """Run the named variants, each on a process group of its own."""
    import torch.distributed as dist
    from torch.testing._internal.distributed.fake_pg import FakeStore

    for name in sys.argv[1:]:
        ranks = VARIANTS[name].get("world_size", 4)
        dist.init_process_group("fake", store=FakeStore(), rank=0, world_size=ranks)
        print("@llmsys " + json.dumps({"event": "steps", "name": name, **steps(name)}), flush=True)
        dist.destroy_process_group()


if __name__ == "__main__":
    main()
