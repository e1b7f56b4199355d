"""Plays one served model in a process of its own, in whichever Python holds SGLang.

    PYTHON -m planner.simulate.serving.child < REQUEST.json > ANSWER.json

The request is what `planner.simulate.serving.sglang` writes; the answer holds bytes of one rank, or says why
it was `refused`. Nothing else is printed on the standard output.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
from collections.abc import Mapping
from contextlib import redirect_stdout
from importlib.util import find_spec
from pathlib import Path
from traceback import extract_tb
from typing import Any

from planner.errors import NotSimulated

MOST_SAID = 300

ENVIRONMENT = {
    "TORCHDYNAMO_DISABLE": "1",  # nothing is compiled
    "SGLANG_USE_MESSAGE_QUEUE_BROADCASTER": "0",  # it waits for ranks that are not there
    "SGLANG_ALLOW_OVERWRITE_LONGER_CONTEXT_LEN": "1",  # the forecast has a note about that
    "CUDA_VISIBLE_DEVICES": "",
}


def answer(request: Mapping[str, Any]) -> dict[str, Any]:
    """Play what is asked for.

    Raises:
        NotSimulated: for a model that cannot be played, with the module and the reason.
    """
    if find_spec("sglang") is None:
        raise ModuleNotFoundError("No module named 'sglang'")
    from planner.memory.arena import Arena
    from planner.memory.replay import gpu_allocator
    from planner.simulate.serving import device, engine, kernels
    from planner.simulate.serving.passes import WEIGHTS, ServedRun, ServingRecorder

    arena = Arena(gpu_allocator())
    recorder = ServingRecorder(arena, request["workspace_bytes"], offloads=False)
    device.pretend(request["card"], lambda: request["free_bytes"] - arena.allocator.reserved)
    kernels.stand_in()
    import torch

    with tempfile.TemporaryDirectory() as scratch:
        config = {**request["config"], "architectures": engine.architectures(request["config"])}
        (Path(scratch) / "config.json").write_text(json.dumps(config), encoding="utf-8")
        arguments = engine.settings(Path(scratch), request["arguments"])
        model_config = engine.configured(arguments)
    with device.OnShapes(), torch.no_grad():
        engine.join(arguments, model_config, tp_size=request["tp_size"])
        with recorder:
            recorder.label = WEIGHTS
            model = engine.build(arguments, model_config)
            arena.empty_cache()
            loaded = {"weights_bytes": arena.allocator.allocated, "loaded_bytes": arena.allocator.reserved}
            kernels.end_of_imports(recorder)
            run = ServedRun(recorder, model, backend=request["backend"], vocab=model_config.vocab_size)
            try:
                played = _played(run, request)
            except Exception as error:  # whatever SGLang's code raises
                module = run.modules.now()
                raise NotSimulated(f"{_said(error)}{' in module ' * bool(module)}{module}") from error
    return {**played, **_about(model, model_config, arguments), **loaded}


def _played(run: Any, request: Mapping[str, Any]) -> dict[str, Any]:
    run.rest(request["resident"])
    run.play({"kind": "prefill", "tokens": 1, "requests": 1, "picks": "greedy"})  # cuBLAS takes its workspace
    allocator = run.arena.allocator
    run.arena.empty_cache()
    reserved = allocator.peak_reserved = allocator.reserved
    rests = allocator.allocated
    passes = [{**asked, **run.play(asked)} for asked in request["passes"]]
    for one in passes:
        one["rests_bytes"] -= rests
    return {"passes": passes, "reserved_bytes": allocator.peak_reserved - reserved}


def _about(model: Any, model_config: Any, arguments: Any) -> dict[str, Any]:
    from importlib.metadata import version

    from planner.simulate.serving.engine import setting

    layers = {one.layer_id: one for one in model.modules() if type(one).__name__ == "RadixAttention"}
    names = ("mem_fraction_static", "chunked_prefill_size", "attention_backend", "sampling_backend")
    return {
        "version": version("sglang"),
        "model": type(model).__name__,
        "kv_elements": sum(one.tp_k_head_num * (one.qk_head_dim + one.v_head_dim) for one in layers.values()),
        "attention_layers": len(layers),
        "layers": model_config.num_hidden_layers,
        "settings": {name: setting(arguments, name) for name in names},
    }


def _said(error: BaseException) -> str:
    """What an error says, and who raised it where it says nothing."""
    said = (str(error).strip().splitlines() or [""])[0][:MOST_SAID]
    frames = extract_tb(error.__traceback__)
    where = f" of {Path(frames[-1].filename).name}: {frames[-1].name}" if frames and not said else ""
    return f"{said} ({type(error).__name__}{where})".strip()


def main() -> int:
    """Read a request, write an answer; returns the exit code."""
    os.environ.update(ENVIRONMENT)
    request = json.load(sys.stdin)
    out = os.dup(1)
    os.dup2(2, 1)  # libraries print where they like
    with redirect_stdout(sys.stderr):
        try:
            said = answer(request)
        except Exception as error:  # the other side has no use for a traceback of ours
            if os.environ.get("LLMSYS_TRACEBACK"):
                raise
            said = {"refused": str(error) if isinstance(error, NotSimulated) else _said(error)}
    with os.fdopen(out, "w", encoding="utf-8") as stream:
        json.dump(said, stream, default=str)
    return 0


if __name__ == "__main__":
    sys.exit(main())
