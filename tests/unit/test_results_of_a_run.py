"""Files of rank 0 on the way of a resumed run to other nodes, by nodes that are this computer."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path
from typing import Any

from contract.result_files import COPY_LIMIT_BYTES, ResultFile, ResultFiles
from contract.run_folder import COPIED
from orchestrator.fleet.checkpoints.results import WrittenResults, bring_results, results_of
from orchestrator.nodes.interface import Progress
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.probes.result_probe import parse
from orchestrator.specs.plan import Plan
from tests import lan

SCRIPT = ("python", "train.py")
AT_S = 1_700_000_000


class Lan:
    """Nodes with workspaces of their own."""

    def __init__(self, folder: Path) -> None:
        self.nodes = {name: LocalNode(name) for name in lan.NAMES[:3]}
        self.places = {name: str(folder / name) for name in self.nodes}
        self.messages: list[str] = []

    def plan(self, *names: str, **values: Any) -> Plan:
        return lan.plan(names, command=SCRIPT, **values)

    def folder(self, name: str, plan: Plan) -> Path:
        return Path(self.places[name]) / "runs" / plan.run_id

    def launched(self, name: str, plan: Plan) -> Path:
        """The folder of the run on a node, with its code."""
        code = self.folder(name, plan) / "code"
        code.mkdir(parents=True)
        (code / "train.py").write_text("print(7)")
        (code / "data.json").write_text("{}")
        (code.parent / "code-ab.list").write_text("./train.py\0./data.json\0")
        return code

    def notify(self, node: str, progress: Progress) -> None:
        self.messages.append(f"{node}: {progress.text}")

    def bring(self, before: Plan, after: Plan, *, large: bool = False) -> WrittenResults:
        results = results_of(self.nodes, self.places, before)
        bring_results(self.nodes, self.places, after, results, self.notify, large=large)
        return results


def write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
    os.utime(path, (AT_S, AT_S))


def test_the_next_node_of_rank_0_gets_the_files_of_the_last(tmp_path: Path) -> None:
    lans = Lan(tmp_path)
    before, after = lans.plan("alpha", "beta"), lans.plan("beta", "gamma")
    alpha, beta = lans.launched("alpha", before), lans.launched("beta", before)
    write(alpha / "out/last.pt", b"PK\x03\x04 new")
    write(alpha / "out/deep er/x.bin", bytes(2_000_000))
    write(alpha / "own.csv", b"alpha")
    write(beta / "own.csv", b"of beta")
    write(alpha / "train2.py", b"raise SystemExit")
    write(alpha / "run", b"#!/bin/sh")
    (alpha / "link.pt").symlink_to("/etc/passwd")
    write(beta / "out/last.pt", b"PK\x03\x04 old")
    record = f'{{"code/out/last.pt": [8, {AT_S * 1_000_000}]}}'
    (beta.parent / COPIED).write_text(record)
    os.utime(alpha / "out/last.pt", (AT_S + 5, AT_S + 5))
    lans.bring(before, after)
    assert (beta / "out/last.pt").read_bytes() == b"PK\x03\x04 new"
    assert (beta / "out/last.pt").stat().st_mtime == AT_S + 5
    assert (beta / "out/deep er/x.bin").stat().st_size == 2_000_000
    assert (beta / "own.csv").read_bytes() == b"of beta"
    assert not {"train2.py", "run", "link.pt"} & {path.name for path in beta.iterdir()}
    assert not list(beta.parent.glob(".copying*"))
    assert not lans.folder("gamma", before).exists()  # its agent gets them from beta's
    assert [line for line in lans.messages if "not copied" in line] == [
        "beta: run was not copied: code/run: it is a program"
    ]


def test_a_link_on_the_way_is_not_followed(tmp_path: Path) -> None:
    lans = Lan(tmp_path)
    before = lans.plan("alpha", "beta")
    alpha, beta = lans.launched("alpha", before), lans.launched("beta", before)
    write(alpha / "out/last.pt", b"PK\x03\x04 new")
    (tmp_path / "elsewhere").mkdir()
    (beta / "out").symlink_to(tmp_path / "elsewhere")
    lans.bring(before, lans.plan("beta", "alpha"))
    assert list((tmp_path / "elsewhere").iterdir()) == []
    assert any("out is a link there" in line for line in lans.messages)


def test_nothing_is_copied_where_it_is_not_wanted(tmp_path: Path) -> None:
    lans = Lan(tmp_path)
    before = lans.plan("alpha", "beta")
    alpha = lans.launched("alpha", before)
    write(alpha / "out/last.pt", b"PK\x03\x04")
    assert lans.bring(before, lans.plan("alpha", "gamma")).wanted(before) == {}
    lans.bring(before, lans.plan("beta", sync_outputs="off"))
    (alpha.parent / "checkpoints/step-00000003").mkdir(parents=True)
    lans.bring(before, lans.plan("beta", "gamma"))
    assert not lans.folder("beta", before).exists()


def test_more_than_the_limit_is_a_question_and_goes_to_every_node(tmp_path: Path) -> None:
    lans = Lan(tmp_path)
    plan = lans.plan("alpha", "beta", "gamma")
    huge = ResultFile(path="code/last.pt", size=COPY_LIMIT_BYTES + 1, modified_us=1)
    results = WrittenResults(source="alpha", lists={"alpha": ResultFiles(files=(huge,))})
    assert list(results.wanted(plan)) == ["beta", "gamma"]
    bring_results(lans.nodes, lans.places, plan, results, lans.notify, large=False)
    assert lans.messages == [f"{node}: 10 GB of files are on alpha alone: not copied" for node in ("beta", "gamma")]
    small = replace(results, lists={"alpha": ResultFiles(files=(replace(huge, size=1),))})
    assert small.wanted(plan) == {}


def test_a_hostile_answer_names_no_file_that_is_never_copied() -> None:
    names = ("../x", "code/json.py", "/etc/passwd", "agents.token", "code/a\nb.pt", "code/ok.pt")
    files = "".join(f"7 1700000000.123456789 {name}\0" for name in names)
    for record in ("", "{", "[" * 9999, "7", '{"code/ok.pt": 1}'):
        (found,) = parse(f"{record}\0\0//\0{files}x y z\0-1 0 code/b\0").files
        assert found == ResultFile(path="code/ok.pt", size=7, modified_us=1700000000123456)
    for text in ("", "\0", "//\0", "\0\0//", "\0" * 9999):
        assert parse(text).files == ()
