"""The description of the API as a page: complete, and all of it from the gateway."""

import re
from html.parser import HTMLParser
from pathlib import Path

from api.reference import page_of
from tests.api.gateways import Place, ask, problem
from tests.api.test_security import token_file

ELSEWHERE = re.compile(r"(?i)https?:|['\"(]\s*//|@import|url\(")
EMPTY = {"meta", "link", "input", "br"}


class Parsed(HTMLParser):
    """What is in a page, and whether all that is opened is closed."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.attributes: list[tuple[str, str, str]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.attributes += [(tag, name, value or "") for name, value in attrs]
        if tag not in EMPTY:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def all(self, name: str) -> list[str]:
        return [value for _, each, value in self.attributes if each == name]


def test_when_the_page_is_asked_for_then_it_has_every_operation_and_nothing_from_elsewhere() -> None:
    async def check(place: Place) -> None:
        http = place.http
        answer = await http.get("/docs")
        assert answer.status_code == 200
        assert answer.headers["content-type"] == "text/html; charset=utf-8"
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none';")
        assert "unsafe" not in policy
        assert not ELSEWHERE.search(answer.text)
        page = Parsed(answer.text)
        described = (await http.get("/openapi.json")).json()
        operations = [each for path in described["paths"].values() for each in path.values()]
        ids = page.all("id")
        assert len(set(ids)) == len(ids)
        assert {each["operationId"] for each in operations} <= set(ids)
        for path in described["paths"]:
            assert f"<code>{path}</code>" in answer.text
        assert {each[1:] for each in page.all("href") if each.startswith("#")} <= set(ids)
        assert not [name for _, name, _ in page.attributes if name.startswith("on") or name == "style"]
        files = [each for each in (*page.all("src"), *page.all("href")) if each[0] != "#"]
        assert files == ["/docs/reference.js", "/docs/reference.css", "/openapi.json"]
        for file, kind in (("/docs/reference.js", "text/javascript"), ("/docs/reference.css", "text/css")):
            found = await http.get(file)
            assert found.status_code == 200
            assert found.headers["content-type"].startswith(kind)
            assert not ELSEWHERE.search(found.text)
        problem(await http.get("/docs/other.js"), 404, "not_found")
        problem(await http.post("/docs"), 405, "method_not_allowed")

    ask(check, sites=1)


def test_when_an_operation_only_reads_then_it_can_be_tried_and_streams_cannot() -> None:
    async def check(place: Place) -> None:
        page = Parsed((await place.http.get("/docs")).text)
        tried = set(page.all("data-path"))
        described = (await place.http.get("/openapi.json")).json()["paths"]
        reads = {path for path, operations in described.items() if "get" in operations}
        assert tried == reads - {"/v1/watch", "/v1/cluster/events"}
        assert "token" not in page.all("id")

    ask(check, sites=1)


def test_when_there_are_tokens_then_the_page_needs_none_and_takes_one(tmp_path: Path) -> None:
    file, _ = token_file(tmp_path)

    async def check(place: Place) -> None:
        for path in ("/docs", "/docs/reference.js", "/docs/reference.css"):
            assert (await place.http.get(path)).status_code == 200
        answer = await place.http.get("/docs")
        assert "token" in Parsed(answer.text).all("id")
        assert "Authorization: Bearer $RSM_TOKEN" in answer.text

    ask(check, sites=1, tokens=file)


def test_when_words_look_like_html_then_they_are_words() -> None:
    evil = '<script>`a` & "b"</script>'
    operation = {
        "operationId": 'o" onclick="x',
        "summary": evil,
        "tags": ["keys"],
        "parameters": [{"name": evil, "in": "path", "description": evil, "example": evil, "schema": {}}],
        "responses": {"200": {"description": evil, "headers": {"X": {"description": evil}}}},
    }
    text = page_of(
        {
            "info": {"title": evil, "version": evil, "description": evil},
            "paths": {"/<b>": {"get": operation}},
            "components": {"schemas": {}},
        }
    )
    page = Parsed(text)
    assert text.count("<script") == 1
    assert "onclick" not in {name for _, name, _ in page.attributes}
