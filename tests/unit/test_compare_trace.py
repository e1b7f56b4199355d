"""The comparison of a real allocation trace with the emulation, on traces made from the emulation itself."""

import gzip
import json
import sys

import pytest
from tiny_cases import CONFIG

from benchmarks import compare_trace as compare
from planner.parsing import parse_training_case
from planner.units import GIB, MIB

CASE = {"hf_config": CONFIG, "method": "full", "micro_batch": 1, "seq_len": 16, "zero_stage": 0}
EVERYTHING = compare.View(0)


def as_trace(phases):
    """Lines of a trace with these phases."""
    yield json.dumps(["mark", "start"])
    for phase in phases:
        for nbytes, what in phase.requests:
            yield json.dumps(["alloc" if nbytes > 0 else "free_requested", abs(nbytes), 0, 0, [what]])
        yield json.dumps(["mark", phase.name])


@pytest.fixture(scope="module")
def ours():
    return compare.emulated(parse_training_case(CASE), steps=2)


def test_phases_have_the_names_of_the_measuring_loop(ours):
    names = ["model", "engine", "fwd0", "bwd0", "step0", "fwd1", "bwd1", "step1"]
    assert [phase.name for phase in ours] == names
    assert [phase.name for phase in compare.traced(as_trace(ours))] == names


def test_a_trace_of_the_emulation_has_no_differences(ours):
    lines = compare.report(compare.traced(as_trace(ours)), ours, EVERYTHING)
    assert len(lines) == len(ours)


def test_a_missing_request_is_shown_with_its_place(ours):
    real = compare.traced(as_trace(ours))
    gone = real[0].requests.pop(0)
    first, place, emulated, *_ = compare.report(real, ours, EVERYTHING)
    assert first.startswith("model")
    assert place.strip() == "request 1"
    assert emulated.split() == ["emulation", "+", f"{gone[0] / MIB:.3f}", "weights"]


def test_small_requests_and_what_is_given_back_can_be_left_out():
    phase = compare.Phase("fwd0", [(4 * MIB, "a"), (-4 * MIB, "a"), (512, "b")])
    assert [what for _, what in phase.chosen(MIB, taken=False)] == ["a", "a"]
    assert phase.chosen(MIB, taken=True) == [(4 * MIB, "a")]


def test_reserved_memory_follows_segments_and_pages():
    events = [
        ["mark", "start"], ["segment_alloc", 3 * GIB, 0, 0, []], ["segment_map", GIB, 0, 0, []], ["mark", "model"],
        ["segment_unmap", GIB, 0, 0, []], ["segment_free", 2 * GIB, 0, 0, []], ["mark", "engine"],
    ]  # fmt: skip
    phases = compare.traced(map(json.dumps, events))
    assert [phase.reserved_bytes // GIB for phase in phases] == [4, 1]


def test_micro_batches_between_the_first_and_the_last_are_left_out():
    names = ["model", *["fwd0", "bwd0"] * 4, "step0"]
    kept = compare.played_only([compare.Phase(name) for name in names])
    assert [phase.name for phase in kept] == ["model", "fwd0", "bwd0", "fwd0", "bwd0", "step0"]


def test_a_trace_of_other_phases_stops_the_comparison(ours):
    lines = compare.report([compare.Phase("engine")], ours, EVERYTHING)
    assert lines == ["the trace has engine where the emulation has model: stopped"]


def test_the_command_line_takes_a_measured_row(tmp_path, monkeypatch, capsys, ours):
    row, trace = tmp_path / "row.json", tmp_path / "row.trace.gz"
    row.write_text(json.dumps({"id": "x", "case": {**CASE, "memory_limit_gib": 1}}))
    with gzip.open(trace, "wt") as file:
        file.write("\n".join(as_trace(ours)))
    monkeypatch.setattr(sys, "argv", ["compare_trace.py", str(row), str(trace), "--least", "0"])
    compare.main()
    assert len(capsys.readouterr().out.splitlines()) == len(ours)
