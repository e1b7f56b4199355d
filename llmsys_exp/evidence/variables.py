"""Variables of the environment that steer libraries, by an allow list and without secrets."""

from __future__ import annotations

from collections.abc import Mapping

from llmsys_exp.evidence.secrets import LEFT_OUT, secret_variables

PREFIXES = (
    *("CUDA_", "NVIDIA_", "NCCL_", "GLOO_", "CUBLAS_", "CUDNN_", "HIP_", "ROCR_", "UCX_", "FI_"),
    *("TORCH", "PYTORCH_", "TRITON_", "DS_", "DEEPSPEED_", "SGLANG_", "FLASH", "VLLM_", "BNB_"),
    *("HF_", "HUGGINGFACE_", "TRANSFORMERS_", "TOKENIZERS_", "ACCELERATE_", "PEFT_", "LLMSYS_"),
    *("OMP_", "MKL_", "OPENBLAS_", "KMP_", "NUMEXPR_", "MALLOC_", "SLURM_JOB_", "SLURM_NNODES"),
)
NAMES = (
    *("LD_LIBRARY_PATH", "LD_PRELOAD", "PYTHONPATH", "PYTHONHASHSEED", "PYTHONWARNINGS", "VIRTUAL_ENV"),
    *("CONDA_PREFIX", "LANG", "LC_ALL", "TZ", "TMPDIR", "XDG_CACHE_HOME", "CC", "CXX", "MAX_JOBS"),
    *("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY"),
)
LONGEST = 4096
"""Characters of a value: a search path may be long, what is longer is no setting."""


def variables(env: Mapping[str, str]) -> dict[str, str]:
    """Return the variables that may change what a run does, in order of their names."""
    chosen = sorted(name for name in env if name in NAMES or name.startswith(PREFIXES))
    return {name: _value(name, env[name]) for name in chosen}


def _value(name: str, value: str) -> str:
    if secret_variables({name: value}):
        return LEFT_OUT
    # names of files may hold any bytes; a record is UTF-8
    told = value.encode("utf-8", "backslashreplace").decode("utf-8")
    return told if len(told) <= LONGEST else f"{told[:LONGEST]}..."
