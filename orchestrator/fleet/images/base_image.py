"""The base image: pulled, or made from Debian's packages when no image registry answers."""

from __future__ import annotations

import os
import shutil
import tarfile
from pathlib import Path
from queue import Empty, SimpleQueue
from tempfile import TemporaryDirectory, TemporaryFile
from threading import Thread

from orchestrator.fleet.fan_out import Notify
from orchestrator.fleet.faults import as_error
from orchestrator.fleet.images.build_context import archive_of, spool_folder
from orchestrator.nodes.archive import CHUNK
from orchestrator.nodes.interface import BuildRequest, Engine, Node, Progress
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.image import DEFAULT_BASE
from orchestrator.specs.errors import EngineError, OrchError, PreflightError

PULLED = "debian:bookworm-slim"
SUITE = "bookworm"
SILENCE_S = 20.0
"""A registry without an answer for so long counts as absent: a LAN without internet must not wait minutes."""
DEBOOTSTRAP_TIMEOUT_S = 1200.0
DEBOOTSTRAP = ("debootstrap", "--variant=minbase", "--include=ca-certificates", SUITE)

_UNREAD = ("doc", "info", "locale", "man")
"""Folders of /usr/share that are not needed in a container."""


def ensure_base(node: Node, reference: str, notify: Notify) -> None:
    """Make sure that this node's engine has the base image. A base chosen by the user is pulled by the build."""
    if reference != DEFAULT_BASE or node.engine.image(reference):
        return
    try:
        notify(node.name, Progress(text=f"pulling {PULLED}"))
        _pull(node.engine, reference)
    except EngineError as error:
        notify(node.name, Progress(text=f"no image registry ({error.message}); making the base from Debian's packages"))
        _import_packages(node, reference, notify)


def _pull(engine: Engine, reference: str) -> None:
    """A build of one line, which pulls and tags. Given up after `SILENCE_S` without an answer from the registry."""
    received: SimpleQueue[str | OrchError | None] = SimpleQueue()

    def build() -> None:
        request = BuildRequest(tag=reference, dockerfile="Dockerfile", args={}, labels={})
        try:
            for progress in engine.build(request, archive_of({"Dockerfile": f"FROM {PULLED}\n".encode()})):
                received.put(progress.text)
            received.put(None)
        except Exception as error:  # otherwise the queue would stay empty
            received.put(as_error(error))

    Thread(target=build, daemon=True).start()
    while True:
        try:
            word = received.get(timeout=SILENCE_S)
        except Empty:
            raise EngineError(f"no word from the registry in {SILENCE_S:.0f} s") from None
        if isinstance(word, OrchError):
            raise word
        if word is None:
            return


def _import_packages(node: Node, reference: str, notify: Notify) -> None:
    _check_can_bootstrap(node)
    with TemporaryDirectory(dir=spool_folder()) as folder, TemporaryFile(dir=spool_folder()) as spool:
        root = Path(folder) / "root"
        notify(node.name, Progress(text=f"debootstrap {SUITE} (about a minute)"))
        LocalNode().run((*DEBOOTSTRAP, str(root)), timeout_s=DEBOOTSTRAP_TIMEOUT_S).check(
            "making the base image from Debian's packages", hint="does a Debian mirror answer? Or name an image: --base"
        )
        slim(root)
        with tarfile.open(fileobj=spool, mode="w") as archive:
            archive.add(root, arcname=".")
        spool.seek(0)
        node.engine.import_root(iter(lambda: spool.read(CHUNK), b""), reference)
        notify(node.name, Progress(text=f"{reference} made"))


def _check_can_bootstrap(node: Node) -> None:
    bootstrap = f"sudo {' '.join(DEBOOTSTRAP)} orch-base"
    by_hand = f"{bootstrap} && sudo tar -C orch-base -c . | docker import - {DEFAULT_BASE}"
    if not shutil.which("debootstrap"):
        raise PreflightError(
            "no image registry answers, and debootstrap is not on this computer to make the base image",
            hint="apt-get install debootstrap debian-archive-keyring, or name an image it has: --base IMAGE",
        )
    if os.geteuid() != 0:
        raise PreflightError("no image registry answers, and debootstrap needs root", hint=by_hand)
    engine, here = node.engine.facts().architecture, os.uname().machine
    if engine != here:
        problem = f"its engine is {engine}, packages here are {here}"
        raise PreflightError(problem, node=node.name, hint="name an image it has: --base IMAGE")


def slim(root: Path) -> None:
    """Remove files that a container does not need, and configure dpkg to leave them out."""
    for name in (*(f"usr/share/{name}" for name in _UNREAD), "var/cache/apt", "var/lib/apt/lists"):
        shutil.rmtree(root / name, ignore_errors=True)
        (root / name).mkdir(parents=True)
    rules = root / "etc/dpkg/dpkg.cfg.d/slim"
    rules.parent.mkdir(parents=True, exist_ok=True)
    rules.write_text("".join(f"path-exclude /usr/share/{name}/*\n" for name in _UNREAD))
