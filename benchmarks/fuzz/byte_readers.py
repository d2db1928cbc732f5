"""Readers of bytes, of a scheduler's answers and of programs' answers, with the objects that they need around them."""

from __future__ import annotations

import io
import json
import struct
import tarfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from tempfile import TemporaryDirectory
from types import SimpleNamespace
from typing import Any, cast

from benchmarks.fuzz.reader import Reader
from contract.checkpoint import decode_start
from contract.data_check import FileSums
from orchestrator.fleet.downloads import _progress
from orchestrator.fleet.images.build import _ask
from orchestrator.fleet.images.image_archive import _spans
from orchestrator.fleet.readiness.pair_probe import _opened, _path, _Prober
from orchestrator.fleet.relay_messages import PullFrom, RelayTask, encode
from orchestrator.fleet.runs.artifacts import Artifact, ProjectDir
from orchestrator.fleet.runs.data_repair import _listed
from orchestrator.fleet.runs.held_data import _read
from orchestrator.fleet.runs.results import files_of_run
from orchestrator.nodes.archive import TarError, unpack
from orchestrator.nodes.docker_engine import _attached, _import_error
from orchestrator.nodes.interface import Completed, Node
from orchestrator.nodes.probes import image_probe, result_probe
from orchestrator.nodes.probes.nft_answers import read_nftables
from orchestrator.nodes.received_archive import received_files
from orchestrator.nodes.relay_program import read_frame
from orchestrator.nodes.slurm_answers import carried, read_look, read_sacct
from orchestrator.nodes.srun import NoContainers
from orchestrator.specs.errors import OrchError
from orchestrator.specs.secret_forms import hide_secrets

SUBMITTED = {"job": "12", "attempt": 0, "nnodes": 2, "labels": {"orch.run": "first-906a", "orch.project": "orch",
             "orch.attempt": "0", "orch.node_rank": "0"}}  # fmt: skip
PLACED = {
    "job": "12",
    "attempt": 0,
    "restart": 0,
    "names": ["n1", "n2"],
    "addresses": ["10.0.0.1", "10.0.0.2"],
    "at": 1.7e9,
}
OVER = {"run": "first-906a.0", "rank_exit": {"outcome": "user"}}
LOOK = (
    f"file\tfirst-906a/submitted-0.json\t{json.dumps(SUBMITTED)}\nfile\tfirst-906a/place-12.0.json\t{json.dumps(PLACED)}\n"
    f"file\tfirst-906a/ended.12.0\t1\nfile\tfirst-906a/over-0.json\t{json.dumps(OVER)}\n"
    "squeue\t0\n12|RUNNING|orch:first-906a|None\n13|PENDING|orch:x-1234|Priority\n"
)
SACCT = "12|COMPLETED|0:0\n13|FAILED|1:0\n14|CANCELLED by 0|0:15\n15|FAILED|0:53\n"
LISTED = "P/home/x\0O/code/a\0./b\0F12 8 1700000000.123 a/b.txt\0F1 0 1.0 c\0"
WRITTEN = '{"out/a.pt": [7, 1700000000123000]}\x001700000000\0./train.py\0//\x007 1700000000.123 code/out/a.pt\0'
HELD = "data 0123456789abcdef 12\nrun first-906a\nlaunch first-906a 1\ndata 0123456789abcdef.part 1\n"
IMAGE = {"python": "3.11.2", "torch": "2.6", "torch_error": "", "cuda": "", "torchrun": True, "backends": ["gloo"],
         "modules": ["numpy"]}  # fmt: skip
BUILT = {
    "python": "3.11.2",
    "torch": "2.6",
    "cuda": "",
    "onednn": True,
    "packages": {"numpy": "2"},
    "modules": ["numpy"],
}
NFT = {"nftables": [{"chain": {"family": "inet", "table": "f", "name": "in", "hook": "input", "policy": "drop",
       "type": "filter", "prio": 0}}, {"rule": {"family": "inet", "table": "f", "chain": "in", "expr": [{"match": {
       "op": "==", "left": {"payload": {"protocol": "tcp", "field": "dport"}}, "right": 22}},
       {"accept": None}]}}]}  # fmt: skip
SECRETS = (
    "x https://u:p@h/s?token=abc",
    "ghp_" + "a1B2" * 9,
    "-----BEGIN PRIVATE KEY-----\nx\n-----END PRIVATE KEY-----",
)
TORCH = {"torch": "2.6", "machine": "x86_64", "system": "Debian", "memory": "16000"}
DIALLED = [["10.0.0.2", 12355, "ok", 0.31, ""], ["10.0.0.2", 40000, "refused", 0.2, "x"]]


FRAMES = [
    encode(PullFrom(source="alpha", address="10.0.0.1", port=4000)).decode("latin-1"),
    encode(RelayTask(token="", address="10.0.0.1", folder="~/x", files=[("a", 3, "a" * 64, 420)], skipped=0, links={},
                     folders=[])).decode("latin-1"),
]  # fmt: skip


def byte_readers() -> dict[str, Reader]:
    """Readers by name."""
    tar_errors = (tarfile.TarError, TarError)
    parts = (OrchError, ValueError, KeyError, TypeError)
    return {
        "queue and files": Reader(read=_look, texts=[LOOK], declared=()),
        "accounting": Reader(read=read_sacct, texts=[SACCT], declared=()),
        "results' list": Reader(read=lambda text: files_of_run(_streaming(text), "/x", "first-906a"), texts=[LISTED]),
        "results' archive": Reader(read=_received, texts=_archives(), declared=tar_errors),
        "copied archive": Reader(read=_unpacked, texts=_archives(), declared=(*tar_errors, OSError)),
        "written files": Reader(read=result_probe.parse, texts=[WRITTEN], declared=()),
        "image archive": Reader(read=lambda text: _spans(io.BytesIO(_raw(text)), "x"), texts=[_image_archive()]),
        "output frames": Reader(read=lambda text: [*_attached(io.BytesIO(_raw(text)))], texts=[_frames()], declared=()),
        "import": Reader(read=_import_error, texts=['{"status": "x"}', '{"error": "no space left"}'], declared=()),
        "data on nodes": Reader(read=lambda text: _read("beta", text, (), {}), texts=[HELD], declared=()),
        "image contents": Reader(read=_image_contents, texts=[json.dumps(IMAGE)]),
        "new image": Reader(read=_asked_image, texts=[json.dumps(BUILT)]),
        "python of a cluster": Reader(read=_cluster_python, texts=[json.dumps(TORCH)]),
        "listening": Reader(read=lambda text: _opened(_probed(text), "beta"), texts=['{"ports": [12355], "pid": 7}']),
        "dialled": Reader(read=_dialled, texts=[json.dumps(DIALLED)], declared=parts),
        "download progress": Reader(
            read=lambda text: _progress(text, "x"), texts=['{"done": 1, "total": 9}'], declared=()
        ),
        "nftables": Reader(read=read_nftables, texts=[json.dumps(NFT)]),
        "orders of a copy": Reader(read=_ordered, texts=FRAMES, declared=(ConnectionError, ValueError)),
        "damaged files": Reader(read=_listed_as_damaged, texts=['{"a": ["a", "content", 0, 1, 2.0]}'], declared=()),
        "start": Reader(read=decode_start, texts=["7:" + "a" * 64, "none"], declared=(ValueError,)),
        "secrets in a text": Reader(read=hide_secrets, texts=SECRETS, declared=()),
    }


def _answer(text: str) -> Completed:
    return Completed(node="beta", argv=("program",), exit_code=0, stdout=text, stderr="")


def _raw(text: str) -> bytes:
    return text.encode("latin-1", errors="replace")


def _look(text: str) -> None:
    found = read_look(text)
    found.unexplained()
    carried(found, {}, "orch")


def _ordered(text: str) -> None:
    """All orders of a text, as a node reads them."""
    stream = io.BytesIO(_raw(text))
    while stream.tell() < len(stream.getvalue()):
        read_frame(stream.read)


def _listed_as_damaged(text: str) -> None:
    node = cast(Node, SimpleNamespace(name="beta", run=lambda _argv: _answer(text)))
    artifact = Artifact(what="data", run_id="first-906a", digest="a" * 16, origin="")
    found = _listed(artifact, ProjectDir(node=node, folder="/x"), {"a": FileSums(1, "a" * 64)})
    assert set(found) <= {"a"}  # noqa: S101  # a finding of the fuzzer


def _streaming(text: str) -> Node:
    def stream(_argv: Sequence[str]) -> Iterator[bytes]:
        content = text.encode(errors="surrogatepass")
        yield content[:50]
        yield content[50:]

    return cast(Node, SimpleNamespace(name="beta", stream=stream))


def _image_contents(text: str) -> None:
    image_probe.parse(_answer(text), reference="x", device="cpu")


def _unpacked(text: str) -> None:
    with TemporaryDirectory() as folder:
        unpack(io.BytesIO(_raw(text)), Path(folder))


def _received(text: str) -> None:
    raw = _raw(text)
    chunks = (raw[at : at + 700] for at in range(0, len(raw), 700))
    for _, pieces in received_files(chunks, {"a.txt": 9999, "map": 10**7}):
        for _ in pieces:
            pass


def _archives() -> list[str]:
    """A plain archive, and one with a sparse file in the form of GNU tar 1.34 with `--format=posix --sparse`."""
    made = []
    for headers in ({}, {"GNU.sparse.major": "1", "GNU.sparse.minor": "0", "GNU.sparse.name": "map",
                         "GNU.sparse.realsize": "5000000"}):  # fmt: skip
        content = b"1\n4096\n3\n".ljust(512, b"\0") + b"abc" if headers else b"text\n"
        info = tarfile.TarInfo("GNUSparseFile.0/map" if headers else "a.txt")
        info.size, info.pax_headers = len(content), headers
        buffer = io.BytesIO()
        with tarfile.open(fileobj=buffer, mode="w", format=tarfile.PAX_FORMAT) as archive:
            archive.addfile(info, io.BytesIO(content))
        made.append(buffer.getvalue().decode("latin-1"))
    return made


def _image_archive() -> str:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w") as archive:
        for name, content in (("manifest.json", b'[{"Layers": ["a/layer.tar"]}]'), ("a/layer.tar", b"layer")):
            info = tarfile.TarInfo(name)
            info.size = len(content)
            archive.addfile(info, io.BytesIO(content))
    return buffer.getvalue().decode("latin-1")


def _frames() -> str:
    return b"".join(struct.pack(">BxxxL", stream, 5) + b"hello" for stream in (1, 2)).decode("latin-1")


def _asked_image(text: str) -> None:
    recipe = SimpleNamespace(content="a" * 64, profile="cpu", content_tag="x", cuda="")
    _ask(cast(Any, SimpleNamespace(name="beta", engine=SimpleNamespace(run_once=_always(text)))), cast(Any, recipe))


def _cluster_python(text: str) -> None:
    engine = object.__new__(NoContainers)
    cluster = SimpleNamespace(name="uni", python="python3", cpus=2)
    engine._on = cast(Any, SimpleNamespace(name="beta", run=_always(text), carrier=SimpleNamespace(cluster=cluster)))
    engine.facts()


def _probed(text: str) -> Any:
    prober = _Prober(spec=cast(Any, SimpleNamespace(name="beta")), image="", token="x", project="orch",  # noqa: S106  # none
                     node=cast(Any, SimpleNamespace(name="beta", run=_always(text))))  # fmt: skip
    return prober._ask(("listen",), timeout_s=1.0)


def _dialled(text: str) -> None:
    peers = {"10.0.0.2": cast(_Prober, SimpleNamespace(name="gamma"))}
    for answer in _probed(text):
        _path(answer, peers, 12355)


def _always(text: str) -> Callable[..., Completed]:
    return lambda *_, **__: _answer(text)
