"""`orch tensorboard` on machines in memory whose files are real, with a TensorBoard of the test on the PATH."""

from __future__ import annotations

import re
import socket
import sys
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from http.client import HTTPConnection, HTTPResponse
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from urllib.parse import urlsplit

import pytest

from orchestrator.cli import main
from orchestrator.cli import tensorboard as command
from orchestrator.fleet import tensorboard as files
from orchestrator.fleet.connect import connecting_by
from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.store.run_record import RunRecord
from orchestrator.watch.server.address import web_address
from tests import lan
from tests.shelves import RUN, Shelves
from tests.unit.conftest import Ran

NAME = "events.out.tfevents.1767366000.alpha.7.0"
OTHER = "0102-1504-cd34"
# The program sees the copies, adds to the file on the node, ends the command once that is copied, and notes
# what ended it.
SHOWS = f"""#!{sys.executable}
import glob, os, signal, socket, sys, time
def ended(*_signal):
    open("{{notes}}", "a").write("ended\\n")
    sys.exit(0)
signal.signal(signal.SIGTERM, ended)
shown = sorted(glob.glob("*/*/**/events*", recursive=True))
open("{{notes}}", "w").write(" ".join(sys.argv[3:]) + "\\n" + " ".join(shown) + "\\n")
listening = socket.socket(socket.AF_UNIX)
listening.bind(sys.argv[6].removeprefix("unix://"))
open("{{added}}", "ab").write(b"more")
deadline = time.monotonic() + 60
while open("{RUN}/alpha/{NAME}", "rb").read() != b"figuresmore" and time.monotonic() < deadline:
    time.sleep(0.02)
os.kill(os.getppid(), signal.{{how}})
signal.pause()
"""


@dataclass(frozen=True)
class Scene:
    """Machines with runs, the folder of the copies, and the program that is on the PATH."""

    machines: Shelves
    copies: Path
    programs: Path
    orch: Callable[..., Ran]

    def write(self, node: str, path: str, content: str = "figures", run: str = RUN) -> Path:
        file = self.machines.root(node) / "runs" / run / path
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(content)
        return file

    def install(self, text: str, name: str = "python-of-it") -> None:
        """A program on the PATH; in place of the Python that a `tensorboard` there begins with."""
        if name == "python-of-it":
            self.install(f"#!{self.programs / name}\n", "tensorboard")
        (self.programs / name).write_text(text)
        (self.programs / name).chmod(0o755)


@pytest.fixture
def scene(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]) -> Scene:
    here = Shelves(tmp_path / "machines")
    for name in ("user", "programs"):
        (tmp_path / name).mkdir()
    monkeypatch.chdir(tmp_path / "user")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    monkeypatch.setattr(command, "START_S", 0.02)
    monkeypatch.setattr(command, "EVERY_S", 0.05)
    nodes = [f"  {spec.name}: {{address: {spec.address}, workspace: {spec.workspace}}}" for spec in here.specs]
    Path("inventory.yaml").write_text("\n".join(["project: orch", "nodes:", *nodes, ""]))

    def run(*argv: str) -> Ran:
        with connecting_by(here.connect), monkeypatch.context() as changed:
            changed.setenv("PATH", f"{tmp_path / 'programs'}:/usr/bin:/bin")
            code = main(["tensorboard", *argv])
        written = capfd.readouterr()
        assert "Traceback" not in written.err
        return Ran(code, written.out, written.err)

    return Scene(here, tmp_path / "cache" / "orch" / "tensorboard", tmp_path / "programs", run)


@pytest.mark.parametrize("how", ["SIGINT", "SIGTERM"])
def test_files_of_all_nodes_are_shown_and_then_what_is_added(scene: Scene, tmp_path: Path, how: str) -> None:
    added = scene.write("alpha", f"tensorboard/{NAME}")
    scene.write("beta", "code/lightning_logs/v 1/events.out.tfevents.2", run=OTHER)
    scene.write("beta", "code/train.py", run=OTHER)
    notes = tmp_path / "notes"
    scene.install(SHOWS.format(notes=notes, added=added, how=how))
    ran = scene.orch(RUN, OTHER[:12])
    assert ran.code == 0, ran.err
    options, shown, end = notes.read_text().splitlines()
    place = re.fullmatch(r"--logdir \. --host unix://(/.+)/socket --port 0 --load_fast false", options)
    assert place
    assert not Path(place[1]).exists()
    assert re.fullmatch(r"http://127\.0\.0\.2:[0-9]+/\?token=[\w-]{32}\n", ran.out)
    assert shown == f"{RUN}/alpha/{NAME} {OTHER}/beta/code/lightning_logs/v 1/events.out.tfevents.2"
    assert end == "ended"
    assert (scene.copies / RUN / "alpha" / NAME).read_text() == "figuresmore"
    assert f"event files: {scene.copies / RUN}\n" in ran.err
    assert not list(scene.copies.rglob("*.py"))


def test_only_what_was_added_is_read(scene: Scene) -> None:
    scene.install("#!/bin/sh\nexit 3\n")
    scene.write("alpha", f"tensorboard/{NAME}", "first")
    alpha = scene.machines.nodes["alpha"]
    assert scene.orch(RUN).code == 1
    scene.write("alpha", f"tensorboard/{NAME}", "firstsecond")
    alpha.calls.clear()
    scene.orch(RUN)
    scene.orch(RUN)
    assert [argv[2] for argv in alpha.calls if argv[0] == "tail"] == ["+6"]
    assert (scene.copies / RUN / "alpha" / NAME).read_text() == "firstsecond"


@pytest.mark.parametrize("name", ["python-of-it", "python", "python3"])
def test_a_tensorboard_that_is_missing_or_ends(scene: Scene, name: str) -> None:
    """The user's Python is tried if none is on the PATH, away from the folder that the user is in."""
    if name == "python3" and any((folder / "tensorboard").exists() for folder in map(Path, ("/usr/bin", "/bin"))):
        pytest.skip("this computer has a TensorBoard")
    if name == "python":
        scene.install("#!/bin/sh\n# a path that is too long for a first line\n", "tensorboard")
    scene.install('#!/bin/sh\necho "$0 $1, in $PWD" >&2\nexit 3\n', name)
    scene.write("alpha", f"tensorboard/{NAME}")
    ran = scene.orch(RUN)
    assert ran.code == 1
    assert "error: TensorBoard ended with exit code 3\n  → not installed? uv tool install tensorboard" in ran.err
    assert f"event files: {scene.copies / RUN}\n" in ran.err
    assert f"{scene.programs / name} -c, in " in ran.err
    assert f"in {Path.cwd()}\n" not in ran.err


def test_a_run_in_a_folder_of_its_own(scene: Scene, tmp_path: Path) -> None:
    """Example: `--engine process`, whose plan says where it is, for `orch pull`, too."""
    scene.install("#!/bin/sh\nexit 3\n")
    record = RunRecord(RUN)
    specs = [lan.spec("alpha", workspace=str(tmp_path / "elsewhere"))]
    record.save_plan(replace(lan.plan_of(*specs), run_id=RUN))
    file = tmp_path / "elsewhere" / "orch" / "runs" / RUN / NAME
    file.parent.mkdir(parents=True)
    file.write_text("figures")
    assert scene.orch(RUN).code == 1
    assert (scene.copies / RUN / "alpha" / NAME).read_text() == "figures"
    with connecting_by(scene.machines.connect):
        assert main(["pull", RUN]) == 0
    assert Path("runs", RUN, NAME).read_text() == "figures"


def test_refusals(scene: Scene) -> None:
    scene.install("#!/bin/sh\nexit 3\n")
    scene.write("alpha", "metrics.jsonl")
    without = scene.orch(RUN)
    assert (without.code, f"no TensorBoard files of {RUN}" in without.err) == (3, True)
    assert "error: no node that answered has event files\n  → orch runs" in without.err
    assert scene.orch("unknown").code == 3
    scene.write("beta", f"tensorboard/{NAME}", run=OTHER)
    assert f"note: no TensorBoard files of {RUN}" in scene.orch(RUN, OTHER).err
    with socket.create_server(("127.0.0.2", 0)) as taken:
        ran = scene.orch(OTHER, "--port", str(taken.getsockname()[1]))
    assert (ran.code, "cannot be listened on" in ran.err) == (6, True)


class Board(BaseHTTPRequestHandler):
    """A TensorBoard: notes what it was asked, and answers with a page and a cookie of its own."""

    def do_POST(self) -> None:
        self.server.asked.append((self.path, dict(self.headers), self.rfile.read(int(self.headers["content-length"]))))  # type: ignore[attr-defined]  # its own attribute
        self.answer()

    def do_GET(self) -> None:
        self.server.asked.append((self.path, dict(self.headers), b""))  # type: ignore[attr-defined]  # its own attribute
        self.answer()

    def answer(self) -> None:
        self.send_response(200)
        self.send_header("content-type", "text/html")
        self.send_header("content-security-policy", "default-src 'self'")
        self.send_header("set-cookie", "theirs=1")
        self.end_headers()
        self.wfile.write(b"page " * 50_000)

    def address_string(self) -> str:
        return "socket"

    def log_message(self, *_: object) -> None:
        """Nothing on stderr."""


class SocketServer(ThreadingHTTPServer):
    """HTTP on a socket file."""

    address_family = socket.AF_UNIX

    def server_bind(self) -> None:
        self.asked: list[tuple[str, dict[str, str], bytes]] = []
        self.socket.bind(self.server_address)  # type: ignore[arg-type]  # a path
        self.server_name, self.server_port = "socket", 0


@pytest.fixture
def board(tmp_path: Path) -> Iterator[tuple[SocketServer, str]]:
    """A TensorBoard on a socket file, and the address of the guard before it."""
    with TemporaryDirectory() as folder:  # of a short path, as such a file needs
        server = SocketServer(folder + "/socket", Board)  # type: ignore[arg-type]  # a path is its address
        thread = Thread(target=server.serve_forever, args=(0.01,))
        thread.start()
        try:
            with command._guarded(Path(folder, "socket"), 0) as (url, _):
                yield server, url
        finally:
            server.shutdown()
            server.server_close()
            thread.join()


def ask(url: str, path: str = "/", method: str = "GET", **headers: str) -> HTTPResponse:
    place = urlsplit(url)
    connection = HTTPConnection(place.hostname or "", place.port, timeout=20)
    with closing(connection):
        body = b"x" if method == "POST" else None
        connection.request(method, path, body, {name.replace("_", "-"): value for name, value in headers.items()})
        answer = connection.getresponse()
        answer.text = answer.read().decode()  # type: ignore[attr-defined]  # its own attribute
    return answer


def test_the_token_opens_it_and_requests_pass(board: tuple[SocketServer, str]) -> None:
    server, url = board
    first = ask(url, "/?" + urlsplit(url).query)
    assert (first.status, first.getheader("location"), server.asked) == (303, "/", [])
    cookie = str(first.getheader("set-cookie")).partition(";")[0]
    page = ask(url, "/data/x%2Fy?run=a%20b", cookie=cookie, accept_encoding="gzip")
    assert (page.status, page.text) == (200, "page " * 50_000)  # type: ignore[attr-defined]  # its own attribute
    assert (page.getheader("set-cookie"), page.getheader("content-security-policy")) == (None, "default-src 'self'")
    assert page.getheader("x-frame-options") == "SAMEORIGIN"
    origin = url.partition("/?")[0]
    assert ask(url, "/data", "POST", cookie=cookie, origin=origin).status == 200
    (path, headers, _), (_, _, body) = server.asked
    assert (path, headers["accept-encoding"], body) == ("/data/x%2Fy?run=a%20b", "gzip", b"x")
    assert "cookie" not in {name.lower() for name in headers}


@pytest.mark.parametrize(
    ("path", "headers"),
    [
        ("/data/runs", {}),  # another user of this computer
        ("/?token=guessed", {}),
        ("/data/runs", {"host": "evil.example"}),  # a page that has bound its name to this address
        ("/data/runs", {"host": "127.0.0.1"}),  # the name that holds the cookie of the dashboard
        ("/data/runs", {"origin": "http://evil.example"}),
        ("/data/runs", {"sec_fetch_site": "cross-site"}),
        ("/data/runs", {"sec_fetch_site": "same-site"}),  # a page of another port
    ],
)
def test_no_other_user_reads_it(board: tuple[SocketServer, str], path: str, headers: dict[str, str]) -> None:
    server, url = board
    if headers:  # with the cookie, which such a request does not even have
        opened = ask(url, "/?" + urlsplit(url).query)
        headers = {"cookie": str(opened.getheader("set-cookie")).partition(";")[0], **headers}
    answer = ask(url, path, **headers)
    if path == "/?token=guessed":
        assert (answer.status, answer.getheader("set-cookie")) == (403, None)
    assert (answer.status, server.asked) == (403, [])
    assert "page" not in answer.text.split("\n")[1:]  # type: ignore[attr-defined]  # its own attribute


def test_it_has_another_host_than_the_dashboard(board: tuple[SocketServer, str]) -> None:
    """A cookie without a domain goes to the host that has set it, on every port."""
    _, url = board
    assert urlsplit(url).hostname == "127.0.0.2"
    assert not web_address("127.0.0.1", 0, None, None).answers_to("127.0.0.2")
    assert "domain" not in str(ask(url, "/?" + urlsplit(url).query).getheader("set-cookie")).lower()


def test_the_socket_file_is_for_its_user_alone(scene: Scene, tmp_path: Path) -> None:
    modes = tmp_path / "modes"
    scene.install(f'#!/bin/sh\nstat -c %a "$(dirname "${{6#unix://}}")" > {modes}\nexit 3\n')
    scene.write("alpha", f"tensorboard/{NAME}")
    assert scene.orch(RUN).code == 1
    assert modes.read_text() == "700\n"


def test_a_tensorboard_that_does_not_answer_any_more() -> None:
    with command._guarded(Path("/nowhere/socket"), 0) as (url, _):
        opened = ask(url, "/?" + urlsplit(url).query)
        cookie = str(opened.getheader("set-cookie")).partition(";")[0]
        assert ask(url, "/", cookie=cookie).status == 502
        long = {"content_length": "3000000", "origin": url.partition("/?")[0]}
        assert ask(url, "/", "POST", cookie=cookie, **long).status == 413


def hostile(listed: str, content: str = "x" * 1000) -> Callable[..., Answer]:
    """Programs of a node that answers what it likes."""

    def answer(argv: object, _stdin: bytes, _timeout_s: float) -> Answer:
        return 0, content if "tail" in str(argv)[:8] else listed, ""

    return answer


def test_a_node_that_lies(scene: Scene, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """No name leaves the folder, no other file comes, and never more bytes than announced or than fit."""
    names = (
        "../events.out.tfevents.1", "/events.out.tfevents.2", "a/../../events.out.tfevents.3", "state.pt",
        "events.out.tfevents.4/state.pt", "x/./events.out.tfevents.5", "tensorboard/events.out.tfevents.ok",
    )  # fmt: skip
    listed = "P/w\0" + "".join(f"F5 8 1767366000.0 {name}\0" for name in names)
    node = FakeNode("alpha", programs=hostile(listed))
    monkeypatch.setattr(files, "run_with_files", lambda *_: RUN)
    problems: list[str] = []
    event_files = files.EventFiles([node], {"": {"alpha": "/w"}})
    event_files.copy(problems.append)
    assert problems == []
    written = [path for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert written == [scene.copies / RUN / "alpha" / "events.out.tfevents.ok"]
    assert written[0].read_text() == "xxxxx"
    node.programs = hostile("P/w\0F900000 8 1767366000.0 events.out.tfevents.ok\0")
    monkeypatch.setattr(files, "SPARE", 1 << 60)
    event_files.copy(problems.append)
    assert re.match("note: .*MiB are free in", problems[0])
    assert written[0].stat().st_size == 5
