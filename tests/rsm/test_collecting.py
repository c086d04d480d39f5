"""A service is not stopped by its garbage collector for what was there before, or has come to stay."""

import gc
from typing import Any

import pytest

from rsm import collecting


def test_when_a_service_begins_then_what_is_there_is_not_looked_at_and_afterwards_all_is_as_before() -> None:
    before = gc.get_threshold()
    kept = [[number] for number in range(1000)]
    assert all(map(gc.is_tracked, kept))
    with collecting.serving():
        assert gc.get_threshold() == collecting.THRESHOLDS
        assert gc.get_freeze_count() > len(kept)
        watched = {id(each) for each in gc.get_objects()}
        assert not watched & {id(each) for each in kept}
    assert gc.get_threshold() == before
    assert gc.get_freeze_count() == 0


@pytest.mark.parametrize("slow", [True, False])
def test_when_a_full_collection_takes_long_then_what_has_survived_is_not_looked_at_again(
    monkeypatch: pytest.MonkeyPatch, slow: bool
) -> None:
    monkeypatch.setattr(collecting, "SLOW_SECONDS", -1.0 if slow else 3600.0)
    with collecting.serving():
        frozen = gc.get_freeze_count()
        grown: list[Any] = [[number] for number in range(1000)]
        gc.collect(1)
        assert gc.get_freeze_count() <= frozen, "a young one is never slow"
        gc.collect()
        assert (gc.get_freeze_count() > frozen + len(grown) // 2) is slow
