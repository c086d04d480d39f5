"""What is computed from measurements, and the shape of a result."""

import json

import pytest

from bench.results import (
    Result,
    calibrate,
    latencies,
    median,
    median_ratios,
    medians,
    percentile,
    ratio,
    versions,
)


@pytest.mark.parametrize(
    ("percent", "expected"), [(0, 10), (1, 10), (25, 10), (26, 20), (50, 20), (75, 30), (99, 40), (100, 40)]
)
def test_when_a_percentile_is_asked_then_it_is_a_value_of_the_nearest_rank(
    percent: float, expected: int
) -> None:
    assert percentile([10, 20, 30, 40], percent) == expected


def test_when_there_is_one_value_then_it_is_every_percentile() -> None:
    assert {percentile([7], percent) for percent in (0, 50, 99.9, 100)} == {7}


@pytest.mark.parametrize(("values", "percent"), [([], 50), ([1], -1), ([1], 101)])
def test_when_a_percentile_makes_no_sense_then_it_is_refused(values: list[int], percent: float) -> None:
    with pytest.raises(ValueError, match=r"ordered|percent"):
        percentile(values, percent)


def test_when_latencies_are_given_in_any_order_then_percentiles_are_in_microseconds() -> None:
    shown = latencies([3000, 1000, 2000])
    assert shown == {
        "samples": 3, "p50_us": 2.0, "p90_us": 3.0, "p99_us": 3.0, "p99.9_us": 3.0, "max_us": 3.0,
    }  # fmt: skip


def test_when_nothing_was_measured_then_latencies_say_so() -> None:
    assert latencies([]) == {"samples": 0}


@pytest.mark.parametrize(
    ("part", "whole", "expected"),
    [(1, 4, 0.25), (3.0, 2, 1.5), (1, 0, None), (None, 4, None), (1, None, None)],
)
def test_when_a_side_of_a_ratio_is_missing_then_there_is_no_ratio(
    part: float | None, whole: float | None, expected: float | None
) -> None:
    assert ratio(part, whole) == expected


@pytest.mark.parametrize(("numbers", "expected"), [([3, 1, 2], 2), ([4, 1, 2, 3], 2.5), ([9], 9)])
def test_when_a_median_is_asked_then_order_does_not_matter(numbers: list[int], expected: float) -> None:
    assert median(numbers) == expected


def test_when_rounds_are_merged_then_numbers_are_medians_at_every_depth() -> None:
    merged = medians(
        [
            {"rate": 10, "latency": {"p50_us": 1.0, "samples": 5}, "digest": "a"},
            {"rate": 99, "latency": {"p50_us": 9.0, "samples": 6}, "digest": "b"},
            {"rate": 20, "latency": {"p50_us": 2.0, "samples": 7}, "digest": "c"},
        ]
    )
    assert merged == {"rate": 20, "latency": {"p50_us": 2.0, "samples": 6}, "digest": "c"}


def test_when_one_round_had_a_mishap_then_no_median_hides_it() -> None:
    rounds = [{"view_changes": 0, "rate": 1}, {"view_changes": 2, "rate": 2}, {"view_changes": 0, "rate": 3}]
    assert medians(rounds) == {"view_changes": 2, "rate": 2}


def test_when_a_counter_is_missing_in_a_round_then_the_others_decide() -> None:
    assert medians([{"a": {}}, {"a": {"nacks": 4}}]) == {"a": {"nacks": 4}}


def test_when_ratios_of_rounds_are_merged_then_each_is_the_median_of_its_own() -> None:
    rounds: list[dict[str, float | None]] = [
        {"x": 1.0, "y": None},
        {"x": 5.0, "y": None},
        {"x": 2.0, "y": 3.0},
    ]
    assert median_ratios(rounds) == {"x": 2.0, "y": 3.0}


def test_when_a_result_is_written_then_it_has_the_agreed_fields() -> None:
    result = Result(
        name="n", parameters={"size": 1}, values={"a": {"b": [1]}}, ratios={"r": None},
        calibration=calibrate(), versions=versions({"peer": "1.0"}),
    )  # fmt: skip
    shown = json.loads(result.to_json())
    assert list(shown) == ["name", "parameters", "values", "ratios", "calibration", "versions"]
    assert shown["calibration"]["python_loops_per_s"] > 0
    assert shown["versions"]["peer"] == "1.0"
    assert shown["ratios"] == {"r": None}
