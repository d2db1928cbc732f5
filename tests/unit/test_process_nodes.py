"""Nodes that are processes: what their inventory, their plan and their checks make of the same request."""

from __future__ import annotations

import io
from typing import Any

import pytest

from orchestrator.fleet.planning.request import with_engine
from orchestrator.nodes.processes.supervisor import _Log
from orchestrator.plan.lines import process_words
from orchestrator.specs.container import ContainerSpec, Mount
from orchestrator.specs.errors import UsageError
from orchestrator.specs.facts import EngineFacts, NodeFacts
from orchestrator.specs.host_paths import on_host
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from tests.unit.findings.preflight import preflight

SPEC = ContainerSpec(
    name="orch-run",
    image="sha256:0",
    command=("torchrun", "--log-dir", "/workspace/logs", "--out=/workspace", "/workspace/Data/x", "/workspaces"),
    environment={"ORCH_RUN_DIR": "/workspace/runs/1", "DATA": "/workspace/Data", "OTHER": "not /workspace"},
    labels={},
    mounts=(Mount(source="/home/u/p", target="/workspace"), Mount(source="/home/u/d", target="/workspace/Data")),
)


def inventory() -> Inventory:
    text = b"nodes:\n  alpha: {address: 10.0.0.1}\n  beta: {address: 10.0.0.2, engine: process, workspace: ~/mine}\n"
    return parse_inventory(text, filename="inventory.yaml")


def test_a_path_is_translated_by_its_innermost_mount() -> None:
    host = on_host(SPEC)
    assert host.command[1:] == ("--log-dir", "/home/u/p/logs", "--out=/home/u/p", "/home/u/d/x", "/workspaces")
    assert host.environment == {"ORCH_RUN_DIR": "/home/u/p/runs/1", "DATA": "/home/u/d", "OTHER": "not /workspace"}
    assert host.working_dir == "/home/u/p"
    assert on_host(host) == host


def test_a_dry_run_shows_the_process() -> None:
    words = process_words(SPEC)
    assert words[:3] == ("env", "-C", "/home/u/p")
    assert "ORCH_RUN_DIR=/home/u/p/runs/1" in words
    assert words[words.index("torchrun") :] == on_host(SPEC).command


def test_every_process_has_an_address_and_a_folder_of_its_own() -> None:
    nodes = with_engine(inventory(), "process").nodes
    assert [node.address for node in nodes] == ["127.0.0.11", "127.0.0.12"]
    assert [node.workspace for node in nodes] == ["~/orch/nodes/alpha", "~/mine"]
    assert {(node.engine, node.connection, node.interface) for node in nodes} == {("process", "local", "lo")}


@pytest.mark.parametrize("engine", ["", "docker"])
def test_otherwise_the_inventory_is_taken_at_its_word(engine: str) -> None:
    assert with_engine(inventory(), engine) == inventory()


def test_another_engine_is_refused() -> None:
    with pytest.raises(UsageError, match="expected docker or process"):
        with_engine(inventory(), "podman")


@pytest.mark.parametrize(("torch", "expected"), [("2.13.0", []), ("", ["engine.no_torch"])])
def test_processes_need_no_image_but_torch(torch: str, expected: list[str]) -> None:
    engine = EngineFacts(kind="process", version=torch, id="process:alpha", architecture="x86_64")
    assert [
        finding.id for finding in preflight([NodeFacts(name="alpha", address="127.0.0.11", engine=engine)])
    ] == expected


def test_a_full_disk_takes_lines_and_leaves_the_process_its_pipe() -> None:
    class Full(io.StringIO):
        def write(self, _line: Any) -> int:
            raise OSError(28, "No space left on device")

    read: list[bytes] = []

    class Pipe(io.BytesIO):
        def readline(self, size: int | None = -1, /) -> bytes:
            read.append(super().readline(size))
            return read[-1]

    _Log(Full()).keep(Pipe(b"one\ntwo\n"), "stdout")
    assert read == [b"one\n", b"two\n", b""]
