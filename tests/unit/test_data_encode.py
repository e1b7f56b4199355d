"""Which tokens are learnt, under every template, and what gives way where a row is too long."""

from __future__ import annotations

import pytest
from tiny_text import BEGIN, CHAT, END, FORGETFUL, byte_tokenizer, learnt_texts, sentencepiece_tokenizer

from llmsys_exp.errors import UserError
from llmsys_exp.workers.data.conversation import Conversation, Document, Turn
from llmsys_exp.workers.data.encode import Encoder, encode, encode_prompt
from llmsys_exp.workers.data.records import DataError
from llmsys_exp.workers.data.render import end_of_turn_id
from llmsys_exp.workers.data.rows import Row
from llmsys_exp.workers.data.templates import template_names, use_template

TALK = (("system", "sys"), ("user", "one"), ("assistant", "first"), ("user", "two"), ("assistant", "second"))


def talk(*said: tuple[str, str], **more) -> Conversation:
    return Conversation(tuple(Turn(*one) for one in said or TALK), **more)


def encoded(tokenizer, *items, max_length=500, **more):
    encoder = Encoder(tokenizer, max_length=max_length, **more)
    return list(encoder.encode(list(items), keep_rows=True)), encoder.counts


def test_loss_is_on_the_answer_and_its_end_only():
    tokenizer = byte_tokenizer()
    (example,), notes = encode(tokenizer, [Row("say it", "now", "yes sir")], max_length=500)
    assert tokenizer.decode(example.ids) == f"<|user|>say it\n\nnow{END}\n<|assistant|>yes sir{END}"
    assert learnt_texts(tokenizer, example) == [f"yes sir{END}"]
    assert tokenizer.decode(example.answer_ids) == f"yes sir{END}" and not notes
    assert example.row.output == "yes sir" and example.label_count == len(example.answer_ids)


def test_every_answer_of_a_conversation_is_learnt_with_its_end():
    tokenizer = byte_tokenizer()
    (example,), _ = encoded(tokenizer, talk())
    assert learnt_texts(tokenizer, example) == [f"first{END}", f"second{END}"]
    assert tokenizer.decode(example.ids).startswith(f"<|system|>sys{END}\n<|user|>one")
    assert tokenizer.decode(example.answer_ids) == f"second{END}" and example.row.instruction == "two"


def test_the_end_of_an_answer_is_learnt_where_it_also_pads():
    tokenizer = byte_tokenizer(pad_token=END)
    (example,), _ = encoded(tokenizer, talk())
    assert tokenizer.pad_token_id == tokenizer.eos_token_id == example.labels[-1]


def test_a_template_that_marks_what_the_assistant_writes_is_taken_at_its_word():
    marked = (
        "{% for m in messages %}<|{{ m['role'] }}|>{% if m['role'] == 'assistant' %}{% generation %}{{ m['content'] }}"
        "{% endgeneration %}{% else %}{{ m['content'] }}{% endif %}<end>\n{% endfor %}"
    )
    tokenizer = byte_tokenizer(marked)
    (example,), _ = encoded(tokenizer, talk())
    assert learnt_texts(tokenizer, example) == [f"first{END}", f"second{END}"]
    (last,), _ = encoded(tokenizer, talk(only_last=True))
    assert learnt_texts(tokenizer, last) == [f"second{END}"]


def test_a_template_that_rewrites_earlier_turns_gives_an_example_for_each_answer():
    tokenizer = byte_tokenizer(FORGETFUL)
    examples, counts = encoded(tokenizer, talk())
    assert [learnt_texts(tokenizer, one) for one in examples] == [
        [f"<think></think>first{END}"],
        [f"<think></think>second{END}"],
    ]
    assert counts.split == 1 and "<think>" not in tokenizer.decode(examples[1].prompt_ids)


def test_a_template_without_an_end_gets_one():
    tokenizer = byte_tokenizer("{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}")
    (example,), _ = encoded(tokenizer, talk(("user", "q"), ("assistant", "a")))
    assert example.ids[-1] == tokenizer.eos_token_id and example.learnt[-1]


def test_an_answer_ends_once_even_when_it_holds_the_end_itself():
    tokenizer = byte_tokenizer()
    (example,), _ = encoded(tokenizer, talk(("user", "q"), ("assistant", f"yes {END} junk")))
    assert learnt_texts(tokenizer, example) == [f"yes {END}"]


MARKERS = {"chatml": "<|im_end|>", "llama3": "<|eot_id|>", "gemma": "<end_of_turn>"}
AROUND = {"llama2": (" ", " "), "mistral": (" ", ""), "vicuna": (" ", "")}


@pytest.mark.parametrize("begins", [True, False])
@pytest.mark.parametrize("name", template_names())
def test_our_templates_learn_answers_exactly_and_begin_as_the_tokenizer_does(name, begins):
    tokenizer = byte_tokenizer(None, begins=begins, extra=tuple(MARKERS.values()))
    use_template(tokenizer, name)
    (example,), _ = encoded(tokenizer, talk(("system", "be kind"), *TALK[1:]))
    end, (before, after) = MARKERS.get(name, END), AROUND.get(name, ("", ""))
    assert learnt_texts(tokenizer, example) == [f"{before}{word}{after}{end}" for word in ("first", "second")]
    ids = example.ids.tolist()
    assert (ids[0] == tokenizer.bos_token_id) == begins and ids[1] != tokenizer.bos_token_id
    text = tokenizer.decode(ids)
    assert text.count("be kind") == 1 and text.index("be kind") < text.index("one") < text.index("first")


@pytest.mark.parametrize("name", MARKERS)
def test_a_tokenizer_that_does_not_know_the_end_of_a_template_learns_its_own_too(name):
    tokenizer = byte_tokenizer(None)
    use_template(tokenizer, name)
    (example,), _ = encoded(tokenizer, talk())
    last = learnt_texts(tokenizer, example)[-1]
    assert last.startswith(f"second{MARKERS[name]}") and last.endswith(END)


def test_a_tokenizer_without_chat_template_gets_plain_prompts_and_keeps_the_template():
    tokenizer = byte_tokenizer(None)
    (example,), _ = encode(tokenizer, [Row("say it", "", "yes")], max_length=500)
    assert tokenizer.decode(example.ids) == f"### Instruction:\nsay it\n\n### Response:\nyes{END}"
    assert tokenizer.chat_template


def test_a_text_begun_by_template_and_tokenizer_begins_once():
    tokenizer = byte_tokenizer("{{ bos_token }}{{ bos_token }}" + CHAT, begins=True)
    (example,), _ = encoded(tokenizer, talk())
    assert example.ids.tolist().count(tokenizer.bos_token_id) == 1
    assert tokenizer.decode(encode_prompt(tokenizer, Row("q"))) == f"{BEGIN}<|user|>q{END}\n<|assistant|>"


@pytest.mark.parametrize("system", [None, "be brief"])
@pytest.mark.parametrize("template", [CHAT, None])
def test_the_prompt_of_training_is_the_prompt_of_inference(template, system):
    tokenizer = byte_tokenizer(template, begins=True)
    use_template(tokenizer, None)
    (example,), _ = encoded(tokenizer, talk(("user", "q"), ("assistant", "a")), system=system)
    assert example.prompt_ids == encode_prompt(tokenizer, Row("q"), system=system)
    assert ("be brief" in tokenizer.decode(example.ids)) == (system is not None)


def test_a_system_message_of_the_row_goes_before_that_of_the_settings():
    tokenizer = byte_tokenizer()
    (example,), _ = encoded(tokenizer, talk(), system="general")
    assert "general" not in tokenizer.decode(example.ids)


def test_words_are_cut_as_in_running_text_and_not_begun_anew_at_the_answer():
    tokenizer = sentencepiece_tokenizer(None, ("yes sir no sir", "say it", "[INST] [/INST]") * 5)
    use_template(tokenizer, "llama2")
    (example,), _ = encoded(tokenizer, talk(("user", "say it"), ("assistant", "yes sir")))
    whole = tokenizer("[INST] say it [/INST] yes sir <end>", add_special_tokens=False)["input_ids"]
    assert example.ids.tolist() == whole
    assert tokenizer.convert_ids_to_tokens(example.answer_ids)[0].startswith("▁y")


def test_a_token_across_the_border_is_cut_there():
    tokenizer = sentencepiece_tokenizer(
        "{% for m in messages %}{{ m['content'] }}{% endfor %}", ("say yes", "yes") * 9
    )
    whole = tokenizer("say yes<end>", add_special_tokens=False)["input_ids"]
    (example,), _ = encoded(tokenizer, talk(("user", "say y"), ("assistant", "es")))
    assert list(example.prompt_ids) == tokenizer("say y", add_special_tokens=False)["input_ids"]
    assert example.ids.tolist() != whole and example.answer_ids[-1] == whole[-1]


def test_a_long_prompt_loses_its_middle_and_never_its_answer():
    tokenizer = byte_tokenizer()
    row = Row(" ".join(f"w{n}" for n in range(40)), "", "the whole answer stays")
    (example,), notes = encode(tokenizer, [row], max_length=50)
    text = tokenizer.decode(example.ids)
    assert len(example.ids) == 50
    assert text.startswith("<|user|>w0 w1") and text.endswith(f"<|assistant|>the whole answer stays{END}")
    assert notes == ["1 prompts were cut in the middle to keep within 50 tokens."]


def test_a_long_conversation_loses_its_oldest_turns_and_keeps_the_system_message():
    tokenizer = byte_tokenizer()
    (example,), counts = encoded(tokenizer, talk(), max_length=30)
    assert tokenizer.decode(example.ids) == f"<|system|>sys{END}\n<|user|>two{END}\n<|assistant|>second{END}"
    assert learnt_texts(tokenizer, example) == [f"second{END}"]
    assert counts.to_dict() == {"shortened": 1}
    (example,), counts = encoded(tokenizer, talk(), max_length=16)
    assert len(example.ids) == 16 and tokenizer.decode(example.ids).endswith(f"<|assistant|>second{END}")
    assert counts.to_dict() == {"shortened": 1, "cut": 1}


def test_rows_whose_answers_leave_no_room_are_left_out_and_reported():
    tokenizer = byte_tokenizer()
    long = Row("a question of more than eight tokens", "", "w" * 30)
    examples, notes = encode(tokenizer, [long, Row("hi", "", "ho")], max_length=20)
    assert [one.row.output for one in examples] == ["ho"]
    assert notes == ["1 rows were left out: their answers alone fill 20 tokens."]
    with pytest.raises(DataError, match="No row fits into 20 tokens"):
        encode(tokenizer, [long], max_length=20)


def test_texts_are_learnt_whole_and_cut_into_pieces():
    tokenizer = byte_tokenizer(begins=True)
    examples, counts = encoded(tokenizer, Document("abcdefghij"), Document("xy"), max_length=5)
    assert [tokenizer.decode(one.ids) for one in examples] == [
        f"{BEGIN}abcd",
        "efghi",
        f"j{END}",
        f"{BEGIN}xy{END}",
    ]
    assert all(one.learnt.tolist() == [False] + [True] * (len(one.ids) - 1) for one in examples)
    assert counts.to_dict() == {"pieces": 1}


def test_the_prompt_is_learnt_too_where_asked_for():
    (example,), _ = encoded(byte_tokenizer(), talk(), train_on_prompt=True)
    assert example.learnt.tolist() == [False] + [True] * (len(example.ids) - 1)


def test_a_tokenizer_written_in_python_gives_the_same(monkeypatch):
    tokenizer = byte_tokenizer()
    (fast,), _ = encoded(tokenizer, talk())
    monkeypatch.setattr(type(tokenizer), "is_fast", False)
    (slow,), _ = encoded(tokenizer, talk())
    assert fast.ids.tolist() == slow.ids.tolist() and fast.learnt.tolist() == slow.learnt.tolist()


def test_a_refusal_of_the_template_names_the_row():
    tokenizer = byte_tokenizer(None)
    use_template(tokenizer, "gemma")
    odd = talk(("user", "q"), ("tool", "t"), ("assistant", "a"), where="f.json, row 3")
    with pytest.raises(DataError, match=r"no place for the role tool.*f\.json, row 3"):
        encoded(tokenizer, talk(), odd)


def test_an_unknown_template_gets_the_closest_name(tmp_path):
    with pytest.raises(UserError, match="Did you mean chatml"):
        use_template(byte_tokenizer(), "chatlm")
    with pytest.raises(UserError, match="no such template file"):
        use_template(byte_tokenizer(), str(tmp_path / "none.jinja"))
    (tmp_path / "mine.jinja").write_text("{{ messages[0]['content'] }}")
    assert use_template(byte_tokenizer(), str(tmp_path / "mine.jinja")).text.startswith("{{ messages")


def test_the_token_that_ends_a_turn_is_known_to_generation():
    tokenizer = byte_tokenizer(None, extra=("<|im_end|>",))
    assert end_of_turn_id(tokenizer) is None
    use_template(tokenizer, "chatml")
    assert end_of_turn_id(tokenizer) == tokenizer.convert_tokens_to_ids("<|im_end|>")
    use_template(tokenizer, "alpaca")
    assert end_of_turn_id(tokenizer) == tokenizer.eos_token_id
    tokenizer.chat_template = "{{ raise_exception('no') }}"
    assert end_of_turn_id(tokenizer) is None
