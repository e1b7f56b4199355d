"""The ledger of a sweep: readable after any cut, damage found, one winner of a race, a done point never left."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from llmsys_exp.errors import UserError
from llmsys_exp.sweeps.ledger.ledger import DONE, FAILED, LOST, PLANNED, RUNNING, SKIPPED, Ledger
from llmsys_exp.sweeps.ledger.lines import decode, encode

POINTS = 4


def ledger_of(folder: Path, sweep: str = "s1") -> Ledger:
    return Ledger(folder / "ledger.jsonl", sweep, POINTS)


def written(folder: Path) -> bytes:
    """Write a short history and return the file."""
    ledger = ledger_of(folder)
    assert ledger.move(1, SKIPPED, needed_gib=9.5)
    assert ledger.move(2, RUNNING, pid=7, folder="out/x — ü")
    assert ledger.move(2, DONE, attempt=1, seconds=1.5)
    assert ledger.move(3, RUNNING, pid=8)
    assert ledger.move(3, FAILED, attempt=1, kind="oom_gpu")
    return ledger.path.read_bytes()


def states(ledger: Ledger) -> dict[int, str]:
    return {number: now.state for number, now in ledger.states().items()}


def after(lines: int) -> dict[int, str]:
    """Return the states after so many lines of `written`, the first of which names the sweep."""
    moves = [(1, SKIPPED), (2, RUNNING), (2, DONE), (3, RUNNING), (3, FAILED)]
    return dict.fromkeys(range(1, POINTS + 1), PLANNED) | dict(moves[: max(0, lines - 1)])


def test_history_is_read_back_with_what_was_told(tmp_path: Path):
    written(tmp_path)
    ledger = ledger_of(tmp_path)
    assert states(ledger) == {1: SKIPPED, 2: DONE, 3: FAILED, 4: PLANNED}
    second = ledger.states()[2]
    assert (second.attempt, second.fields["folder"], second.fields["seconds"]) == (1, "out/x — ü", 1.5)
    assert ledger.states()[1].fields["needed_gib"] == 9.5


def test_a_file_cut_at_any_byte_is_read_and_mended_by_the_next_word(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
):
    monkeypatch.setattr(os, "fdatasync", lambda descriptor: None)  # hundreds of them would take seconds
    whole = written(tmp_path)
    path = tmp_path / "ledger.jsonl"
    for size in range(len(whole) + 1):
        path.write_bytes(whole[:size])
        lines = whole[:size].count(b"\n")
        assert states(ledger_of(tmp_path)) == after(lines), size
        assert path.read_bytes() == whole[:size], "reading changes nothing"
        writer = ledger_of(tmp_path)
        assert writer.move(4, RUNNING, pid=9)
        expected = after(lines) | {4: RUNNING}
        assert states(writer) == expected
        assert states(ledger_of(tmp_path)) == expected
        content = path.read_bytes()
        assert content.endswith(b"\n")
        assert all(decode(line) for line in content.splitlines())


def test_what_is_cut_off_is_kept_beside(tmp_path: Path):
    whole = written(tmp_path)
    path = tmp_path / "ledger.jsonl"
    path.write_bytes(whole[:-5])
    ledger_of(tmp_path).move(4, RUNNING)
    assert path.with_name("ledger.jsonl.cut").read_bytes() == whole.splitlines()[-1][:-4] + b"\n"


def test_every_changed_byte_is_found(tmp_path: Path):
    whole = written(tmp_path)
    path = tmp_path / "ledger.jsonl"
    last = whole[:-1].rfind(b"\n") + 1
    for place in range(len(whole)):
        changed = bytearray(whole)
        changed[place] ^= 0x01
        path.write_bytes(changed)
        number = whole[:place].count(b"\n") + 1
        if place >= last or place == last - 1:
            # the last line, alone or grown together with the one before, is left out
            assert states(ledger_of(tmp_path)) == after(number - 1), place
            continue
        with pytest.raises(UserError, match=rf"damaged.*line {number}\b"):
            ledger_of(tmp_path).states()
        with pytest.raises(UserError, match="damaged"):
            ledger_of(tmp_path).move(4, RUNNING)
        assert path.read_bytes() == bytes(changed), "a damaged file is not written to"


def test_ledger_of_another_sweep_and_of_a_later_version_are_refused(tmp_path: Path):
    written(tmp_path)
    with pytest.raises(UserError, match="another sweep, s1"):
        ledger_of(tmp_path, "s2").states()
    with (tmp_path / "ledger.jsonl").open("ab") as stream:
        stream.write(encode({"v": 2, "point": 1, "state": "asleep"}))
    with pytest.raises(UserError, match="version 2, and this llmsys knows version 1"):
        ledger_of(tmp_path).states()


def test_point_that_the_sweep_does_not_have_is_refused(tmp_path: Path):
    with (tmp_path / "ledger.jsonl").open("ab") as stream:
        stream.write(encode({"v": 1, "point": 9, "state": "done"}))
    with pytest.raises(UserError, match="does not have: 9, done"):
        ledger_of(tmp_path).states()


@pytest.mark.parametrize("state", [PLANNED, SKIPPED, RUNNING, FAILED, LOST, DONE])
def test_nothing_follows_done(tmp_path: Path, state: str):
    written(tmp_path)
    ledger = ledger_of(tmp_path)
    assert not ledger.move(2, state)
    assert not ledger.move(2, state, attempt=1)
    assert states(ledger)[2] == DONE


def test_words_of_an_attempt_that_is_over_are_not_taken(tmp_path: Path):
    first, second = ledger_of(tmp_path), ledger_of(tmp_path)
    assert first.move(1, RUNNING, pid=1)
    assert second.move(1, LOST, attempt=1)
    assert second.move(1, RUNNING, pid=2)
    assert not first.move(1, DONE, attempt=1)
    assert second.move(1, RUNNING, attempt=2, folder="f"), "a running attempt may tell more"
    assert second.states()[1].fields["folder"] == "f"
    assert second.move(1, DONE, attempt=2)


def test_retry_adds_settings_and_keeps_the_folder(tmp_path: Path):
    ledger = ledger_of(tmp_path)
    ledger.move(1, RUNNING, folder="f")
    ledger.move(1, FAILED, attempt=1, kind="oom_gpu")
    ledger.move(1, PLANNED, set=["a=1"])
    now = ledger_of(tmp_path).states()[1]
    assert (now.state, now.overrides, now.fields["folder"]) == (PLANNED, ("a=1",), "f")
    assert "kind" not in now.fields


RACER = """
import sys
from pathlib import Path
from llmsys_exp.sweeps.ledger.ledger import Ledger
ledger = Ledger(Path(sys.argv[1]), "s1", 40)
print(sum(ledger.move(number, "running", who=sys.argv[2]) for number in range(1, 41)))
"""


def test_of_several_processes_one_gets_each_point(tmp_path: Path):
    path = tmp_path / "ledger.jsonl"
    racers = [
        subprocess.Popen(
            [sys.executable, "-c", RACER, str(path), str(who)], stdout=subprocess.PIPE, text=True
        )
        for who in range(4)
    ]
    won = [int(racer.communicate(timeout=60)[0]) for racer in racers]
    assert sum(won) == 40
    lines = [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]
    assert len(lines) == 41
    assert sorted(line["point"] for line in lines[1:]) == list(range(1, 41))


def test_full_disk_leaves_the_ledger_as_it_was(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
    whole = written(tmp_path)
    write = os.write
    monkeypatch.setattr(os, "write", lambda descriptor, data: write(descriptor, data[:11]))
    with pytest.raises(UserError, match="No space left"):
        ledger_of(tmp_path).move(4, RUNNING)
    monkeypatch.undo()
    assert (tmp_path / "ledger.jsonl").read_bytes() == whole
