"""The data."""

# OmegaConf 2.3 reads these annotations, and its support for the newer spellings is partial.
# ruff: noqa: UP006, UP035, UP045

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Dict, Optional

from llmsys_exp.config.schema.kinds import DataFormat


@dataclass
class DataConfig:
    """Rows to learn from and to measure on."""

    name: str = "???"
    """Name the data is recorded under; with `dataset_info`, the entry to use."""
    train: Optional[str] = "???"
    """Training file (json, jsonl, csv, parquet), folder or hub id of a data set, or `shipped:` and a path
    below experiments/. null: what `dataset_info` says."""
    heldout: Optional[str] = None
    """Held-out file for loss and task score."""
    heldout_split: float = 0.0
    """Share of the training rows that is set aside as held-out rows, where `heldout` names no file."""
    heldout_limit: Optional[int] = None
    """Use only the first n held-out rows."""
    format: DataFormat = DataFormat.auto
    """How a row is laid out; `auto` looks at the first row."""
    columns: Dict[str, str] = field(default_factory=dict)
    """Name in the file for each name of the format (instruction, output, messages, text ...) that differs;
    also of the speakers in conversations (human, gpt, user, assistant ...)."""
    dataset_info: Optional[str] = None
    """A LLaMA-Factory dataset_info.json; `name` is the entry, which gives file, format and columns."""
    subset: Optional[str] = None
    """Configuration of a hub data set."""
    split: str = "train"
    """Split of a hub data set."""
    template: Optional[str] = None
    """Chat template by name, or a .jinja file. None: the tokenizer's own, or alpaca's prompt without one."""
    system: Optional[str] = None
    """System message for conversations that bring none."""
    max_length: int = 512
    """Tokens per example; the prompt is cut, never the answer."""
    limit: Optional[int] = None
    """Use only the first n training rows."""
    train_on_prompt: bool = False
    """Also learn the prompt's tokens. Off: loss on answers only."""
    packing: bool = False
    """Put several examples into one sequence of `max_length` tokens; attention stays within each."""
    group_by_length: bool = False
    """Put examples of about one length into a batch."""
    score: str = "exact_match"
    """Task score on the held-out rows: exact_match, field_f1 or none."""
    preview: bool = False
    """Show the first examples as tokens, what is learnt in colour, and start nothing."""
    cache: bool = True
    """Keep tokenised rows in `paths.cache`, named by data, template and tokenizer."""
