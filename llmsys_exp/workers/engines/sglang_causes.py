"""What lines of SGLang's log mean, and in which direction to turn a setting."""

from __future__ import annotations

from dataclasses import dataclass

OOM_GPU, OOM_HOST, CONFIG, MISSING, GPU, PORT, TIMEOUT, KILLED, OTHER = (
    "oom_gpu", "oom_host", "config", "missing_package", "gpu", "port", "timeout", "killed", "engine",
)  # fmt: skip


@dataclass(frozen=True)
class Cause:
    """A line of SGLang's log and what it means. `{name}` is filled from the pattern or from the settings."""

    pattern: str
    kind: str
    what: str
    why: str
    do: str


_RAISE = "Raise inference.sglang.mem_fraction_static (it is {mem_fraction_static})"
_LOWER = "Lower inference.sglang.mem_fraction_static (it is {mem_fraction_static})"

# The first that matches counts: special ones before general ones. Texts: SGLang 0.5.17 and 0.5.23.
CAUSES = (
    Cause(
        r"leave no GPU memory for the KV cache under --mem-fraction-static=(?P<asked>[\d.]+)"
        r"(?:.*?above (?P<least>[\d.]+))?",
        CONFIG,
        "The weights alone fill the share of memory that SGLang may use",
        "No memory is left for the KV cache at mem_fraction_static={asked}",
        "Raise inference.sglang.mem_fraction_static above {least}, or quantise the weights or use more GPUs"
        " (inference.sglang.quantization, tp_size)",
    ),
    Cause(
        r"Not enough memory\.? Please try to increase --mem-fraction-static|"
        r"max_total_num_tokens\W+0\b|no (?:GPU )?memory left for (?:the )?KV",
        CONFIG,
        "Beside the weights no KV cache fits into the share of memory that SGLang may use",
        "The pool came out at 0 tokens",
        f"{_RAISE}, or shorten inference.sglang.context_length",
    ),
    Cause(
        r"[Cc]apture (?:\w+ )*(?:cuda |CUDA )?graph failed(?=[\s\S]*(?:out of memory|OutOfMemory))|"
        r"(?:out of memory|OutOfMemory)[\s\S]*[Cc]apture (?:\w+ )*(?:cuda |CUDA )?graph failed",
        OOM_GPU,
        "The GPU ran out of memory while SGLang captured CUDA graphs",
        "Graphs need room beside the static share",
        f"{_LOWER}, or inference.sglang.cuda_graph_max_bs",
    ),
    Cause(
        r"[Cc]apture (?:\w+ )*(?:cuda |CUDA )?graph failed(?:: (?P<said>[^\n]{0,160}))?",
        OTHER,
        "SGLang could not capture CUDA graphs",
        "{said}",
        "Read the log; inference.sglang.arguments.disable_cuda_graph=true goes without them",
    ),
    Cause(
        r"only supports sm75 and above",
        GPU,
        "SGLang does not run on this GPU",
        "It needs compute capability 7.5, and its kernels 8.0",
        "Use inference.engine=transformers here",
    ),
    Cause(
        r"no kernel image is available|not compiled for (?:this|your) (?:GPU|architecture)",
        GPU,
        "SGLang's kernels do not run on this GPU",
        "The published kernels begin at compute capability 8.0",
        "Use inference.engine=transformers here",
    ),
    Cause(
        r"NVIDIA driver on your system is too old|CUDA driver version is insufficient",
        GPU,
        "The GPU driver is older than SGLang's torch needs",
        "",
        "Update the driver, or install a release of SGLang whose torch fits it",
    ),
    Cause(
        r"No CUDA GPUs are available|Found no NVIDIA driver|Torch not compiled with CUDA enabled",
        GPU,
        "SGLang sees no GPU",
        "",
        "Check nvidia-smi and CUDA_VISIBLE_DEVICES, or use inference.engine=transformers",
    ),
    Cause(
        r"ModuleNotFoundError: No module named '(?P<module>[\w.]+)'",
        MISSING,
        "The package {module} is missing where SGLang runs",
        "",
        "Install it there ({python} -m pip install sglang brings all of them), or point"
        " inference.sglang.python to another environment",
    ),
    Cause(
        r"ImportError: (?P<said>[^\n]{1,200})",
        MISSING,
        "SGLang cannot be imported",
        "{said}",
        "Its packages do not fit each other: install sglang into an environment of its own and name it in"
        " inference.sglang.python",
    ),
    Cause(
        r"(?i)address already in use|port (?P<port>\d+) is (?:already in use|not available)",
        PORT,
        "A port that SGLang needs is taken",
        "Another server runs there",
        "Give inference.server.port another number, or leave it open",
    ),
    Cause(
        r"(?:Repo id must be|is not a local folder and is not a valid model"
        r"|does not appear to have a file named|Can't load the configuration"
        r"|No such file or directory: '[^']*config\.json'"
        r"|Unrecognized model|couldn't connect to)",
        CONFIG,
        "SGLang finds no model at {model_path}",
        "",
        "Give model.path a folder with config.json and weights, or a hub id that is reachable",
    ),
    Cause(
        r"Cannot find any model weights|No model weights found|no (?:safetensors|weight) files",
        CONFIG,
        "There are no weights in {model_path}",
        "",
        "Give a folder with weights, or set model.weights=random to measure with random ones",
    ),
    Cause(
        r"(?:Model )?[Aa]rchitectures? (?P<said>\[?'?\w+'?\]?) (?:are|is) not supported",
        CONFIG,
        "This release of SGLang does not know the model's kind {said}",
        "",
        "Use inference.engine=transformers, or a newer SGLang",
    ),
    Cause(
        r"Out of memory even after retracting all other requests",
        OOM_GPU,
        "One request alone is larger than SGLang's KV pool",
        "",
        f"{_RAISE}, or shorten prompts and inference.sampling.max_new_tokens",
    ),
    Cause(
        r"(?:Prefill|Decode) out of memory\. Try to lower your batch size",
        OOM_GPU,
        "SGLang let in more requests than its KV pool holds",
        "",
        "Lower inference.sglang.max_running_requests, or raise"
        " inference.sglang.arguments.schedule_conservativeness above 1",
    ),
    Cause(
        r"torch\.(?:cuda\.)?OutOfMemoryError|CUDA out of memory|CUDA error: out of memory"
        r"|CUBLAS_STATUS_ALLOC_FAILED",
        OOM_GPU,
        "The GPU ran out of memory beside SGLang's static share",
        "Activations, logits, sampling and the request table need room there",
        f"{_LOWER}, or inference.sglang.chunked_prefill_size, max_running_requests or context_length",
    ),
    Cause(
        r"\bMemoryError\b|Cannot allocate memory|DefaultCPUAllocator: (?:can't|not enough)|std::bad_alloc",
        OOM_HOST,
        "The machine ran out of main memory",
        "",
        "Lower inference.sglang.mem_fraction_static or max_total_tokens where a CPU serves; else free memory",
    ),
    Cause(
        r"rank exceeds|exceeds? (?:the )?(?:number of )?NUMA nodes|device_count|invalid device ordinal",
        GPU,
        "There are fewer GPUs than tp_size x dp_size",
        "",
        "Lower inference.sglang.tp_size or dp_size",
    ),
    Cause(
        r"Subprocess (?P<name>\w+) \(pid=\d+\) crashed with exit code -9",
        KILLED,
        "SGLang ended: its process {name} was killed (signal 9)",
        "Often the machine ran out of main memory",
        "Answers that were there are kept: start again to go on",
    ),
)
