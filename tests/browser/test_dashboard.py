"""The dashboard as a person uses it, in a real browser, on a demo of its own."""

import re
import signal
from os import kill
from pathlib import Path

import pytest
from playwright.sync_api import Page, expect

from api.tokens import Scope, make_token
from tests.browser.browsing import CHROMIUM, PATIENCE_MS, Complaints, browser
from tests.cli.demos import Demo, serving
from tests.cli.gateways import gateway

pytestmark = pytest.mark.skipif(not CHROMIUM.exists(), reason=f"there is no {CHROMIUM}")

expect.set_options(timeout=PATIENCE_MS)
OFFLINE = "net::ERR_"  # chromium logs every request that finds nobody


def test_when_a_person_uses_the_dashboard_then_it_shows_what_the_group_does() -> None:
    with serving() as demo, browser() as chromium:
        assert demo.shown.index("dashboard: ") < demo.shown.index("replica 1")
        page = chromium.new_page(viewport={"width": 1440, "height": 1000})
        page.set_default_timeout(PATIENCE_MS)
        complaints = Complaints(page)
        page.goto(demo.url)
        expect(page).to_have_url(re.compile("/dashboard/$"))
        see_three_members(page)
        put_and_watch(page)
        see_the_token_move(page)
        kill_and_see_it_return(page)
        pause_and_resume(page)
        assert complaints.found == []
        lose_and_regain_the_gateway(page, demo)
        assert [each for each in complaints.found if OFFLINE not in each] == []
        page.evaluate("document.body.setAttribute('style', 'color: red')")
        (violation,) = [each for each in complaints.found if OFFLINE not in each]
        assert "Content Security Policy" in violation  # so one would have been seen


def see_three_members(page: Page) -> None:
    expect(page.locator("#connection")).to_have_attribute("data-state", "live")
    expect(page.locator(".member")).to_have_count(3)
    expect(page.locator(".node[data-standing=serving][data-ring=true]")).to_have_count(3)
    expect(page.locator("#ring .edge")).to_have_count(3)
    expect(page.locator("#members-words")).to_have_text("3 of 3 serve")


def put_and_watch(page: Page) -> None:
    """A key that is put is seen in the watch, by its value, and by who reads it."""
    page.locator("#watch-button").click()
    expect(page.locator("#watch-words")).to_have_text("watching")
    page.locator("#kv-key").fill("browser/<b>key</b>")
    page.locator("#kv-value").fill("written here")
    page.keyboard.press("Enter")
    expect(page.locator("#kv-result")).to_contain_text("created")
    row = page.locator("#watch-rows tr", has_text="browser/<b>key</b>")
    expect(row).to_contain_text("written here")
    page.locator("#kv-value").fill("")
    page.get_by_role("button", name="Get", exact=True).click()
    expect(page.locator("#kv-value")).to_have_value("written here")
    page.get_by_role("button", name="Newest").click()
    expect(page.locator("#log tr", has_text="written here")).not_to_have_count(0)


WATCH_THE_TOKEN = """() => {
  const ring = document.getElementById("ring");
  window.seen = new Set();
  const note = () => window.seen.add(ring.dataset.token);
  new MutationObserver(note).observe(ring, { attributeFilter: ["data-token"] });
}"""


def see_the_token_move(page: Page) -> None:
    """Every write makes it go on; so it is seen at one member after the other."""
    page.evaluate(WATCH_THE_TOKEN)
    for number in range(500):
        page.locator("#kv-value").fill(str(number))
        page.get_by_role("button", name="Put", exact=True).click()
        expect(page.locator("#kv-result")).to_contain_text("written")
        if len(page.evaluate("[...window.seen]")) == 3:
            break
    assert sorted(page.evaluate("[...window.seen]")) == ["replica 1", "replica 2", "replica 3"]
    expect(page.locator("#token-sample")).to_contain_text(re.compile("pass"))
    expect(page.locator("#tile-requests .value")).to_have_text(re.compile(r"\d"))


def kill_and_see_it_return(page: Page) -> None:
    victim = page.locator(".member", has=page.get_by_role("heading", name="replica 2"))
    address = victim.get_attribute("data-address")
    node = page.locator(f".node[data-address='{address}']")
    view = page.locator("#fact-view").inner_text()
    page.get_by_role("button", name="Kill replica 2").press("Enter")
    expect(node).to_have_attribute("data-standing", "down")
    expect(node).to_have_attribute("data-ring", "false")
    expect(page.locator("#ring .edge")).to_have_count(2)
    expect(page.locator("#views .why").first).to_contain_text("out of the ring: replica 2")
    expect(node).to_have_attribute("data-standing", "serving")
    expect(node).to_have_attribute("data-ring", "true")
    expect(page.locator("#ring .edge")).to_have_count(3)
    expect(page.locator("#fact-view")).not_to_have_text(view)
    expect(page.locator("#news")).to_contain_text("replica 2 is serving")


def pause_and_resume(page: Page) -> None:
    victim = page.locator(".member", has=page.get_by_role("heading", name="replica 3"))
    page.get_by_role("button", name="Pause replica 3").click()
    expect(victim).to_have_attribute("data-standing", "paused")
    page.get_by_role("button", name="Resume replica 3").click()
    expect(victim).to_have_attribute("data-standing", "serving")


def lose_and_regain_the_gateway(page: Page, demo: Demo) -> None:
    kill(demo.pids["gateway"], signal.SIGKILL)
    expect(page.locator("#connection-words")).to_have_text(re.compile(r"^reconnecting since .*\d"))
    expect(page.locator("body")).to_have_class("stale")
    expect(page.locator("#connection-words")).to_have_text("live")
    expect(page.locator("body")).not_to_have_class("stale")
    expect(page.locator("#watch-words")).to_contain_text("watching")
    page.locator("#kv-value").fill("after it came back")
    page.get_by_role("button", name="Put", exact=True).click()
    expect(page.locator("#watch-rows tr", has_text="after it came back")).to_have_count(1)
    expect(page.locator("#tile-ordered .value")).to_have_text(re.compile("[1-9]"))


def test_when_the_gateway_wants_a_token_then_the_page_asks_for_one_and_keeps_it_for_its_tab(
    tmp_path: Path,
) -> None:
    token, line = make_token("reader", [Scope.READ])
    (tmp_path / "tokens").write_text(line)
    directory = tmp_path / "demo"
    with (
        serving("--sites", 1, "--dir", directory),
        gateway(directory / "site-1.toml", "--tokens", tmp_path / "tokens") as asked,
        browser() as chromium,
    ):
        page = chromium.new_page(viewport={"width": 390, "height": 844}, reduced_motion="reduce")
        page.set_default_timeout(PATIENCE_MS)
        page.goto(asked.url)
        field = page.locator("#door-token")
        expect(field).to_be_focused()
        expect(page.locator("#connection")).to_have_attribute("data-state", "refused")
        field.fill("rsm_wrong")
        field.press("Enter")
        expect(page.locator("#door-words")).to_contain_text("not known")
        field.fill(token)
        field.press("Enter")
        expect(page.locator("#connection-words")).to_have_text("live")
        expect(page.locator("#door")).to_be_hidden()
        expect(page.locator(".node[data-token=true]")).to_have_count(1)
        expect(page.locator(".member .actions")).to_be_hidden()  # it is no gateway of a demo
        page.get_by_role("button", name="Put", exact=True).click()
        expect(page.locator("#kv-result")).to_contain_text("lacks the scope write")
        page.get_by_role("button", name="Newest").click()
        expect(page.locator("#log-words")).to_contain_text("lacks the scope admin")
        assert page.evaluate("document.documentElement.scrollWidth") == 390
        page.reload()
        expect(page.locator("#connection-words")).to_have_text("live")
        assert page.evaluate("localStorage.length") == 0
        assert page.context.cookies() == []
        page.get_by_role("button", name="Forget the token").click()
        expect(page.locator("#door-token")).to_be_focused()
