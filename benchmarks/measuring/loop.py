"""One case in this process: model, engine, a few steps."""

from __future__ import annotations

import os
import time
from typing import Any

from measuring.marks import GIB, Marks, Trace
from measuring.model import ds_config, model_of, prepare


def run_case(case: dict[str, Any], trace_file: str = "") -> dict[str, Any]:
    """Measure one case in this process."""
    import deepspeed
    import peft
    import torch

    assert peft is not None
    world = case.get("world_size", 1)
    os.environ |= {"RANK": "0", "LOCAL_RANK": "0", "WORLD_SIZE": str(world)}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(20_000 + os.getpid() % 20_000)}
    torch.cuda.set_device(0)
    if case.get("memory_limit_gib"):
        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(case["memory_limit_gib"] * GIB / total)
    if world > 1:
        from torch.testing._internal.distributed.fake_pg import FakeStore

        torch.distributed.init_process_group("fake", store=FakeStore(), rank=0, world_size=world)
    deepspeed.init_distributed()
    trace = Trace(trace_file) if trace_file else None
    mark = Marks()
    mark("start")
    config = ds_config(case)
    model = prepare(case, model_of(case, config))
    if case.get("engine") == "fsdp2":
        sharded(case, model)
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    trained = [p for p in model.parameters() if p.requires_grad]
    mark("model")
    groups = sharing_sequences(case, model)
    optimizer = client_optimizer(case.get("optimizer", "deepspeed_adamw"), trained)
    if case.get("engine") in ("plain", "fsdp2"):
        engine: Any = PlainLoop(model, optimizer)
    else:
        engine, *_ = deepspeed.initialize(
            model=model, optimizer=optimizer, model_parameters=trained, config=config, mpu=groups
        )
    del model, optimizer
    mark("engine")
    step_s = train(engine, case, mark)
    if trace is not None:
        trace.write(mark.times)
    return {
        "status": "ok",
        "ranks": "rank 0 with a fake process group" if world > 1 else "one process",
        "peak_allocated_gib": mark.steps("peak"),
        "peak_reserved_gib": max(m["peak_reserved"] for m in mark.marks.values()),
        "parameters": parameters,
        "trainable_parameters": sum(getattr(p, "ds_numel", p.numel()) for p in trained),
        "deepspeed_optimizer": type(engine.optimizer).__name__,
        "step_s": step_s,
        "marks": mark.marks,
    }


def sharded(case: dict[str, Any], model: Any) -> None:
    """Each block, then what is left, under torch's FSDP2."""
    import torch
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import MixedPrecisionPolicy, fully_shard

    how, types = case.get("fsdp") or {}, {"fp32": torch.float32, "bf16": torch.bfloat16, None: None}
    policy = MixedPrecisionPolicy(
        param_dtype=torch.bfloat16 if how.get("fp32_params") else None,
        reduce_dtype=types[how.get("reduce_dtype")],
    )
    if how.get("fp32_params"):
        model.float()
    keys = {"mesh": init_device_mesh("cuda", (case.get("world_size", 1),)), "mp_policy": policy}
    for layer in model.model.layers:
        fully_shard(layer, reshard_after_forward=how.get("reshard_after_forward", True), **keys)
    fully_shard(model, **keys)


def sharing_sequences(case: dict[str, Any], model: Any) -> Any:
    """Ulysses as DeepSpeed puts it around transformers' attention; its groups of ranks, None without.

    The fake group leaves what is received as it was: numbers that overflow, and steps that are left out.
    """
    if case.get("sequence_parallel", 1) == 1:
        return None
    import torch
    from deepspeed.runtime.sequence_parallel.ulysses_sp import UlyssesSPAttentionHF

    torch.distributed.all_to_all_single = lambda output, input, **_: output.copy_(input)
    return UlyssesSPAttentionHF.register_with_transformers(
        model_name_or_path=model,
        core_attn_implementation=case.get("attention", "sdpa"),
        sequence_parallel_size=case["sequence_parallel"],
        micro_batch_size=case["micro_batch"],
    )


class PlainLoop:
    """A loop without DeepSpeed behind the calls of its engine."""

    def __init__(self, model: Any, optimizer: Any) -> None:
        self.model, self.optimizer = model, optimizer

    def __call__(self, **inputs: Any) -> Any:
        return self.model(**inputs)

    def backward(self, loss: Any) -> None:
        loss.backward()

    def step(self) -> None:
        import torch

        torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
        self.optimizer.step()
        self.optimizer.zero_grad(set_to_none=True)


def client_optimizer(name: str, trained: list[Any]) -> Any:
    """Optimizers that DeepSpeed does not make itself."""
    import torch

    if name in ("deepspeed_adamw", "lion"):
        return None
    if name == "torch_adamw":
        whole = not isinstance(trained[0], torch.distributed.tensor.DTensor)  # torch's own choice
        return torch.optim.AdamW(trained, lr=1e-4, foreach=whole)
    if name == "torch_adamw_fused":
        return torch.optim.AdamW(trained, lr=1e-4, fused=True)
    if name in ("sgd", "sgd_momentum"):
        return torch.optim.SGD(trained, lr=1e-4, momentum=0.9 if name == "sgd_momentum" else 0.0)
    if name == "adafactor":
        from transformers.optimization import Adafactor

        return Adafactor(trained, lr=1e-4, scale_parameter=False, relative_step=False)
    import bitsandbytes as bnb

    makers = {
        "adamw_8bit": bnb.optim.AdamW8bit,
        "paged_adamw_8bit": bnb.optim.PagedAdamW8bit,
        "paged_adamw": bnb.optim.PagedAdamW,
    }
    return makers[name](trained, lr=1e-4)


def train(engine: Any, case: dict[str, Any], mark: Marks) -> list[float]:
    """A few optimizer steps on random tokens; seconds of each."""
    import torch

    shape = (case["micro_batch"], case["seq_len"] // case.get("sequence_parallel", 1))
    vocab = case["hf_config"]["vocab_size"]
    seconds = []
    for step in range(int(os.environ.get("STEPS", "3"))):
        began = time.perf_counter()
        for _ in range(case.get("grad_accum", 1)):
            loss = None  # lets the graph of the last micro-batch go
            ids = torch.randint(3, vocab, shape, device="cuda")
            extra = {}
            if case.get("padded"):
                extra["attention_mask"] = torch.ones(shape, dtype=torch.long, device="cuda")
                extra["attention_mask"][0, -shape[1] // 4 :] = 0
            if case.get("packed"):
                half = shape[1] // 2
                extra["position_ids"] = torch.arange(half, device="cuda").repeat(2).expand(shape)
            elif case.get("sequence_parallel", 1) > 1:
                extra["position_ids"] = torch.arange(shape[1], device="cuda").expand(shape)
            loss = engine(input_ids=ids, labels=ids, **extra).loss
            mark(f"fwd{step}")
            engine.backward(loss)
            mark(f"bwd{step}")
            engine.step()
        mark(f"step{step}")
        seconds.append(time.perf_counter() - began)
    return seconds
