"""Every reader of text from other machines, with valid texts and the errors that it declares."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from benchmarks.fuzz.byte_readers import byte_readers
from benchmarks.fuzz.reader import Reader
from contract.checkpoint import decode_manifest
from contract.data_check import FileSums, decode_sums, encode_sums
from contract.downloads import CachedFile, Manifest, encode_manifest, read_source
from contract.downloads import decode_manifest as decode_download
from contract.events import ProgressEvent
from contract.failures.classify import FailedRank, classify
from contract.log_lines import EVENT_MARK, split_rank
from contract.rank_signs import RankSigns
from contract.result_files import ResultFile, ResultFiles
from orchestrator.checks.hang import timestamp
from orchestrator.checks.slow_ranks import slow_ranks
from orchestrator.fleet.relay import Delivered, Destination, FolderToSend, send_folder
from orchestrator.fleet.relay_messages import FileToSend
from orchestrator.nodes.interface import Completed
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.log_stream import rejoin_lines
from orchestrator.nodes.probes import (
    checkpoint_probe,
    data_probe,
    host_probe,
    inside_probe,
    network_probe,
    nvidia_smi,
    probe,
    setup_probe,
    torch_probe,
    usage_probe,
)
from orchestrator.nodes.ssh_hosts import from_ssh_config
from orchestrator.render.log_lines import log_json, log_line
from orchestrator.render.recovery import recovery_line
from orchestrator.render.times import stamp, started
from orchestrator.specs.connectivity import read_connectivity_result
from orchestrator.specs.errors import BugError
from orchestrator.specs.inventory_files.ansible_inventory import from_ansible, from_ansible_ini, read_ansible
from orchestrator.specs.inventory_files.foreign_file import from_foreign_file
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.inventory_files.inventory_import import from_hostfile, from_hostlist, inventory_text
from orchestrator.specs.labels import read_labels
from orchestrator.specs.plan_json import from_json, to_json
from orchestrator.specs.run_events import RunLine
from orchestrator.state.journal import fold
from orchestrator.state.journal_entries import CheckpointEntry, ClaimEntry, StartedEntry, decode_entry, encode_entry
from orchestrator.state.postmortem import Evidence, generation_failure, write_postmortem
from orchestrator.store.run_store import RunStore
from tests import lan
from trainer.agent.coordinator import CopyFiles, Order
from trainer.agent.handshake import Greeting, read_asked, read_greeting, read_welcome
from trainer.agent.messages import Ready, Report, SignsReport, as_message, read_order, read_report
from trainer.agent.output_reader import read_figures
from trainer.agent.place import kubernetes_seat, slurm_seat
from trainer.agent.rank_exit import read_rank_exit
from trainer.agent.store_messages import StoreConnection, question, read_answer, read_question
from trainer.errors import ConfigurationError

ROOT = Path(__file__).parents[2]


def _message(message: Report | Order) -> str:
    return json.dumps(as_message(message))


def _answer(text: str, code: int = 0) -> Completed:
    return Completed(node="alpha", argv=("program",), exit_code=code, stdout=text, stderr=text)


def _shown(text: str) -> None:
    """Read a container's line as the display, the diagnosis and the supervisor do."""
    rank, line_text = split_rank(text)
    line = RunLine(time=lan.moment(1), node="alpha", node_rank=0, rank=rank, text=line_text)
    event = line.event
    log_line(line, width=5).plain.encode()
    log_json(line).encode()
    recovery_line(line).encode()
    write_postmortem(Evidence(run_id="r1", lines=(line,)))
    read_figures(text)
    if event:
        slow_ranks(event if isinstance(event, ProgressEvent) else None, ["alpha"])
        generation_failure(event)
        read_connectivity_result(event.others)


def _stream(text: str) -> None:
    for line in rejoin_lines(text.encode(errors="surrogatepass").splitlines(keepends=True)):
        timestamp(line.time)
        started(line.time, 1e9)
        stamp(line.time)


def _record(text: str) -> None:
    with TemporaryDirectory() as folder:
        lines = Path(folder) / "lines"
        lines.mkdir()
        (lines / "alpha@c.0001.jsonl").write_bytes(text.encode(errors="surrogatepass"))
        store = RunStore(Path(folder))
        forwards, backwards = list(store.lines()), list(store.lines(newest_first=True))
        if forwards != backwards[::-1]:
            raise AssertionError("read forwards and backwards are not the same lines")


def _labels(text: str) -> None:
    given = json.loads(text)
    if isinstance(given, dict):
        read_labels({str(key): str(value) for key, value in given.items()})


def _smi(text: str) -> None:
    """Parse as the XML document, as the CSV table, and as the list of compute capabilities."""
    nvidia_smi.ask(lambda _argv: _answer(text))
    nvidia_smi.ask(lambda argv: _answer("" if "-x" in argv else text, 6 if "-x" in argv else 0))


def _imported(found: Callable[[str], Any]) -> Callable[[str], object]:
    return lambda text: inventory_text(found(text), source="a file")


def _of_files(*patterns: str) -> list[str]:
    return [file.read_text(errors="replace") for pattern in patterns for file in sorted(ROOT.glob(pattern))]


def _lines_of_logs() -> list[str]:
    texts = _of_files("tests/cases/why/logs/*.log")
    return [line for text in texts for line in text.splitlines()]


def _completed(read: Callable[[Completed], object]) -> Callable[[str], object]:
    return lambda text: read(_answer(text))


def _events() -> list[str]:
    recorded = [line for line in _lines_of_logs() if EVENT_MARK in line]
    return [*recorded, lan.event("forecast", **lan.forecast()), "[rank0]: step 7/9  loss 1.0"]


NOW = 1_767_366_245.0
TOKEN, ASKED = b"t" * 32, "a" * 32
GREETING = Greeting(run="r.1", node_rank=1, asked=ASKED, drawn="b" * 32)
RANK_EXIT = {"outcome": "user", "node": "alpha", "rank": 0, "exit_code": 1, "reason": "x", "frame": "a.py:1 in f"}
FAILED = '[rank0]: @orch {"event": "failed", "t": 1795383194.5, "rank": 0, "owner": "user", "message": "x"}\n'
TORCH = (
    '{"version": "2.13.0+cu130", "cuda": "13.0", "available": true, "architectures": ["sm_80"], "error": "",'
    ' "devices": [{"name": "NVIDIA H200", "uuid": "1-2", "capability": [9, 0]}]}'
)
LABELS = {"orch.run_id": "r-1", "orch.attempt": "1", "orch.node_rank": "0", "orch.nnodes": "3", "orch.user": "ana",
          "orch.project": "orch", "orch.started_at": "2026-01-02T15:04:05+00:00", "orch.command": "gpt2"}  # fmt: skip
DOWNLOADED = read_source("hf:ana/tiny")
DOWNLOAD = encode_manifest(
    Manifest(
        source=DOWNLOADED.text,
        files=(CachedFile(path=f"{DOWNLOADED.folder}/blobs/{'a' * 40}", size=3, sha256="b" * 64),),
        links={f"{DOWNLOADED.folder}/snapshots/{'c' * 40}/config.json": f"../../blobs/{'a' * 40}"},
        texts={f"{DOWNLOADED.folder}/refs/main": "c" * 40},
    )
)
CHECKPOINT = (
    "now=1700000000\nrun=/home/a/orch/orch/runs/r1\nbest={\"checkpoint\":\"step-00000007\"}\nstep=step-00000007\n"
    "file=7 1700000000 state.pt\nfile=99 1700000000 manifest.json\nsha256=" + "a" * 64 + "\nmanifest="
    + json.dumps({"step": 7, "files": {"state.pt": {"bytes": 7, "sha256": "b" * 64}}}) + "\n"
)  # fmt: skip
SIGNS = SignsReport(generation=1, signs=(RankSigns(rank=0, groups={"0": (3, 2)}, line="a.py:1 in f", cpu=0.5),))
SUMS = encode_sums({"a/b.bin": FileSums(1048577, "a" * 64, "0123456789abcdef"), "c": FileSums(3, "b" * 64)})
COMPARED = (
    '{"data": "0123456789abcdef", "file": "a.bin", "wrong": "content", "offset": 7, "size": 1, "intact_at": 1.5}\n'
    '{"data": "0123456789abcdef", "files": 1, "bytes": 9}\n{"data": "0123456789abcdee", "unchecked": "x"}\n'
)
RESULTS = ResultFiles(files=(ResultFile(path="code/out/last.pt", size=7, modified_us=1),))
RECORD = "".join(
    map(
        encode_entry,
        (
            ClaimEntry(attempt=0, id="a" * 32, nodes=("alpha",)),
            StartedEntry(attempt=0, containers={"alpha": "c1"}),
            CheckpointEntry(attempt=0, step=7, sha256="b" * 64, node="alpha"),
        ),
    )
)
INVENTORY = "defaults: {user: ana}\nnodes:\n  alpha: {address: 10.0.0.1, port: 22}\n  n[1-3]: {address: 'h[1-3].lan'}\n"
SSH = "Host alpha beta-*\n  HostName 10.0.0.1\n  Port 22\n  User ana\n  ProxyJump gate\nHost gate\n  HostName g.lan\n"
INI = "[gpu]\nalpha ansible_host=10.0.0.1 ansible_port=2\nm[1:3] ansible_user=ana\n[gpu:vars]\nx=1\n[a:children]\ngpu\n"
FOREIGN = "my-pool:\n  hosts: [10.0.0.1, {ip: 10.0.0.2, user: ana, identity_file: ~/.ssh/k}]\n  user: ana\n"
YAML = "all:\n  hosts:\n    alpha: {ansible_host: 10.0.0.1, ansible_port: 2}\n  children: {g: {hosts: {'n[1:3]': }}}\n"
SETUP = (
    "user=ana\nrights=free\nsystem=Debian\ndistribution=debian\nlike=debian\nversion=12\ngroups=ana\nsystemd=yes\n"
    'runtimes={"runc": {}, "nvidia": {}}\ncontainers=3\npackage=docker-ce\nprogram=docker\nproxy=http\n'
)


def readers() -> Mapping[str, Reader]:
    """Readers by name."""
    facts = lan.probe_answer("alpha")
    inside = json.dumps(lan.INSIDE)
    return {
        **byte_readers(),
        "labels": Reader(read=_labels, texts=[json.dumps(LABELS)], declared=(ValueError, RecursionError)),
        "lines": Reader(read=_shown, texts=_events()),
        "diagnosis": Reader(read=lambda text: classify(FailedRank(own=text.splitlines(), agent=text.splitlines(),
                                                                  exit_code=1, reported=text[:9999])),
                            texts=_of_files("tests/cases/why/logs/*.log")),
        "log stream": Reader(read=_stream, texts=[f"{lan.moment(1)} hello\n{lan.moment(2)} {'x' * 40}\n"]),
        "kept lines": Reader(read=_record, texts=["".join(
            json.dumps(vars(RunLine(time=lan.moment(n), node="alpha", node_rank=0, rank=0, text="x" * n))) + "\n"
            for n in range(4))]),
        "plan": Reader(read=lambda text: from_json(text, where="w"), texts=[to_json(lan.plan())]),
        "checkpoints": Reader(read=lambda text: list(checkpoint_probe.parse(text, node="alpha")), texts=[CHECKPOINT]),
        "download": Reader(read=lambda text: decode_download(text, DOWNLOADED), declared=(ValueError,),
                           texts=[DOWNLOAD]),
        "manifest": Reader(read=lambda text: decode_manifest(text, step=7), declared=(ValueError,),
                           texts=[CHECKPOINT.rpartition("manifest=")[2]]),
        "nvidia-smi": Reader(read=_smi, texts=[*_of_files("tests/**/*.xml"), "0, GPU-1, RTX, 570.1, 6144, 1, 1, 1\n"]),
        "facts": Reader(read=lambda text: probe.parse(text, name="a", address="1.1.1.1", now=1.0), texts=[facts]),
        "host": Reader(read=lambda text: host_probe.parse(text, port=12355), texts=[lan.HOST]),
        "usage": Reader(read=lambda text: [*map(usage_probe.UsageReader().read, text.split("\n"))], texts=[lan.USED]),
        "network": Reader(read=lambda text: network_probe.parse(text, project="orch"),
                          texts=[lan.network_answer("alpha"), *FIREWALLS]),
        "setup": Reader(read=lambda text: setup_probe.parse(text, name="alpha"), texts=[SETUP]),
        "inside": Reader(read=_completed(inside_probe.parse), texts=[inside]),
        "torch": Reader(read=_completed(torch_probe.parse_probe), texts=[TORCH]),
        "report": Reader(read=lambda text: read_report(_bytes(text), ["alpha"]), declared=(ValueError,),
                         texts=['{"ready": {"generation": 1}}', json.dumps({"ended": {"rank_exit": RANK_EXIT}}),
                                '{"ping": {}}', _message(SIGNS), _message(Ready(generation=1, results=RESULTS))]),
        "connection question": Reader(read=lambda text: read_question(_bytes(text)), declared=(ValueError,),
                                      texts=[json.dumps(question([StoreConnection("10.0.0.2", 4, "10.0.0.1", 5)]))]),
        "connection answer": Reader(read=lambda text: read_answer(_bytes(text), 3), declared=(ValueError,),
                                    texts=['{"own": [0, 2]}', '{"own": []}']),
        "order": Reader(read=lambda text: read_order(_bytes(text), ["alpha", "beta"]), declared=(ValueError,),
                        texts=['{"start": {"generation": 1, "port": 12355}}',
                               json.dumps({"end": {"rank_exit": RANK_EXIT}}),
                               json.dumps({"restart": {"generation": 2, "cause": RANK_EXIT, "restarts_left": 1,
                                                       "pause_s": 2.0}}),
                               _message(CopyFiles(node_rank=1, files=RESULTS.files))]),
        "sums of data": Reader(read=_sums, texts=[SUMS]),
        "compared data": Reader(read=data_probe.parse, texts=[COMPARED]),
        "record": Reader(read=lambda text: fold(map(decode_entry, text.splitlines())), texts=[RECORD]),
        "greeting": Reader(read=_greeted, declared=(ValueError,), texts=[
            json.dumps(GREETING.as_message(TOKEN)), json.dumps({"asked": ASKED}), '{"refused": "x", "proof": "y"}']),
        "rank exit": Reader(read=lambda text: read_rank_exit("alpha", 1, text.splitlines(), first_rank=0),
                         texts=[FAILED, *_of_files("tests/cases/why/logs/*.log")]),
        "relay": Reader(read=_relayed, texts=RELAYED, declared=()),
        "inventory": Reader(read=lambda text: parse_inventory(text, filename="f"), texts=[INVENTORY]),
        "ssh config": Reader(read=_imported(lambda text: from_ssh_config(text, home=Path("/no"))), texts=[SSH]),
        "ansible": Reader(read=_imported(lambda text: from_ansible(text, filename="f")), texts=[YAML]),
        "ansible ini": Reader(read=_imported(from_ansible_ini), texts=[INI]),
        "any inventory": Reader(read=_any_inventory, texts=[YAML, INI, FOREIGN]),
        "hostfile": Reader(read=_imported(from_hostfile), texts=["ana@n1 slots=4\nn2 slots=2 # x\n"]),
        "hostlist": Reader(read=_imported(from_hostlist), texts=["n[01-03],m[1-2,9]"]),
        "job environment": Reader(read=_seated, declared=(ConfigurationError,), texts=[
            "SLURM_JOB_ID=42\nSLURM_JOB_NODELIST=n[01-03]\nSLURM_NODEID=1\nSLURMD_NODENAME=n02\nSLURM_RESTART_COUNT=1\n",
            "ORCH_PEERS=run-0.run,run-1.run\nJOB_COMPLETION_INDEX=1\nORCH_RESTART_COUNT=0\n"]),
    }  # fmt: skip


RELAYED = tuple(
    json.dumps({"ready": {"port": 1, "held": 0, "free": 10**12, "folder": "/x"}}) + "\n" + json.dumps(report) + "\n"
    for report in (
        {"moved": {"held": 3, "received": 3, "verified": 0}}, {"wants": {"file": 0, "offset": 3, "end": 2}},
        {"broken": {"source": "beta", "why": "x", "wrong": 1}}, {"broken": {"source": "", "why": "x", "wrong": None}},
        {"failed": {"kind": "full", "why": "x"}}, {"finished": {"received": 30}},
    )
)  # fmt: skip


class _RelayLines(LocalNode):
    """A node whose relay reports this text."""

    def __init__(self, name: str, text: str) -> None:
        super().__init__(name)
        self._text = text

    def stream(self, *_: object, **__: object) -> Iterator[bytes]:
        yield _bytes(self._text)


def _relayed(text: str) -> None:
    """Take part in a copy. Every error is the outcome of its node."""
    files = [FileToSend(name=name, size=size, sha256="0" * 64) for name, size in (("a", 10), ("b", 20))]
    content = FolderToSend(what="data", files=files, read=lambda _file, _offset: iter(()))
    targets = [Destination(node=_RelayLines(name, text), folder="/x") for name in ("alpha", "beta")]
    for outcome in send_folder(content, targets, lambda _node, _progress: None, otherwise=lambda _target: Delivered(
            folder="", came=0, fed=0)):  # fmt: skip
        if isinstance(outcome.error, BugError):
            raise outcome.error


FIREWALLS = (
    "root=yes\ntool=ufw\nufw=Status: active\nufw=Default: deny (incoming)\nufw=22/tcp ALLOW IN Anywhere\n",
    "root=yes\ntool=nft\nnft=" + json.dumps({"nftables": [{"chain": {"family": "inet", "table": "f", "name": "in",
    "hook": "input", "policy": "drop", "type": "filter", "prio": 0}}]}) + "\n",
    "root=yes\ntool=iptables\niptables=-P INPUT DROP\niptables=-A INPUT -s 10.0.0.0/8 -p tcp --dport 22:23 -j ACCEPT\n",
    "root=yes\ntool=firewalld\nfirewalld=rule family=\"ipv4\" source address=\"10.0.0.1/32\" accept\n",
)  # fmt: skip


def _any_inventory(text: str) -> None:
    if from_foreign_file(text, filename="f") is None:
        read_ansible(text, filename="f")


def _bytes(text: str) -> bytes:
    return text.encode(errors="replace")


def _sums(text: str) -> None:
    """Read as a file whose own sum is right, and as it is."""
    content = text.partition("\n")[2]
    for whole in (text, f"{hashlib.sha256(content.encode(errors='replace')).hexdigest()}\n{content}"):
        with suppress(ValueError):
            decode_sums(whole)


def _seated(text: str) -> None:
    environ = dict(line.partition("=")[::2] for line in text.splitlines())
    (kubernetes_seat if "ORCH_PEERS" in environ else slurm_seat)(environ)


def _greeted(text: str) -> None:
    line = _bytes(text)
    for read in (read_asked, lambda given: read_greeting(given, ASKED, 3, TOKEN),
                 lambda given: read_welcome(given, GREETING, TOKEN)):  # fmt: skip
        try:
            read(line)
        except ValueError:
            continue
