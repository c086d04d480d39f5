"""Small recordings: a clean one, and one for each way to break a rule, or to look as if."""

from collections.abc import Callable
from random import Random

from tests.pipeline.bronze import Row

WIDTH = 32  # of a part
RANGES, COUNT, STEP, FIRST, FIRST_SEQ = 12, 6, 8, 3, 25
CROSSING = 3  # this range begins at slot 27 and ends at 32, in the next part
LIST = "members 1=a 2=b 3=c; voters 1 2 3; ring 1 2 3"
VIEW_SLOT = FIRST + RANGES * STEP
FILE, NEXT_FILE = "r-000001.parquet", "r-000003.parquet"


class Made:
    """Rows of one chain: three sites, twelve ranges of six messages, two views."""

    def __init__(self, chain: int) -> None:
        self.chain = chain
        self.files: list[Row] = []
        self.events: list[Row] = []
        self.operations: list[Row] = []
        for site in (1, 2, 3):
            self.events.append(self.row(site, "view", first_ts=1, detail=LIST))
        for number in range(RANGES):
            self._range(number)
        for site in (1, 2, 3):
            self.events.append(self.row(site, "view", first_ts=VIEW_SLOT, epoch=2, detail=LIST))

    def row(self, site: int, event: str, **columns: object) -> Row:
        clock = len(self.events)
        who = {"chain": self.chain, "site": site, "boot": self.chain * 10 + site, "event": event, "epoch": 1}
        where = {"recorder": f"r{self.chain}", "file": FILE}
        return who | {"revision": 0, "mono_ns": clock, "wall_ns": clock} | where | columns

    def _range(self, number: int) -> None:
        source, ts, seq = number % 3 + 1, FIRST + number * STEP, FIRST_SEQ + number // 3 * COUNT
        told = {"count": COUNT, "source": source, "first_seq": seq, "qos": "majority"}
        self.events.append(self.row(source, "submitted", **told))
        last = ts + COUNT - 1
        for site in (1, 2, 3):
            self.events.append(self.row(site, "delivered", first_ts=ts, detail="majority", **told))
            self.events.append(self.row(site, "applied", first_ts=last, digest=bytes([number])))
        self.operations.append(self.call(number + 1, ts, 100 * number))

    def call(self, request: int, ts: int, call_ns: int) -> Row:
        return {
            "chain": self.chain,
            "client": 77,
            "request": request,
            "kind": "command",
            "operation": "add",
            "call_ns": call_ns,
            "return_ns": call_ns + 50,
            "wall_ns": call_ns,
            "outcome": "ok",
            "ts": ts,
            "reply": bytes([request]),
            "recorder": f"c{self.chain}",
            "position": request,
            "file": "c-000001.parquet",
            "batch": "tests",
        }

    # -- where to strike -------------------------------------------------------------------------

    def delivered(self, number: int, *sites: int) -> list[Row]:
        ts = FIRST + number * STEP
        rows = [row for row in self.events if row["event"] == "delivered" and row["first_ts"] == ts]
        return [row for row in rows if not sites or row["site"] in sites]

    def of(self, event: str) -> list[Row]:
        return [row for row in self.events if row["event"] == event]

    def drop(self, rows: list[Row]) -> int:
        """Where the first of them was."""
        place = self.events.index(rows[0])
        self.events = [row for row in self.events if not any(row is one for one in rows)]
        return place

    def swap(self, one: int, other: int, *sites: int) -> None:
        for site in sites:
            (first,), (second,) = self.delivered(one, site), self.delivered(other, site)
            for name in ("source", "first_seq"):
                first[name], second[name] = second[name], first[name]


Case = Callable[[Made], None]


def _swapped_at_one(made: Made) -> None:
    made.swap(CROSSING, CROSSING + 1, 3)


def _message_at_a_view(made: Made) -> None:
    made.of("view")[3]["first_ts"] = FIRST + CROSSING * STEP + COUNT - 1
    made.of("view")[4]["first_ts"] = made.of("view")[5]["first_ts"] = made.of("view")[3]["first_ts"]


def _missing(made: Made) -> None:
    made.drop(made.delivered(CROSSING, 3))


def _missing_for_a_whole_part(made: Made) -> None:
    for number in range(CROSSING, CROSSING + 5):
        made.drop(made.delivered(number, 2))


def _taken_back_and_never_again(made: Made) -> None:
    (row,) = made.delivered(CROSSING, 3)
    row["detail"] = "k_resilient"
    place = made.events.index(row)
    made.events.insert(place + 1, made.row(3, "retracted", first_ts=row["first_ts"]))


def _missing_before_a_state_was_taken_over(made: Made) -> None:
    made.drop(made.delivered(CROSSING, 3))
    _a_state_was_taken_over(made, 5, 8)


def _slot_twice(made: Made) -> None:
    made.events.append(dict(made.delivered(CROSSING, 2)[0]))


def _message_twice(made: Made) -> None:
    free = FIRST + CROSSING * STEP + COUNT
    made.events += [row | {"first_ts": free, "count": 1} for row in made.delivered(CROSSING)]


def _never_submitted(made: Made) -> None:
    made.drop([made.of("submitted")[CROSSING]])


def _numbers_beyond_the_last(made: Made) -> None:
    made.drop([made.of("submitted")[RANGES - 1]])


def _turned_round(made: Made) -> None:
    made.swap(0, 3, 1, 2, 3)


def _in_another_view(made: Made) -> None:
    made.delivered(CROSSING, 3)[0]["revision"] = 1


def _short_of_a_view(made: Made) -> None:
    made.drop(made.delivered(RANGES - 1, 3))


def _another_list(made: Made) -> None:
    made.of("view")[5]["detail"] = LIST.replace("ring 1 2 3", "ring 1 2")


def _two_views_at_a_slot(made: Made) -> None:
    made.of("view")[5]["revision"] = 4


def _one_view_at_two_slots(made: Made) -> None:
    made.of("view")[5]["first_ts"] += 1


def _epoch_falls(made: Made) -> None:
    for row in made.of("view")[3:]:
        row |= {"epoch": 1, "revision": 0, "detail": "locks only"}
    for row in made.of("view")[:3]:
        row |= {"epoch": 1, "revision": 1}


def _ring_of_a_minority(made: Made) -> None:
    for row in made.of("view")[3:]:
        row["detail"] = LIST.replace("ring 1 2 3", "ring 1")


def _another_state(made: Made) -> None:
    made.of("applied")[3 * CROSSING]["digest"] = b"?"


def _executed_twice(made: Made) -> None:
    made.operations.append(made.operations[CROSSING] | {"ts": FIRST + CROSSING * STEP + 1})


def _one_slot_for_two(made: Made) -> None:
    made.operations.append(made.operations[CROSSING] | {"request": 99})


def _two_replies(made: Made) -> None:
    made.operations.append(made.operations[CROSSING] | {"reply": b"?"})


def _behind_in_time(made: Made) -> None:
    made.operations[-1] |= {"call_ns": 1, "return_ns": 2}
    made.operations[0] |= {"call_ns": 0}


def _read_what_was(made: Made) -> None:
    end = made.operations[-1]["return_ns"]
    stale = {"kind": "query", "request": 60, "ts": FIRST, "call_ns": end + 1, "return_ns": end + 2}
    made.operations.append(made.operations[-1] | stale)


def _read_what_was_not_yet(made: Made) -> None:
    last = made.operations[-1]
    early = {"kind": "query", "request": 60, "call_ns": last["call_ns"] - 2, "return_ns": last["call_ns"] - 1}
    made.operations.append(last | early)


# What is broken: the rule, which sites are named, between which slots.
BROKEN: dict[str, tuple[Case, str, set[str], tuple[int, int]]] = {
    "swapped at one": (_swapped_at_one, "total-order", {"3"}, (27, 40)),
    "a message where a view is": (_message_at_a_view, "total-order", set(), (32, 32)),
    "missing": (_missing, "agreement", {"3"}, (27, 32)),
    "missing for a whole part": (_missing_for_a_whole_part, "agreement", {"2"}, (27, 64)),
    "taken back and never again": (_taken_back_and_never_again, "agreement", {"3"}, (27, 32)),
    "missing, and later a state": (_missing_before_a_state_was_taken_over, "agreement", {"3"}, (27, 32)),
    "a slot twice": (_slot_twice, "integrity", {"2"}, (27, 32)),
    "a message twice": (_message_twice, "integrity", set(), (27, 33)),
    "never submitted": (_never_submitted, "integrity", {"1"}, (27, 32)),
    "numbers beyond the last": (_numbers_beyond_the_last, "integrity", {"3"}, (91, 96)),
    "turned round": (_turned_round, "source-order", {"1"}, (3, 32)),
    "in another view": (_in_another_view, "virtual-synchrony", {"3"}, (27, 32)),
    "short of a view": (_short_of_a_view, "virtual-synchrony", {"3"}, (91, 96)),
    "another list": (_another_list, "single-primary", {"3"}, (99, 99)),
    "two views at a slot": (_two_views_at_a_slot, "single-primary", {"3"}, (99, 99)),
    "one view at two slots": (_one_view_at_two_slots, "single-primary", {"3"}, (99, 100)),
    "epoch falls": (_epoch_falls, "single-primary", set(), (99, 99)),
    "ring of a minority": (_ring_of_a_minority, "single-primary", set(), (99, 99)),
    "another state": (_another_state, "equal-digests", {"1"}, (32, 32)),
    "executed twice": (_executed_twice, "exactly-once", {"4d"}, (27, 28)),
    "one slot for two": (_one_slot_for_two, "exactly-once", {"4d"}, (27, 27)),
    "two replies": (_two_replies, "one-reply", {"4d"}, (27, 27)),
    "behind in time": (_behind_in_time, "real-time", {"4d"}, (3, 91)),
    "read what was": (_read_what_was, "real-time", {"4d"}, (3, 11)),
    "read what was not yet": (_read_what_was_not_yet, "real-time", {"4d"}, (91, 91)),
}


# -- what only looks broken -----------------------------------------------------------------------


def _rows_are_missing(made: Made) -> None:
    place = made.drop(made.delivered(CROSSING, 3))
    made.events.insert(place, made.row(3, "gap", count=1))
    made.drop([made.of("submitted")[2]])  # of the same site


def _taken(made: Made, file: str, number: int, recorder: str) -> None:
    about = {"file": file, "table": "events", "recorder": recorder, "number": number, "bytes": 1}
    made.files.append(
        about | {"rows": 1, "content": "", "verdict": "taken", "modified_ns": 0, "batch": "tests"}
    )


def _a_file_is_missing(made: Made) -> None:
    place = made.drop(made.delivered(CROSSING, 3))
    for row in made.events[place:]:
        row["file"] = NEXT_FILE
    for number, file in ((1, FILE), (3, NEXT_FILE)):
        _taken(made, file, number, f"r{made.chain}")


def _a_file_is_missing_where_files_were_moved(made: Made) -> None:
    _a_file_is_missing(made)
    (first, second) = (f"{folder}/r{made.chain}" for folder in ("archive", "live"))
    for row in made.events:
        row["recorder"] = first if row["file"] == FILE else second
    made.files = []
    _taken(made, FILE, 1, first)
    _taken(made, NEXT_FILE, 3, second)


def _a_file_is_missing_and_the_next_does_not_tell_of_who_lacks(made: Made) -> None:
    """A simulated recorder tells of all sites; site 3 was paused in file 3."""
    place = made.drop(made.delivered(CROSSING, 3))
    paused, later = made.delivered(CROSSING + 1, 3)[0], "r-000004.parquet"
    behind = made.events.index(paused)
    for row in made.events[place:behind]:
        row["file"] = NEXT_FILE if row["site"] != 3 else later
    for row in made.events[behind:]:
        row["file"] = later
    for number, file in ((1, FILE), (3, NEXT_FILE), (4, later)):
        _taken(made, file, number, f"r{made.chain}")


def _copied_while_it_grew(made: Made) -> None:
    """The tail in the copy is the beginning of what is a closed file by now."""
    for place, row in enumerate(made.events):
        row["position"] = place
    copy = {"recorder": f"copy/r{made.chain}", "file": "copy/r.tail.arrows"}
    made.events += [row | copy for row in made.events[:60]]


def _a_gap_has_swallowed_that_a_state_was_taken_over(made: Made) -> None:
    _a_state_was_taken_over(made)
    (restored,) = made.of("restored")
    made.events[made.events.index(restored)] = made.row(3, "gap", count=1)
    again = made.events.index(made.delivered(6, 3)[0]) - 1  # the view, which is that of a later slot here
    views = [
        made.row(site, "view", first_ts=FIRST + 5 * STEP - 1, revision=1, detail=LIST) for site in (1, 2, 3)
    ]
    made.events[again] = views[2]
    for view in views[:2]:
        made.events.insert(made.events.index(made.delivered(5, view["site"])[0]), view)


def _a_state_was_taken_over(made: Made, first: int = 2, last: int = 5) -> None:
    for number in range(first, last + 1):
        made.drop(made.delivered(number, 3))
    place = made.events.index(made.delivered(last + 1, 3)[0])
    reached = FIRST + last * STEP + COUNT - 1
    made.events.insert(place, made.row(3, "restored", first_ts=reached, source=1, digest=bytes([last])))
    made.events.insert(place + 1, made.row(3, "view", first_ts=1, detail=LIST))


def _taken_back_and_again(made: Made) -> None:
    (row,) = made.delivered(CROSSING, 3)
    place = made.events.index(row)
    early = row | {"detail": "totally_ordered", "source": 2, "first_seq": 500}
    made.events[place:place] = [early, made.row(3, "retracted", first_ts=row["first_ts"])]


def _below_majority_and_then_a_crash(made: Made) -> None:
    wrong = {"source": 2, "first_seq": 500, "detail": "k_resilient"}
    for number in range(RANGES - 2, RANGES):
        made.delivered(number, 3)[0].update(wrong)
    made.drop([row for row in made.of("view")[3:] if row["site"] == 3])
    made.events.append(made.row(3, "crashed"))


def _back_under_another_boot(made: Made) -> None:
    again = [dict(row) for row in made.events if row["site"] == 3 and row["event"] != "submitted"]
    made.events += [row | {"boot": made.chain * 10 + 9} for row in again]


def _last_rows_died_with_the_process(made: Made) -> None:
    """Site 1 came back; what it had submitted last was never written."""
    boot = made.chain * 10 + 1
    lost = [row for row in made.events if row["site"] == 1 and row["event"] != "view"]
    began = made.events.index(made.of("submitted")[6])
    made.events = [row for row in made.events if row not in lost or made.events.index(row) < began]
    made.drop([row for row in made.of("view")[3:] if row["site"] == 1])
    back = [
        dict(row)
        for row in made.events
        if row["site"] == 2 and row["event"] in ("delivered", "applied", "view")
    ]
    made.events += [row | {"site": 1, "boot": boot + 7} for row in back]
    seq = FIRST_SEQ + 3 * COUNT
    made.events.append(
        made.row(1, "submitted", boot=boot + 7, source=1, first_seq=seq, count=COUNT, qos="majority")
    )


def _another_lane(made: Made) -> None:
    told = {"source": 1, "first_seq": 1, "count": 3}
    made.events.append(made.row(1, "submitted", qos="unordered", **told))
    made.events.append(made.row(2, "delivered", qos="source_ordered", detail="source_ordered", **told))


def _asked_for_state(made: Made) -> None:
    last = made.operations[-1]
    end = last["return_ns"]
    made.operations.append(last | {"kind": "query", "request": 50, "call_ns": end + 1, "return_ns": end + 2})
    made.operations.append(last | {"kind": "stale", "request": 51, "ts": FIRST, "call_ns": end + 1})
    made.operations.append(last | {"request": 52, "ts": None, "reply": None, "call_ns": 1})


def _another_clock(made: Made) -> None:
    made.operations[-1] |= {"call_ns": 1, "return_ns": 2, "clock": "another"}


# These look broken wherever somebody does not know of which files the rows are.
BY_FILE = (
    "a file is missing",
    "a file is missing where files were moved",
    "a file is missing, and who lacks was paused",
    "copied while it grew",
)
SOUND: dict[str, Case] = {
    "clean": lambda made: None,
    "rows are missing": _rows_are_missing,
    "a file is missing": _a_file_is_missing,
    "a file is missing where files were moved": _a_file_is_missing_where_files_were_moved,
    "a file is missing, and who lacks was paused": _a_file_is_missing_and_the_next_does_not_tell_of_who_lacks,
    "copied while it grew": _copied_while_it_grew,
    "a gap has swallowed that a state was taken over": _a_gap_has_swallowed_that_a_state_was_taken_over,
    "a state was taken over": _a_state_was_taken_over,
    "taken back and again": _taken_back_and_again,
    "below majority and then a crash": _below_majority_and_then_a_crash,
    "back under another boot": _back_under_another_boot,
    "last rows died with the process": _last_rows_died_with_the_process,
    "another lane": _another_lane,
    "asked for state": _asked_for_state,
    "another clock": _another_clock,
}


# -- at random ------------------------------------------------------------------------------------


def corrupted(events: list[Row], mark: int, rng: Random) -> list[Row]:
    """A copy in chains and boots of its own, with one thing changed that a defect could change."""
    rows = [dict(row) for row in events]
    for row in rows:
        row["chain"] = row["chain"] and row["chain"] ^ mark
        row["boot"] ^= mark
    delivered = [row for row in rows if row["event"] == "delivered" and row["first_ts"] is not None]
    row = rng.choice(delivered)
    match rng.randrange(10):
        case 0:
            row["source"] = rng.choice(delivered)["source"]
        case 1:
            row["first_seq"] += rng.choice((-1, 1, 40))
        case 2:
            row["first_ts"] += rng.choice((-2, -1, 1, 2, 9))
        case 3:
            rows.remove(row)
        case 4:
            row["count"] += 1
        case 5:
            rows.append(dict(row))
        case 6:
            row["epoch"] += 1
        case 7:
            rows.remove(rng.choice([each for each in rows if each["event"] == "submitted"]))
        case 8:
            rng.choice([each for each in rows if each["event"] == "applied"])["digest"] = b"other"
        case 9:
            view = rng.choice([each for each in rows if each["event"] == "view"])
            view[rng.choice(("epoch", "revision", "first_ts"))] += rng.choice((1, 2))
    return rows
