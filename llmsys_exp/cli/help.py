"""Help texts; groups and options are read from the folders, so that they cannot go stale."""

from __future__ import annotations

import textwrap
from collections.abc import Mapping

WIDTH = 100

_OVERVIEW = """llmsys - plan the memory, compose the configuration, launch LLM experiments

Usage:  llmsys VERB [key=value ...] [flags]

Verbs
{verbs}

First steps
  llmsys plan experiment=quickstart                what will happen, and does it fit?
  llmsys train experiment=quickstart               do it
  llmsys plan model=llama2_7b hardware=a100_80gb hardware.gpus_per_node=4
  llmsys plan -m model=llama2_7b hardware=h100,l4 method=full,lora      compare
  llmsys recommend model=llama2_7b hardware=l4     which method and settings, then?
  llmsys plan --help                               every group and option

Flags of every verb: --json (machine-readable result), --help.
Exit codes: 0 done, 2 a setting needs a change, 3 does not fit, 4 the job failed, 5 not reproduced,
130 interrupted.
"""

_VERB = """llmsys {verb} - {summary}

Usage:  llmsys {verb} [group=option ...] [key=value ...] [flags]

Groups and their options (choose with group=option)
{groups}

Settings (change with key=value; `auto` lets the planner choose)
{settings}

Flags
{flags}

Examples
{examples}
"""

_HYDRA_FLAGS = """
  -m, --multirun        every combination of values given as a,b,c
  --cfg job             print the composed configuration and stop (--package KEY: a part of it)
  --info defaults       how the configuration came about
  --config-dir FOLDER   a folder of your own groups, for example FOLDER/experiment/mine.yaml""".lstrip("\n")
_WORKER_FLAGS = "  --verbose             with the log of the workers"
_FLAGS = {
    "recommend": """
  --best N              how many settings of each method to show (2)
  --save NAME           write the best as experiment NAME (one method; --force: replace it)""".lstrip("\n"),
    "infer": """
  --one-at-a-time       with -m: each setting alone, the others at the first of their values
  run=RUN_FOLDER        ask what a finished run has trained, with its template and tokenizer
  resume=RUN_FOLDER     go on with an inference run that was stopped; nothing is asked twice""".lstrip("\n"),
    "plan": """
  --csv FILE.csv        every point with all its figures (--parquet FILE.parquet: the same for pandas)
  --plot FILE.png       bars of the parts against the limit, or a map where two overrides vary (.svg, .pdf)
  --axes ACROSS,DOWN    the two overrides of the map where more vary; the best of the others is shown
  --force               replace these files where they exist
  --tier NAME           who answers: auto (the formula; simulated where it does not know the family), formula,
                        estimate, simulate (the real code on shapes), dryrun (a GPU runs one rank for real)
  --snapshot FILE.pickle  what a simulation held, for pytorch.org/memory_viz
  --timeline FILE.png   what a simulation held, by part, from request to request (.svg, .pdf)
  --rank N              which rank (0); without --tier these three ask for a simulation
  --search WHAT         where a dry run really ends: limit, micro_batch, length
  --allow-shared        dry-run although others use the GPU""".lstrip("\n"),
}

_EXAMPLES = {
    "recommend": """  llmsys recommend model=llama3_1_8b hardware=rtx4090 training.global_batch=16
  llmsys recommend model=llama2_7b hardware=l4 hardware.gpus_per_node=4 method=qlora --save mine""",
    "plan": """  llmsys plan experiment=quickstart
  llmsys plan model=llama3_1_8b hardware=rtx4090 method=qlora training.micro_batch=4
  llmsys plan -m model=qwen2_5_7b hardware=h100 zero=stage2,stage3 hardware.gpus_per_node=2,4,8
  llmsys plan -m model=llama2_7b hardware=h100,l4 training.micro_batch=1,2,4,8 --plot map.png
  llmsys plan steps=[infer] inference=sglang model=qwen2_5_7b hardware=h200 hardware.gpus_per_node=2""",
    "train": """  llmsys train experiment=quickstart
  llmsys train experiment=quickstart debug=fast
  llmsys train data=alpaca data.train=rows.json model=local model.path=FOLDER steps=[train,export]""",
    "infer": """  llmsys infer inference.prompts=shipped:data/prompts.json inference.limit=8
  llmsys infer model=local model.path=FOLDER inference.prompts=prompts.jsonl
  llmsys infer run=RUN_FOLDER inference.sampling.temperature=0.7
  llmsys infer -m inference.batch_size=1,8,all inference.sampling.temperature=0,0.7""",
}


def overview(verbs: Mapping[str, str]) -> str:
    """Return the text of `llmsys --help`."""
    width = max(map(len, verbs))
    return _OVERVIEW.format(verbs="\n".join(f"  {name:<{width}}  {text}" for name, text in verbs.items()))


def hydra_verb(verb: str, summary: str) -> str:
    """Return the help of a verb that takes settings."""
    from llmsys_exp.config.groups import Groups
    from llmsys_exp.config.tree import settings_tree

    groups, tree = Groups.shipped(), settings_tree()
    top = [key for key in tree.children("") if key not in tree.sections]
    settings = {
        "(top)": top,
        **{key: tree.children(key) for key in tree.children("") if key in tree.sections},
    }
    return _VERB.format(
        verb=verb,
        summary=summary,
        groups="\n".join(
            _entry(name, groups.options(name)) for name in groups.names() if groups.options(name)
        ),
        settings="\n".join(_entry(name, children) for name, children in settings.items()),
        flags=_flags(verb),
        examples=_EXAMPLES[verb],
    )


def _flags(verb: str) -> str:
    from llmsys_exp.cli.main import CALIBRATED, NO_CALIBRATION

    own = _FLAGS.get(verb, "")
    own = "\n".join(filter(None, (own, "" if verb in ("plan", "recommend") else _WORKER_FLAGS)))
    json_flag = "  --json                machine-readable result"
    if verb in CALIBRATED:
        json_flag += f"\n  {NO_CALIBRATION:<21} plan without what `llmsys calibrate` has measured here"
    shared = [] if verb == "recommend" else [_HYDRA_FLAGS]
    return "\n".join([*shared, json_flag, own])


def _entry(name: str, words: list[str]) -> str:
    return textwrap.fill(
        ", ".join(words), width=WIDTH, initial_indent=f"  {name:<12} ", subsequent_indent=" " * 15
    )
