"""The page and its parts as they are served; what they do is seen in tests/browser."""

import re
from html.parser import HTMLParser
from pathlib import Path

import pytest

from api.routes.dashboard import ASSETS, FOLDER
from tests.api.gateways import Place, ask, problem
from tests.api.test_security import token_file

SCRIPTS = sorted(name for name in ASSETS if name.endswith(".js"))
NAMESPACE = "http://www.w3.org/2000/svg"  # names a language, and is never fetched
ELSEWHERE = re.compile(r"""(?:https?:)?//[\w.-]+\.\w+|@import|url\((?!#)""")
UNSAFE = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\b|new Function|localStorage|cookie"
)


def text_of(name: str) -> str:
    return ASSETS[name].body.decode()


def test_when_the_root_is_asked_for_then_it_leads_to_the_page() -> None:
    async def check(place: Place) -> None:
        home = await place.http.get("/")
        assert (home.status_code, home.headers["location"]) == (307, "/dashboard/")
        page = await place.http.get("/dashboard/")
        assert page.status_code == 200
        assert page.headers["content-type"] == "text/html; charset=utf-8"
        assert page.content == ASSETS["index.html"].body
        policy = page.headers["content-security-policy"]
        assert "default-src 'none'" in policy
        assert "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy
        assert page.headers["x-content-type-options"] == "nosniff"
        assert page.headers["referrer-policy"] == "no-referrer"
        problem(await place.http.get("/dashboard/nothing.js"), 404, "not_found")
        problem(await place.http.get("/dashboard/..%2fapp.py"), 404, "not_found")
        problem(await place.http.get("/dashboard/?x=1"), 400, "bad_request")
        problem(await place.http.post("/dashboard/"), 405, "method_not_allowed")

    ask(check, sites=1)


def test_when_a_part_is_asked_for_again_then_it_is_sent_only_if_it_has_changed() -> None:
    async def check(place: Place) -> None:
        for name, asset in ASSETS.items():
            found = await place.http.get(f"/dashboard/{name}")
            assert found.content == asset.body
            assert found.headers["cache-control"] == "no-cache"
            headers = {"if-none-match": found.headers["etag"]}
            same = await place.http.get(f"/dashboard/{name}", headers=headers)
            assert (same.status_code, same.content) == (304, b"")
            head = await place.http.head(f"/dashboard/{name}")
            assert (head.status_code, head.content) == (200, b"")
            assert head.headers["content-length"] == str(len(asset.body))
            other = await place.http.get(f"/dashboard/{name}", headers={"if-none-match": '"0"'})
            assert other.status_code == 200

    ask(check, sites=1)


def test_when_there_are_tokens_then_the_page_is_open_and_what_it_shows_is_not(tmp_path: Path) -> None:
    path, headers = token_file(tmp_path)

    async def check(place: Place) -> None:
        assert (await place.http.get("/")).status_code == 307
        for name in ["", *ASSETS]:
            assert (await place.http.get(f"/dashboard/{name}")).status_code == 200
        problem(await place.http.get("/dashboard/other"), 401, "unauthenticated")
        problem(await place.http.get("/v1/cluster/events"), 401, "unauthenticated")
        problem(await place.http.get("/v1/cluster/events", headers=headers["write"]), 403, "forbidden")
        async with place.http.stream("GET", "/v1/cluster/events", headers=headers["read"]) as answer:
            assert answer.status_code == 200

    ask(check, sites=1, tokens=path)


# -- what the policy would refuse ----------------------------------------------------------------


class Markup(HTMLParser):
    """Finds what is inline, and what is loaded."""

    def __init__(self) -> None:
        super().__init__()
        self.inline: list[str] = []
        self.loaded: list[str] = []
        self._in = ""

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self._in = tag
        for name, value in attrs:
            if name == "style" or name.startswith("on"):
                self.inline.append(f"{tag} {name}")
            if name in {"src", "href"} and tag in {"script", "link", "img"}:
                self.loaded.append(value or "")

    def handle_data(self, data: str) -> None:
        if self._in in {"script", "style"} and data.strip():
            self.inline.append(data)


def test_when_all_files_of_the_folder_are_listed_then_each_is_served() -> None:
    assert {path.name for path in FOLDER.iterdir()} == set(ASSETS)


@pytest.mark.parametrize("name", sorted(ASSETS))
def test_no_part_names_anything_elsewhere_or_makes_markup_of_text(name: str) -> None:
    text = text_of(name).replace(NAMESPACE, "")
    assert ELSEWHERE.findall(text) == []
    assert UNSAFE.findall(text) == []


def test_nothing_is_inline_and_all_that_is_loaded_is_here() -> None:
    markup = Markup()
    markup.feed(text_of("index.html"))
    assert markup.inline == []
    assert set(markup.loaded) == {"icon.svg", "style.css", "main.js"}
    imported = {each for name in SCRIPTS for each in re.findall(r'from "\./(.+?)"', text_of(name))}
    assert imported | {"main.js"} == set(SCRIPTS)


def test_what_would_be_refused_is_found() -> None:
    markup = Markup()
    markup.feed('<p onclick="x()" style="a">b</p><script>let c;</script><style>d</style>')
    assert len(markup.inline) == 4
    for text in ('import "https://cdn.example/x.js"', "src=//cdn.example/x", "url(x.png)", '@import "x"'):
        assert ELSEWHERE.search(text), text
    assert UNSAFE.search("element.innerHTML = text")


def test_every_element_that_scripts_ask_for_is_there() -> None:
    ids = set(re.findall(r'id="([\w-]+)"', text_of("index.html")))
    asked = {each for name in SCRIPTS for each in re.findall(r'byId\("([\w-]+)"\)', text_of(name))}
    assert asked <= ids, asked - ids
