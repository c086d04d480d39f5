"""The story is true, and comes with a happy end."""

import pytest
from typer.testing import CliRunner

from cli.main import app
from ordering.simulator.checkers.base import Checker
from ordering.simulator.narrator import Line, Topic
from ordering.simulator.story import Chapter, Finale, Story


def test_when_the_story_is_told_then_it_ends_with_three_equal_digests() -> None:
    result = CliRunner().invoke(app, ["story"])
    assert result.exit_code == 0, result.output
    assert "crashes; its memory is gone" in result.output
    assert "three identical digests" in result.output


@pytest.mark.parametrize("seed", range(5))
def test_when_the_story_is_played_then_a_token_site_dies_and_returns_as_a_voter(seed: int) -> None:
    scenes = list(Story(seed).scenes())
    lines = [scene for scene in scenes if isinstance(scene, Line)]
    crash = next(line for line in lines if line.topic is Topic.PROCESS and "crashes" in line.text)
    assert crash.state == "token site"
    back = next(line for line in lines if line.text == "restarts with an empty memory")
    assert back.site.split("#")[0] == crash.site.split("#")[0]
    assert any(line.topic is Topic.STATE and line.text.startswith("takes over") for line in lines)
    assert sum(isinstance(scene, Chapter) for scene in scenes) == 5
    finale = scenes[-1]
    assert isinstance(finale, Finale)
    assert finale.is_happy
    assert back.site in {standing.site for standing in finale.standings}


class Complainer(Checker):
    name = "complainer"

    def __init__(self) -> None:
        super().__init__()
        self.fail(0, "something is wrong")


def test_when_a_checker_complains_then_the_demo_fails(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("ordering.simulator.story.make_checkers", lambda: [Complainer()])
    result = CliRunner().invoke(app, ["story"])
    assert result.exit_code == 1
    assert "something is wrong" in result.output
