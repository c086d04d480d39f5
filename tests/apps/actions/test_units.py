"""Queues against a definition that looks at everybody, circles against paths."""

from itertools import pairwise
from random import Random

from apps.actions.units import Keys, Parked, Queue, in_order


def compete(one: Keys, other: Keys) -> bool:
    return one is None or other is None or any(key in other for key in one)


def test_who_is_first_is_who_competes_with_nobody_before_it() -> None:
    for seed in range(200):
        rng = Random(seed)
        queue, there = Queue(), dict[int, Keys]()
        for place in range(1, 60):
            if there and rng.random() < 0.45:
                gone = rng.choice(list(there))
                keys = there.pop(gone)
                could = {each for each in there if _is_first(there, each)}
                before = {each for each in there if queue.is_first(each, there[each])}
                queue.remove(gone, keys)
                told = set(queue.behind(keys)) | (set(queue.between(gone)) if keys is None else set())
                assert could - before <= told
            else:
                keys = None if rng.random() < 0.15 else tuple(rng.sample("stuvw", rng.randrange(0, 4)))
                there[place] = keys
                queue.add(place, keys)
            for each, keys in there.items():
                assert queue.is_first(each, keys) == _is_first(there, each)
                assert bool(list(queue.ahead(each, keys))) != _is_first(there, each)
        assert len(queue) == len(there)


def _is_first(there: dict[int, Keys], place: int) -> bool:
    return not any(other < place and compete(there[other], there[place]) for other in there)


def test_units_are_those_that_reach_each_other_and_dependencies_go_first() -> None:
    for seed in range(300):
        rng = Random(seed)
        names = [f"{number}" for number in range(rng.randrange(1, 9))]
        edges = {each: tuple(rng.sample(names, rng.randrange(0, min(3, len(names))))) for each in names}
        rank = {each: rng.randrange(10_000) for each in names}
        units = in_order(edges, rank.__getitem__)
        reach = {each: _reach(edges, each) for each in names}
        assert sorted(each for unit in units for each in unit) == sorted(names)
        at = {each: number for number, unit in enumerate(units) for each in unit}
        for one in names:
            for other in names:
                together = one == other or (other in reach[one] and one in reach[other])
                assert (at[one] == at[other]) == together
                if other in reach[one] and not together:
                    assert at[other] < at[one]
        for unit in units:
            assert all(rank[one] <= rank[other] for one, other in pairwise(unit))


def test_free_ones_are_ordered_by_rank() -> None:
    edges = {"late": (), "early": (), "needs late": ("late",)}
    rank = {"late": 5, "early": 2, "needs late": 1}
    assert in_order(edges, rank.__getitem__) == [("early",), ("late",), ("needs late",)]


def _reach(edges: dict[str, tuple[str, ...]], start: str) -> set[str]:
    seen: set[str] = set()
    ahead = [start]
    while ahead:
        for other in edges[ahead.pop()]:
            if other not in seen:
                seen.add(other)
                ahead.append(other)
    return seen


def test_who_is_parked_is_complete_when_all_it_needs_directly_or_by_others_has_come() -> None:
    for seed in range(300):
        rng = Random(seed)
        names = [f"{number}" for number in range(rng.randrange(1, 9))]
        needs = {each: tuple(rng.sample([*names, "never"], rng.randrange(0, 3))) for each in names}
        parked, placed, come = Parked(), list[str](), list[str]()
        for each in names:
            come.append(each)
            parked.add(each, tuple(other for other in needs[each] if other not in placed))
            for unit in parked.completed_by(each, names.index):
                placed += unit
            complete = {one for one in come if all(other in come for other in _needed(needs, one))}
            assert set(placed) == complete
        assert set(parked.lacking) == set(names) - set(placed)
        assert all(set(who) <= set(parked.lacking) for who in parked.wanted.values())


def _needed(needs: dict[str, tuple[str, ...]], start: str) -> set[str]:
    return _reach({**needs, "never": ()}, start)
