"""Checkpoints on several machines: found, verified, copied and removed by the very scripts that nodes run."""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import subprocess
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.fleet.checkpoints import copy
from orchestrator.fleet.checkpoints.newest import newest_anywhere
from orchestrator.fleet.checkpoints.replicate import replicate
from orchestrator.fleet.checkpoints.survey import places_in, places_of, survey, verify
from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.nodes.interface import Completed
from orchestrator.specs.errors import CommandFailedError, NodeUnreachableError, RunFailedError
from tests.shelves import RUN, Shelves, flip, mark_best, steps_in, write_checkpoint

STOP_AT = """#!/bin/sh
count=$(($(cat "$COUNTS" 2>/dev/null || echo 0) + 1)); echo $count > "$COUNTS"
[ $count -eq $STOP_AT ] && kill -KILL $PPID && exit 1
case " $* " in *" --exchange "*) [ "$EXCHANGE" = no ] && exit 1;; esac
PATH=$REAL exec "${0##*/}" "$@"
"""
"""A program that ends the script which calls it, the time it is asked to; otherwise the one of its own name."""


@pytest.mark.parametrize("exchange", ["if mv can", "no"])
def test_a_kill_at_any_command_of_a_replacement_leaves_a_checkpoint(
    here: Shelves, tmp_path: Path, exchange: str
) -> None:
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("mv", "rm", "sync"):
        (programs / name).write_text(STOP_AT)
        (programs / name).chmod(0o755)
    found, killed = [], True
    while killed:
        number = len(found) + 1
        run_id = f"r{number}"
        old = write_checkpoint(here.root("alpha"), 40, run_id=run_id)
        new = old.with_name(".copy-0123")
        shutil.copytree(old, new)
        sums = "".join(f"{hashlib.sha256(one.read_bytes()).hexdigest()}  {one.name}\n" for one in new.iterdir())
        real = os.environ["PATH"]
        environ = {"PATH": f"{programs}:{real}", "REAL": real, "COUNTS": str(tmp_path / run_id), "EXCHANGE": exchange}
        argv = ["sh", "-c", copy._FINISH, "sh", str(new), old.name]
        killed = bool(
            subprocess.run(argv, input=sums.encode(), env={**environ, "STOP_AT": str(number)}, check=False).returncode
        )
        found.append([(one.step, one.problem) for one in survey(here.all, here.places, run_id).held])
        assert killed or [path.name for path in old.parent.iterdir()] == [old.name]
    assert found == [[(40, "")]] * len(found)
    assert len(found) > 4


@pytest.fixture
def here(tmp_path: Path) -> Shelves:
    return Shelves(tmp_path / "machines")


def content(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_what_lies_where(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40, age_s=60)
    write_checkpoint(here.root("alpha"), 80)
    write_checkpoint(here.root("beta"), 40, run_id="other")
    mark_best(here.root("alpha"), 40)
    (here.root("alpha") / "runs" / RUN / "checkpoints" / ".tmp-step-00000120").mkdir()
    (here.root("alpha") / "runs" / "no-checkpoints").mkdir()
    found = survey(here.all, here.places)
    assert [(one.node, one.run_id, one.step, one.best) for one in found.held] == [
        ("alpha", RUN, 40, True),
        ("alpha", RUN, 80, False),
        ("beta", "other", 40, False),
    ]
    assert all((one.problem, one.hashed) == ("", False) for one in found.held)
    assert 60 <= found.held[0].age_s < 90
    assert found.held[0].size == sum(map(len, content(Path(found.held[0].folder)).values()))
    assert [one.run_id for one in survey(here.all, here.places, "oth").held] == ["other"]


def test_a_home_is_that_of_the_nodes_user(here: Shelves, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(here.folder / "alpha"))
    write_checkpoint(here.root("alpha"), 40)
    found = survey(here.all[:1], {"alpha": "~/orch"})
    assert found.held[0].folder == f"{here.root('alpha')}/runs/{RUN}/checkpoints/step-00000040"


def test_places_come_from_a_plan_or_from_the_inventory(here: Shelves) -> None:
    assert places_of(here.plan) == places_in(here.specs, "orch") == here.places


def test_a_node_that_does_not_answer_hides_no_other(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    here.nodes["beta"].answers["sh", "*"] = NodeUnreachableError("no answer in 5 s", node="beta")
    found = survey(here.all, here.places)
    assert [one.node for one in found.held] == ["alpha"]
    assert list(found.unreachable) == ["beta"]


@pytest.mark.parametrize("name", ["state.pt", "vocabulary.json", "manifest.json"])
def test_a_flipped_bit_is_found(here: Shelves, name: str) -> None:
    flip(write_checkpoint(here.root("alpha"), 40) / name)
    write_checkpoint(here.root("beta"), 40)
    looked = verify(here.all, survey(here.all, here.places).held)
    assert [bool(one.problem) for one in looked] == [True, False]
    assert looked[1].hashed


def test_links_are_not_followed(here: Shelves, tmp_path: Path) -> None:
    folder = write_checkpoint(here.root("alpha"), 40)
    shutil.move(folder / "state.pt", tmp_path / "elsewhere")
    (folder / "state.pt").symlink_to(tmp_path / "elsewhere")
    (folder.parent / "step-00000080").symlink_to(folder)
    (held,) = survey(here.all, here.places).held
    assert (held.step, held.problem) == (40, "state.pt is missing")


def test_the_newest_goes_to_the_next_node_once(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    origin = write_checkpoint(here.root("alpha"), 80, size=3_000_000)
    reports: list[tuple[str, int, int]] = []

    done = replicate(here.all, here.plan, notify=lambda node, now: reports.append((node, now.done, now.total)))

    assert (done.step, done.holders, done.copied, done.failed) == (80, ("beta",), ("beta",), ())
    arrived = here.root("beta") / "runs" / RUN / "checkpoints" / "step-00000080"
    assert content(arrived) == content(origin)
    assert {stat.S_IMODE(path.stat().st_mode) for path in (arrived, *arrived.iterdir())} == {0o700, 0o600}
    assert (steps_in(here.root("beta")), steps_in(here.root("gamma"))) == ([80], [])
    size = sum(map(len, content(origin).values()))
    assert ("beta", size, size) in reports

    before = len(here.nodes["beta"].calls)
    again = replicate(here.all, here.plan)
    assert (again.holders, again.copied) == (("beta",), ())
    assert len(here.nodes["beta"].calls) == before + 1


def test_to_as_many_nodes_as_asked_for(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    assert replicate(here.all, here.plan, copies=0).holders == ()
    assert replicate(here.all, here.plan, copies=2).holders == ("beta", "gamma")
    assert replicate(here.all, here.plan, copies=9).holders == ("beta", "gamma")


def test_nothing_to_copy(here: Shelves) -> None:
    assert replicate(here.all, here.plan).step is None
    flip(write_checkpoint(here.root("alpha"), 40) / "manifest.json")
    assert replicate(here.all[1:], here.plan).step is None


def test_a_node_that_fails_is_passed_over_and_named(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    here.nodes["beta"].answers["sh", "*"] = NodeUnreachableError("no answer in 5 s", node="beta")
    done = replicate(here.all, here.plan)
    assert done.holders == ("gamma",)
    assert [error.node for error in done.failed] == ["beta"]


def test_a_node_without_room_is_passed_over_and_nothing_is_left(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)

    def full(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        if argv[2:3] == [copy._WRITE]:
            (Path(argv[4]) / argv[5]).write_bytes(stdin[:100])
            return 1, "", "cat: write error: No space left on device"
        return here.play(argv, stdin, timeout_s)

    here.nodes["beta"].programs = full
    done = replicate(here.all, here.plan)
    assert (done.holders, steps_in(here.root("beta"))) == (("gamma",), [])
    assert "No space left on device" in str(done.failed[0])


class Narrow(FakeNode):
    """Its disk is full after the first bytes of a file: the command ends before it has read all of its stdin."""

    def run(self, argv: Sequence[str], *, stdin: bytes | Iterable[bytes] = b"", timeout_s: float = 30.0) -> Completed:
        if argv[2:3] != [copy._WRITE]:
            return super().run(argv, stdin=stdin, timeout_s=timeout_s)
        return Completed(node=self.name, argv=tuple(argv), exit_code=1, stdout="", stderr="No space left on device")


def test_a_node_that_reads_no_further_is_not_taken_for_damage_at_the_origin(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    here.nodes["beta"] = Narrow("beta", programs=here.play)
    done = replicate(here.all, here.plan)
    assert (done.holders, [error.node for error in done.failed]) == (("gamma",), ["beta"])


def test_a_disk_is_not_filled_to_its_end(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    (held,) = survey(here.all, here.places).held
    huge = replace(held, parts=(replace(held.parts[0], size=2**49), *held.parts[1:]))
    root = here.root("beta") / "runs" / RUN / "checkpoints"
    with pytest.raises(CommandFailedError, match=r"MiB are free there") as raised:
        copy.copy_checkpoint(here.nodes["alpha"], huge, here.nodes["beta"], str(root), lambda _node, _now: None)
    assert raised.value.hint.startswith("562949953 MB are needed")
    assert steps_in(here.root("beta")) == []


def test_damage_at_the_origin_is_not_spread(here: Shelves) -> None:
    flip(write_checkpoint(here.root("alpha"), 40) / "state.pt")
    with pytest.raises(RunFailedError, match=r"state.pt is not what its manifest says") as raised:
        replicate(here.all, here.plan)
    assert raised.value.node == "alpha"
    assert (steps_in(here.root("beta")), steps_in(here.root("gamma"))) == ([], [])


def test_damage_on_the_way_is_found_on_arrival(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)

    def flipping(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        spoilt = bytes([stdin[0] ^ 1]) + stdin[1:] if argv[2:3] == [copy._WRITE] else stdin
        return here.play(argv, spoilt, timeout_s)

    here.nodes["beta"].programs = flipping
    done = replicate(here.all, here.plan)
    assert (done.holders, steps_in(here.root("beta"))) == (("gamma",), [])
    assert "it is not what was sent" in str(done.failed[0])


def test_an_origin_that_breaks_off_leaves_nothing(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    here.nodes["alpha"].answers["cat", "*"] = NodeUnreachableError("the connection broke during cat", node="alpha")
    with pytest.raises(NodeUnreachableError, match="connection broke"):
        replicate(here.all, here.plan)
    assert steps_in(here.root("beta")) == []


def test_one_that_is_pushed_out_while_it_is_read(here: Shelves) -> None:
    folder = write_checkpoint(here.root("alpha"), 40)

    def removing(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        if argv[0] == "cat":
            shutil.rmtree(folder, ignore_errors=True)
        return here.play(argv, stdin, timeout_s)

    here.nodes["alpha"].programs = removing
    with pytest.raises(RunFailedError, match=r"state.pt cannot be read: .*No such file"):
        replicate(here.all, here.plan)


def test_more_than_was_promised_is_cut_off(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    here.nodes["alpha"].answers["cat", "*"] = (0, "x" * 10_000, "")
    with pytest.raises(RunFailedError, match="not what its manifest says"):
        replicate(here.all, here.plan)


def test_a_damaged_or_different_copy_is_replaced(here: Shelves) -> None:
    origin = write_checkpoint(here.root("alpha"), 40)
    there = write_checkpoint(here.root("beta"), 40, size=600)
    assert replicate(here.all, here.plan).copied == ("beta",)
    assert content(there) == content(origin)
    (there / "state.pt").unlink()
    assert replicate(here.all, here.plan).copied == ("beta",)
    assert content(there) == content(origin)


def test_copies_go_as_they_go_at_their_origin(here: Shelves) -> None:
    for step in (20, 40, 60, 80, 100):
        write_checkpoint(here.root("alpha"), step)
        for old in steps_in(here.root("alpha"))[:-2]:
            shutil.rmtree(here.root("alpha") / "runs" / RUN / "checkpoints" / f"step-{old:08d}")
        replicate(here.all, here.plan)
    assert steps_in(here.root("alpha")) == steps_in(here.root("beta")) == [80, 100]


def test_what_the_origin_keeps_as_its_best_stays_elsewhere_too(here: Shelves) -> None:
    for step in (20, 40, 60):
        write_checkpoint(here.root("beta"), step)
    mark_best(here.root("beta"), 20)
    write_checkpoint(here.root("alpha"), 80)
    replicate(here.all, here.plan)
    assert steps_in(here.root("beta")) == [20, 80]


def test_leftovers_of_yesterday_go(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    root = here.root("beta") / "runs" / RUN / "checkpoints"
    (root / ".copy-0badcafe").mkdir(parents=True)
    os.utime(root / ".copy-0badcafe", (1, 1))
    replicate(here.all, here.plan)
    assert steps_in(here.root("beta")) == [40]


def test_the_newest_sound_one_anywhere(here: Shelves) -> None:
    assert newest_anywhere(here.all, here.places, RUN).copies == ()
    write_checkpoint(here.root("alpha"), 40)
    write_checkpoint(here.root("beta"), 40)
    damaged = write_checkpoint(here.root("gamma"), 80)
    write_checkpoint(here.root("gamma"), 999, run_id=f"{RUN}-and-more")
    copies = newest_anywhere(here.all, here.places, RUN).copies
    assert [(one.node, one.step, one.hashed) for one in copies] == [("gamma", 80, True)]
    flip(damaged / "state.pt")
    copies = newest_anywhere(here.all, here.places, RUN).copies
    assert [(one.node, one.step) for one in copies] == [("alpha", 40), ("beta", 40)]


def test_a_node_lost_while_it_is_read_counts_as_having_none(here: Shelves) -> None:
    write_checkpoint(here.root("alpha"), 40)
    write_checkpoint(here.root("beta"), 80)
    here.nodes["beta"].answers["sha256sum", "*"] = NodeUnreachableError("the connection broke", node="beta")
    assert [one.node for one in newest_anywhere(here.all, here.places, RUN).copies] == ["alpha"]
