"""What is done with a trained model: written, quantised, asked."""

# OmegaConf 2.3 reads these annotations, and its support for the newer spellings is partial.
# ruff: noqa: UP007, UP045

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Optional, Union

from llmsys_exp.config.schema.kinds import AUTO, PromptOrder, ServerApi


@dataclass
class GptqConfig:
    """The step `quantize`: GPTQ on the merged model."""

    bits: int = 4
    """Bits per weight: 2, 3, 4 or 8."""
    group_size: int = 128
    """Inputs that share a scale; -1: all."""
    desc_act: bool = False
    """Quantise columns in the order of their activations: better, slower to run."""
    sym: bool = True
    """Symmetric around zero."""
    damp: float = 0.05
    """Share of the mean diagonal that is added to the Hessian."""
    calibration: Optional[str] = None
    """File of rows to calibrate on. None: the training rows."""
    rows: int = 128
    """How many of them."""
    max_length: int = 512
    """Tokens of a row."""


@dataclass
class ExportConfig:
    """What is written of a trained model."""

    shard_gb: float = 5.0
    """Largest file of weights, in GB (1e9 bytes)."""
    gptq: GptqConfig = field(default_factory=GptqConfig)


@dataclass
class SamplingConfig:
    """How the next token is picked."""

    max_new_tokens: int = 128
    temperature: float = 0.0
    """0 picks the likeliest token each time."""
    top_p: float = 1.0
    top_k: int = 0
    """0 means no limit."""


@dataclass
class SglangConfig:
    """How SGLang is started: offline (`engine: sglang`) or as a server of our own (`sglang_server`)."""

    python: Optional[str] = None
    """Interpreter of the environment that holds SGLang. None: the one of the workers."""
    mem_fraction_static: Union[float, str] = AUTO
    """Share of the memory that is free at the start for weights and KV pool."""
    context_length: Union[int, str] = AUTO
    """Longest prompt and answer together; sizes the request table."""
    max_running_requests: Union[int, str] = AUTO
    """Requests that are answered at a time, over all replicas."""
    chunked_prefill_size: Union[int, str] = AUTO
    """Prompt tokens of one forward pass; -1: no chunks."""
    cuda_graph_max_bs: Union[int, str] = AUTO
    """Largest batch whose decoding is captured as a CUDA graph."""
    max_total_tokens: Optional[int] = None
    """Upper bound of the KV pool. None: what the fraction leaves."""
    kv_cache_dtype: str = AUTO
    """Type of the KV cache: auto (the model's), fp8_e4m3, fp8_e5m2."""
    quantization: Optional[str] = None
    """How weights are quantised while they load: fp8, awq, gptq ... None: as they are stored."""
    tp_size: Union[int, str] = AUTO
    """GPUs that share one replica."""
    dp_size: Union[int, str] = AUTO
    """Whole replicas."""
    attention_backend: Optional[str] = None
    sampling_backend: Optional[str] = None
    schedule_policy: str = "lpm"
    """Which waiting request comes next; lpm: the one with the longest prefix in the cache."""
    arguments: dict[str, Any] = field(default_factory=dict)
    """Further arguments of SGLang's ServerArgs by their own names; checked against the installed release."""
    start_timeout_s: float = 900.0


@dataclass
class ServerConfig:
    """The server of `engine: sglang_server`."""

    url: Optional[str] = None
    """Use the server that runs there. None: start one with the settings of `sglang`, stop it at the end."""
    api: ServerApi = ServerApi.native
    """native: SGLang's /generate. openai: /v1/completions of any server that speaks it."""
    model: Optional[str] = None
    """Name of the model at an OpenAI-compatible server. None: the only one it serves."""
    host: str = "127.0.0.1"
    port: Optional[int] = None
    """None: a free one."""
    request_timeout_s: float = 600.0
    retries: int = 3
    """Further tries of a request that the server turned down (503, 429) or dropped."""


@dataclass
class InferenceConfig:
    """Which prompts are answered, and how."""

    engine: str = "transformers"
    """transformers (any machine), sglang (offline), sglang_server."""
    prompts: Optional[str] = None
    """File of prompts (json, jsonl, csv, parquet, txt): a path, or `shipped:`, below experiments/."""
    template: Optional[str] = None
    """Chat template for prompts: None as in training (`data.template`), `none`: the bare instruction."""
    limit: Optional[int] = None
    """Answer only the first n prompts."""
    batch_size: Union[int, str] = AUTO
    """Prompts that one call to the engine gets, or `all`."""
    order: PromptOrder = PromptOrder.auto
    """Order in which prompts go to the engine; results keep the file's."""
    save_every: int = 10
    """Every n-th answer goes to outputs.jsonl."""
    ignore_eos: bool = False
    """Go on to max_new_tokens whatever the model says: work of a known size for measurements."""
    compare: int = 0
    """Answer the first n prompts greedily with the transformers engine too, and say how many agree."""
    sampling: SamplingConfig = field(default_factory=SamplingConfig)
    sglang: SglangConfig = field(default_factory=SglangConfig)
    server: ServerConfig = field(default_factory=ServerConfig)
