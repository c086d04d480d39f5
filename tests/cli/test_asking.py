"""Tables of replicas: what is shown is whole."""

from io import StringIO

import pytest
from rich.console import Console

from cli.showing import fitting_table

TITLES = ["address", "standing", "view", "slot", "digest", "majority heard", "machine", "site"]
ROW = ["127.0.0.1:7401", "serving", "1.0", "7", "29cdb1c2", "0.2 s ago", "Counter 1", "756efb2cb6f2e6c0"]


@pytest.mark.parametrize(("width", "shown"), [(200, 8), (80, 6), (30, 2), (5, 1)])
def test_when_a_terminal_is_narrow_then_columns_are_left_out_and_none_is_cut(width: int, shown: int) -> None:
    console = Console(file=StringIO(), width=width)
    table = fitting_table(console, TITLES, [ROW, ["127.0.0.1:7402", "no answer"]])
    assert [column.header for column in table.columns] == TITLES[:shown]
    if shown > 1:
        console.print(table)
        assert "…" not in console.file.getvalue()  # type: ignore[attr-defined]
