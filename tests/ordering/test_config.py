"""Settings are refused with the field's name and a way out."""

import pytest

from ordering.config import Config
from ordering.disciplines import DISCIPLINES, make_discipline
from ordering.errors import ConfigurationError
from ordering.simulator.stage import Stage

MINIMAL: dict[str, object] = {"group": "g", "founders": ("a", "b", "c")}


def config(**settings: object) -> Config:
    return Config(**{**MINIMAL, **settings})  # type: ignore[arg-type]


def test_when_only_founders_or_only_contacts_are_given_then_it_is_enough() -> None:
    assert config().founders == ("a", "b", "c")
    assert config(founders=(), contacts=("a",)).contacts == ("a",)


@pytest.mark.parametrize(
    ("settings", "field", "way_out"),
    [
        ({"group": ""}, "group", "name the group"),
        ({"founders": ()}, "founders, contacts", "list the founders"),
        ({"founders": ("a", "b", "a")}, "founders", "once"),
        ({"probe_ms": 0}, "probe_ms", "positive"),
        ({"window_messages": -1}, "window_messages", "positive"),
        ({"rto_min_ms": 300}, "rto_min_ms", "rto_max_ms"),
        ({"suspect_ms": 5}, "rto_min_ms", "suspect_ms"),
        ({"suspect_ms": 1500}, "suspect_ms", "slow_ms"),
        ({"probe_ms": 700}, "probe_ms", "passive_ms"),
        ({"remove_ms": -1}, "remove_ms", "0 (never)"),
        ({"minimum_size": -1}, "minimum_size", "a majority, always"),
        ({"orphan_ms": 1500}, "minority_ms", "orphan_ms"),
    ],
)
def test_when_a_setting_is_wrong_then_the_error_names_it(
    settings: dict[str, object], field: str, way_out: str
) -> None:
    with pytest.raises(ConfigurationError) as refusal:
        config(**settings)
    assert str(refusal.value).startswith(f"{field}:")
    assert way_out in str(refusal.value)


def test_when_remove_ms_is_zero_then_nobody_is_ever_removed_by_policy() -> None:
    assert config(remove_ms=0).remove_ms == 0


@pytest.mark.parametrize(
    ("probe", "suspect", "passive", "expected"), [(200, 250, 700, 700), (600, 250, 700, 850)]
)
def test_detection_time_is_the_slower_of_the_two_detectors(
    probe: int, suspect: int, passive: int, expected: int
) -> None:
    assert config(probe_ms=probe, suspect_ms=suspect, passive_ms=passive).detection_ms == expected


def test_when_a_setting_is_changed_after_the_fact_then_it_is_refused() -> None:
    with pytest.raises(AttributeError):
        config().probe_ms = 1  # type: ignore[misc]


def test_when_the_discipline_is_unknown_then_the_error_lists_the_known_ones() -> None:
    site = Stage.born(1).process("s1").engine.site
    with pytest.raises(ConfigurationError) as refusal:
        make_discipline("democratic", site)
    assert str(refusal.value).startswith("discipline:")
    assert all(name in str(refusal.value) for name in DISCIPLINES)
