"""`llmsys sweep`: run many points, each in a process and with a lease of its own, and go on after anything.

The ledger in the sweep's folder tells what happened; every command may be given again, from any terminal.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from importlib import import_module

from llmsys_exp.cli.options import split_options
from llmsys_exp.errors import unknown_name

_HELP = """llmsys sweep - run many points, each with GPUs or cores of its own, and go on after anything

Usage
  llmsys sweep run [FILE.yaml] KEY=A,B KEY=range(1,4) KEY=VALUE ... [flags]
  llmsys sweep resume [FOLDER] [flags]     what is left: planned, lost, stopped and killed points;
                                           --trials N: let a search have more points
  llmsys sweep retry  [FOLDER] [--only KIND,...] [--set KEY=VALUE ...] [flags]     failed points again
  llmsys sweep status [FOLDER] [--all]     where it stands
  llmsys sweep wait   [FOLDER] [--timeout SECONDS]     until nothing of it runs any more
  llmsys sweep cancel [FOLDER]             stop what runs; `resume` goes on
  llmsys sweep list   [OUTPUTS]            the sweeps of a folder
  llmsys sweep table  [FOLDER] [--csv FILE] [--parquet FILE]     settings, forecast, measured, results
  llmsys sweep report [FOLDER] [-o FILE.html]     the same as a page to open in a browser

FOLDER is that of a sweep, outputs/NAME/TIME-sweep-HASH; without one, the newest below ./outputs.
A point that is done is never run again, and one that still runs is never started beside itself.

Flags of run, resume and retry
  --jobs N              at most N at a time (as many as there are GPUs; 1 on a machine without)
  --timeout SECONDS     how long a point may take
  --fail-fast           stop the sweep when a point fails
  --pack                let jobs share a GPU while their forecasts together are below its memory
  --detach              go on without this terminal; log.txt in the folder has what is said
  --slurm KEY=VALUE,... hand the points to Slurm, which goes on with those whose time is up: time=MINUTES,
                        gpus_per_node=N, cpus_per_task=N, partition=NAME ... as submitit calls them
  --ray KEY=VALUE,...   hand the points to a Ray cluster: address=auto|HOST:PORT|local, and for each point
                        num_cpus=N, memory_gib=N, accelerator_type=NAME; autoscale=true waits for nodes
Flags of run
  --verb train|infer    what is done at each point (train)
  --trials N            how many points a search has, in the place of what its file says
  --fill                in the place of a point that does not fit, run what its cheapest change leads to
  gate=skip             leave out what does not fit (error refuses the sweep, warn runs it, off plans nothing)
Flags of retry
  --only KIND,...       kinds of failure: oom_gpu, oom_host, config, data, nccl, timeout, killed, other ...;
                        skipped: points that the gate left out
  --set KEY=VALUE       a setting behind the point's own; may be given several times

Ctrl-C asks every job to stop, which saves checkpoints; a second one ends them. `resume` goes on either way.
--json (machine-readable result) goes with each. Exit codes: 0 all done, 3 all skipped, 4 some failed,
6 some are left, 130 interrupted.

Examples
  llmsys sweep run experiment=quickstart zero.stage=2,3 training.micro_batch=1,2,4
  llmsys sweep run grid.yaml experiment=quickstart gate=skip --jobs 4 --detach
  llmsys sweep run grid.yaml experiment=sft_lora --slurm time=240,gpus_per_node=1,partition=gpu
  llmsys sweep run grid.yaml experiment=sft_lora --ray address=auto --detach
  llmsys sweep retry --only oom_gpu --set training.micro_batch=1
"""

_COMMANDS = {
    "run": ("sweep_new", "run"),
    "resume": ("sweep_go", "resume"),
    "retry": ("sweep_retry", "retry"),
    "status": ("sweep_follow", "status"),
    "wait": ("sweep_follow", "wait"),
    "cancel": ("sweep_follow", "cancel"),
    "list": ("sweep_follow", "list_sweeps"),
    "table": ("sweep_results", "table"),
    "report": ("sweep_results", "report"),
}
"""Command -> module and function: commands that only look do not pay for Hydra."""


def run(arguments: Sequence[str]) -> int:
    """Do what the word after `sweep` says."""
    options, rest = split_options(arguments)
    if options.help or not rest:
        sys.stdout.write(_HELP)
        return 0
    command, *rest = rest
    if command not in _COMMANDS:
        raise unknown_name("command of llmsys sweep", command, list(_COMMANDS), where="llmsys sweep --help")
    module, function = _COMMANDS[command]
    return getattr(import_module(f"llmsys_exp.cli.{module}"), function)(rest, options)
