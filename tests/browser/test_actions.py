"""The panel of actions as a person sees it, in a real browser, on sites with databases of their own."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal

import pytest
from playwright.sync_api import Page, expect

from api.problems import Problem
from tests.api.banks import BankPlace, bank_place, transfer
from tests.api.threads import Running, in_thread
from tests.apps.actions.sites import until_voted
from tests.browser.browsing import CHROMIUM, PATIENCE_MS, Complaints, browser

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")

expect.set_options(timeout=PATIENCE_MS)
OFFLINE = "net::ERR_"  # chromium logs every request that finds nobody
ID = "transfer <b>1</b>"


@pytest.fixture
def bank(tmp_path: Path) -> Iterator[Running[BankPlace]]:
    with in_thread(lambda: bank_place(tmp_path)) as running:
        yield running


async def hold(place: BankPlace, site: str) -> Any:
    return place.bank.participants[site].hold("prepare")


async def release(place: BankPlace, site: str) -> None:
    place.bank.participants[site].release("prepare")


async def post(place: BankPlace, body: dict[str, Any], query: str = "") -> int:
    return (await place.http.post(f"/v1/actions{query}", json=body)).status_code


def test_when_actions_go_on_then_the_page_shows_votes_as_they_come_and_decisions(
    bank: Running[BankPlace],
) -> None:
    place = bank.place
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 1440, "height": 1000})
        page.set_default_timeout(PATIENCE_MS)
        complaints = Complaints(page)
        page.goto(place.serving.url)
        see_the_panels(page)
        see_a_vote_come(page, bank)
        see_an_abort(page, bank)
        lose_the_stream(page, bank)
        see_a_site_go(page, bank)
        expect(page.locator("#log-newest")).to_be_visible()
        assert [each for each in complaints.found if OFFLINE not in each] == []
        for width, height in ((390, 844), (860, 900), (2200, 1200)):
            page.set_viewport_size({"width": width, "height": height})
            assert page.evaluate("document.documentElement.scrollWidth <= innerWidth"), width


def see_the_panels(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator("#actions-card")).to_be_visible()
    expect(page.locator("#kv-card")).to_be_hidden()
    expect(page.locator("#sites tr[data-here=true]")).to_have_count(3)
    expect(page.locator("#actions-none")).to_be_visible()


def part(page: Page, action: str, site: str) -> Any:
    return page.locator(f".action[data-id='{action}'] .part[data-site='{site}']")


def see_a_vote_come(page: Page, bank: Running[BankPlace]) -> None:
    bank.do(hold(bank.place, "b"))
    assert bank.do(post(bank.place, transfer(7, id=ID, timeout_ms=60_000), "?wait=1ms")) == 202
    bank.do(until_voted(bank.place.bank.managers["a"], ID, "a"))
    action = page.locator(f".action[data-id='{ID}']")
    expect(action).to_have_attribute("data-state", "voting")
    expect(action.get_by_role("heading")).to_have_text(ID)
    expect(part(page, ID, "a").locator(".vote")).to_contain_text("yes at")
    expect(part(page, ID, "b").locator(".vote")).to_have_text("votes")
    expect(part(page, ID, "b").locator("code")).to_have_text('credit("b", 7)')
    expect(page.locator("#actions-words")).to_have_text("1 in flight")
    bank.do(release(bank.place, "b"))
    expect(action).to_have_attribute("data-state", "committed")
    expect(part(page, ID, "b").locator(".vote")).to_contain_text("yes at")
    expect(part(page, ID, "b")).to_contain_text("applied at")


def see_an_abort(page: Page, bank: Running[BankPlace]) -> None:
    assert bank.do(post(bank.place, transfer(200, id="much"))) == 409
    action = page.locator(".action[data-id='much']")
    expect(action).to_have_attribute("data-state", "aborted")
    expect(action.locator(".why")).to_contain_text("too little is there")
    expect(part(page, "much", "a").locator(".vote")).to_contain_text("no at")
    expect(page.locator(".action").first).to_have_attribute("data-id", "much")


def lose_the_stream(page: Page, bank: Running[BankPlace]) -> None:
    """What happens meanwhile is there when it is back."""
    page.route("**/v1/actions/events*", lambda route: route.abort())
    bank.do(end_streams(bank.place))
    expect(page.locator("#actions-words")).to_contain_text("reconnecting")
    assert bank.do(post(bank.place, transfer(1, id="meanwhile"))) == 200
    page.unroute("**/v1/actions/events*")
    expect(page.locator(".action[data-id='meanwhile']")).to_have_attribute("data-state", "committed")
    expect(page.locator(".action")).to_have_count(3)


async def end_streams(place: BankPlace) -> None:
    for watcher in list(place.gateway.parts.watches._open):
        watcher.end(Problem("overloaded", "it was ended by a test"))


def see_a_site_go(page: Page, bank: Running[BankPlace]) -> None:
    bank.do(bank.place.bank.crash("c"))
    expect(page.locator("#sites tr[data-here=false]")).to_contain_text("away")


@pytest.mark.parametrize("theme", ["light", "dark"])
def test_when_a_person_uses_the_keyboard_then_actions_can_be_reached_in_both_themes(
    bank: Running[BankPlace], theme: Literal["light", "dark"]
) -> None:
    assert bank.do(post(bank.place, transfer(1, id="one"))) == 200
    with browser() as chromium:
        page = chromium.new_page(viewport={"width": 390, "height": 844}, color_scheme=theme)
        page.set_default_timeout(PATIENCE_MS)
        page.goto(bank.place.serving.url)
        expect(page.locator(".action[data-id='one'][data-state=committed]")).to_have_count(1)
        page.locator("#main").focus()
        for _ in range(20):
            page.keyboard.press("Tab")
            if page.evaluate("document.activeElement.id") == "actions":
                break
        expect(page.locator("#actions")).to_be_focused()
        ink, ground = (
            page.evaluate(f"getComputedStyle(document.querySelector('.action')).{name}")
            for name in ("color", "backgroundColor")
        )
        assert ink != ground
