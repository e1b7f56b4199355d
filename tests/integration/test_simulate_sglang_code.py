"""SGLang's code on shapes: what stands in for kernels, and the real model code where SGLang is installed.

LLMSYS_SGLANG_PYTHON names the interpreter that holds it.
"""

from __future__ import annotations

import importlib.util
import json
import os
import sys
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

from planner.errors import NotSimulated
from planner.memory.arena import Arena
from planner.memory.replay import gpu_allocator
from planner.simulate.serving import kernels
from planner.simulate.serving.batch import ShapedAttention
from planner.simulate.serving.device import OnShapes
from planner.simulate.serving.passes import ServingRecorder
from planner.simulate.serving.request import run_child
from planner.units import MIB

PYTHON = os.environ.get("LLMSYS_SGLANG_PYTHON") or (
    sys.executable if importlib.util.find_spec("sglang") else None
)
FROZEN = Path(__file__).parents[2] / "benchmarks/results/h200-2026-11-30-serving-activation.jsonl"


def _recorder():
    return ServingRecorder(Arena(gpu_allocator()), 0, offloads=False)


def test_tensors_for_cuda_are_made_on_shapes():
    with OnShapes():
        made = [
            torch.empty(2, device="cuda"),
            torch.zeros(2, device=torch.device("cuda:0")),
            torch.ones(2, device=0),
            torch.empty(2).to("cuda"),
            torch.empty(2).cuda(),
            torch.empty(2, device="cuda", pin_memory=True),
        ]
        assert {one.device.type for one in made} == {"meta"}
        assert torch.empty(2).device.type == "cpu"


def test_kernels_allocate_what_the_library_does():
    x, out = torch.empty((4, 6), dtype=torch.bfloat16, device="meta"), torch.empty((4, 3), device="meta")
    assert kernels.STAND_INS["rmsnorm"](x, None).shape == x.shape
    assert kernels.STAND_INS["silu_and_mul"](x).shape == (4, 3)
    assert kernels.STAND_INS["silu_and_mul"](x, out) is out
    assert kernels.STAND_INS["fused_add_rmsnorm"](x, x, None) is None
    picked = kernels.STAND_INS["top_k_top_p_sampling_from_probs"](x, None, None)
    assert picked.shape == (4,) and picked.dtype == torch.int32


def test_a_name_without_a_stand_in_may_be_imported_and_not_called(monkeypatch):
    name = kernels._named("unheard_of")
    assert name.part.of_it(lambda: 1)() == 1  # as a decorator, while SGLang is imported

    class Derived(name):
        pass

    assert issubclass(Derived, name)
    monkeypatch.setattr(kernels._Name, "running", True)
    with pytest.raises(kernels.NoStandIn, match="kernel unheard_of has no stand-in"):
        name(1)


@pytest.mark.parametrize(("rows", "each"), [(1, 20), (64, 32), (256, 20)])
def test_a_sort_takes_what_cuda_takes_within_itself(rows, each):
    recorder = _recorder()
    with recorder:
        values = torch.empty((rows, 4096), dtype=torch.float32, device="meta")
        values.sort(dim=-1, descending=True)
    held = (4 + 4 + 8 + each) * values.numel()
    assert recorder.arena.peak_bytes == pytest.approx(held, rel=0.01, abs=MIB)


def test_of_a_compiled_function_only_the_results_are_left(monkeypatch):
    recorder = _recorder()
    monkeypatch.setattr(kernels.Fused, "recorder", recorder)

    @kernels._compile(dynamic=True)
    def twice(x):
        return x + 1, (x * 2 + 1).float(), x

    with recorder:
        x = torch.empty(1 << 20, dtype=torch.bfloat16, device="meta")
        before = recorder.arena.allocator.allocated
        one, two, same = twice(x)
    assert same is x and (one.dtype, two.dtype) == (torch.bfloat16, torch.float32)
    assert recorder.arena.peak_bytes - before == 6 * MIB
    assert kernels._compile(len, disable=True) is len


def test_attention_holds_its_partial_results_until_the_next_pass():
    class RadixAttention(torch.nn.Module):
        layer_id, tp_q_head_num, tp_k_head_num, tp_v_head_num = 0, 4, 2, 2
        qk_head_dim = v_head_dim = 128

    recorder, layer = _recorder(), RadixAttention()
    model = torch.nn.Sequential(layer, torch.nn.Linear(1, 1, device="meta"))
    with recorder:
        attention = ShapedAttention(model, "triton")
        before = recorder.arena.allocator.allocated
        mode = SimpleNamespace(is_decode=lambda: True)
        attention.prepare(SimpleNamespace(forward_mode=mode, batch_size=64, seq_lens_sum=64 * 1024))
        held = recorder.arena.allocator.allocated - before
        attention.prepare(
            SimpleNamespace(forward_mode=SimpleNamespace(is_decode=lambda: False), seq_lens_sum=8)
        )
        after = recorder.arena.allocator.allocated - before
        out = attention.forward(torch.empty((8, 512), device="meta"), None, None, layer)
    assert held == pytest.approx(64 * 1024 * 8 + 64 * 4 * 8 * 129 * 4, rel=0.01) and after == 0
    assert out.shape == (8, 512)


@pytest.mark.engine
@pytest.mark.timeout(300)
@pytest.mark.skipif(PYTHON is None, reason="no SGLang here: name its interpreter in LLMSYS_SGLANG_PYTHON")
def test_real_code_takes_what_was_measured_of_it():
    row = json.loads(FROZEN.read_text(encoding="utf-8").splitlines()[0])
    wanted = [one for one in row["measured"] if one["requests"] == 8 or one.get("tokens") == 2048]
    unnamed = {name: value for name, value in row["config"].items() if name != "architectures"}
    request = {
        "config": unnamed, "card": {"name": "H200", "capability": [9, 0], "total_mib": 143_771},
        "free_bytes": 140 << 30, "workspace_bytes": 32 << 20, "tp_size": 1, "backend": "triton", "resident": {},
        "arguments": {"attention_backend": "triton", "sampling_backend": "pytorch", "dtype": "bfloat16",
                      "context_length": 16_384, "mem_fraction_static": 0.5, "disable_cuda_graph": True},
        "passes": [{k: v for k, v in one.items() if not k.endswith("_bytes")} for one in wanted],
    }  # fmt: skip
    found = run_child(request, python=PYTHON)
    for said, seen in zip(found["passes"], wanted, strict=True):
        assert said["model_bytes"] == pytest.approx(seen["model_bytes"], rel=0.002)
    assert found["kv_elements"] == 3 * 2 * 4 * 128
    assert found["passes"][0]["largest"][0]["module"] == "model.layers.*.mlp.gate_up_proj"
    with pytest.raises(NotSimulated, match=r"SGLang has no model NobodyForCausalLM of its own"):
        run_child(
            {**request, "config": {**row["config"], "architectures": ["NobodyForCausalLM"]}}, python=PYTHON
        )
