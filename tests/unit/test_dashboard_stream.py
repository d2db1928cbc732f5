"""The stream of the page, from a server on loopback: snapshots, silence, reconnection, problems, its end."""

from __future__ import annotations

import http.client
import json
import socket
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from threading import Event, Thread
from typing import Any

import pytest

from orchestrator.fleet.connect import connecting_by
from orchestrator.fleet.runs.launch import launch
from orchestrator.nodes.probes import usage_probe
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.run import ContainerFacts
from orchestrator.specs.seen import seen_now
from orchestrator.state.facts import ContainerSeen, NodeUnanswered
from orchestrator.watch.live import LiveState
from orchestrator.watch.server import live
from orchestrator.watch.server import serving as serving_module
from orchestrator.watch.server.actions import PageActions
from orchestrator.watch.server.address import listening_socket, web_address
from orchestrator.watch.server.app import WebParts
from orchestrator.watch.server.live import LiveStream
from orchestrator.watch.server.serving import page_server, web_parts
from orchestrator.watch.terminal.feed import LiveFeed
from tests import lan
from tests.page_scene import PlayedWatch, played_parts

TOKEN = "t"  # noqa: S105
THREE = lan.NAMES[:3]


class Browser:
    """A page that has been opened, without its scripts."""

    def __init__(self, port: int) -> None:
        self.port = port
        self.cookie = ""
        with self.get(f"/?token={TOKEN}") as answer:
            self.cookie = (answer.getheader("set-cookie") or "").partition(";")[0]

    @contextmanager
    def get(self, path: str) -> Iterator[http.client.HTTPResponse]:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=20)
        with closing(connection):
            connection.request("GET", path, headers={"cookie": self.cookie} if self.cookie else {})
            with connection.getresponse() as answer:
                yield answer

    @contextmanager
    def stream(self) -> Iterator[Iterator[dict[str, Any]]]:
        with self.get("/api/live") as answer:
            assert answer.status == 200, answer.read()
            assert answer.getheader("content-type", "").startswith("text/event-stream")
            assert answer.getheader("content-encoding") is None
            yield (json.loads(line[6:]) for line in answer if line.startswith(b"data: "))

    def until(self, true: Callable[[dict[str, Any]], object]) -> dict[str, Any]:
        deadline = time.monotonic() + 20
        with self.stream() as snapshots:
            for shown in snapshots:
                if true(shown):
                    return shown
                assert time.monotonic() < deadline, shown
        raise AssertionError("the stream has ended")


@contextmanager
def serving(parts: WebParts) -> Iterator[Browser]:
    """A server for these parts, and a browser that has opened it."""
    address = web_address("127.0.0.1", 0, None, None)
    with listening_socket(address) as listening:
        server = page_server(parts, address, TOKEN)
        parts.feed.start()
        thread = Thread(target=server.run, kwargs={"sockets": [listening]})
        thread.start()
        try:
            yield Browser(listening.getsockname()[1])
        finally:
            server.handle_exit(2, None)
            parts.feed.close()
            thread.join(10)
            assert not thread.is_alive()


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "LOOK_S", 0.02)


def test_snapshots_come_and_a_silent_node_is_sent_at_once(quick: None) -> None:
    watch = PlayedWatch(THREE, pause_s=0.02)
    with serving(played_parts(watch, interval_s=3600)) as browser, browser.stream() as snapshots:
        first = next(snapshots)
        assert [node["name"] for node in first["nodes"]] == list(THREE)
        assert (first["actions"], first["problem"]) == ([], None)
        watch.silent.add("gamma")
        second = next(snapshots)  # an hour before the next regular one
        assert [node["silent"] for node in second["nodes"]] == [False, False, True]


def test_a_browser_that_connects_again_gets_the_current_snapshot(quick: None) -> None:
    watch = PlayedWatch(THREE, pause_s=0.02)
    with serving(played_parts(watch, interval_s=0.05)) as browser:
        seen = browser.until(lambda shown: shown["run"] and shown["run"]["step"])["run"]["step"]
        watch.silent.add("beta")  # the page is reloaded while a node dies
        shown = browser.until(lambda shown: shown["nodes"][1]["silent"])
        assert shown["run"]["step"] > seen
        assert shown["run"]["remaining_s"] is None
        assert shown["nodes"][1]["problem"] == "no answer in 5 s"
        watch.silent.clear()
        assert browser.until(lambda shown: not shown["nodes"][1]["silent"])["nodes"][1]["problem"] == ""


def test_what_happens_to_nodes_is_among_the_faults(quick: None) -> None:
    watch = PlayedWatch(THREE, pause_s=0.02)
    lost = NodeUnanswered(seen=seen_now(), node="beta", error="gone \x1b[31m")
    ended = ContainerFacts(id="c2", name="c", image="i", labels={}, status="exited", exit_code=9)
    watch.extra += [lost, ContainerSeen(seen=seen_now(), node="gamma", facts=ended)]
    with serving(played_parts(watch, interval_s=0.05)) as browser:
        shown = browser.until(lambda shown: len(shown["faults"]) == 3)
    assert not any("\x1b" in fault["text"] for fault in shown["faults"])
    assert (shown["run"]["state"], shown["run"]["severity"], shown["health"]["severity"]) == (
        "running", "error", "error",
    )  # fmt: skip


def test_no_run_and_no_nodes(quick: None) -> None:
    with serving(played_parts(PlayedWatch((), run_id="", pause_s=0.02), interval_s=0.05)) as browser:
        shown = browser.until(lambda shown: shown["looked"])
    assert (shown["run"], shown["nodes"]) == (None, [])


def test_a_fleet_of_fake_machines_with_a_run(quick: None) -> None:
    """The parts that `orch dashboard` has, on machines in memory of which one does not answer."""
    here = lan.lan(*THREE, ends_with=None, says=(lan.event("step", step=7, loss=2.5, final_step=70),))
    launch(here.nodes, lan.plan(THREE))
    here.nodes["gamma"].answers[("sh", "-c", usage_probe.SCRIPT, "*")] = NodeUnreachableError("off", node="gamma")
    with connecting_by(here.connect):
        parts = web_parts([lan.spec(name) for name in THREE], None, project="orch", inventory=None)
        with serving(parts) as browser:
            shown = browser.until(lambda shown: shown["run"] and shown["run"]["step"] and shown["nodes"][2]["silent"])
    assert (shown["run"]["state"], shown["run"]["step"], shown["run"]["progress"]) == ("running", 7, 0.1)
    assert shown["nodes"][0]["usage"]["cpu_percent"] == 25.0


def test_a_run_that_is_not_there_is_reported(quick: None) -> None:
    with connecting_by(lan.lan(*THREE).connect):
        parts = web_parts([lan.spec(name) for name in THREE], "nowhere", project="orch", inventory=None)
        with serving(parts) as browser:
            shown = browser.until(lambda shown: shown["problem"])
    assert "no run nowhere" in shown["problem"]["message"]
    assert shown["problem"]["hint"]


def test_an_action_is_part_of_the_snapshot(quick: None) -> None:
    may_end = Event()

    def perform(_words: object, hear: Callable[[str], object]) -> tuple[int, str]:
        hear("stopping run x")
        assert may_end.wait(20)
        return 5, ""

    parts = played_parts(PlayedWatch(THREE, pause_s=0.02), perform, interval_s=3600)
    with serving(parts) as browser, browser.stream() as snapshots:
        next(snapshots)
        parts.actions.begin("stop", "x")
        shown = next(one for one in snapshots if one["actions"] and one["actions"][0]["lines"])
        assert (shown["actions"][0]["code"], shown["actions"][0]["lines"]) == (None, ["stopping run x"])
        may_end.set()
        assert next(one for one in snapshots if one["actions"][0]["code"] is not None)["actions"][0]["code"] == 5


def test_streams_end_with_the_server(quick: None) -> None:
    with ExitStack() as opened:
        with serving(played_parts(PlayedWatch(THREE, pause_s=0.02))) as browser:
            snapshots = opened.enter_context(browser.stream())
            next(snapshots)
        assert all(one["nodes"] for one in snapshots)  # which ends


def test_too_many_pages(quick: None, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(live, "MOST_STREAMS", 1)
    with serving(played_parts(PlayedWatch(THREE, pause_s=0.02))) as browser:
        with browser.stream() as snapshots:
            next(snapshots)
            with browser.get("/api/live") as answer:
                assert answer.status == 503
        deadline, status = time.monotonic() + 20, 503
        while status != 200:  # the first one has left
            assert time.monotonic() < deadline
            with browser.get("/api/live") as answer:
                status = answer.status


def test_one_snapshot_serves_all_browsers_until_its_time() -> None:
    now = [0.0]
    feed = LiveFeed(lambda: None, LiveState(THREE))  # type: ignore[arg-type, return-value]  # it is not started
    stream = LiveStream(feed, PageActions(lambda _words, _hear: (0, "")).data, interval_s=2.0, clock=lambda: now[0])
    first = stream.current()
    now[0] = 1.9
    assert stream.current() is not None
    assert stream.current()[0] == first[0]
    now[0] = 2.1
    assert stream.current()[0] == first[0] + 1


def test_connections_without_a_request_are_closed_and_the_page_stays(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(serving_module, "REQUEST_S", 0.3)
    monkeypatch.setattr(serving_module, "MOST_CONNECTIONS", 4)
    with serving(played_parts(PlayedWatch(THREE))) as browser, ExitStack() as opened, browser.stream() as snapshots:
        next(snapshots)
        silent = [
            opened.enter_context(socket.create_connection(("127.0.0.1", browser.port), timeout=10)) for _ in range(6)
        ]
        silent[0].sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: ")
        assert [one.recv(1) for one in silent] == [b""] * 6
        with browser.get("/api/about") as answer:
            assert answer.status == 200
        next(snapshots)  # an answer may take longer than a request may be waited for
