"""Headers of weight files, files cut to size, forecasts of merging and quantising."""

from __future__ import annotations

import json
import struct
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

from llmsys_exp.errors import UserError
from llmsys_exp.inputs.weight_files import fingerprint, sha256_of_files, stored_tensors
from llmsys_exp.jobs.export_run import changed
from llmsys_exp.workers.export.belongs import check_adapter
from llmsys_exp.workers.export.reshard import is_cut_to
from llmsys_exp.workers.export.stored import compare_with_base
from llmsys_exp.workers.files import remove_leftovers
from llmsys_exp.workers.shards import INDEX, ShardWriter, told_when_full
from planner.gptq import GptqJob, forecast_gptq, packed_bytes, read_layers
from planner.merging import Merge, device_bytes, host_bytes
from planner.training_case import Quantization


def write(folder: Path, weights: dict[str, torch.Tensor], shard_bytes: int = 10**9) -> list[str]:
    folder.mkdir(exist_ok=True)
    writer = ShardWriter(folder, shard_bytes)
    for name, weight in weights.items():
        writer.add(name, weight)
    return writer.close()


def some_weights(seed: int = 0) -> dict[str, torch.Tensor]:
    torch.manual_seed(seed)
    return {f"model.layers.{n}.mlp.up_proj.weight": torch.randn(8, 4) for n in range(5)}


def test_files_are_cut_to_size_and_hold_everything(tmp_path):
    weights = some_weights()
    names = write(tmp_path / "cut", weights, shard_bytes=300)
    assert names == [f"model-0000{n}-of-00003.safetensors" for n in (1, 2, 3)]
    index = json.loads((tmp_path / "cut" / INDEX).read_text(encoding="utf-8"))
    assert index["metadata"] == {"total_parameters": 160, "total_size": 640}
    found = {}
    for name in names:
        held = load_file(tmp_path / "cut" / name)
        assert sum(one.numel() * 4 for one in held.values()) <= 300
        assert {index["weight_map"][one] for one in held} == {name}
        found |= held
    assert all(torch.equal(found[name], one) for name, one in weights.items())


def test_one_file_needs_no_index(tmp_path):
    assert write(tmp_path / "one", some_weights()) == ["model.safetensors"]
    assert not (tmp_path / "one" / INDEX).exists()


def test_a_weight_larger_than_a_file_gets_its_own(tmp_path):
    names = write(tmp_path / "big", {"a": torch.ones(4), "b": torch.ones(400), "c": torch.ones(4)}, 100)
    assert len(names) == 3


def test_whether_files_are_cut_as_asked(tmp_path):
    write(tmp_path / "cut", some_weights(), shard_bytes=300)
    assert is_cut_to(tmp_path / "cut", 300)
    assert not is_cut_to(tmp_path / "cut", 200)
    assert not is_cut_to(tmp_path / "cut", 10_000)


def test_headers_say_what_safetensors_says(tmp_path):
    write(tmp_path / "one", {"a": torch.ones(2, 3, dtype=torch.bfloat16)})
    one = stored_tensors(tmp_path / "one")["a"]
    assert (one.shape, one.dtype, one.nbytes, one.numel) == ((2, 3), "BF16", 12, 6)


@pytest.mark.parametrize("damage", ["cut", "header", "empty"])
def test_a_broken_weight_file_is_named(tmp_path, damage):
    write(tmp_path / "one", some_weights())
    file = tmp_path / "one" / "model.safetensors"
    whole = file.read_bytes()
    broken = {"cut": whole[:-10], "header": struct.pack("<Q", 10**12) + whole[8:], "empty": b""}[damage]
    file.write_bytes(broken)
    with pytest.raises(UserError, match=r"weight file is broken \(.*model\.safetensors"):
        stored_tensors(tmp_path / "one")


def test_a_fingerprint_sees_weights_and_not_files(tmp_path):
    write(tmp_path / "one", some_weights())
    write(tmp_path / "cut", some_weights(), shard_bytes=300)
    write(tmp_path / "other", some_weights(seed=1))
    (tmp_path / "none").mkdir()
    assert fingerprint(tmp_path / "one") == fingerprint(tmp_path / "cut") != fingerprint(tmp_path / "other")
    assert fingerprint(tmp_path / "none") is None
    assert sha256_of_files(tmp_path / "one") != sha256_of_files(tmp_path / "other")


def test_the_unmodified_base_is_noticed(tmp_path):
    weights = some_weights()
    write(tmp_path / "base", weights)
    write(tmp_path / "same", {name: one.bfloat16() for name, one in weights.items()})
    changed_one = {
        **weights,
        "model.layers.0.mlp.up_proj.weight": weights["model.layers.0.mlp.up_proj.weight"] + 1,
    }
    write(tmp_path / "merged", changed_one)
    assert compare_with_base(tmp_path / "base", tmp_path / "same", set(weights)).changed == 0
    found = compare_with_base(tmp_path / "base", tmp_path / "merged", set(weights))
    assert (found.common, found.changed, found.adapted_unchanged) == (5, 1, 4)


def make_adapter(
    folder: Path, *, into: int = 4, out: int = 8, module: str = "mlp.up_proj", base: dict | None = None
):
    folder.mkdir()
    stem = f"base_model.model.model.layers.0.{module}"
    pair = {f"{stem}.lora_A.weight": torch.ones(2, into), f"{stem}.lora_B.weight": torch.ones(out, 2)}
    save_file(pair, folder / "adapter_model.safetensors")
    (folder / "adapter_config.json").write_text('{"base_model_name_or_path": "another"}', encoding="utf-8")
    if base is not None:
        (folder / "base.json").write_text(json.dumps(base), encoding="utf-8")


@pytest.mark.parametrize(
    ("made", "said"),
    [
        (
            {"into": 16},
            r"another; to be merged into .*lora_A\.weight is \[2, 16\], the weight there \[8, 4\]",
        ),
        ({"out": 16}, r"lora_B\.weight is \[16, 2\]"),
        ({"module": "attn.c_attn"}, "None of the modules that it adapts"),
        ({"base": {"model": "first", "fingerprint": "0"}}, "first.*weights of that model are others"),
    ],
    ids=["inner width", "outer width", "modules", "weights"],
)
def test_an_adapter_of_another_model_is_refused(tmp_path, made, said):
    write(tmp_path / "base", some_weights())
    make_adapter(tmp_path / "adapter", **made)
    with pytest.raises(UserError, match=f"trained over another model.*{said}"):
        check_adapter(tmp_path / "adapter", tmp_path / "base")


def test_an_adapter_of_this_model_is_taken(tmp_path):
    write(tmp_path / "base", some_weights())
    make_adapter(tmp_path / "adapter", base={"model": "x", "fingerprint": fingerprint(tmp_path / "base")})
    check_adapter(tmp_path / "adapter", tmp_path / "base")
    (tmp_path / "adapter" / "adapter_config.json").unlink()
    with pytest.raises(UserError, match="not whole"):
        check_adapter(tmp_path / "adapter", tmp_path / "base")


def test_a_full_disk_is_told(tmp_path):
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("no /dev/full")
    with pytest.raises(UserError, match="disk is full"), told_when_full(tmp_path), full.open("w") as stream:
        stream.write("x")
        stream.flush()
    with pytest.raises(PermissionError), told_when_full(tmp_path):
        raise PermissionError(13, "no")


def test_leftovers_of_killed_processes_are_removed(tmp_path):
    for owner in ("999999999", "1"):
        (tmp_path / f".merged.{owner}.tmp").mkdir()
    remove_leftovers(tmp_path / "merged")
    assert [one.name for one in tmp_path.iterdir()] == [".merged.1.tmp"]


SHAPES = {
    "model.embed_tokens.weight": (1000, 64),
    "model.norm.weight": (64,),
    **{
        f"model.layers.{n}.{part}.weight": shape
        for n in (0, 1)
        for part, shape in {
            "self_attn.q_proj": (64, 64),
            "self_attn.k_proj": (32, 64),
            "self_attn.v_proj": (32, 64),
            "self_attn.o_proj": (64, 64),
            "mlp.gate_proj": (256, 64),
            "mlp.up_proj": (256, 64),
            "mlp.down_proj": (64, 256),
            "input_layernorm": (64,),
        }.items()
    },
}


def gptq(**settings) -> GptqJob:
    given = {"rows": 8, "row_tokens": 32, "device": "cuda", **settings}
    bits = given.pop("bits", 4)
    return GptqJob(SHAPES, 2, quantization=Quantization(kind="gptq", bits=bits, group_size=64), **given)


def test_matrices_are_grouped_by_the_input_they_share():
    layer = read_layers(SHAPES)["model.layers.0"]
    sizes = {key: len(shapes) for key, shapes in layer.groups.items()}
    assert sizes == {("self_attn", 64): 3, ("self_attn.o_proj", 64): 1, ("mlp", 64): 2, ("mlp", 256): 1}
    assert layer.elements == 64 * (64 + 32 + 32 + 64) + 3 * 256 * 64 + 64


def test_the_widest_input_has_the_largest_hessians():
    found = forecast_gptq(gptq())
    assert found.device["Hessians of one input"] == 4 * 4 * 256**2
    assert found.device["weights being rounded (fp32)"] == 4 * 4 * 64 * 256


def test_calibration_rows_cost_main_memory_and_not_the_gpu():
    few, many = forecast_gptq(gptq()), forecast_gptq(gptq(rows=80))
    assert (
        many.host["calibration activations"]
        == 10 * few.host["calibration activations"]
        == 10 * 2 * 8 * 32 * 64 * 2
    )
    assert few.device == many.device


def test_on_the_cpu_everything_lies_in_main_memory():
    on_gpu, on_cpu = forecast_gptq(gptq()), forecast_gptq(gptq(device="cpu"))
    assert not on_cpu.device
    assert sum(size for use, size in on_cpu.host.items() if use.startswith("layer: ")) == on_gpu.device_bytes


def test_fewer_bits_make_smaller_files():
    two, four, eight = (packed_bytes(gptq(bits=bits)) for bits in (2, 4, 8))
    assert two < four < eight < sum(2 * torch.Size(shape).numel() for shape in SHAPES.values())


def test_a_merge_on_the_host_holds_the_model_once():
    merge = Merge(10**9, 10**7, 10**6, "fp32", "cpu", 10**9)
    assert device_bytes(merge)["base model"] == 4 * 10**9
    assert host_bytes(merge)["base model"] == 4 * 10**9 and host_bytes(merge)["file being written"] == 10**9
    assert "base model" not in host_bytes(Merge(10**9, 10**7, 10**6, "bf16", "cuda", 10**9))


def test_export_settings_may_be_changed_and_others_not():
    config = changed({}, ["export.shard_gb=2", "export.gptq.bits=8", "gate=warn", "steps=[export]"])
    assert (config.export.shard_gb, config.export.gptq.bits, config.gate.policy.name) == (2.0, 8, "warn")
    refused = {
        "training.max_steps=3": "can no longer be changed",
        "export.shard=2": r"not a setting.*export\.shard_gb",
        "export.gptq.bits=5": "bits is 5",
        "export.gptq.bits=four": "cannot be 'four'",
    }
    for text, said in refused.items():
        with pytest.raises(UserError, match=said):
            changed({}, [text])
