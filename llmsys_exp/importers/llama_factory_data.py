"""Rows of a LLaMA-Factory YAML: data sets, length, packing, what is held out, the template."""

from __future__ import annotations

from llmsys_exp.importers import hf_arguments as hf
from llmsys_exp.importers.data_sources import heldout_file, put_entry, put_rows, put_several, start_data
from llmsys_exp.importers.sheet import Sheet
from llmsys_exp.workers.data.templates import template_names


def put_data(sheet: Sheet, stage: str) -> None:
    """Map everything that says what is learnt."""
    names = sheet.names("dataset")
    folder = sheet.word("dataset_dir", "data") or "data"
    start_data(sheet, names)
    if len(names) > 1:
        put_several(sheet, names, key="dataset")
    elif names and folder == "ONLINE":
        put_rows(sheet, names[0], key="dataset")
    elif names:
        put_entry(sheet, names[0], folder, key="dataset")
    packs, packs_apart = sheet.flag("packing", stage == "pt"), sheet.flag("neat_packing")
    packing = packs or packs_apart  # both are read, whichever decides
    _put_length(sheet, stage, packing)
    _put_heldout(sheet, folder)
    _put_template(sheet)
    if sheet.has("max_samples"):
        sheet.put("data.limit", sheet.count("max_samples"))
        sheet.note(
            "max_samples: LLaMA-Factory takes so many rows of each data set, llmsys the first ones of its one"
        )


def _put_length(sheet: Sheet, stage: str, packing: bool) -> None:
    sheet.put("data.max_length", sheet.count("cutoff_len", 2048))
    sheet.note(
        "cutoff_len: LLaMA-Factory shortens prompt and answer in proportion; llmsys cuts the prompt, "
        "never the answer"
    )
    if sheet.flag("train_on_prompt"):
        sheet.put("data.train_on_prompt", True)
    if stage == "pt":
        sheet.put("data.format", "text")
        sheet.note("stage: pt learns whole texts in pieces of cutoff_len, as data.format=text does")
    elif packing:
        sheet.put("data.packing", True)
        if not sheet.flag("neat_packing"):
            sheet.note(
                "packing: LLaMA-Factory lets packed examples see one another; llmsys keeps them apart "
                "(neat_packing)"
            )


def _put_heldout(sheet: Sheet, folder: str) -> None:
    share = sheet.number("val_size", 0.0) or 0.0
    if 0 < share < 1:
        sheet.put("data.heldout_split", share)
    elif share >= 1:
        sheet.tell("val_size", "held-out rows are given as a share of all", "Set data.heldout_split=SHARE")
    named = sheet.names("eval_dataset")
    file = heldout_file(sheet, named[0], folder) if len(named) == 1 else None
    if file is not None:
        sheet.put("data.heldout", file)
    elif named:
        sheet.tell(
            "eval_dataset",
            "held-out rows are one file, laid out as those to learn from",
            "Give data.heldout=FILE",
        )
    hf.put_evaluation(sheet, has_rows=0 < share < 1 or file is not None)


def _put_template(sheet: Sheet) -> None:
    name = sheet.word("template")
    if name in template_names():
        sheet.put("data.template", name)
        sheet.note(f"template: {name} is llmsys's own text of that name; blanks and line ends may differ")
    elif name is not None:
        sheet.note(
            f"template: {name} is LLaMA-Factory's; the tokenizer's own chat template stands in "
            "(data.template=FILE.jinja)"
        )
    if sheet.has("default_system"):
        sheet.put("data.system", sheet.word("default_system"))
