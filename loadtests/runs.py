"""What a run is to do, and what it leaves behind."""

from pathlib import Path
from typing import Final

import msgspec

from bench.errors import BenchError

RUN: Final = "run.json"
FAULTS: Final = "faults.jsonl"
RINGS: Final = "rings.jsonl"
PROCESSES: Final = "processes.jsonl"


class LoadPlan(msgspec.Struct, frozen=True, kw_only=True):
    """``run``: keys begin with it. Without ``run_time_s`` there is a page of locust, on ``web_port``."""

    run: str
    endpoint: str
    users: int
    spawn_rate: float
    run_time_s: float | None
    shape: str
    mix: str
    rate: float
    groups: int
    value_bytes: int
    faults: bool
    sites: int | None
    web_port: int | None
    workers: int
    seed: int
    report: Path

    @property
    def records(self) -> Path:
        return self.report / "records"


class Told(msgspec.Struct, frozen=True, kw_only=True):
    """When it began and ended, by the monotonic clock; ``end_revision``: up to where the audit has seen
    everything, 0 if it has not come to the end."""

    began_ns: int
    ended_ns: int
    end_revision: int


class Left(msgspec.Struct, frozen=True, kw_only=True):
    """A run that can be judged, now or again."""

    plan: LoadPlan
    told: Told

    def save(self) -> None:
        text = msgspec.json.format(msgspec.json.encode(self, enc_hook=str), indent=2)
        (self.plan.records / RUN).write_bytes(text + b"\n")

    @classmethod
    def load(cls, report: Path) -> "Left":
        """It may have been moved."""
        path = report / "records" / RUN
        try:
            left = msgspec.json.decode(path.read_bytes(), type=cls, dec_hook=lambda kind, text: kind(text))
        except FileNotFoundError:
            raise BenchError(
                f"{path} is not there; runs that went well keep records only with --keep"
            ) from None
        except msgspec.MsgspecError as error:
            raise BenchError(f"{path}: cannot be read: {error}") from None
        plan = msgspec.structs.replace(left.plan, report=report)
        return msgspec.structs.replace(left, plan=plan)
