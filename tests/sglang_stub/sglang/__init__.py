"""Speaks SGLang's Python API for failure cases: what a prompt's first token means is in `failures`."""

import asyncio
import os
import signal
import subprocess
import sys
from types import SimpleNamespace

from sglang.failures import DIE, FULL, HANG, result

__version__ = "0.0.0+stub"


class Engine:
    """Answers each prompt with its own tokens, later prompts later; ends as the first token of a prompt says."""

    def __init__(self, *, custom_sigquit_handler=None, **arguments):
        self.arguments = arguments
        start = os.environ.get("STUB_START", "")
        self._child = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
        print("a line of SGLang on standard output", flush=True)
        if start == "hangs":
            signal.pause()
        if start:
            print(start, file=sys.stderr, flush=True)
            raise RuntimeError("Rank 0 scheduler died during initialization (exit code: -3).")
        self.loop = asyncio.new_event_loop()

    def get_server_info(self):
        memory = {
            "weight": 1.5,
            "token_capacity": 4321,
            "kvcache": 2.0,
            "graph": {"decode": 0.25, "prefill": 0.0},
        }
        state = {
            "memory_usage": memory,
            "last_gen_throughput": 7.0,
            "effective_max_running_requests_per_dp": 8,
        }
        return {**self.arguments, "internal_states": [state], "version": __version__}

    def generate(self, input_ids, sampling_params):
        return [result(ids, sampling_params) for ids in input_ids]

    def flush_cache(self):
        # every first time its last batch is not yet put away
        self.flushes = getattr(self, "flushes", 0) + 1
        return SimpleNamespace(success=self.flushes % 2 == 0)

    async def async_generate(self, input_ids, sampling_params, lora_path=None):
        kind = input_ids[0]
        await asyncio.sleep(0.01 * len(input_ids))
        if kind == DIE:
            os.kill(os.getpid(), signal.SIGKILL)
        if kind == HANG:
            await asyncio.sleep(600)
        if kind == FULL:
            raise ValueError("The input is longer than the model's context length")
        return result(input_ids, sampling_params, lora_path)

    def shutdown(self):
        self._child.kill()
        self._child.wait()
