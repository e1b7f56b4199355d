"""Programs that answer a file of prompts, for `benchmarks/infer_speed.py`: a command and its figures each.

All get the same model folder, prompts, sampling, engine arguments and, prompt by prompt, the same number of new
tokens, whatever the model says: the work is the same. Each is a process group of its own.
"""

from __future__ import annotations

OURS, LOOP, BENCH = "llmsys", "plain_loop", "sglang_bench"
"""What the table calls a program: `llmsys infer`; batches of a fixed size, one after the other, as in the course's
script; SGLang's own offline benchmark."""
