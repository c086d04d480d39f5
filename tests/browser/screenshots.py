"""Pictures of the dashboard, from a demo under load: ``python -m tests.browser.screenshots FOLDER [all]``.

The one of the README has a replica that was just killed. With ``all`` there are also those of both themes and
two widths, of the whole page.
"""

import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final, Literal

import httpx2
from playwright.sync_api import Browser, Page, expect

from tests.browser.browsing import PATIENCE_MS, browser
from tests.cli.demos import Demo, serving

WARM_SECONDS: Final = 50  # so that the lines of the figures have some length
WIDTHS: Final = {"wide": (1440, 1000), "phone": (390, 844)}
SETTLED: Final = """() => {
  const moves = document.getAnimations().filter((each) => each.transitionProperty === "transform");
  return Promise.all(moves.map((each) => each.finished));
}"""
THEMES: Final[tuple[Literal["light", "dark"], ...]] = ("light", "dark")


@contextmanager
def load(demo: Demo) -> Iterator[None]:
    """Some writes and reads, now more and now fewer."""
    over = threading.Event()

    def work(number: int) -> None:
        with httpx2.Client(base_url=demo.url, trust_env=False, timeout=10) as http:
            turn = 0
            while not over.wait(0.02 + 0.03 * (turn // 80 % 2)):
                turn += 1
                http.put(f"/v1/kv/orders/{number}/{turn % 50}", content=b"%d" % turn)
                http.get(f"/v1/kv/orders/{number}/{turn % 50}")

    workers = [threading.Thread(target=work, args=(number,)) for number in range(2)]
    for each in workers:
        each.start()
    try:
        yield
    finally:
        over.set()
        for each in workers:
            each.join()


def opened(chromium: Browser, demo: Demo, theme: Literal["light", "dark"], size: tuple[int, int]) -> Page:
    width, height = size
    scale = 1.5 if width > 1000 else 2
    page = chromium.new_page(
        viewport={"width": width, "height": height}, color_scheme=theme, device_scale_factor=scale
    )
    page.set_default_timeout(PATIENCE_MS)
    page.goto(demo.url)
    expect(page.locator(".member")).to_have_count(3)
    return page


def readme(page: Page, path: Path) -> None:
    """The upper half, when the ring has just reformed, with the token between two members."""
    page.get_by_role("button", name="Kill replica 3").click()
    expect(page.locator("#ring .edge")).to_have_count(2, timeout=PATIENCE_MS)
    expect(page.locator("#ring .edge")).to_have_count(3, timeout=PATIENCE_MS)
    page.get_by_role("button", name="Kill replica 2").click()
    expect(page.locator("#ring .edge")).to_have_count(2, timeout=PATIENCE_MS)
    expect(page.locator("#tile-again .value")).to_be_visible()
    page.mouse.move(0, 0)
    page.evaluate("scrollTo(0, 0); document.activeElement.blur()")
    page.evaluate(SETTLED)
    expect(page.locator("#ring .edge[data-busy=true]")).to_have_count(1)
    below = page.locator("#tiles").bounding_box()
    assert below is not None
    height = below["y"] + below["height"] + 16
    page.screenshot(path=path, clip={"x": 0, "y": 0, "width": 1440, "height": height})


def main(folder: Path, *, everything: bool) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    with serving() as demo, browser() as chromium, load(demo):
        httpx2.post(f"{demo.url}/v1/locks/nightly-report", json={"ttl": "600s"}, trust_env=False)
        page = opened(chromium, demo, "light", WIDTHS["wide"])
        time.sleep(WARM_SECONDS)
        readme(page, folder / "dashboard.png")
        if not everything:
            return
        expect(page.locator("#ring .edge")).to_have_count(3, timeout=PATIENCE_MS)
        for theme in THEMES:
            for name, size in WIDTHS.items():
                each = opened(chromium, demo, theme, size)
                each.locator("#watch-button").click()
                each.locator("#log-newest").click()
                expect(each.locator("#watch-rows tr")).not_to_have_count(0)
                each.evaluate("scrollTo(0, 0)")
                expect(each.locator("#ring .edge[data-busy=true]")).to_have_count(1)
                each.screenshot(path=folder / f"dashboard-{theme}-{name}.png", full_page=True)
                each.close()


if __name__ == "__main__":
    main(Path(sys.argv[1]), everything="all" in sys.argv[2:])
