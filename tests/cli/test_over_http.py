"""What the command line makes of a gateway that is away, refuses, or falls silent."""

import json
import re
import time
from typing import Any

import pytest
from typer.main import get_command

from bench.ports import free_ports
from cli.main import app
from cli.over_http import ADVICE
from tests.cli.groups import rsm
from tests.cli.scripted import DROP, HANG, Answer, endpoint, events, problem

WRITTEN = Answer(200, b'{"key": "k", "revision": 7, "created": 3, "version": 2}', {"ETag": '"7"'})
READ = Answer(200, b"hello", {"ETag": '"7"', "X-Rsm-Created": "3", "X-Rsm-Version": "2"})


def nobody() -> str:
    return f"http://127.0.0.1:{free_ports(1)[0]}"


def test_when_a_gateway_is_away_for_a_moment_then_a_write_is_repeated_under_one_key() -> None:
    with endpoint(problem(503, "no_primary"), DROP, problem(504, "outcome_unknown"), WRITTEN) as served:
        done = rsm("kv", "put", "k", "hello", "--endpoint", served.url)
    assert (done.returncode, done.stdout) == (0, "written: revision 7, version 2\n"), done.stderr
    assert len(served.seen) == 4
    assert len({each.headers["idempotency-key"] for each in served.seen}) == 1
    assert {(each.line, each.body) for each in served.seen} == {("PUT /v1/kv/k HTTP/1.1", b"hello")}


def test_when_a_gateway_says_when_to_come_back_then_it_is_not_asked_before() -> None:
    with endpoint(problem(429, "overloaded", **{"Retry-After": "1"}), READ) as served:
        done = rsm("kv", "get", "k", "--endpoint", served.url)
    assert (done.returncode, done.stdout) == (0, "hello"), done.stderr
    first, second = (each.at for each in served.seen)
    assert second - first >= 0.99


def test_when_it_says_to_come_back_later_than_there_is_time_then_it_ends_in_time() -> None:
    with endpoint(problem(429, "overloaded", **{"Retry-After": "30"})) as served:
        began = time.monotonic()
        done = rsm("kv", "get", "k", "--endpoint", served.url, "--timeout", "0.3")
        assert time.monotonic() - began < 5
    assert (done.returncode, done.stdout) == (5, "")
    assert "overloaded: It is so: so it is; repeat it later" in done.stderr


def test_when_nobody_is_there_then_the_exit_code_is_5_and_the_next_step_is_named() -> None:
    done = rsm("kv", "put", "k", "v", "--endpoint", nobody(), "--timeout", "0.3")
    assert done.returncode == 5
    assert "does a gateway run there? see --endpoint, RSM_ENDPOINT" in done.stderr


@pytest.mark.parametrize("trouble", [DROP, HANG, problem(504, "outcome_unknown")])
def test_when_no_answer_comes_then_a_write_is_unknown_and_a_read_not_served(
    trouble: Answer | str,
) -> None:
    with endpoint(trouble) as served:
        wrote = rsm("kv", "put", "k", "v", "--endpoint", served.url, "--timeout", "0.3", "--once", "mine")
        read = rsm("kv", "get", "k", "--endpoint", served.url, "--timeout", "0.3")
    assert wrote.returncode == 4
    assert "repeat the same with --once mine: it is carried out once" in wrote.stderr
    assert (read.returncode, read.stdout) == (5, "")


def test_when_one_try_may_have_been_carried_out_then_the_outcome_stays_unknown() -> None:
    with endpoint(DROP, problem(503, "no_primary")) as served:
        done = rsm("kv", "put", "k", "v", "--endpoint", served.url, "--timeout", "0.5")
    assert len(served.seen) > 1
    assert done.returncode == 4


def test_when_the_first_endpoint_is_dead_or_paused_then_the_next_is_asked() -> None:
    with endpoint(HANG) as paused, endpoint(READ) as served:
        named = f"{nobody()},{paused.url}"
        done = rsm("kv", "get", "k", "--endpoint", named, "--endpoint", served.url, "--timeout", "3")
    assert (done.returncode, done.stdout) == (0, "hello"), done.stderr


def test_when_a_value_is_shown_as_json_then_with_what_is_known_of_it() -> None:
    with endpoint(READ) as served:
        done = rsm("kv", "get", "k", "--endpoint", served.url, "-o", "json")
    assert json.loads(done.stdout) == {
        "key": "k", "value": "hello", "revision": 7, "created": 3, "version": 2, "lease": None
    }  # fmt: skip


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        (problem(412, "conflict"), 1, "conflict: It is so: so it is; read it again"),
        (problem(401, "unauthenticated"), 1, "RSM_TOKEN"),
        (problem(400, "bad_request"), 2, "bad_request: It is so: so it is"),
        (problem(413, "too_large"), 2, "too_large"),
        (problem(500, "defect"), 4, "this is a bug"),
        (Answer(404, b"<html>"), 1, "404: Not Found"),
    ],
)
def test_when_a_write_is_refused_then_the_exit_code_says_how(answer: Answer, code: int, words: str) -> None:
    with endpoint(answer) as served:
        done = rsm("kv", "put", "k", "v", "--endpoint", served.url)
    assert len(served.seen) == 1
    assert (done.returncode, done.stdout) == (code, "")
    assert words in done.stderr


def test_when_fields_of_a_body_are_wrong_then_each_is_named() -> None:
    said = {"code": "invalid", "detail": "of another shape", "errors": [{"place": "then.0", "words": "no"}]}
    with endpoint(Answer(422, json.dumps(said).encode())) as served:
        done = rsm("kv", "txn", "-", "--endpoint", served.url, given="{}")
    assert done.returncode == 2
    assert "of another shape; then.0: no" in done.stderr


@pytest.mark.parametrize("advice", [words for words in ADVICE.values() if "rsm " in words])
def test_when_the_next_step_is_a_command_then_there_is_one(advice: str) -> None:
    command: Any = get_command(app)
    for word in re.findall(r"rsm ((?:[a-z]+ ?)+)", advice)[0].split():
        if not hasattr(command, "commands") or word not in command.commands:
            break
        command = command.commands[word]
    assert not hasattr(command, "commands")


def test_when_a_token_is_given_then_it_is_sent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RSM_TOKEN", "rsm_secret")
    with endpoint(READ) as served:
        monkeypatch.setenv("RSM_ENDPOINT", served.url)
        assert rsm("kv", "get", "k").returncode == 0
    assert served.seen[0].headers["authorization"] == "Bearer rsm_secret"


def change(revision: int, value: str) -> dict[str, object]:
    return {"event": "put", "key": "k", "value": value, "revision": revision, "version": 1, "created": 1}


def test_when_a_watch_breaks_off_then_it_goes_on_and_shows_each_event_once() -> None:
    first = events(
        ("ready", {}, "4"),
        ("put", change(5, "a"), "5"),
        ("put", change(6, "b"), ""),  # of a transaction whose other half is lost on the way
    )
    second = events(("put", change(6, "b"), ""), ("put", change(6, "c"), "6"), ("put", change(7, "d"), "7"))
    with endpoint(first, problem(503, "stopping"), second) as served:
        done = rsm("kv", "watch", "k", "--since", 4, "--limit", 4, "-o", "json", "--endpoint", served.url)
    assert done.returncode == 0, done.stderr
    assert [json.loads(line)["value"] for line in done.stdout.splitlines()] == ["a", "b", "c", "d"]
    assert served.seen[0].line == "GET /v1/watch?key=k&since=4 HTTP/1.1"
    assert [each.headers.get("last-event-id") for each in served.seen] == [None, "5", "5"]


def test_when_a_watch_asks_for_what_is_forgotten_then_it_ends_with_the_next_step() -> None:
    with endpoint(problem(410, "compacted")) as served:
        done = rsm("kv", "watch", "--prefix", "a", "--since", 4, "--endpoint", served.url)
    assert (done.returncode, done.stdout) == (1, "")
    assert "begin behind a later revision, or without --since" in done.stderr


def test_when_a_watch_finds_nobody_for_its_timeout_then_it_gives_up() -> None:
    with endpoint(events(("put", change(5, "a"), "5"))) as served:
        url = served.url
        done = rsm("kv", "watch", "k", "--limit", 1, "--endpoint", url)
        assert done.returncode == 0
    gone = rsm("kv", "watch", "k", "--endpoint", url, "--timeout", "0.3")
    assert gone.returncode == 5


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("get", "k", "--endpoint", "ftp://x"), "must be a URL"),
        (("get", "k", "--ca", "/no/such"), "no such file"),
        (("get", "zz", "--hex"), "no hexadecimal"),
        (("put", "k"), "give one of them"),
        (("put", "k", "v", "--create", "--if-match", "3"), "give one of them"),
        (("put", "k", "v", "--if-match", "x"), "must be a revision"),
        (("put", "k", "--file", "/no/such"), "No such file"),
        (("del",), "give one of them"),
        (("watch", "k", "--prefix", "k"), "give one of them"),
    ],
)
def test_when_a_call_is_wrong_then_nobody_is_asked(words: tuple[str, ...], said: str) -> None:
    done = rsm("kv", *words)
    assert done.returncode == 2
    assert said in done.stderr
