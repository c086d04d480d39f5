"""Debian's chromium, driven by playwright: never one that playwright would fetch."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

from playwright.sync_api import Browser, Page, sync_playwright

CHROMIUM: Final = Path(os.environ.get("CHROMIUM", "/usr/bin/chromium"))
FLAGS: Final = [
    "--headless",
    "--no-sandbox",  # tests may run as root
    "--disable-gpu",
    "--disable-quic",
    "--no-first-run",
    "--disable-background-networking",
    "--disable-component-update",
    "--disable-sync",
]
PATIENCE_MS: Final = 20_000


@contextmanager
def browser() -> Iterator[Browser]:
    with sync_playwright() as playwright:
        found = playwright.chromium.launch(executable_path=CHROMIUM, args=FLAGS)
        try:
            yield found
        finally:
            found.close()


class Complaints:
    """What a page has logged as an error, or thrown; a violation of its policy is one."""

    def __init__(self, page: Page) -> None:
        self.found: list[str] = []
        page.on("console", lambda said: self._note(said.type, said.text))
        page.on("pageerror", lambda error: self._note("error", str(error)))

    def _note(self, kind: str, words: str) -> None:
        if kind in {"error", "warning"}:
            self.found.append(words)
