"""What is wrong with what was read? Every answer is a row that names file or subject, and the reason.

Of files and spans, never of rows: how much there is to look at is bounded by the number of files and of
boots in them, so this is done at the driver, and anew in every run of ``ingest``.

=================  =========  ====================================================================
check              severity   what it says
=================  =========  ====================================================================
a verdict          as below   what became of a file whose rows are not taken (``pipeline.files``);
                              ``unreadable`` also of a folder
``late``           warning    a file came after its successor had been read
``torn-end``       note       a tail ends in the middle of a batch: its writer died, or is writing
``empty``          warning    there is nothing in a file
``empty-folder``   warning    there is no file in a folder
``missing-files``  error      numbers between the first and the last file of a recorder are missing
``begins-late``    note       the first file of a recorder is not number 1
``gap``            error      a recorder says that rows are missing
``clock-step``     warning    the wall clock of a site was set while it ran
``clocks-apart``   warning    the wall clocks of two sites differ
``chains``         note       the input tells of more than one chain
=================  =========  ====================================================================
"""

from bisect import bisect_left, bisect_right
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Final, NamedTuple

from pipeline.files import GOOD, Verdict

JOB: Final = "ingest"
STEP_NS: Final = 1_000_000_000
APART_NS: Final = 1_000_000_000
_SHOWN_MAX: Final = 20
ERROR, WARNING, NOTE = "error", "warning", "note"

_SEVERITY: Final = {
    Verdict.TORN: ERROR,
    Verdict.DUPLICATE: NOTE,
    Verdict.UNREADABLE: ERROR,
    Verdict.FOREIGN: WARNING,
    Verdict.NEWER: ERROR,
    Verdict.CHANGED: ERROR,
}


class FileRow(NamedTuple):
    """As ``schemas.FILES`` has it."""

    file: str
    table: str
    recorder: str
    number: int
    bytes: int
    modified_ns: int
    rows: int
    content: str
    verdict: str
    reason: str | None
    batch: str


class SpanRow(NamedTuple):
    """As ``schemas.SPANS`` has it."""

    file: str
    recorder: str
    chain: int
    site: int | None
    boot: int | None
    rows: int
    gaps: int
    gap_rows: int
    first_wall_ns: int
    last_wall_ns: int
    least_offset_ns: int | None
    most_offset_ns: int | None
    sample_ts: list[int]
    sample_wall_ns: list[int]
    batch: str


class Problem(NamedTuple):
    """As ``schemas.QUALITY`` has it."""

    job: str
    check: str
    severity: str
    file: str | None
    subject: str | None
    rows: int
    reason: str
    batch: str


def problems(
    files: Sequence[FileRow],
    spans: Sequence[SpanRow],
    empty: Iterable[str] = (),
    refused: Mapping[str, str] | None = None,
) -> list[Problem]:
    """Of all that was ever read. ``empty``: input folders without files; ``refused``: those that cannot be
    read, and why. Whatever order files and spans come in, the answer is the same."""
    spans = sorted(spans, key=lambda each: (each.file, each.chain, str(each)))
    found = [
        *_verdicts(files),
        *(_problem("unreadable", ERROR, each, None, words) for each, words in (refused or {}).items()),
        *(_problem("empty-folder", WARNING, each, None, "there is no recording in it") for each in empty),
        *_numbers(files),
        *_gaps(spans),
        *_steps(spans),
        *_apart(spans),
        *_chains(spans),
    ]
    return sorted(found, key=str)


def shown(identity: int) -> str:
    """As ``schemas.shown``."""
    return f"{identity % (1 << 64):x}"


def _problem(
    check: str,
    severity: str,
    file: str | None,
    subject: str | None,
    reason: str,
    *,
    rows: int = 0,
    batch: str = "",
) -> Problem:
    return Problem(JOB, check, severity, file, subject, rows, reason, batch)


# -- files ---------------------------------------------------------------------------------------


def _verdicts(files: Sequence[FileRow]) -> Iterator[Problem]:
    """Of a file that was refused more than once, what is wrong with it as it was written last."""
    taken = {each.file for each in files if each.verdict == Verdict.TAKEN}
    refused = sorted((each for each in files if each.verdict not in GOOD), key=_written)
    newest = {each.file: each for each in refused}
    for each in files:
        verdict, reason = Verdict(each.verdict), each.reason or ""
        check, severity = verdict.value, _SEVERITY.get(verdict, NOTE)
        if verdict is Verdict.TAKEN:
            check, severity = "late", WARNING
        elif verdict is Verdict.OPEN:
            check = "torn-end"
        elif each.file in taken and verdict is not Verdict.CHANGED:
            continue  # it was mended, and read since
        elif each is not newest[each.file]:
            continue
        if reason:
            yield _problem(
                check, severity, each.file, each.recorder, reason, rows=each.rows, batch=each.batch
            )
        if verdict in GOOD and not each.rows:
            words = "there are no rows in it"
            yield _problem("empty", WARNING, each.file, each.recorder, words, batch=each.batch)


def _written(each: FileRow) -> tuple[int, int, str]:
    return each.modified_ns, each.bytes, each.batch


def _numbers(files: Sequence[FileRow]) -> Iterator[Problem]:
    numbers: defaultdict[str, set[int]] = defaultdict(set)
    for each in files:
        if each.number > 0:
            numbers[each.recorder].add(each.number)
    for recorder, there in sorted(numbers.items()):
        missing = sorted(set(range(min(there), max(there))) - there)
        if missing:
            listed = ", ".join(map(str, missing[:_SHOWN_MAX])) + (" …" if missing[_SHOWN_MAX:] else "")
            words = f"{len(missing)} files are missing between its first and its last: {listed}"
            yield _problem("missing-files", ERROR, None, recorder, words)
        if min(there) > 1:
            words = f"its first file is number {min(there)}: what was before was removed, or is elsewhere"
            yield _problem("begins-late", NOTE, None, recorder, words)


# -- rows ----------------------------------------------------------------------------------------


def _gaps(spans: Sequence[SpanRow]) -> Iterator[Problem]:
    for each in spans:
        if each.gaps:
            words = f"the recorder was behind {each.gaps} times and left {each.gap_rows} rows out"
            if not each.gap_rows:
                words = f"there are {each.gaps} gaps: what changed then is not known, up to the next base"
            yield _problem(
                "gap",
                ERROR,
                each.file,
                each.recorder if each.site is None else shown(each.site),
                words,
                rows=each.gap_rows,
                batch=each.batch,
            )


def _steps(spans: Sequence[SpanRow]) -> Iterator[Problem]:
    """Both clocks of a boot run at one rate, so their difference stays."""
    boots: defaultdict[tuple[int, int], list[SpanRow]] = defaultdict(list)
    for each in spans:
        if each.site is not None and each.boot is not None and each.least_offset_ns is not None:
            boots[each.site, each.boot].append(each)
    for (site, _), of_boot in sorted(boots.items()):
        least = min(each.least_offset_ns or 0 for each in of_boot)
        most = max(each.most_offset_ns or 0 for each in of_boot)
        if most - least > STEP_NS:
            words = (
                f"its wall clock moved by {(most - least) / 1e9:.1f} s against the monotonic one while it"
                " ran; its times of day are to be used with care"
            )
            last = of_boot[-1]
            yield _problem("clock-step", WARNING, last.file, shown(site), words, batch=last.batch)


def _apart(spans: Sequence[SpanRow]) -> Iterator[Problem]:
    """Everybody delivers a slot at about the same time, or later; so a clock is off if it is so at each of
    the sampled slots. Each site is compared with the one that has most samples."""
    samples: defaultdict[int, defaultdict[int, list[tuple[int, int]]]] = defaultdict(
        lambda: defaultdict(list)
    )
    for each in spans:
        if each.site is not None and each.sample_ts:
            of_site = samples[each.chain][each.site]
            of_site += zip(each.sample_ts, each.sample_wall_ns, strict=True)
    for chain, sites in sorted(samples.items()):
        if chain == 0 or len(sites) == 1:
            continue
        clock = max(sorted(sites), key=lambda site: len(sites[site]))
        slots = sorted(sites[clock])
        for site in sorted(set(sites) - {clock}):
            ahead = _ahead(slots, sites[site])
            if ahead is not None and abs(ahead) > APART_NS:
                where = "ahead of" if ahead > 0 else "behind"
                words = f"its wall clock is {abs(ahead) / 1e9:.1f} s or more {where} that of {shown(clock)}"
                yield _problem("clocks-apart", WARNING, None, shown(site), words)


def _ahead(slots: list[tuple[int, int]], others: list[tuple[int, int]]) -> int | None:
    """By how much a clock that saw ``others`` is ahead of the one that saw ``slots``, at least, at the slot
    where that is least. A slot between two that were seen was delivered between them."""
    at = [slot for slot, _ in slots]
    least: int | None = None
    for slot, wall in others:
        before, after = bisect_right(at, slot) - 1, bisect_left(at, slot)
        if before < 0 or after == len(at):
            continue
        early, late = slots[before][1], slots[after][1]
        ahead = max(wall - max(early, late), 0) or min(wall - min(early, late), 0)
        if least is None or abs(ahead) < abs(least):
            least = ahead
    return least


def _chains(spans: Sequence[SpanRow]) -> Iterator[Problem]:
    chains: defaultdict[int, list[SpanRow]] = defaultdict(list)
    for each in spans:
        if each.chain:
            chains[each.chain].append(each)
    if len(chains) < 2:
        return
    for chain, of_chain in sorted(chains.items()):
        words = f"one of {len(chains)} chains in the input; they are kept apart, and never compared"
        rows = sum(each.rows for each in of_chain)
        yield _problem("chains", NOTE, of_chain[0].file, shown(chain), words, rows=rows)
