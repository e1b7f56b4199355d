"""What forked.py's processes have imported before they begin: all that a job would, as imports cost most."""

import gc

import deepspeed
import peft
import torch
import transformers.models.llama.modeling_llama

import llmsys_exp.workers.export.run
import llmsys_exp.workers.inference.run
import llmsys_exp.workers.training.run
from llmsys_exp.workers.training.engine import leave_compiler_out

__all__ = ["deepspeed", "llmsys_exp", "peft", "torch", "transformers"]

leave_compiler_out()
# nothing of it is garbage: forks neither look at it again nor copy it
gc.collect()
gc.freeze()
