"""Messages when something goes wrong before training, or in its logs: rows of docs/faults.md, by commands."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.log_stream import rejoin_lines
from orchestrator.nodes.probes import probe
from orchestrator.nodes.ssh_login import Attempt, Keys, refusal
from orchestrator.specs.errors import CommandFailedError, EngineError
from orchestrator.specs.facts import ImageFacts
from orchestrator.specs.request import RunIdentity
from tests import lan
from tests.lan import event
from tests.unit.conftest import THREE, Orch, Ran, detached

REFUSED = "error: nothing was started\n  → fix the errors above, or leave nodes out with --nodes\n"


def answering(name: str, **changes: str) -> lan.Lan:
    """Three machines in health; the facts script answers otherwise on this one."""
    here = lan.lan(*THREE)
    here.nodes[name].answers[("sh", "-c", probe.SCRIPT, "*")] = (0, lan.probe_answer(name, **changes), "")
    return here


def assert_refused(ran: Ran, here: lan.Lan, *message: str) -> None:
    """Nothing was started, and each of these was said."""
    assert (ran.code, here.containers) == (4, {}), ran.err
    for text in (*message, REFUSED):
        assert text in ran.err


def test_one_node_out_of_reach_is_named_and_the_others_are_still_checked(orch: Orch) -> None:
    """Row 1."""
    here = answering("gamma", disk="/dev/sda1 98000000 97999000 1000 99% /home")
    silent = FakeNode("beta", address=lan.address_of("beta"))
    silent.answers[("sh", "*")] = refusal(
        Attempt(
            spec=lan.spec("beta"),
            user="ana",
            error=TimeoutError("timed out"),
            waited_s=5,
            keys=Keys(files=(), in_agent=frozenset()),
        )
    )
    here.nodes["beta"] = silent
    assert_refused(
        orch("launch", on=here),
        here,
        "error: beta: ana@10.0.0.12:22 no answer in 5 s (timed out)\n"
        "  → is it on, and its address right in the inventory? Try: ssh -p 22 ana@10.0.0.12\n",
        "gamma has 0 MiB free for its workspace",
    )


@pytest.mark.parametrize(
    ("why", "fix"),
    [
        ("the Docker Engine is not running", "sudo systemctl start docker"),
        ("this user may not use the Docker Engine", "sudo usermod -aG docker ana"),
    ],
)
def test_an_engine_that_is_down_or_not_ours_is_named(orch: Orch, why: str, fix: str) -> None:
    """Row 5."""
    here = lan.lan(*THREE)
    here.nodes["gamma"].engine.failures["facts"] = EngineError(why, node="gamma", hint=fix)
    assert_refused(orch("launch", on=here), here, f"error: gamma: {why}\n  → {fix}\n")


def test_no_room_on_a_disk_says_how_much_is_needed(orch: Orch) -> None:
    """Row 6."""
    here = answering("beta", disk="/dev/sda1 98000000 97900000 512000 99% /home")
    assert_refused(
        orch("launch", on=here),
        here,
        "✗ beta has 500 MiB free for its workspace, needs 1024 [disk.full]\n"
        "  → make room, or set `workspace` in the inventory to a larger disk\n",
    )


def test_a_folder_is_not_copied_into_itself(tmp_path: Path) -> None:
    """Code in a folder that also holds the workspace of this very computer."""
    (tmp_path / "train.py").write_text("print(1)")
    for inner in ("ws/code", ""):
        with pytest.raises(CommandFailedError, match="lies within"):
            LocalNode("alpha").put(tmp_path, str(tmp_path / inner))
    assert [path.name for path in tmp_path.iterdir()] == ["train.py"]


def test_an_image_that_differs_is_reported_with_the_ids(orch: Orch) -> None:
    """Row 9."""
    here = lan.lan(*THREE)
    other = ImageFacts(id="sha256:" + "2b" * 32, tags=lan.IMAGE.tags, labels=lan.IMAGE.labels)
    here.nodes["gamma"].engine.held = {other.id: other}
    assert_refused(
        orch("launch", on=here),
        here,
        "the nodes have different cpu images: alpha 1a1a1a1a1a1a, beta 1a1a1a1a1a1a, gamma 2b2b2b2b2b2b [image.differs]"
        "\n  → orch build\n",
    )


def test_a_launch_cut_off_half_way_is_found_by_the_next_command(orch: Orch) -> None:
    """Row 21. Containers were made on all nodes and started on one, and the controller is gone."""
    here = lan.lan(*THREE, ends_with=None)
    identity = RunIdentity(run_id="first", user="ana", started_at="2026-01-02T15:04:05+00:00")
    for part in lan.plan(THREE, identity).nodes:
        engine = here.nodes[part.node].engine
        container = engine.create(part.container)
        if part.node == "gamma":
            engine.start(container)

    ran = orch("launch", on=here)
    assert ran.code == 6
    assert "alpha: run first by ana holds this node since 2026-01-02T15:04:05+00:00\n" in ran.err
    assert "its launch was cut short, or is under way: orch adopt first, or: orch stop first" in ran.err
    shown = orch("status", "first", on=here).out
    assert "created" in shown
    assert orch("stop", "first", on=here).code == 0
    assert here.containers == {}


def test_a_clock_that_is_off_warns_and_then_refuses(orch: Orch) -> None:
    """Row 28. The fractions leave almost a second until the clock is read."""
    here = answering("beta", clock=f"{time.time() - 89.55:.3f}")
    assert_refused(
        orch("launch", on=here),
        here,
        "✗ the clock of beta is 90 s behind [clock.skew]\n  → on it: sudo timedatectl set-ntp true\n",
    )
    here = answering("beta", clock=f"{time.time() + 10.45:.3f}")
    here.nodes["alpha"].engine.ends_with = None  # type: ignore[attr-defined]  # an Actor
    warned = orch("launch", "--detach", on=here)
    assert warned.code == 0
    assert "! the clock of beta is 10 s ahead [clock.skew]\n" in warned.err


def test_a_port_in_use_is_passed_over_and_reported(orch: Orch) -> None:
    """Row 29."""
    here = answering("alpha", listening="0016 3043 3044")
    lines = orch("launch", "--dry-run", on=here)
    assert "# note: port 12355 is taken on alpha: using 12357\n" in lines.out
    assert lines.out.count("--master-port 12357") == 3


def test_a_port_that_was_asked_for_and_is_taken_is_a_conflict(orch: Orch) -> None:
    """Row 29."""
    here = answering("alpha", listening="0016 3043 3044")
    alpha = here.nodes["alpha"]
    alpha.answers["ss", "*"] = (0, 'LISTEN 0 128 *:12355 *:* users:(("jupyter",pid=812,fd=7))\n', "")
    taken = orch("launch", "--detach", "--master-port", "12355", on=here)
    message = "error: alpha: port 12355, which --master-port asks for, is taken by "
    assert (taken.code, here.containers) == (6, {})
    assert message + "jupyter (pid 812)\n  → end that, ask for another one, or leave out --master-port" in taken.err
    alpha.answers["ss", "*"] = (0, "LISTEN 0 128 *:12355 *:*\n", "")
    assert message + "a program of another user\n" in orch("launch", "--master-port", "12355", on=here).err
    free = orch("launch", "--dry-run", "--master-port", "12399", on=here)
    assert free.out.count("--master-port 12399") == 3
    for name in THREE:
        here.nodes[name].engine.ends_with = None  # type: ignore[attr-defined]  # an Actor
    run_id = detached(orch, here)
    assert message + f"run {run_id} by" in orch("launch", "--master-port", "12355", on=here).err


def test_one_machine_under_two_names_is_refused(orch: Orch) -> None:
    """Row 33."""
    here = lan.lan(*THREE)
    here.nodes["gamma"].engine.description = here.nodes["alpha"].engine.description
    assert_refused(
        orch("launch", on=here),
        here,
        "✗ gamma and alpha are one machine: both reach the engine alpha… [inventory.same_machine]\n"
        "  → remove one from the inventory; for two ranks there: nproc_per_node: 2 on alpha\n",
    )


def test_a_typing_error_is_reported_with_its_line_and_what_was_meant(orch: Orch) -> None:
    """Row 31."""
    Path("inventory.yaml").write_text("nodes:\n  alpha:\n    address: 10.0.0.1\n    prot: 2222\n")
    ran = orch("launch")
    assert ran.code == 3
    assert "inventory.yaml:4: unknown key 'prot' in node alpha (did you mean 'port'?)\n" in ran.err


def test_a_name_or_an_address_twice_is_reported_with_both_lines(orch: Orch) -> None:
    """Row 32."""
    Path("inventory.yaml").write_text(
        "nodes:\n  alpha: {address: 10.0.0.1}\n  beta: {address: 10.0.0.1}\n  alpha: {address: 10.0.0.3}\n"
    )
    ran = orch("launch")
    assert ran.code == 3
    assert "inventory.yaml:3: node beta has the address of node alpha: 10.0.0.1 port 22 (line 2)\n" in ran.err
    assert "inventory.yaml:4: node alpha appears twice (first on line 2)\n" in ran.err


def test_more_nodes_than_there_are(orch: Orch) -> None:
    """Row 40."""
    ran = orch("launch", "--nodes", "6", on=lan.lan(*THREE))
    assert ran.code == 3
    assert ran.err == (
        "error: asked for 6 nodes, inventory.yaml has 3: alpha, beta, gamma\n"
        "  → ask for --nodes 3, or add machines to inventory.yaml\n"
    )


# ── logs ──


def test_a_log_takes_no_more_of_a_disk_than_its_cap() -> None:
    """Row 36."""
    asked = lan.plan().nodes[0].container.create_arguments()["HostConfig"]
    assert asked["LogConfig"] == {"Type": "json-file", "Config": {"max-size": "50m", "max-file": "3"}}


def test_of_a_huge_log_the_end_is_shown(orch: Orch) -> None:
    """Row 36."""
    here = lan.lan(*THREE, ends_with=None)
    detached(orch, here)
    engine = here.nodes["beta"].engine
    (container,) = engine.made
    for number in range(20_000):
        engine.write(container, lan.moment(number // 1000, number), f"[rank1]: line {number}")
    ran = orch("logs", "--nodes", "beta", "--tail", "2", on=here)
    assert ran.out == "[1 beta ] line 19998\n[1 beta ] line 19999\n"


def test_what_is_no_text_becomes_text_and_pieces_become_one_line() -> None:
    """Row 37. Docker hands out lines in frames of 16 KiB, each with a time."""
    long = b"x" * 16384
    frames = [b"t1 " + long, b"t2 " + long, b"t3 end\n", b"t4 caf\xe9 \xff\n", b"t5 \x1b[31mred\x00\n", b"t6 cut"]
    lines = list(rejoin_lines(frames))
    assert [line.time for line in lines] == ["t1", "t4", "t5", "t6"]
    assert lines[0].text == "x" * 32768 + "end"
    assert lines[1].text == "caf\ufffd \ufffd"


def test_no_line_moves_the_cursor(orch: Orch) -> None:
    """Row 37."""
    says = ("[rank0]: \x1b[2J\x1b[31mred\x1b[0m \x00\x07bell", "[rank0]: \x1b]0;title\x07after", event("done", step=1))
    ran = orch("launch", on=lan.lan(*THREE, says=says))
    assert ran.code == 0
    assert "] red bell\n" in ran.out
    assert "] after\n" in ran.out
    assert not (set(map(chr, range(32))) - {"\n", "\t"}) & set(ran.out + ran.err)
