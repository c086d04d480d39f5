"""`rsm fuzz`: a coverage-guided search for datagrams that the decoder does not survive.

The campaign runs in a process of its own: libFuzzer ends the process it runs in, and the decoder must be
imported under its instrumentation. So this module imports nothing of it before that.
"""

import re
import subprocess
import sys
import traceback
from importlib.util import find_spec
from pathlib import Path
from random import Random
from threading import Timer
from typing import Annotated, NoReturn

import typer
from rich.console import Console
from rich.progress import Progress, SpinnerColumn, TextColumn, TimeElapsedColumn

FOUND = 1
MISSING = 3
INTERRUPTED = 130

# What is measured: the decoder, and the types that check themselves when they are made.
_INSTRUMENTED = ("ordering.codec", "ordering.twins", "ordering.wire", "ordering.sealing", "ordering.packets")
_INPUT_BYTES_MAX = 65_507
_INPUT_SECONDS_MAX = 2
_LATE_SECONDS = 30
_FINDINGS = ("crash-", "timeout-", "oom-", "leak-")
_STATUS = re.compile(r"^#(\d+)\s+(\S+).*?cov: (\d+) ft: (\d+) corp: (\d+)/.*?exec/s: (\d+)")
_STATISTIC = re.compile(r"^stat::(\w+):\s+(\d+)")

console = Console(highlight=False, soft_wrap=True)
messages = Console(stderr=True, highlight=False, soft_wrap=True)


def fuzz(
    seconds: Annotated[int, typer.Option(min=1, max=1_000_000, help="How long to search.")] = 60,
    corpus: Annotated[
        Path, typer.Option(file_okay=False, help="Where inputs are kept; a later campaign goes on from them.")
    ] = Path("fuzz-corpus"),
    seed: Annotated[int, typer.Option(min=0, help="Of the fuzzer's choices; 0: it draws one.")] = 0,
    replay: Annotated[
        Path | None,
        typer.Option(
            exists=True, dir_okay=False, help="Instead: examine one saved input; needs no fuzzer.",
            show_default=False,
        ),
    ] = None,
) -> None:  # fmt: skip
    """Search for datagrams that the decoder does not survive, guided by coverage. Needs the extra `fuzz`.

    An input is read in plain, sealed and opened. It must give a packet or be dropped for one counted
    reason, never raise, and take no longer than two seconds; what was read must be the same packet
    after it was written and read again. The search stops at the first finding, saves it and prints the
    line that replays it; the exit code is 1 then, and 3 without the fuzzer.

    [bold]Examples[/bold]

      rsm fuzz --seconds 600

      rsm fuzz --replay fuzz-corpus/findings/crash-…
    """
    if replay is not None:
        _replay(replay)
    if find_spec("atheris") is None:
        messages.print(
            "not available: the fuzzer is not installed; pip install 'rsm[fuzz]', or atheris alone",
            markup=False, style="yellow",
        )  # fmt: skip
        raise typer.Exit(MISSING)
    inputs, findings = _prepare(corpus)
    before = set(findings.iterdir())
    told = _campaign(inputs, findings, seconds, seed)
    found = sorted(path for path in set(findings.iterdir()) - before if path.name.startswith(_FINDINGS))
    console.print(told.summary(len(list(inputs.iterdir()))), markup=False)
    for path in found:
        console.print(f"found: {path}", markup=False, style="bold red")
        console.print(f"replay: rsm fuzz --replay {path}", markup=False)
    if not found and told.exit_code:
        messages.print("\n".join(told.tail), markup=False)
        messages.print(f"failed: the fuzzer ended with exit code {told.exit_code}", style="red")
    raise typer.Exit(FOUND if found or told.exit_code else 0)


def _prepare(corpus: Path) -> tuple[Path, Path]:
    """Seeds are written each time: a new packet type is in the next campaign."""
    from cli.fuzz_target import seeds

    inputs, findings = corpus / "inputs", corpus / "findings"
    inputs.mkdir(parents=True, exist_ok=True)
    findings.mkdir(exist_ok=True)
    for name, datagram in seeds().items():
        (inputs / name).write_bytes(datagram)
    return inputs, findings


def _replay(path: Path) -> NoReturn:
    from cli.fuzz_target import examine

    datagram = path.read_bytes()
    try:
        packet = examine(datagram)
    except Exception:  # noqa: BLE001 - whatever comes out is what we look for
        console.print(traceback.format_exc(), markup=False)
        console.print(f"found: {len(datagram)} bytes that break the decoder", style="bold red")
        raise typer.Exit(FOUND) from None
    read = "dropped" if packet is None else f"read as {packet}"
    console.print(f"all is well: {len(datagram)} bytes, {read}", markup=False, style="green")
    raise typer.Exit


# -- the campaign --------------------------------------------------------------------------------


class _Told:
    """What libFuzzer has said, as far as it matters."""

    def __init__(self) -> None:
        self.runs = self.rate = self.coverage = self.features = 0
        self.exit_code = 0
        self.tail: list[str] = []

    def hear(self, line: str) -> bool:
        """Whether the line was about progress."""
        if status := _STATUS.match(line):
            self.runs, self.coverage, self.features = (int(status[group]) for group in (1, 3, 4))
            self.rate = int(status[6])
            return True
        if statistic := _STATISTIC.match(line):
            if statistic[1] == "number_of_executed_units":
                self.runs = int(statistic[2])
            elif statistic[1] == "average_exec_per_sec":
                self.rate = int(statistic[2])
            return True
        self.tail = [*self.tail[-40:], line.rstrip()]
        return False

    def summary(self, inputs: int) -> str:
        return (
            f"{self.runs:,} executions, {self.rate:,} a second; {self.coverage} edges,"
            f" {self.features} features; {inputs} inputs kept"
        )


def _campaign(inputs: Path, findings: Path, seconds: int, seed: int) -> _Told:
    options = (
        f"-max_total_time={seconds}", f"-artifact_prefix={findings}/", f"-max_len={_INPUT_BYTES_MAX}",
        f"-timeout={_INPUT_SECONDS_MAX}", f"-seed={seed}", "-print_final_stats=1",
    )  # fmt: skip
    command = [sys.executable, "-m", "cli.fuzz", str(inputs), *options]
    told = _Told()
    columns = (SpinnerColumn(), TextColumn("{task.description}"), TimeElapsedColumn())
    progress = Progress(*columns, console=messages, transient=True, disable=not messages.is_terminal)
    task = progress.add_task("starting")
    with progress, subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace"
    ) as child:  # fmt: skip
        assert child.stdout is not None
        watchdog = Timer(seconds + _LATE_SECONDS, child.kill)  # it has its own clock, and may be stuck
        watchdog.start()
        try:
            for line in child.stdout:
                if told.hear(line):
                    shown = f"{told.runs:,} executions, {told.rate:,}/s, {told.coverage} edges"
                    progress.update(task, description=shown)
            told.exit_code = child.wait()
        except KeyboardInterrupt:
            child.kill()
            messages.print("interrupted: what was found so far is kept", style="yellow")
            raise typer.Exit(INTERRUPTED) from None
        except BaseException:
            child.kill()
            raise
        finally:
            watchdog.cancel()
    return told


def _fuzz_here() -> None:
    """The child: never returns."""
    import atheris

    with atheris.instrument_imports(include=list(_INSTRUMENTED)):
        from cli.fuzz_target import examine, mutate

    def grow(datagram: bytes, max_size: int, seed: int) -> bytes:
        rng = Random(seed)
        made = mutate(datagram, rng) if rng.randrange(4) else None
        if made is None or len(made) > max_size:
            made = atheris.Mutate(datagram, max_size)
        return bytes(made)

    atheris.Setup(sys.argv, examine, custom_mutator=grow)
    atheris.Fuzz()


if __name__ == "__main__":
    _fuzz_here()
