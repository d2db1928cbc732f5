"""Requests that the page answers: hosts, origins, the token and its cookie, and the headers of every answer."""

from __future__ import annotations

import re
from collections.abc import Iterator

import pytest
from starlette.testclient import TestClient

from orchestrator.watch.server.address import web_address
from orchestrator.watch.server.app import ASSETS, KINDS, WebParts, web_app
from orchestrator.watch.server.guard import AGAIN
from tests import lan
from tests.page_scene import RUN, PlayedWatch, played_parts

BASE = "http://127.0.0.1:8642"
TOKEN = "a-token-of-this-test"  # noqa: S105
SAME = {"origin": BASE}
PATHS = ["/", "/api/about", "/api/live", "/api/runs", "/api/curves?run=x", "/api/logs?run=x", "/api/search?words=x",
         "/api/checkpoints", "/api/findings", "/api/runs/x/why", "/assets/app.js", "/nowhere"]  # fmt: skip


@pytest.fixture
def parts() -> WebParts:
    return played_parts(PlayedWatch(lan.NAMES[:2]))


@pytest.fixture
def stranger(parts: WebParts) -> Iterator[TestClient]:
    """A browser that does not have the token."""
    app = web_app(parts, web_address("127.0.0.1", 8642, None, None), TOKEN)
    with TestClient(app, base_url=BASE, follow_redirects=False) as client:
        yield client


@pytest.fixture
def page(stranger: TestClient) -> TestClient:
    """A browser that has opened the printed address."""
    assert stranger.get(f"/?token={TOKEN}").status_code == 303
    return stranger


@pytest.mark.parametrize("path", PATHS)
def test_403_without_the_token(stranger: TestClient, path: str) -> None:
    for wanted in (path, f"{path}{'&' if '?' in path else '?'}token=wrong"):
        answer = stranger.get(wanted)
        assert answer.status_code == 403
        assert "orch dashboard" in answer.text


@pytest.mark.parametrize("path", PATHS[1:])
def test_the_token_opens_the_first_page_alone(stranger: TestClient, path: str) -> None:
    assert stranger.get(f"{path}{'&' if '?' in path else '?'}token={TOKEN}").status_code == 403


def test_the_token_becomes_a_cookie_and_leaves_the_address(stranger: TestClient) -> None:
    answer = stranger.get(f"/?token={TOKEN}")
    assert (answer.status_code, answer.headers["location"]) == (303, "/")
    cookie = answer.headers["set-cookie"]
    assert TOKEN not in cookie
    assert {"HttpOnly", "Path=/", "SameSite=strict"} <= set(cookie.split("; "))
    assert stranger.get("/").status_code == 200
    stranger.cookies.clear()
    assert stranger.get("/").status_code == 403


@pytest.mark.parametrize("of_another", [b'theme={"dark": 1}', b"seen", b"t\xf6=1", b'a="b'])
def test_a_cookie_of_another_port_is_no_obstacle(page: TestClient, of_another: bytes) -> None:
    own = "; ".join(f"{name}={value}" for name, value in page.cookies.items())
    assert page.get("/", headers={"cookie": of_another + b"; " + own.encode()}).status_code == 200


def test_the_cookie_of_another_dashboard_is_not_accepted(stranger: TestClient) -> None:
    other = web_app(played_parts(PlayedWatch(())), web_address("127.0.0.1", 8642, None, None), TOKEN)
    with TestClient(other, base_url=BASE, follow_redirects=False) as client:
        client.get(f"/?token={TOKEN}")
        (cookie,) = client.cookies.items()
    assert stranger.get("/", headers={"cookie": "=".join(cookie)}).status_code == 403
    assert stranger.get("/", headers={"cookie": "=; ;;a=\x01; ="}).status_code == 403


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8642", "127.0.0.1.evil.example", "", "10.0.0.1:8642", "[::1]:8642"]
)
@pytest.mark.parametrize("path", ["/", f"/?token={TOKEN}", "/api/runs"])
def test_403_for_another_host(page: TestClient, host: str, path: str) -> None:
    """A name of another site may lead to this computer: DNS rebinding."""
    assert page.get(path, headers={"host": host}).status_code == 403


@pytest.mark.parametrize("host", ["localhost:8642", "LOCALHOST:9000", "127.0.0.1:9000", "127.0.0.1"])
def test_a_tunnel_may_begin_at_another_port(page: TestClient, host: str) -> None:
    cookies = dict(page.cookies)
    answer = page.get("/", headers={"host": host, "cookie": "; ".join(f"{k}={v}" for k, v in cookies.items())})
    assert answer.status_code == 200


FOREIGN = [
    {}, {"origin": "http://evil.example"}, {"origin": "null"}, {"origin": "http://127.0.0.1:9999"},
    {"origin": "https://127.0.0.1:8642"}, {"origin": "http://localhost:8642"}, {**SAME, "sec-fetch-site": "cross-site"},
    {**SAME, "sec-fetch-site": "same-site"},
]  # fmt: skip


@pytest.mark.parametrize("headers", FOREIGN)
@pytest.mark.parametrize("path", [f"/api/runs/{RUN}/stop", "/api/findings"])
def test_403_for_a_foreign_post(page: TestClient, parts: WebParts, headers: dict[str, str], path: str) -> None:
    assert page.post(path, json={}, headers=headers).status_code == 403
    assert parts.actions.data() == []


@pytest.mark.parametrize("headers", [one for one in FOREIGN if one])
def test_403_for_data_that_a_foreign_page_asks_for(page: TestClient, headers: dict[str, str]) -> None:
    assert page.get("/api/runs", headers=headers).status_code == 403


LINK = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}


def test_a_link_of_another_site_opens_the_page_by_way_of_itself(stranger: TestClient) -> None:
    """Browsers send the cookie, which is strict, only with what the page itself asks for."""
    first = stranger.get(f"/?token={TOKEN}", headers=LINK, follow_redirects=False)
    assert (first.status_code, first.text) == (200, AGAIN)
    assert "samesite=strict" in first.headers["set-cookie"].lower()
    assert TOKEN not in first.text
    own = stranger.get("/", headers={"sec-fetch-site": "same-origin", "sec-fetch-mode": "navigate"})
    assert (own.status_code, own.text != AGAIN) == (200, True)


def test_a_link_without_the_token_asks_once_more_and_is_then_refused(stranger: TestClient) -> None:
    again = stranger.get("/", headers=LINK)
    assert (again.status_code, again.text, "set-cookie" in again.headers) == (200, AGAIN, False)
    assert stranger.get("/", headers={"sec-fetch-site": "same-origin"}).status_code == 403
    assert stranger.get("/?token=wrong", headers=LINK).status_code == 403
    for mode in ("cors", "no-cors"):  # a script or a picture of another site
        assert stranger.get("/", headers={**LINK, "sec-fetch-mode": mode}).status_code == 403


def test_a_link_of_another_site_shows_no_data(page: TestClient) -> None:
    assert page.get("/", headers={"sec-fetch-site": "cross-site"}).status_code == 200
    assert page.get("/api/logs?run=x", headers={"sec-fetch-site": "cross-site"}).status_code == 403


@pytest.mark.parametrize("method", ["PUT", "DELETE", "PATCH", "OPTIONS", "TRACE"])
def test_405_for_other_methods(page: TestClient, method: str) -> None:
    assert page.request(method, "/api/runs", headers=SAME).status_code == 405


@pytest.mark.parametrize("path", [f"/api/runs/{RUN}/stop", f"/api/runs/{RUN}/restart"])
def test_get_changes_nothing(page: TestClient, parts: WebParts, path: str) -> None:
    assert page.get(path).status_code == 405
    assert page.get("/api/findings").status_code == 200
    assert parts.actions.data() == []


@pytest.mark.parametrize("path", ["/", "/assets/app.js", "/api/runs", "/nowhere", "/api/curves?run=none"])
def test_every_answer_has_the_policy(page: TestClient, path: str) -> None:
    headers = page.get(path).headers
    policy = dict(part.strip().split(" ", 1) for part in headers["content-security-policy"].split(";"))
    assert policy["default-src"] == "'none'"
    assert {policy[name] for name in ("script-src", "style-src", "img-src", "connect-src")} == {"'self'"}
    assert policy["frame-ancestors"] == policy["base-uri"] == policy["form-action"] == "'none'"
    assert policy["require-trusted-types-for"] == "'script'"
    assert headers["x-content-type-options"] == "nosniff"
    assert headers["referrer-policy"] == "no-referrer"
    assert "access-control-allow-origin" not in headers
    assert headers["cache-control"] in ("no-store", "no-cache")


def test_403_has_the_policy_too(stranger: TestClient) -> None:
    assert "content-security-policy" in stranger.get("/").headers


def test_a_request_that_is_too_long(page: TestClient) -> None:
    assert page.get("/api/logs?run=" + "x" * 5000).status_code == 414
    answer = page.post(
        "/api/findings", content=b'{"a": "' + b"x" * 5000 + b'"}', headers={**SAME, "content-type": "application/json"}
    )
    assert answer.status_code == 400


def test_vendored_files_are_served_with_their_folder(page: TestClient) -> None:
    answer = page.get("/assets/vendor/uPlot.iife.min.js")
    assert (answer.status_code, answer.headers["content-type"]) == (200, "text/javascript; charset=utf-8")
    assert page.get("/assets/vendor/README.md").status_code == 404


@pytest.mark.parametrize("path", ["/assets/../app.py", "/assets/%2e%2e/app.py", "/assets//etc/passwd", "/assets/"])
def test_only_the_files_of_the_page_are_served(page: TestClient, path: str) -> None:
    assert page.get(path).status_code == 404


def test_the_files_load_and_hold_nothing_from_elsewhere() -> None:
    """No other host, no inline script or style, and no way from text to markup."""
    for file in (one for one in ASSETS.rglob("*") if one.suffix in KINDS):
        text = re.sub("http://www.w3.org/2000/svg|https://github.com/leeoniya/uPlot", "", file.read_text("utf-8"))
        assert "http:" not in text, file.name
        assert "https:" not in text, file.name
        assert "url(" not in text, file.name
        assert "@import" not in text, file.name
        pattern = r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|DOMParser|\beval\(|new Function|srcdoc"
        assert re.findall(pattern, text) == [], file.name
    page = (ASSETS / "index.html").read_text("utf-8")
    assert re.findall(r"\son\w+=|<style|style=|javascript:", page) == []
    assert re.findall(r"<script(?![^>]* src=)", page) == []
