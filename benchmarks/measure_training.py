"""Measures training memory on one GPU, any world size: rank 0 for real, the others a fake process group.

    python benchmarks/measure_training.py one CASE.json OUT.json      one case, in this process
    python benchmarks/measure_training.py all CASES.jsonl OUT.jsonl   all cases, several at a time

Collectives of the fake group do nothing: memory is right, losses are not. Random weights and tokens, three
optimizer steps, clipping at 1.0. Cases are in the format of docs/case-format.md. Each case runs in its own
process, so that each has its own allocator.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

GIB = 1024**3
AT_ONCE = int(os.environ.get("AT_ONCE", "7"))
STEPS = 3
TIMEOUT_S = 240


def ds_config(case: dict[str, Any]) -> dict[str, Any]:
    """DeepSpeed's configuration for a case."""
    zero: dict[str, Any] = {"stage": case.get("zero_stage", 0)}
    for key in ("offload_optimizer", "offload_param"):
        device = case.get(key, "none")
        if device != "none":
            zero[key] = {"device": device, "pin_memory": True}
            if device == "nvme":
                zero[key]["nvme_path"] = "/tmp/nvme"
    given = case.get("deepspeed") or {}
    config: dict[str, Any] = {
        "train_micro_batch_size_per_gpu": case["micro_batch"],
        "gradient_accumulation_steps": case.get("grad_accum", 1),
        "gradient_clipping": 1.0,
        "zero_optimization": zero | given.get("zero_optimization", {}),
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 10_000,
    }
    config |= {k: v for k, v in given.items() if k != "zero_optimization"}
    if case.get("dtype", "bf16") != "fp32":
        config[case.get("dtype", "bf16")] = {"enabled": True}
    if case.get("optimizer", "deepspeed_adamw") == "deepspeed_adamw":
        config["optimizer"] = {"type": "AdamW", "params": {"lr": 1e-4}}
    return config


def model_of(case: dict[str, Any], config: dict[str, Any]) -> Any:
    """Build the model as the case says: under zero.Init at stage 3, else on the GPU in its dtype."""
    import deepspeed
    import torch
    import torch._dynamo
    from transformers import AutoConfig, AutoModelForCausalLM

    dtype = {"bf16": torch.bfloat16, "fp16": torch.float16, "fp32": torch.float32}[case.get("dtype", "bf16")]
    raw = dict(case["hf_config"])
    hf = AutoConfig.for_model(raw.pop("model_type"), **raw)
    hf.use_cache = False
    if case.get("zero_stage", 0) == 3:
        hf.pad_token_id = None
    attention = case.get("attention", "sdpa")
    if case["method"] == "qlora":
        return quantized(case, hf, dtype, attention)
    if case.get("zero_stage", 0) == 3:
        with deepspeed.zero.Init(config_dict_or_path=config, dtype=dtype):
            return AutoModelForCausalLM.from_config(hf, attn_implementation=attention, dtype=dtype)
    with torch.device("cuda"):
        return AutoModelForCausalLM.from_config(hf, attn_implementation=attention, dtype=dtype)


def quantized(case: dict[str, Any], hf: Any, dtype: Any, attention: str) -> Any:
    """Build on the CPU and let bitsandbytes quantise each linear layer on its way to the GPU."""
    import bitsandbytes as bnb
    import torch
    from peft import prepare_model_for_kbit_training
    from transformers import AutoModelForCausalLM

    q = case["quantization"]
    model = AutoModelForCausalLM.from_config(hf, attn_implementation=attention, dtype=dtype)
    for name, module in list(model.named_modules()):
        if not isinstance(module, torch.nn.Linear) or name.endswith("lm_head"):
            continue
        parent = model.get_submodule(name.rpartition(".")[0])
        bias = module.bias is not None
        if q["bits"] == 4:
            new = bnb.nn.Linear4bit(
                module.in_features, module.out_features, bias=bias, compute_dtype=dtype,
                compress_statistics=q["double_quant"], quant_type=q["quant_type"],
            )  # fmt: skip
            new.weight = bnb.nn.Params4bit(
                module.weight.data, requires_grad=False, quant_type=q["quant_type"],
                compress_statistics=q["double_quant"],
            )  # fmt: skip
        else:
            new = bnb.nn.Linear8bitLt(
                module.in_features, module.out_features, bias=bias, has_fp16_weights=False
            )
            new.weight = bnb.nn.Int8Params(module.weight.data, requires_grad=False, has_fp16_weights=False)
        if bias:
            new.bias = module.bias
        setattr(parent, name.rpartition(".")[2], new)
    model.cuda()
    model.is_loaded_in_4bit = q["bits"] == 4
    if q.get("prepare_for_kbit_training", True):
        for parameter in model.parameters():
            parameter.requires_grad_(False)
            if parameter.dtype in (torch.bfloat16, torch.float16) and not hasattr(parameter, "quant_state"):
                parameter.data = parameter.data.float()
    assert prepare_model_for_kbit_training is not None
    return model


def prepare(case: dict[str, Any], model: Any) -> Any:
    """Adapters, frozen layers, checkpointing, Liger kernels."""
    import torch

    if case.get("liger"):
        from liger_kernel.transformers import _apply_liger_kernel_to_instance

        _apply_liger_kernel_to_instance(model=model)
    if case["method"] in ("lora", "qlora"):
        from peft import LoraConfig, get_peft_model

        lora = case["lora"]
        model = get_peft_model(
            model,
            LoraConfig(
                r=lora["r"], lora_alpha=2 * lora["r"], lora_dropout=lora.get("dropout", 0.0),
                target_modules=lora["target_modules"], task_type="CAUSAL_LM",
            ),
            autocast_adapter_dtype=lora.get("adapter_dtype") == "fp32",
        )  # fmt: skip
    if case["method"] == "freeze":
        layers = model.model.layers
        keep = {id(p) for layer in layers[-case["freeze"]["last_layers"] :] for p in layer.parameters()}
        if not model.config.tie_word_embeddings:
            keep |= {id(p) for p in model.lm_head.parameters()}
        for parameter in model.parameters():
            parameter.requires_grad_(id(parameter) in keep)
    if case.get("gradient_checkpointing"):
        model.gradient_checkpointing_enable(gradient_checkpointing_kwargs={"use_reentrant": False})
        if case["method"] in ("lora", "qlora"):
            model.enable_input_require_grads()
    model.train()
    assert torch.cuda.is_available()
    return model


class Marks:
    """Memory at the end of each phase and the most within it."""

    def __init__(self) -> None:
        self.marks: dict[str, dict[str, float]] = {}

    def __call__(self, name: str) -> None:
        import torch

        torch.cuda.synchronize()
        before = self.marks.get(name, {})  # an earlier micro-batch of the same step
        self.marks[name] = {
            "alloc": torch.cuda.memory_allocated() / GIB,
            "peak": max(before.get("peak", 0), torch.cuda.max_memory_allocated() / GIB),
            "reserved": torch.cuda.memory_reserved() / GIB,
            "peak_reserved": max(before.get("peak_reserved", 0), torch.cuda.max_memory_reserved() / GIB),
        }
        torch.cuda.reset_peak_memory_stats()

    def steps(self, key: str) -> float:
        """The most over the training steps."""
        return max(m[key] for name, m in self.marks.items() if name[:3] in ("fwd", "bwd", "ste"))


def run_case(case: dict[str, Any]) -> dict[str, Any]:
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
    mark = Marks()
    mark("start")
    config = ds_config(case)
    model = prepare(case, model_of(case, config))
    parameters = sum(getattr(p, "ds_numel", p.numel()) for p in model.parameters())
    trained = [p for p in model.parameters() if p.requires_grad]
    mark("model")
    optimizer = client_optimizer(case.get("optimizer", "deepspeed_adamw"), trained)
    engine, *_ = deepspeed.initialize(
        model=model, optimizer=optimizer, model_parameters=trained, config=config
    )
    del model, optimizer
    mark("engine")
    step_s = train(engine, case, mark)
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


def client_optimizer(name: str, trained: list[Any]) -> Any:
    """Optimizers that DeepSpeed does not make itself."""
    import torch

    if name == "deepspeed_adamw":
        return None
    if name == "torch_adamw":
        return torch.optim.AdamW(trained, lr=1e-4)
    import bitsandbytes as bnb

    makers = {"adamw_8bit": bnb.optim.AdamW8bit, "paged_adamw_8bit": bnb.optim.PagedAdamW8bit}
    return makers[name](trained, lr=1e-4)


def train(engine: Any, case: dict[str, Any], mark: Marks) -> list[float]:
    """Three optimizer steps on random tokens; seconds of each."""
    import torch

    shape = (case["micro_batch"], case["seq_len"])
    vocab = case["hf_config"]["vocab_size"]
    seconds = []
    for step in range(STEPS):
        began = time.perf_counter()
        for _ in range(case.get("grad_accum", 1)):
            ids = torch.randint(3, vocab, shape, device="cuda")
            extra = {}
            if case.get("padded"):
                extra["attention_mask"] = torch.ones(shape, dtype=torch.long, device="cuda")
                extra["attention_mask"][0, -shape[1] // 4 :] = 0
            loss = engine(input_ids=ids, labels=ids, **extra).loss
            mark(f"fwd{step}")
            engine.backward(loss)
            mark(f"bwd{step}")
            engine.step()
        mark(f"step{step}")
        seconds.append(time.perf_counter() - began)
    return seconds


def measured(case: dict[str, Any]) -> dict[str, Any]:
    """Measure one case and tell running out of memory from other failures."""
    import torch

    try:
        return run_case(case)
    except torch.OutOfMemoryError:
        return {"status": "oom", "peak_reserved_gib": torch.cuda.max_memory_reserved() / GIB}


def run_all(cases: Path, out: Path) -> None:
    """Several processes at a time; results are appended as they come."""
    rows = [json.loads(line) for line in cases.read_text().splitlines() if line.strip()]
    running: list[tuple[dict[str, Any], subprocess.Popen[bytes], Path, float]] = []
    work = out.parent / "cases"
    work.mkdir(parents=True, exist_ok=True)
    while rows or running:
        while rows and len(running) < AT_ONCE:
            row = rows.pop(0)
            source = work / f"{row['id']}.json"
            source.write_text(json.dumps(row["case"]))
            target = source.with_suffix(".out")
            log = source.with_suffix(".log").open("wb")
            environment = dict(os.environ)
            if row["case"].get("expandable_segments"):
                environment["PYTORCH_CUDA_ALLOC_CONF"] = "expandable_segments:True"
            command = [sys.executable, __file__, "one", str(source), str(target)]
            running.append(
                (row, subprocess.Popen(command, stdout=log, stderr=log, env=environment), target, time.time())
            )
        time.sleep(0.5)
        running = [job for job in running if not finished(job, out)]


def finished(job: tuple[dict[str, Any], subprocess.Popen[bytes], Path, float], out: Path) -> bool:
    """Collect a process that has ended or overstayed."""
    row, process, target, began = job
    if process.poll() is None and time.time() - began < TIMEOUT_S:
        return False
    if process.poll() is None:
        process.kill()
    if target.exists():
        result = json.loads(target.read_text())
    else:
        log = target.with_suffix(".log").read_text(errors="replace").splitlines()
        result = {"status": "failed", "log": log[-6:]}
    with out.open("a") as file:
        file.write(json.dumps({**row, "measured": result}) + "\n")
    print(row["id"], result["status"], result.get("peak_allocated_gib"), flush=True)
    return True


def main() -> None:
    """Command line."""
    verb, source, target = sys.argv[1], Path(sys.argv[2]), Path(sys.argv[3])
    if verb == "all":
        run_all(source, target)
        return
    result = measured(json.loads(source.read_text()))
    target.write_text(json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


if __name__ == "__main__":
    main()
