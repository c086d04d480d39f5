"""A replica is told what it is, and what is wrong with what it was told."""

from pathlib import Path

import pytest
from pydantic import ValidationError

from ordering.errors import ConfigurationError
from rsm.config import ReplicaConfig

TEXT = """
group = "orders"
bind = "127.0.0.1:7401"
founders = ["127.0.0.1:7401", "127.0.0.1:7402"]
key_file = "group.key"
mode = "durable"
data = "log"

[ring]
suspect_ms = 300
"""


@pytest.fixture
def file(tmp_path: Path) -> Path:
    (tmp_path / "group.key").write_text("ab" * 32)
    path = tmp_path / "site.toml"
    path.write_text(TEXT)
    return path


def test_when_a_file_is_read_then_its_paths_are_relative_to_it(file: Path) -> None:
    config = ReplicaConfig.load(file)
    assert config.data == file.parent / "log"
    assert (config.metrics, config.recording) == ("", None)
    assert config.keyring() is not None
    engine = config.engine(config.founders, ())
    assert (engine.durable, engine.suspect_ms, engine.packet_bytes) == (True, 300, 60_000)


def test_when_a_variable_or_an_argument_is_given_then_it_wins(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSM_GROUP", "others")
    assert ReplicaConfig.load(file).group == "others"
    assert ReplicaConfig.load(file, group="third").group == "third"


def test_when_a_recording_is_asked_for_then_its_place_is_relative_to_the_file(file: Path) -> None:
    file.write_text('recording = "rows"\n' + TEXT)
    assert ReplicaConfig.load(file).recording == file.parent / "rows"


def test_when_the_log_is_configured_by_variables_then_they_are_no_settings_of_the_replica(
    file: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("RSM_LOG_FORMAT", "json")
    monkeypatch.setenv("RSM_LOG_LEVEL", "debug")
    assert ReplicaConfig.load(file).group == "orders"


def test_when_the_network_is_not_loopback_then_packets_are_small() -> None:
    config = ReplicaConfig(group="g", bind="10.0.0.1:7401", insecure=True)
    assert config.engine(("10.0.0.1:7401",), ()).packet_bytes == 1400


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ('colour = "red"', "colour"),
        ("[ring]\nsuspect = 5", "suspect: no such settings"),
        ('mode = "slow"', "mode"),
        ("outstanding_max = 0", "outstanding_max"),
        ('metrics = "9401"', "metrics: '9401' is no address"),
        ("recording_bytes_max = 0", "recording_bytes_max"),
        ("= 5", "is no TOML"),
    ],
)
def test_when_a_setting_is_wrong_then_the_file_and_the_setting_are_named(
    tmp_path: Path, line: str, words: str
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(f'group = "g"\ninsecure = true\n{line}\n')
    with pytest.raises(ConfigurationError) as refusal:
        ReplicaConfig.load(path)
    assert words in str(refusal.value)
    assert str(path) in str(refusal.value)


def test_when_several_settings_are_wrong_then_each_has_a_line_that_says_where_what_and_what_is_allowed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "site.toml"
    path.write_text(
        'founder = ["a:1"]\nmode = "slow"\nsnapshot_bytes = "much"\nfounders = [1]\ncolour = "red"\n'
    )
    monkeypatch.setenv("RSM_OUTSTANDING_MAX", "0")
    with pytest.raises(ConfigurationError) as refusal:
        ReplicaConfig.load(path)
    lines = str(refusal.value).splitlines()
    wrong = {
        f"{path}: group: is missing",
        f"{path}: founders.0: 1 is wrong: it should be a valid string",
        f"{path}: mode: 'slow' is wrong: it should be 'memory' or 'durable'",
        f"{path}: founder: there is no such setting; did you mean founders?",
        "RSM_OUTSTANDING_MAX: outstanding_max: '0' is wrong: it should be greater than or equal to 1",
    }
    assert wrong < set(lines)
    assert len(lines) == len(wrong) + 2
    assert any(line.startswith(f"{path}: snapshot_bytes: 'much' is wrong") for line in lines)
    assert any(
        line.startswith(f"{path}: colour: there is no such setting; there are group,") for line in lines
    )


def test_when_the_file_or_the_key_is_missing_then_it_is_said(tmp_path: Path) -> None:
    with pytest.raises(ConfigurationError, match="cannot be read"):
        ReplicaConfig.load(tmp_path / "nothing.toml")
    with pytest.raises(ConfigurationError, match="key_file"):
        ReplicaConfig(group="g", key_file=tmp_path / "nothing").keyring()


def test_when_settings_contradict_each_other_then_they_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValidationError, match="needs a directory"):
        ReplicaConfig(group="g", insecure=True, mode="durable")
    with pytest.raises(ValidationError, match="writes nothing"):
        ReplicaConfig(group="g", insecure=True, data=tmp_path)
    with pytest.raises(ValidationError, match="openssl rand"):
        ReplicaConfig(group="g")


def test_when_a_setting_of_the_engine_is_wrong_then_it_says_which() -> None:
    config = ReplicaConfig(group="g", insecure=True, ring={"suspect_ms": "soon"})
    with pytest.raises(ConfigurationError, match="suspect_ms"):
        config.engine(("127.0.0.1:1",), ())
