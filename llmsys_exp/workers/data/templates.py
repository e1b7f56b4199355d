"""Chat templates: the tokenizer's own, one of ours by name, or a .jinja file."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from llmsys_exp.errors import unknown_name
from llmsys_exp.workers.data.records import DataError

FOLDER = Path(__file__).parent / "templates"
SUFFIX = ".jinja"
PLAIN = "plain"
"""For tokenizers without a template: alpaca's headings and nothing else."""
BEGIN = "{{ bos_token }}"


@dataclass(frozen=True)
class Template:
    """The template in use."""

    name: str
    text: str


def template_names() -> list[str]:
    """Return the names of our templates."""
    return sorted(path.stem for path in FOLDER.glob(f"*{SUFFIX}"))


def template_file(wanted: str) -> Path:
    """Return the file of a template, by our name or its own path.

    Raises:
        UserError: when there is none; names the closest.
    """
    if wanted.endswith(SUFFIX):
        path = Path(wanted).expanduser().absolute()
        if not path.is_file():
            raise DataError("There is no such template file", where=f"data.template={wanted}")
        return path
    if wanted not in template_names():
        raise unknown_name("chat template", wanted, template_names(), where="data.template")
    return FOLDER / f"{wanted}{SUFFIX}"


def use_template(tokenizer: Any, wanted: str | None) -> Template:
    """Make a tokenizer render with the wanted template, and save it later on; return the template."""
    if wanted is None and tokenizer.chat_template:
        return Template("tokenizer", tokenizer.get_chat_template())
    text = template_file(wanted or PLAIN).read_text(encoding="utf-8")
    if not (wanted or "").endswith(SUFFIX) and not _begins_by_itself(tokenizer):
        # what a tokenizer does not write before plain text, its model has not seen before a chat either
        text = text.replace(BEGIN, "")
    tokenizer.chat_template = text
    return Template(wanted or PLAIN, text)


def _begins_by_itself(tokenizer: Any) -> bool:
    ids = tokenizer("a")["input_ids"]
    return tokenizer.bos_token_id is not None and ids[:1] == [tokenizer.bos_token_id]
