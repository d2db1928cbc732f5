"""A server on loopback that answers like the Hugging Face hub, and like a server of plain files."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from urllib.parse import unquote, urlsplit

COMMIT = "c0" * 20
REPO = "ana/tiny-es"


@dataclass
class Hub:
    """One repository, and plain files by path."""

    files: dict[str, bytes] = field(default_factory=dict)
    large: frozenset[str] = frozenset({"model.safetensors"})
    """Files that the repository holds in large-file storage: these have a SHA-256."""
    plain: dict[str, bytes] = field(default_factory=dict)
    token: str = ""
    """Token; if set, requests without it are refused."""
    breaks_after: dict[str, int] = field(default_factory=dict)
    """Bytes after which the connection of each answer for this file ends."""
    failing: int = 0
    """Status of every answer, if set."""
    asked: list[str] = field(default_factory=list)
    """Paths of the requests, with the byte at which each begins."""
    url: str = ""

    def about(self) -> bytes:
        siblings = [{"rfilename": name, "size": len(held), "blobId": git_id(held)} for name, held in self.files.items()]
        for each in siblings:
            if each["rfilename"] in self.large:
                held = self.files[str(each["rfilename"])]
                each["lfs"] = {"sha256": hashlib.sha256(held).hexdigest(), "size": len(held)}  # type: ignore[assignment]
        return json.dumps({"sha": COMMIT, "siblings": siblings}).encode()

    def content(self, path: str) -> bytes | None:
        if path == f"/api/models/{REPO}/revision/main":
            return self.about()
        if path.startswith(f"/{REPO}/resolve/{COMMIT}/"):
            return self.files.get(path.partition(f"{COMMIT}/")[2])
        return self.plain.get(path)

    def begun_at(self, name: str) -> list[int]:
        """List the byte at which each download of this file began."""
        found = [asked.rpartition("@") for asked in self.asked]
        return [int(at) for path, _, at in found if path.endswith(f"/{name}")]


def git_id(content: bytes) -> str:
    return hashlib.sha1(f"blob {len(content)}\0".encode() + content, usedforsecurity=False).hexdigest()


@contextmanager
def serving(hub: Hub, address: str = "127.0.0.1") -> Iterator[Hub]:
    class Answer(BaseHTTPRequestHandler):
        def log_message(self, *_: object) -> None:
            return

        def do_GET(self) -> None:
            path = unquote(urlsplit(self.path).path)
            begin = int((self.headers.get("Range") or "bytes=0-").removeprefix("bytes=").removesuffix("-"))
            hub.asked.append(f"{path}@{begin}")
            held = hub.content(path)
            refused = hub.token and self.headers.get("Authorization") != f"Bearer {hub.token}"
            status = hub.failing or (401 if refused else 404 if held is None else 206 if begin else 200)
            body = (held or b"")[begin:] if status < 300 else b""
            self.send_response(status)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            limit = hub.breaks_after.get(path.rpartition("/")[2])
            self.wfile.write(body[:limit])
            if limit is not None:
                self.close_connection = True

    server = ThreadingHTTPServer((address, 0), Answer)
    thread = Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    hub.url = f"http://{address}:{server.server_address[1]}"
    try:
        yield hub
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
