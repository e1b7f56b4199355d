"""`llmsys plan` with real simulations: files, what was largest, and models that no formula knows."""

from __future__ import annotations

import json
import os
import pickle
from pathlib import Path
from typing import Any

import pytest

from benchmarks.trace_check.configs import config_of
from llmsys_exp.cli import plan as plan_verb
from llmsys_exp.errors import ConfigError

pytestmark = pytest.mark.engine
SMALL = {"hidden_size": 128, "num_hidden_layers": 2, "num_attention_heads": 4, "vocab_size": 1024}
ARCEE = {**SMALL, "model_type": "arcee", "intermediate_size": 256, "num_key_value_heads": 4}
SETTLED = ("zero=stage2", "offload=none", "training.micro_batch=2", "training.gradient_checkpointing=false")
OWN_CONFIG = """
from transformers import PretrainedConfig
class OwnConfig(PretrainedConfig):
    model_type = "own_net"
"""
OWN_MODEL = """
import torch
from transformers import PreTrainedModel
from transformers.modeling_outputs import CausalLMOutput
from .configuration_own import OwnConfig
class OwnForCausalLM(PreTrainedModel):
    config_class = OwnConfig
    _supports_sdpa = True
    def __init__(self, config):
        super().__init__(config)
        self.embed = torch.nn.Embedding(config.vocab_size, config.hidden_size)
        self.head = torch.nn.Linear(config.hidden_size, config.vocab_size, bias=False)
        self.post_init()
    def get_input_embeddings(self):
        return self.embed
    def forward(self, input_ids=None, labels=None, **more):
        logits = self.head(self.embed(input_ids))
        loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), labels.flatten())
        return CausalLMOutput(loss=loss, logits=logits)
"""


def folder(path: Path, **config: Any) -> Path:
    path.mkdir()
    (path / "config.json").write_text(json.dumps(config))
    return path


def planned(capsys: pytest.CaptureFixture[str], path: Path, *more: str) -> dict[str, Any]:
    """What `llmsys plan --json` says of a model."""
    asked = ["model=local", f"model.path={path}", "hardware=a100_80gb", "data.max_length=128"]
    assert plan_verb.run([*asked, "method=full", *more, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


def test_a_known_family_is_shown_beside_the_formula_and_in_files(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    path = folder(tmp_path / "llama", **{**config_of("llama"), "num_hidden_layers": 2})
    snapshot, timeline = tmp_path / "held.pickle", tmp_path / "held.svg"
    files = ["--tier=simulate", "--snapshot", str(snapshot), "--timeline", str(timeline)]
    told = planned(capsys, path, *SETTLED, *files)
    assert told["forecast"]["tier"] == "formula"
    assert told["simulate"]["peak_allocated_gib"] == pytest.approx(
        told["forecast"]["peak_allocated_gib"], 0.01
    )
    largest = told["largest"]
    sizes = [one["bytes"] * one["count"] for one in largest]
    assert len(largest) == 10 and sizes == sorted(sizes, reverse=True)
    assert "zeros_like" in {one["operator"] for one in largest}
    events = pickle.loads(snapshot.read_bytes())["device_traces"][0]  # our own
    assert {event["action"] for event in events} >= {"alloc", "free_completed"}
    drawn = timeline.read_text()
    assert all(f"<!-- {text} -->" in drawn for text in ("load", "forward 1", "backward 2", "activations"))
    monkeypatch.setattr("llmsys_exp.report.tier_text.apart", lambda formula, other: 0.031)
    asked = ["model=local", f"model.path={path}", "hardware=a100_80gb", "data.max_length=128", *SETTLED]
    assert plan_verb.run([*asked, "--tier=simulate"]) == 0
    text = capsys.readouterr().out
    assert "They are 3.1 % apart in what is needed: the band above reaches to both." in text
    assert "Largest at the peak" in text


def test_an_unknown_family_is_simulated_and_its_batch_chosen(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    before = dict(os.environ)
    told = planned(capsys, folder(tmp_path / "arcee", **ARCEE), "training.global_batch=4")
    chosen = {choice["key"]: choice["value"] for choice in told["choices"]}
    assert chosen["zero.stage"] == 0 and chosen["training.micro_batch"] == 4
    assert chosen["zero.reduce_bucket_size"] == 1_000_000
    assert told["forecast"]["tier"] == "simulate" and told["verdict"]["label"] == "fits"
    assert told["forecast"]["notes"][0] == "arcee is not known to the formula: simulated"
    assert len(told["largest"]) == 10
    assert dict(os.environ) == before  # which workers inherit


def test_code_that_came_with_a_model_runs_only_where_it_is_trusted(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    own = {
        "AutoConfig": "configuration_own.OwnConfig",
        "AutoModelForCausalLM": "modeling_own.OwnForCausalLM",
    }
    path = folder(tmp_path / "own", **SMALL, model_type="own_net", auto_map=own)
    ran = tmp_path / "ran"
    (path / "configuration_own.py").write_text(f"{OWN_CONFIG}\nopen({str(ran)!r}, 'w').close()\n")
    (path / "modeling_own.py").write_text(OWN_MODEL)
    with pytest.raises(ConfigError, match=r"model\.trust_remote_code=true runs it"):
        planned(capsys, path, *SETTLED)
    assert not ran.exists()
    told = planned(capsys, path, *SETTLED, "model.trust_remote_code=true")
    assert ran.exists() and told["forecast"]["tier"] == "simulate"
    weights = 2 * 2 * 1024 * 128  # two matrices in bf16
    assert told["forecast"]["components"]["weights"] == pytest.approx(weights / 2**30, abs=1e-4)


@pytest.mark.parametrize(
    ("changed", "settings", "said"),
    [
        ({"model_type": "arcea"}, (), "no such language model"),
        ({"hidden_act": "relu22"}, (), "hidden_act 'relu22' is no activation. Did you mean relu2"),
        ({"model_type": "bert"}, (), "bert: is_decoder is not true"),
        ({"model_type": "bart"}, (), "bart: it has an encoder"),
        ({"model_type": "gptj"}, (), r"training\.attention: gptj has no sdpa"),
        (
            {},
            ("method=lora", "method.lora.targets=[q_prj,v_proj]"),
            "'q_prj' names no linear layer of a arcee model. Did you mean q_proj",
        ),
    ],
)
def test_wrong_models_and_targets_are_refused_by_name(
    tmp_path: Path,
    capsys: pytest.CaptureFixture[str],
    changed: dict[str, Any],
    settings: tuple[str, ...],
    said: str,
) -> None:
    with pytest.raises(ConfigError, match=said):
        planned(capsys, folder(tmp_path / "wrong", **{**ARCEE, **changed}), *SETTLED, *settings)


@pytest.mark.parametrize("family", ["llama", "arcee"])
def test_what_transformers_serves_is_simulated(
    family: str, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shape = {**config_of("llama"), "num_hidden_layers": 2} if family == "llama" else ARCEE
    path = folder(tmp_path / family, **shape)
    asked = ["model=local", f"model.path={path}", "hardware=a100_80gb", "steps=[infer]"]
    asked += [
        "inference.engine=transformers",
        "inference.batch_size=4",
        "--json",
        "inference.sampling.max_new_tokens=64",
    ]
    assert plan_verb.run([*asked, "--tier=simulate"]) == 0
    written = capfd.readouterr()
    serving = json.loads(written.out)["serving"]
    told = serving["simulate"] if family == "llama" else serving["forecast"]
    assert told["tier"] == "simulate" and told["label"] == "fits"
    assert "[transformers]" not in written.err
    layers, heads, head_dim = 2, 4, shape["hidden_size"] // 4
    if family == "llama":
        assert told["peak_allocated_gib"] == pytest.approx(
            serving["forecast"]["peak_allocated_gib"], rel=0.02
        )
    else:
        assert told["kv_bytes_per_token"] == pytest.approx(2 * 2 * layers * heads * head_dim, rel=0.02)
        assert "fits" in told["label"] and told["largest_batch"] is None
