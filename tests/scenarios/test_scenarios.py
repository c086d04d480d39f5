"""Every scenario gives the trace in its file. ``RSM_REWRITE=1 pytest tests/scenarios`` rewrites them."""

import os
from pathlib import Path

import pytest

from ordering.simulator.scenario import parse, play
from ordering.simulator.stage import ScenarioError, ScenarioViolation, Stage

HERE = Path(__file__).parent
FILES = sorted(HERE.glob("*.txt"))

SMALLEST = "# Nothing happens.\n\ncluster sites=1\n----\nok\n\nfinish\n----\nok\n"


@pytest.mark.parametrize("path", FILES, ids=lambda path: path.stem)
def test_scenario_gives_its_trace(path: Path) -> None:
    text = path.read_text(encoding="utf-8")
    given = play(text)
    if os.environ.get("RSM_REWRITE") == "1":
        path.write_text(given, encoding="utf-8")
    else:
        assert given == text


def test_when_played_twice_then_the_trace_is_the_same() -> None:
    text = FILES[0].read_text(encoding="utf-8")
    assert play(text) == play(text)


def test_when_rewritten_then_a_second_rewrite_changes_nothing() -> None:
    once = play(SMALLEST)
    assert play(once) == once
    assert once.startswith("# Nothing happens.\n\ncluster sites=1\n----\ns1#1 view 1.0")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("cluster sites=3\n----\nok\n\nfinish\n----\n", "opens with"),
        ("# Prose.\n\ncluster sites=3\n----\nok\n", "finish"),
        ("# Prose.\n\ncluster sites=3\n\nfinish\n----\n", "----"),
    ],
)
def test_when_the_text_is_no_scenario_then_the_error_says_why(text: str, words: str) -> None:
    with pytest.raises(ScenarioError, match=words):
        parse(text)


@pytest.mark.parametrize(
    ("command", "words"),
    [
        ("jump s1", "use one of"),
        ("run 5", "50ms"),
        ("show moods", "views"),
        ("crash s9", "s9"),
        ("drop s1 s2 Letter", "is not a packet"),
        ("trace +weather", "one of"),
        ("until s1 sneezes", "sends"),
        ("submit s1 hello qos=perfect", "quality of service"),
    ],
)
def test_when_a_command_is_wrong_then_the_error_names_the_way_out(command: str, words: str) -> None:
    text = f"# Prose.\n\ncluster sites=2\n----\n\n{command}\n----\n\nfinish\n----\n"
    with pytest.raises(Exception, match=words):
        play(text)


def test_when_a_checker_complains_then_it_is_no_trace() -> None:
    stage = Stage.born(3)
    stage.cluster.checkers[0].fail(0, "something is wrong")
    with pytest.raises(ScenarioViolation, match="something is wrong"):
        stage.finish()
