"""Programs that fine-tune a language model on DeepSpeed, for `benchmarks/train_speed.py`: one module each.

A module has `train(job)`, which trains `job.max_steps` steps on the job's tokens, in order, and returns or
is ended from outside. `turns.watch` counts steps and tokens at DeepSpeed's engine, the same way for all.
"""

from __future__ import annotations

RIVALS = {
    "handwritten": "benchmarks.train_rivals.handwritten",
    "hf_trainer": "benchmarks.train_rivals.hf_trainer",
    "llama_factory": "benchmarks.train_rivals.llama_factory",
    "llmsys": "benchmarks.train_rivals.llmsys",
    "llmsys_recommended": "benchmarks.train_rivals.llmsys_recommended",
}
"""What the table calls a program, and its module."""

OURS, OURS_RECOMMENDED = "llmsys", "llmsys_recommended"
