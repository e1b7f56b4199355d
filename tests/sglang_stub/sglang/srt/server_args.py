"""A few fields of ServerArgs, as releases with a dataclass declare them."""

import argparse
import dataclasses


@dataclasses.dataclass
class ServerArgs:
    model_path: str = ""
    revision: str = None
    trust_remote_code: bool = False
    dtype: str = "auto"
    load_format: str = "auto"
    random_seed: int = None
    enable_metrics: bool = False
    log_level: str = "info"
    context_length: int = None
    mem_fraction_static: float = None
    max_running_requests: int = None
    chunked_prefill_size: int = None
    cuda_graph_max_bs_decode: int = None
    max_total_tokens: int = None
    kv_cache_dtype: str = "auto"
    quantization: str = None
    tp_size: int = 1
    dp_size: int = 1
    attention_backend: str = None
    sampling_backend: str = None
    grammar_backend: str = None
    schedule_policy: str = "fcfs"
    schedule_conservativeness: float = 1.0
    disable_overlap_schedule: bool = False
    enable_deterministic_inference: bool = False
    skip_tokenizer_init: bool = False
    json_model_override_args: str = "{}"
    enable_lora: bool = None
    lora_paths: list = None
    max_loras_per_batch: int = 8
    device: str = None
    host: str = "127.0.0.1"
    port: int = 30000

    @staticmethod
    def add_cli_args(parser: argparse.ArgumentParser) -> None:
        parser.add_argument("--schedule-policy", choices=["fcfs", "lpm", "random"])
        parser.add_argument("--kv-cache-dtype", choices=["auto", "fp8_e4m3", "fp8_e5m2"])
