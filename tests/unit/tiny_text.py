"""Tokenizers small enough to read by eye: a token a byte, or words as sentencepiece cuts them."""

from __future__ import annotations

from typing import Any

BEGIN, END = "<begin>", "<end>"
CHAT = (
    "{% for m in messages %}<|{{ m['role'] }}|>{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
FORGETFUL = (
    "{% for m in messages %}<|{{ m['role'] }}|>"
    "{% if m['role'] == 'assistant' and loop.last %}<think></think>{% endif %}{{ m['content'] }}<end>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)
"""Writes something before the last answer only, as templates of reasoning models do."""


def byte_tokenizer(
    template: str | None = CHAT, *, begins: bool = False, extra: tuple[str, ...] = (), **named: Any
) -> Any:
    """Return a fast tokenizer with a token a byte; `begins` makes it put its first token before plain text."""
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    specials = [END, BEGIN, "<|system|>", "<|user|>", "<|assistant|>", "<|tool|>", *extra]
    alphabet = sorted(pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate([*specials, *alphabet])}
    core = Tokenizer(models.BPE(vocab=vocabulary, merges=[]))
    core.add_special_tokens(specials)
    core.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    core.decoder = decoders.ByteLevel()
    if begins:
        core.post_processor = processors.TemplateProcessing(
            single=f"{BEGIN} $A", special_tokens=[(BEGIN, vocabulary[BEGIN])]
        )
    return _wrapped(PreTrainedTokenizerFast, core, template, named)


def sentencepiece_tokenizer(template: str | None, words: tuple[str, ...]) -> Any:
    """Return a tokenizer that writes blanks as part of words and puts one before every text, as Llama 2's does."""
    from tokenizers import Tokenizer, decoders, models, normalizers, trainers
    from transformers import PreTrainedTokenizerFast

    core = Tokenizer(models.BPE(byte_fallback=True, fuse_unk=True))
    core.normalizer = normalizers.Sequence([normalizers.Prepend("▁"), normalizers.Replace(" ", "▁")])
    core.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    bytes_ = [f"<0x{number:02X}>" for number in range(256)]
    trainer = trainers.BpeTrainer(vocab_size=600, special_tokens=[END, BEGIN, *bytes_], show_progress=False)
    core.train_from_iterator(words, trainer)
    return _wrapped(PreTrainedTokenizerFast, core, template, {})


def learnt_texts(tokenizer: Any, example: Any) -> list[str]:
    """Return each stretch of learnt tokens as text."""
    stretches: list[list[int]] = []
    before = False
    for token, learnt in zip(example.ids.tolist(), example.learnt.tolist(), strict=True):
        if learnt and not before:
            stretches.append([])
        if learnt:
            stretches[-1].append(token)
        before = learnt
    return [tokenizer.decode(one) for one in stretches]


def _wrapped(kind: Any, core: Any, template: str | None, named: dict[str, Any]) -> Any:
    tokenizer = kind(tokenizer_object=core, **{"eos_token": END, "bos_token": BEGIN, **named})
    tokenizer.chat_template = template
    return tokenizer
