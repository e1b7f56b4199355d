"""Data, pipeline and tensor parallelism: the formulas, what is refused, and how a result is shown."""

from __future__ import annotations

import io
import json
from dataclasses import replace
from typing import Any

import pytest

from llmsys_exp.config.compose import compose_config
from llmsys_exp.config.folders import shipped_path
from llmsys_exp.config.schema import Step
from llmsys_exp.errors import ConfigError
from llmsys_exp.jobs.parallelism import check_parallelism
from llmsys_exp.report.console import Console
from llmsys_exp.report.parallelism import most_held, parallelism_figure, show_parallelism
from llmsys_exp.workers.parallelism import formulas, results
from llmsys_exp.workers.parallelism.formulas import Batch, Memory, Shape

EXPERIMENT = "experiment=parallel_data_vs_pipeline_vs_tensor"
SHAPE = Shape.of(json.loads(shipped_path("shipped:data/small_llama/config.json").read_text()))
BATCH = Batch(sequences=16, length=64, ranks=2, micro_batches=4)


@pytest.mark.parametrize(("stages", "micro_batches", "share"), [(1, 4, 0), (2, 1, 1 / 2), (4, 8, 3 / 11)])
def test_the_bubble_shrinks_with_micro_batches(stages: int, micro_batches: int, share: float):
    assert formulas.bubble_fraction(stages, micro_batches) == pytest.approx(share)


def test_a_ring_sends_nearly_twice_the_tensor():
    assert [formulas.ring_bytes(1200, ranks) for ranks in (1, 2, 3, 4)] == [0, 1200, 1600, 1800]


def test_stages_hold_the_whole_model_together():
    parts = [formulas.pipeline_memory(SHAPE, BATCH, stage=stage) for stage in (0, 1)]
    whole = formulas.one_rank_memory(SHAPE, BATCH)
    assert sum(part.weights for part in parts) == whole.weights
    rotary = 2 * BATCH.length * SHAPE.head_dim * formulas.FP32_BYTES * BATCH.micro_batches
    assert sum(part.activations for part in parts) == whole.activations + rotary


def test_layers_of_all_stages_are_all_layers():
    ranges = [formulas.layers_of_stage(10, 4, stage) for stage in range(4)]
    assert [layer for one in ranges for layer in one] == list(range(10))
    assert max(map(len, ranges)) - min(map(len, ranges)) == 1


def test_each_way_saves_something_else():
    alone = formulas.one_rank_memory(SHAPE, BATCH)
    data, tensor = formulas.data_memory(SHAPE, BATCH), formulas.tensor_memory(SHAPE, BATCH)
    assert data.weights == alone.weights
    assert data.activations < 0.51 * alone.activations
    assert 0.5 * alone.weights < tensor.weights < 0.6 * alone.weights
    assert data.activations < tensor.activations < alone.activations


def test_data_moves_weights_and_the_others_move_tokens():
    twice = replace(BATCH, sequences=32)
    assert formulas.tensor_payload_bytes(SHAPE, twice) == 2 * formulas.tensor_payload_bytes(SHAPE, BATCH)
    middle = replace(BATCH, ranks=3)
    one_way = formulas.boundary_bytes(SHAPE, BATCH)
    sent = [formulas.pipeline_sent_bytes(SHAPE, middle, stage=stage) for stage in range(3)]
    assert sent == [one_way, 2 * one_way, one_way]


def test_the_experiment_asks_for_what_can_be_done():
    config = compose_config([EXPERIMENT])
    assert config.steps == [Step.parallelism]
    check_parallelism(config)


@pytest.mark.parametrize(
    ("override", "told"),
    [
        ("hardware.gpus_per_node=1", "nothing to share"),
        ("hardware.gpus_per_node=3", "num_hidden_layers=8 cannot be shared out among 3 ranks"),
        ("training.global_batch=6", "training.global_batch=6 cannot be cut"),
        ("training.max_steps=1", "first step"),
        ("method=lora", "trains every weight in fp32, not lora"),
        ("training.dtype=bf16", "not full in bf16"),
        ("model=gpt2", "cuts a Llama"),
    ],
)
def test_what_cannot_be_cut_is_refused(override: str, told: str):
    with pytest.raises(ConfigError, match=told):
        check_parallelism(compose_config([EXPERIMENT, override]))


def measured() -> dict[str, list[dict[str, Any]]]:
    """Ranks that measured what the formulas say."""
    wanted = {
        "one rank": lambda rank: formulas.one_rank_memory(SHAPE, BATCH),
        "data": lambda rank: formulas.data_memory(SHAPE, BATCH),
        "pipeline": lambda rank: formulas.pipeline_memory(SHAPE, BATCH, stage=rank),
        "tensor": lambda rank: formulas.tensor_memory(SHAPE, BATCH),
    }
    traffic = {"payload_bytes": {"send": 10}, "calls": {"send": 4}, "wire_bytes": None}
    losses = {"one rank": [2.0, 1.0], "data": [2.0, 1.0], "pipeline": [2.0, 1.01], "tensor": [2.0, 1.0]}
    return {
        name: [
            {"losses": losses[name], "memory": memory(rank).to_dict(), "traffic": traffic, "step_s": 1.0}
            for rank in (0, 1)
        ]
        for name, memory in wanted.items()
    }


def test_rows_put_measurement_beside_formula():
    rows = results.memory_rows(measured(), SHAPE, replace(BATCH, micro_batches=1))
    off = [row for row in rows if row["formula"] != row["measured"]]
    # only these hold more with micro-batches: a rotary table for each
    assert {row["scheme"] for row in off} <= {"one rank", "data", "tensor"}
    assert [row["payload"]["measured"] for row in results.byte_rows(measured(), SHAPE, BATCH)] == [10] * 6
    assert results.largest_difference(measured(), "pipeline") == pytest.approx(0.01)


def test_a_result_is_shown_as_tables_and_drawn():
    pytest.importorskip("matplotlib")
    told = measured()
    result = {
        "ranks": 2,
        "shape": {"parameters": 3_247_296, "layers": 8},
        "sequences": 16,
        "length": 64,
        "losses": {name: rows[0]["losses"] for name, rows in told.items()},
        "loss_differences": {name: results.largest_difference(told, name) for name in told},
        "bytes": results.byte_rows(told, SHAPE, BATCH),
        "memory": results.memory_rows(told, SHAPE, BATCH),
        "bubble": [{"micro_batches": 2, "formula": 1 / 3, "measured": 0.34, "step_s": 1.0}],
    }
    stream = io.StringIO()
    show_parallelism(Console(stream), result)
    text = stream.getvalue()
    assert "no loss differs by more than 1e-02" in text
    assert "0.333" in text
    assert [row["rank"] for row in most_held(result) if row["scheme"] == "pipeline"] == [1]
    assert len(parallelism_figure(result, "x").axes) == 3


def test_memory_names_its_parts():
    assert list(Memory(1, 2, 3, 4).to_dict()) == ["weights", "gradients", "optimizer", "activations"]
