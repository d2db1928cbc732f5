"""A machine on a slow link: told before the start, left out where it slows the others down, and nothing is left."""

from __future__ import annotations

import os
import time
from pathlib import Path
from threading import Thread

import pytest

from orchestrator.fleet.connect import connected
from orchestrator.fleet.relay import Delivered, Destination, send_folder
from orchestrator.fleet.runs.known_sums import file_sums, names_in
from orchestrator.fleet.runs.send_data import folder_to_send
from orchestrator.specs.errors import NodeUnreachableError
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from tests.json_output import json_data
from tests.lab.conftest import NAMES, Orch, nothing_is_left, on_node

pytestmark = [pytest.mark.lab, pytest.mark.timeout(600)]

WORDS = ("gpt2", "--preset", "tiny", "--no-amp", "--batch-size", "8", "--seed", "7", "--no-compile")


def test_a_forecast_names_the_slow_link_and_leaves_nothing_behind(orch: Orch, before: dict[str, str]) -> None:
    assert orch("lab", "link", "2mbit", "epsilon").code == 0
    try:
        done = orch("launch", "--yes", "--nodes", "5", "--forecast", "--json", "--", *WORDS)
    finally:
        assert orch("lab", "link", "off", "epsilon").code == 0
    assert done.code == 0, done.out + done.err
    data = done.json["forecast"]
    links = data["link_mbit_s"]
    assert links["epsilon"] < 3
    assert min(links[name] for name in NAMES if name != "epsilon") > 4 * links["epsilon"]
    assert any("epsilon's link carries" in text for text in data["warnings"]), data["warnings"]
    (chosen,) = (row for row in data["rows"] if row["chosen"])
    assert "epsilon" not in chosen["nodes"]
    assert chosen["speedup"] >= 1
    nothing_is_left(before)


def test_who_is_left_out_waits_and_ends_with_the_run(orch: Orch) -> None:
    assert orch("lab", "link", "1mbit", "epsilon").code == 0
    try:
        done = orch.launch("--name", "slow", "--", *WORDS, "--max-steps", "30", "--log-every", "5")
    finally:
        assert orch("lab", "link", "off", "epsilon").code == 0
    assert done.code == 0, done.out + done.err
    assert "epsilon" in done.err.split("left out: ", 1)[-1]
    status = orch("status", "slow", "--json")
    assert status.code == 0, status.err
    data = json_data(status.out)
    assert "epsilon" in {out["node"] for out in data["forecast"]["left_out"]}
    assert data["of_forecast"] > 0


def test_data_passes_by_a_node_whose_cable_is_cut_and_continues_there(
    orch: Orch, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME"):
        monkeypatch.setenv(name, orch.environment[name])
    size, place = 100_000_000, "/home/orch/chain/data"
    (tmp_path / "data.bin").write_bytes(os.urandom(size))
    content = folder_to_send(tmp_path, file_sums(tmp_path, names_in(tmp_path)))
    file = orch.folder / "state" / "orch" / "lab" / "inventory.yaml"

    def send() -> dict[str, Delivered | None]:
        with connected(parse_inventory(file.read_bytes(), filename=str(file)).nodes) as nodes:
            targets = [Destination(node=node, folder=place) for node in nodes]
            outcomes = send_folder(content, targets, lambda _node, _progress: None, otherwise=refuse)
        assert all(isinstance(one.error, NodeUnreachableError) for one in outcomes if one.error)
        return {one.item.node.name: one.result for one in outcomes}

    def refuse(target: Destination) -> Delivered:
        raise AssertionError(f"{target.node.name} has no Python")

    def cut_in_the_middle() -> None:
        deadline = time.monotonic() + 60
        asked = ("sh", "-c", f"stat -c %s {place}.partial/data.bin 2>/dev/null || echo 0")
        while int(on_node("gamma", *asked)) < size // 10 and time.monotonic() < deadline:
            time.sleep(0.1)
        orch("lab", "cut", "gamma")

    assert orch("lab", "link", "50mbit").code == 0  # 16 s: on a busy machine the cut takes some of them
    try:
        cutting = Thread(target=cut_in_the_middle, daemon=True)
        cutting.start()
        first = send()
        cutting.join()
        assert {name for name, got in first.items() if got is None} == {"gamma"}
        assert sum(got.fed for got in first.values() if got) < 1.1 * size
        assert "data.partial" in on_node("gamma", "ls", "/home/orch/chain").split()
        assert orch("lab", "heal", "gamma").code == 0
        again = send()["gamma"]
        assert again is not None
        assert again.came <= 0.95 * size
        assert {on_node(name, "sha256sum", f"{place}/data.bin") for name in NAMES} == {
            f"{content.files[0].sha256}  {place}/data.bin\n"
        }
    finally:
        orch("lab", "heal", "gamma")
        assert orch("lab", "link", "off").code == 0
        for name in NAMES:
            on_node(name, "rm", "-rf", "/home/orch/chain")
