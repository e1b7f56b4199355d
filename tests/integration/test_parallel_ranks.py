"""Two ranks train one tiny model with data, pipeline and tensor parallelism, and all figures are as computed."""

from __future__ import annotations

import json

import pytest
from forked import run_forked

from llmsys_exp.config.plain import to_plain
from llmsys_exp.config.schema import Config

for needed in ("torch", "transformers", "deepspeed"):
    pytest.importorskip(needed)

TINY = {"architectures": ["LlamaForCausalLM"], "model_type": "llama", "hidden_size": 32, "intermediate_size": 48,
        "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2, "vocab_size": 256,
        "max_position_embeddings": 64, "tie_word_embeddings": False}  # fmt: skip
OVERHEAD = 0.1
"""Headers and the like on the wire, of tensors as small as these."""


@pytest.fixture(scope="module")
def result(tmp_path_factory: pytest.TempPathFactory) -> dict:
    """What a run wrote."""
    folder = tmp_path_factory.mktemp("parallelism")
    (folder / "model").mkdir()
    (folder / "model/config.json").write_text(json.dumps(TINY))
    (folder / "text.json").write_text("The quick brown fox jumps over the lazy dog. " * 40)
    config = Config()
    config.model.id, config.data.name, config.data.train = "tiny", "text", str(folder / "text.json")
    config.data.max_length, config.hardware.gpus_per_node = 16, 2
    config.training.global_batch, config.training.max_steps, config.training.learning_rate = 8, 3, 1e-2
    resolved = {"model_folder": str(folder / "model"), "train_file": config.data.train,
                "world_size": 2, "device": "cpu"}  # fmt: skip
    job = {"schema_version": 1, "config": to_plain(config), "plan": {}, "resolved": resolved}
    (folder / "job.json").write_text(json.dumps(job))
    (folder / "results").mkdir()
    done = run_forked("llmsys_exp.workers.parallelism", folder, ranks=2)
    assert done.returncode == 0, done.stdout[-3000:] + done.stderr[-3000:]
    return json.loads((folder / "results/parallelism.json").read_text())


def test_all_train_as_one_rank_does(result: dict):
    assert set(result["losses"]) == {"one rank", "data", "pipeline", "tensor"}
    assert max(result["loss_differences"].values()) < 1e-5
    losses = result["losses"]["one rank"]
    assert losses[-1] < losses[0] - 0.1


def test_every_byte_handed_over_is_in_the_formula(result: dict):
    rows = result["bytes"]
    assert len(rows) == 6
    assert [row["payload"]["measured"] for row in rows] == [row["payload"]["formula"] for row in rows]


def test_sockets_carry_what_a_ring_sends(result: dict):
    for row in result["bytes"]:
        wire = row["wire"]
        if wire["measured"] is not None:  # not every kernel tells
            assert wire["formula"] <= wire["measured"] < (1 + OVERHEAD) * wire["formula"] + 10_000, row


def test_every_byte_held_is_in_the_formula(result: dict):
    assert len(result["memory"]) == 8
    for row in result["memory"]:
        assert row["measured"] == row["formula"], row


def test_ranks_wait_at_least_as_long_as_the_bubble(result: dict):
    assert [row["micro_batches"] for row in result["bubble"]] == [1, 2, 4]
    for row in result["bubble"]:
        assert row["measured"] > 0.5 * row["formula"], row
