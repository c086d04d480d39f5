"""The fuzzer's target holds the decoder to its promises; the command says what it lacks."""

from pathlib import Path
from random import Random
from typing import Any, get_args

import pytest
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner, Result

from cli import fuzz
from cli.fuzz_target import Finding, examine, mutate, repair, samples, seeds
from cli.main import app
from ordering import packets as p
from ordering import wire
from ordering.codec import HEADER_BYTES, encode
from ordering.sealing import ReplayWindow
from tests.ordering.test_codec import packets

SEEDS = seeds()


def rsm_fuzz(*words: str) -> Result:
    return CliRunner(env={"COLUMNS": "200", "NO_COLOR": "1"}).invoke(app, ["fuzz", *words])


# -- the command ---------------------------------------------------------------------------------


def test_when_the_fuzzer_is_not_installed_then_the_command_says_how_to_get_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fuzz, "find_spec", lambda _: None)
    done = rsm_fuzz("--corpus", str(tmp_path / "corpus"))
    assert done.exit_code == 3, done.output
    assert "pip install 'rsm[fuzz]'" in done.output
    assert not (tmp_path / "corpus").exists()


def test_when_a_saved_input_is_harmless_then_the_replay_says_what_it_is(tmp_path: Path) -> None:
    saved = tmp_path / "crash-1"
    saved.write_bytes(encode(p.PollReply(samples()[0].head, 3, True), 1))
    done = rsm_fuzz("--replay", str(saved))
    assert done.exit_code == 0, done.output
    assert "read as PollReply" in done.output
    saved.write_bytes(b"noise")
    assert "dropped" in rsm_fuzz("--replay", str(saved)).output


def test_when_a_saved_input_breaks_the_decoder_then_the_replay_shows_where(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def defective(*_: object) -> p.Packet:
        raise RecursionError("planted")

    monkeypatch.setattr(wire, "decode_body", defective)
    saved = tmp_path / "crash-1"
    saved.write_bytes(SEEDS["01-Data"])
    done = rsm_fuzz("--replay", str(saved))
    assert done.exit_code == 1, done.output
    assert "RecursionError: planted" in done.output


def test_when_a_corpus_is_prepared_again_then_what_was_kept_is_still_there(tmp_path: Path) -> None:
    inputs, findings = fuzz._prepare(tmp_path)
    (inputs / "grown").write_bytes(b"x")
    (findings / "crash-1").write_bytes(b"y")
    assert fuzz._prepare(tmp_path) == (inputs, findings)
    assert {path.name for path in inputs.iterdir()} == {*SEEDS, "grown"}
    assert (findings / "crash-1").read_bytes() == b"y"


def test_when_the_fuzzer_speaks_then_its_figures_are_understood() -> None:
    told = fuzz._Told()
    assert told.hear(
        "#2048\tNEW    cov: 252 ft: 528 corp: 164/19Kb lim: 170 exec/s: 1024 rss: 80Mb L: 9/9 MS: 1 -\n"
    )
    assert (told.runs, told.coverage, told.features, told.rate) == (2048, 252, 528, 1024)
    assert told.hear("stat::number_of_executed_units: 95593\n")
    assert told.hear("stat::average_exec_per_sec:     4552\n")
    assert (told.runs, told.rate) == (95593, 4552)
    assert not told.hear("INFO: seed corpus\n")
    assert told.tail == ["INFO: seed corpus"]


# -- the target ----------------------------------------------------------------------------------


def test_when_a_campaign_begins_then_there_is_a_packet_of_every_type() -> None:
    assert {type(packet) for packet in samples()} == set(get_args(p.Packet))
    assert [examine(datagram) for datagram in SEEDS.values()] == samples()


@given(packets)
def test_when_a_packet_is_examined_then_it_is_read(packet: p.Packet) -> None:
    assert examine(encode(packet, 1)) == packet


@given(st.binary(max_size=300))
def test_when_noise_is_examined_then_it_is_dropped_without_a_finding(noise: bytes) -> None:
    assert examine(noise) is None


@given(packets, st.data())
def test_when_bytes_of_a_packet_change_then_there_is_no_finding(packet: p.Packet, draw: Any) -> None:
    datagram = bytearray(encode(packet, 1))
    for place in draw.draw(st.lists(st.integers(0, len(datagram) - 1), max_size=4)):
        datagram[place] = draw.draw(st.integers(0, 255))
    examine(bytes(datagram[: draw.draw(st.integers(0, len(datagram)))]))


@given(st.sampled_from(list(SEEDS.values())), st.integers(0, 1 << 32))
def test_when_a_body_is_mutated_then_it_has_the_right_length_and_no_finding(
    datagram: bytes, seed: int
) -> None:
    rng = Random(seed)
    for turn in range(5):
        changed = mutate(datagram, rng)
        if changed is None and turn:
            return  # what it was changed into is not a tree any more
        assert changed is not None
        assert changed[:55] == datagram[:55]
        assert repair(changed) == changed
        examine(changed)
        datagram = changed


def test_when_there_is_no_tree_then_nothing_is_mutated() -> None:
    assert mutate(b"", Random(1)) is None
    assert mutate(bytes(HEADER_BYTES) + b"\xc1", Random(1)) is None


# -- planted defects -----------------------------------------------------------------------------


def test_when_the_wire_reads_another_packet_then_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wire, "decode_body", lambda header, *_: p.Confirm(header.head))
    with pytest.raises(Finding, match="different packets"):
        examine(SEEDS["01-Data"])


def test_when_something_else_than_a_packet_comes_out_then_it_is_found(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(wire, "decode_body", lambda *_: "packet")
    with pytest.raises(Finding, match="str is no packet"):
        examine(SEEDS["01-Data"])


def test_when_a_replay_is_opened_then_it_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ReplayWindow, "has", lambda *_: False)
    with pytest.raises(Finding, match="opened twice"):
        examine(SEEDS["01-Data"])
