"""Output for a person, and output for a program."""

from __future__ import annotations

import io
import json
from pathlib import Path

from rich.console import Console

from orchestrator.render.gpus import gpu_data, gpu_report
from orchestrator.specs.finding_pages import all_findings
from orchestrator.specs.gpus import GpuReport
from tests.cases.gpus import fleet

SCREEN = Path(__file__).parent / "screen.yaml"
DOCS = Path(__file__).parents[3] / "docs" / "doctor.md"


def drawn(report: GpuReport, width: int = 100) -> str:
    """The report on a terminal of this width, without colours."""
    out = io.StringIO()
    Console(file=out, width=width, highlight=False, color_system=None).print(gpu_report(report), crop=False)
    return "".join(f"{line.rstrip()}\n" for line in out.getvalue().splitlines())


def test_documentation_shows_the_real_screen() -> None:
    screen = drawn(fleet.asked(fleet.load(SCREEN)))

    assert f"```text\n{screen}```\n" in DOCS.read_text()


def test_table_fits_100_columns_and_commands_stay_on_one_line() -> None:
    lines = drawn(fleet.asked(fleet.load(SCREEN))).splitlines()

    assert [line for line in lines if len(line) > 100 and not line.startswith("    fix:")] == []
    assert any(line.endswith("--runtime=docker && sudo systemctl restart docker") for line in lines)


def test_every_finding_id_is_documented() -> None:
    cases = [fleet.asked(fleet.load(path)) for path in fleet.CASES.glob("*.yaml")]
    ids = {finding.id for report in cases for finding in report.findings}

    assert sorted(ids - {finding.id for finding in all_findings()}) == []


def test_same_findings_and_rows_of_several_nodes_are_folded() -> None:
    fault = {"host": {"exit": 18, "says": "Failed to initialize NVML: Driver/library version mismatch"}}

    screen = drawn(fleet.asked({"nodes": {"alpha": fault, "beta": fault, "gamma": {}, "delta": {}}}))

    assert screen.count("[gpu.driver_mismatch]") == 1
    assert "alpha, beta: NVIDIA's kernel driver and its libraries" in screen
    assert "gamma, delta" in screen
    assert screen.rstrip().endswith("4 nodes, 0 GPUs: 1 error")


def test_text_of_a_node_is_neither_markup_nor_moves_the_cursor() -> None:
    change = {"NVIDIA GeForce RTX 4090": "[bold]card[/nonsense]\x9b2J"}

    screen = drawn(fleet.asked({"nodes": {"alpha": {"host": "rtx-4090__535.86.05.xml", "change": change}}}))

    assert "[bold]card[/nonsense]" in screen
    assert "\x9b" not in screen


def test_json_holds_facts_and_findings() -> None:
    answer = json.loads(json.dumps(gpu_data(fleet.asked(fleet.load(SCREEN)))))

    assert answer["unfit"] is True
    assert [node["node"] for node in answer["nodes"]] == ["alpha", "beta", "gamma", "delta", "epsilon"]
    assert answer["nodes"][0]["host"]["gpus"][0]["compute_capability"] == [8, 9]
    assert answer["nodes"][0]["container"]["torch"]["cuda"] == "12.8"
    assert answer["nodes"][3]["host"]["fault"] == "absent"
    assert answer["findings"][0]["severity"] == "error"
