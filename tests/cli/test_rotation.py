"""The group key is changed as operations.md says: three steps, one process at a time, and calls go on."""

import secrets
import signal
from pathlib import Path

from tests.cli.groups import running_group


def test_when_the_key_is_changed_in_three_steps_then_calls_go_on_and_the_old_is_out(
    tmp_path: Path,
) -> None:
    with running_group(tmp_path) as group:
        shared = group.directory / "group.key"
        old, new = shared.read_text().strip(), secrets.token_hex(32)
        for number in (1, 2, 3):  # each its own file, as on machines of their own
            own = group.directory / f"key-{number}"
            own.write_text(f"{old}\n")
            config = group.config(number)
            config.write_text(config.read_text().replace('"group.key"', f'"{own.name}"'))
        called = 0
        for keys in ([old, new], [new, old], [new]):
            for number in (1, 2, 3):
                (group.directory / f"key-{number}").write_text("\n".join(keys) + "\n")
                group.kill(number, how=signal.SIGTERM)
                group.start(number)
                called += 1
                assert group.call("add", 1, site=number) == called
        group.config(1).write_text(group.config(1).read_text().replace('"key-1"', '"group.key"'))
        assert set(group.json("status", code=1).values()) == {None}
