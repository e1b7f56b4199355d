"""Runs one SGLang engine or server in SGLang's own interpreter and speaks JSON lines with `sglang_process`.

PYTHON sglang_host.py IN_FD OUT_FD

Needs nothing but the standard library and sglang. Standard output belongs to SGLang, so both directions have
a pipe of their own. The process leads a session: when the other side of the pipe is gone, all of it ends.

In:  {"op": "start", "serve": false, "arguments": {...}, "further": {...}, "warm_up": [PROMPTS, TOKENS, NEW]}
     {"op": "generate", "sampling": {...}, "adapter": null, "seeded": false,
      "requests": [[INDEX, [IDS], NEW, SEED], ...]}   {"op": "counters"}   {"op": "forget"}   {"op": "stop"}
Out: {"event": "started", ...}   {"event": "refused", "what": ..., "where": ..., "why": ..., "do": ...}
     {"event": "failed", "error": ...}   {"event": "answer", ...}   {"event": "done"}
     {"event": "counters", ...}
"""

from __future__ import annotations

import os
import sys

# This folder holds modules of other names' kind (`base`): none of them may answer for another package's.
_HERE = os.path.dirname(os.path.abspath(__file__))
if __name__ in ("__main__", "__mp_main__"):
    sys.path[:] = [one for one in sys.path if os.path.abspath(one or ".") != _HERE]

import argparse  # noqa: E402
import asyncio  # noqa: E402
import contextlib  # noqa: E402
import dataclasses  # noqa: E402
import difflib  # noqa: E402
import glob  # noqa: E402
import json  # noqa: E402
import queue  # noqa: E402
import signal  # noqa: E402
import threading  # noqa: E402
import time  # noqa: E402
import traceback  # noqa: E402
from typing import Any  # noqa: E402

ALIASES = {"cuda_graph_max_bs": ("cuda_graph_max_bs_decode", "cuda_graph_max_bs")}
"""Names that releases of SGLang spell differently, newest first."""
SHOWN = (
    "mem_fraction_static", "context_length", "max_running_requests", "chunked_prefill_size",
    "max_total_tokens", "max_prefill_tokens", "kv_cache_dtype", "quantization", "dtype", "load_format",
    "tp_size", "dp_size", "attention_backend", "sampling_backend", "schedule_policy", "device", "page_size",
    "schedule_conservativeness", "random_seed", "disable_radix_cache", "disable_overlap_schedule",
    "enable_deterministic_inference", "cuda_graph_max_bs_decode", "json_model_override_args", "lora_paths",
)  # fmt: skip
"""Settings of the running engine that are told."""


REAP_S = 2.0
FLUSHES, FLUSH_WAIT_S = 50, 0.1


class Refused(Exception):
    """An argument that this release of SGLang does not take."""

    def __init__(self, what: str, where: str, why: str = "", do: str = "") -> None:
        super().__init__(what)
        self.told = {"what": what, "where": where, "why": why, "do": do}


# ---- arguments: names and values against the installed release


def field_defaults(server_args: Any) -> dict[str, Any]:
    """Return the fields of ServerArgs with their defaults: a dataclass, or a msgspec.Struct in 0.5.23."""
    if dataclasses.is_dataclass(server_args):
        fields: Any = dataclasses.fields(server_args)
    else:
        import msgspec

        fields = msgspec.structs.fields(server_args)
    return {one.name: getattr(one, "default", None) for one in fields}


def value_choices(server_args: Any) -> dict[str, list[Any]]:
    """Return the values that the release's own command line allows, by field."""
    parser = argparse.ArgumentParser(add_help=False)
    server_args.add_cli_args(parser)
    return {one.dest: list(one.choices) for one in parser._actions if one.choices}


def named_for_release(arguments: dict[str, Any], known: dict[str, Any]) -> dict[str, Any]:
    """Translate our names into those of the installed release; what is None is left to SGLang."""
    named = {}
    for name, value in arguments.items():
        if value is None:
            continue
        spelt = next((one for one in ALIASES.get(name, (name,)) if one in known), None)
        if spelt is None:
            raise Refused(
                f"The installed SGLang has no argument {name}",
                "inference.sglang",
                do="Use a release between 0.5.17 and 0.5.23, or leave the setting at its default",
            )
        named[spelt] = value
    return named


def checked_further(further: dict[str, Any], known: dict[str, Any], taken: dict[str, Any]) -> dict[str, Any]:
    """Return `inference.sglang.arguments` where the release knows every name."""
    for name in further:
        where = f"inference.sglang.arguments.{name}"
        if name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.55)
            do = f"Did you mean {near[0]}?" if near else "Names are those of ServerArgs, with underscores"
            raise Refused(f"SGLang has no argument {name!r}", where, do=do)
        if taken.get(name) is not None and name in _OURS:
            raise Refused(f"{name} is set by llmsys", where, do="Leave it out")
    return further


_OURS = (
    "model_path", "context_length", "random_seed", "tp_size", "dp_size", "host", "port", "load_format",
    "skip_tokenizer_init", "mem_fraction_static", "lora_paths", "custom_sigquit_handler",
)  # fmt: skip
"""What a further argument may not turn over: the plan and the records would be wrong."""


def check_values(
    arguments: dict[str, Any], further: dict[str, Any], known: dict[str, Any], choices: dict[str, list[Any]]
) -> None:
    """Refuse values that the constructor swallows and the command line would not."""
    for name, value in arguments.items():
        where = f"inference.sglang.{'arguments.' if name in further else ''}{name}"
        allowed = choices.get(name)
        if allowed and not isinstance(value, (list, tuple, dict)) and value not in allowed:
            near = difflib.get_close_matches(str(value), [str(one) for one in allowed], n=1, cutoff=0.4)
            hint = f"Did you mean {near[0]}?  " if near else ""
            do = f"{hint}Known: {', '.join(sorted(map(str, allowed)))}"
            raise Refused(f"{value!r} is not a value of {name} in the installed SGLang", where, do=do)
        default = known.get(name)
        if isinstance(default, bool) and not isinstance(value, bool):
            raise Refused(f"{name} is on or off, and {value!r} is neither", where, do="Say true or false")
        if type(default) in (int, float) and (isinstance(value, bool) or not isinstance(value, (int, float))):
            raise Refused(f"{name} is a number, and {value!r} is none", where, do="Give a number")
    fraction = arguments.get("mem_fraction_static")
    if fraction is not None and not 0 < fraction < 1:
        raise Refused(
            f"mem_fraction_static is {fraction}",
            "inference.sglang.mem_fraction_static",
            why="It is the share of the free memory that weights and KV pool may take",
            do="Give a number between 0 and 1",
        )


def release_arguments(server_args: Any, ours: dict[str, Any], further: dict[str, Any]) -> dict[str, Any]:
    """Return keyword arguments for the installed release from our names and the user's further ones."""
    known = field_defaults(server_args)
    named = named_for_release(ours, known)
    named.update(checked_further(further, known, named))
    check_values(named, further, known, value_choices(server_args))
    return named


# ---- the other side


def _on_sigquit(number: int, frame: Any) -> None:
    """Take a dying child's signal while SGLang starts, whose own handler kills us: an exception follows."""
    sys.stderr.write("A process of SGLang died while it started.\n")


class Line:
    """The two pipes. A thread reads, so that the end of the other side is seen at any moment."""

    def __init__(self, inward: int, outward: int) -> None:
        for one in (inward, outward):
            os.set_inheritable(
                one, False
            )  # a child that held them would keep the other side from seeing our end
        self._outward = outward
        self.orders: queue.Queue[dict[str, Any]] = queue.Queue()
        threading.Thread(target=self._read, args=(inward,), daemon=True).start()

    def tell(self, event: str, **what: Any) -> None:
        """Send one event."""
        data = (json.dumps({"event": event, **what}, default=_plain) + "\n").encode()
        while data:
            data = data[os.write(self._outward, data) :]

    def _read(self, inward: int) -> None:
        with os.fdopen(inward, encoding="utf-8") as lines:
            for line in lines:
                self.orders.put(json.loads(line))
        end_session()


def end_session() -> None:
    """Kill everything that was started here, and ourselves."""
    if os.getpgrp() == os.getpid():
        end_children()
        os.killpg(os.getpid(), signal.SIGKILL)
    os._exit(1)


def end_children() -> None:
    """Kill and wait for our children: not every machine has somebody who takes up orphans."""
    with contextlib.suppress(OSError, ValueError):
        for file in glob.glob("/proc/self/task/*/children"):
            with open(file, encoding="ascii") as children:
                for child in children.read().split():
                    os.kill(int(child), signal.SIGKILL)
    until = time.monotonic() + REAP_S
    with contextlib.suppress(ChildProcessError):
        while time.monotonic() < until:
            if os.waitpid(-1, os.WNOHANG)[0] == 0:
                time.sleep(0.05)


def _plain(value: Any) -> Any:
    """Return NumPy scalars and the like as plain values."""
    return value.item() if hasattr(value, "item") else str(value)


# ---- the engine


class Host:
    """One offline engine."""

    def __init__(self, line: Line) -> None:
        self._line, self._engine = line, None
        self._totals = {"prompt_tokens": 0, "cached_tokens": 0, "retractions": 0}

    def start(self, order: dict[str, Any]) -> None:
        """Start the engine and say what it is."""
        import sglang
        from sglang.srt.server_args import ServerArgs

        arguments = release_arguments(ServerArgs, order["arguments"], order["further"])
        began = time.perf_counter()
        self._engine = sglang.Engine(**arguments, custom_sigquit_handler=_on_sigquit)
        started = time.perf_counter()
        self._warm_up(*order["warm_up"])
        self._line.tell(
            "started",
            **described(self._engine.get_server_info(), sglang.__version__),
            seconds=started - began,
            warm_up_s=time.perf_counter() - started,
        )

    def _warm_up(self, prompts: int, tokens: int, new: int) -> None:
        """Let kernels compile before anything is timed; leaves nothing in the prefix cache."""
        if not prompts:
            return
        ids = [[1 + (7 * row + at) % 50 for at in range(tokens)] for row in range(prompts)]
        sampling = {"max_new_tokens": new, "temperature": 1.0, "top_p": 0.9, "ignore_eos": True}
        self._engine.generate(input_ids=ids, sampling_params=sampling)
        self._flush()

    def generate(self, order: dict[str, Any]) -> None:
        """Hand all requests over at once; each is told when it is done."""
        self._engine.loop.run_until_complete(self._generate(order))
        self._line.tell("done")

    async def _generate(self, order: dict[str, Any]) -> None:
        # the engine's own batched call does the same and returns when the slowest is done
        await asyncio.gather(*(self._answer(order, *request) for request in order["requests"]))

    async def _answer(self, order: dict[str, Any], index: int, ids: list[int], new: int, seed: int) -> None:
        sampling = {**order["sampling"], "max_new_tokens": new}
        if order["seeded"]:
            sampling["sampling_seed"] = seed
        began = time.perf_counter()
        try:
            output = await self._engine.async_generate(
                input_ids=ids, sampling_params=sampling, lora_path=order["adapter"]
            )
        except Exception as error:
            self._line.tell("answer", index=index, error=f"{type(error).__name__}: {error}",
                            prompt_tokens=len(ids), latency_s=time.perf_counter() - began)  # fmt: skip
            return
        told = answer(output)
        self._totals["prompt_tokens"] += told["prompt_tokens"]
        self._totals["cached_tokens"] += told["cached_tokens"] or 0
        self._totals["retractions"] += told["retractions"]
        self._line.tell("answer", index=index, latency_s=time.perf_counter() - began, **told)

    def counters(self, order: dict[str, Any]) -> None:
        """Tell running totals and the engine's last gauges."""
        states = self._engine.get_server_info()["internal_states"]
        speed = sum(float(one.get("last_gen_throughput") or 0) for one in states)
        seen = self._totals["prompt_tokens"]
        share = self._totals["cached_tokens"] / seen if seen else 0.0
        self._line.tell(
            "counters", counters={**self._totals, "cache_hit_rate": share, "last_gen_tokens_per_s": speed}
        )

    def forget(self, order: dict[str, Any]) -> None:
        """Empty the prefix cache and begin to count anew."""
        flushed = self._flush()
        self._totals = dict.fromkeys(self._totals, 0)
        self._line.tell("forgotten", flushed=flushed)

    def _flush(self) -> bool:
        """Empty the prefix cache; one whose last batch is not yet put away is asked again."""
        for _ in range(FLUSHES):
            if getattr(self._engine.flush_cache(), "success", True):
                return True
            time.sleep(FLUSH_WAIT_S)
        return False

    def stop(self) -> None:
        """Let SGLang end its processes."""
        if self._engine is not None:
            self._engine.shutdown()


def answer(output: dict[str, Any]) -> dict[str, Any]:
    """Return what one result of `generate` says, in our words."""
    meta = output["meta_info"]
    finish = meta.get("finish_reason") or {}
    first = meta.get("first_token_latency")
    if meta.get("prefill_finished_time") and meta.get("request_received_ts"):
        # what is not streamed is told every 50 tokens: that is not when the first one came
        first = meta["prefill_finished_time"] - meta["request_received_ts"]
    return {
        "ids": list(output.get("output_ids") or []),
        "finish": finish.get("type", "stop"),
        "matched": finish.get("matched"),
        "error": finish.get("message"),
        "prompt_tokens": meta.get("prompt_tokens", 0),
        "new_tokens": meta.get("completion_tokens", 0),
        "cached_tokens": meta.get("cached_tokens"),
        "retractions": meta.get("num_retractions") or 0,
        "first_token_s": first,
    }


def described(info: dict[str, Any], version: str) -> dict[str, Any]:
    """Return what a running engine says of itself: sizes of one GPU, the smallest where they differ."""
    states = [one for one in info.get("internal_states") or [] if isinstance(one, dict)]
    memory = [one["memory_usage"] for one in states if one.get("memory_usage")]
    graphs = [_graphs_gib(one.get("graph")) for one in memory]
    settings = {name: info[name] for name in SHOWN if name in info}
    slots = [one["effective_max_running_requests_per_dp"] for one in states
             if one.get("effective_max_running_requests_per_dp")]  # fmt: skip
    if slots:
        settings["max_running_requests_per_replica"] = min(slots)
    if memory:
        settings["free_after_start_gib"] = min(one.get("startup_available") or 0 for one in memory)
        settings["kv_pool_gib"] = max(one.get("kvcache") or 0 for one in memory)
    capacity = [one["token_capacity"] for one in memory if one.get("token_capacity")]
    return {
        "version": version,
        "context_tokens": info.get("context_length"),
        "kv_tokens": min(capacity) if capacity else info.get("max_total_num_tokens"),
        "weights_gib": max((one.get("weight") or 0 for one in memory), default=None),
        "graphs_gib": max(graphs, default=None),
        "settings": settings,
    }


def _graphs_gib(graph: Any) -> float:
    if isinstance(graph, dict):
        return float(sum(value or 0 for value in graph.values()))
    return float(graph or 0)


def serve(order: dict[str, Any]) -> None:
    """Be SGLang's HTTP server until somebody ends it."""
    from sglang.launch_server import run_server
    from sglang.srt.server_args import ServerArgs

    arguments = release_arguments(ServerArgs, order["arguments"], order["further"])
    flags = " ".join(f"--{name.replace('_', '-')} {value}" for name, value in sorted(arguments.items()))
    sys.stderr.write(f"Starting SGLang's server, as this would: python -m sglang.launch_server {flags}\n")
    run_server(ServerArgs(**arguments))


def main() -> None:
    """Do what the line says until it says stop."""
    line = Line(int(sys.argv[1]), int(sys.argv[2]))
    host = Host(line)
    known = {one.__name__: one for one in (host.start, host.generate, host.counters, host.forget)}
    while (order := line.orders.get())["op"] != "stop":
        try:
            if order["op"] == "start" and order["serve"]:
                serve(order)
            else:
                known[order["op"]](order)
        except Refused as error:
            line.tell("refused", **error.told)
        except BaseException as error:
            traceback.print_exc()
            line.tell("failed", error=f"{type(error).__name__}: {error}")
            end_session()
    host.stop()
    end_session()


if __name__ == "__main__":
    main()
