"""A process that writes the script until it dies, and says after each write how many transactions there are.

    python -m tests.rsm.storage_child DIRECTORY DONE SIZE

Every fifth time it saves a snapshot as well.
"""

import sys
from itertools import islice
from pathlib import Path

from rsm.storage import StorageFailed, Store
from tests.rsm.storage_kit import GROUP, script

WRITES_MAX = 100_000
SNAPSHOT_EVERY = 5
STOPPED = 3  # exit status: the store has failed, and failed again when it was asked once more


def refuses(store: Store) -> bool:
    try:
        store.write(())
    except StorageFailed:
        return True
    return False


def main(directory: Path, done: int, size: int) -> int:
    store = Store.open(directory, group=GROUP)
    store.restore()
    print(done, flush=True)
    for number, records in islice(enumerate(script(size), start=1), done, WRITES_MAX):
        try:
            store.write(records)
            print(number, flush=True)
            if number % SNAPSHOT_EVERY == 0:
                store.save_snapshot(number, [bytes(5000)] * 3, b"%d" % number)
        except StorageFailed as error:
            print(error, file=sys.stderr)
            return STOPPED if refuses(store) else 1
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])))
