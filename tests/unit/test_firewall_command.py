"""`orch firewall` on firewalls that exist in memory alone: what is run, and that nothing else is."""

from __future__ import annotations

import shlex
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.consent import answering_by, writing_by
from orchestrator.fleet.connect import connecting_by
from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.nodes.sudo import CHECK, SUDO
from orchestrator.plan.firewall import plan_apply, plan_remove
from orchestrator.specs.firewall import Firewall, Opening, known_mark
from orchestrator.specs.firewall_commands import close_commands, line_to_paste, open_commands
from orchestrator.specs.network import NetworkFacts
from tests.json_output import json_data
from tests.unit.machines import AskingSudo

ADDRESSES = {"alpha": "10.0.0.11", "beta": "10.0.0.12", "gamma": "10.0.0.13"}
THEIRS = "ufw allow from 10.0.0.0/24 to any port 22 proto tcp"


@dataclass
class Ufw:
    """A machine with ufw, which keeps its rules in a list."""

    enabled: bool = True
    root: str = "itself"
    sudo: AskingSudo | None = None
    """Asks for a password; then `root` is empty."""
    rules: list[str] = field(default_factory=lambda: [THEIRS])
    ran: list[tuple[str, ...]] = field(default_factory=list)
    deaf: bool = False
    """Takes rules and forgets them."""

    def __call__(self, argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
        as_root = self.root
        if self.sudo and argv[-1] == CHECK:
            return self.sudo.check(stdin)
        if self.sudo and tuple(argv[: len(SUDO)]) == SUDO:
            outcome = self.sudo(argv, stdin)
            if len(outcome) == 3:
                return outcome
            argv, as_root = outcome[0], "itself"
        if argv == ("true",):
            return 0, "", ""
        if argv[0] == "sh":
            return 0, self._rules_text(as_root), ""
        self.ran.append(tuple(argv))
        words = list(argv[2:] if argv[:2] == ("sudo", "-n") else argv)
        assert words[0] == "ufw"
        source = words[words.index("from") + 1]
        line = f"ufw allow from {source} proto tcp"
        if words[1] == "prepend" and not self.deaf:
            self.rules.insert(0, f"{line} comment '{words[-1]}'")
        elif words[1] == "delete":
            self.rules = [rule for rule in self.rules if not rule.startswith(line)]
        return 0, "", ""

    def _rules_text(self, root: str) -> str:
        lines = ["tool=ufw", f"ufw_enabled={'yes' if self.enabled else 'no'}"]
        if root:
            lines += [f"root={root}", *(f"ufw={rule}" for rule in self.rules)]
        return "\n".join(lines)


@dataclass
class Ran:
    code: int
    out: str
    err: str


Orch = Callable[..., Ran]


@pytest.fixture
def machines() -> dict[str, Ufw]:
    return {name: Ufw() for name in ADDRESSES}


@pytest.fixture
def orch(
    machines: dict[str, Ufw], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Orch:
    nodes = "".join(f"  {name}: {{address: {address}}}\n" for name, address in ADDRESSES.items())
    (tmp_path / "inventory.yaml").write_text(f"project: lab\nnodes:\n{nodes}")
    monkeypatch.setenv("ORCH_INVENTORY", str(tmp_path / "inventory.yaml"))

    def run(*argv: str) -> Ran:
        with connecting_by(lambda spec: FakeNode(spec.name, address=spec.address, programs=machines[spec.name])):
            code = main(["firewall", *argv])
        output = capsys.readouterr()
        return Ran(code, output.out, output.err)

    return run


def test_show_changes_nothing(orch: Orch, machines: dict[str, Ufw]) -> None:
    ran = orch("show", "--nodes", "beta")
    assert (ran.code, ran.err) == (0, "")
    assert ran.out.splitlines() == [
        "beta: ufw is active; no rule for 10.0.0.11, 10.0.0.13",
        "    sudo ufw prepend allow proto tcp from 10.0.0.11 to any comment orch:lab",
        "    sudo ufw prepend allow proto tcp from 10.0.0.13 to any comment orch:lab",
    ]
    assert machines["beta"].ran == []


def test_apply_then_remove_leaves_what_was_there(orch: Orch, machines: dict[str, Ufw]) -> None:
    applied = orch("apply", "--yes")
    assert applied.code == 0
    assert "✓ beta: open to 10.0.0.11, 10.0.0.13\n" in applied.err
    assert machines["gamma"].rules == [
        "ufw allow from 10.0.0.12 proto tcp comment 'orch:lab'",
        "ufw allow from 10.0.0.11 proto tcp comment 'orch:lab'",
        THEIRS,
    ]
    for machine in machines.values():
        machine.ran.clear()
    again = orch("apply", "--yes")
    assert again.code == 0
    assert "beta: ufw is active; open to 10.0.0.11, 10.0.0.13; nothing to be done" in again.err
    assert [machine.ran for machine in machines.values()] == [[], [], []]
    assert orch("remove", "--yes").code == 0
    assert [machine.rules for machine in machines.values()] == [[THEIRS]] * 3
    assert "nothing to be done" in orch("remove", "--yes").err


def test_nothing_is_run_unasked(orch: Orch, machines: dict[str, Ufw]) -> None:
    ran = orch("apply")
    assert ran.code == 2
    assert "sudo ufw prepend allow" in ran.err
    assert "add --yes" in ran.err
    assert all(machine.ran == [] for machine in machines.values())


def test_through_sudo_where_the_user_is_not_root(orch: Orch, machines: dict[str, Ufw]) -> None:
    machines["beta"].root = "sudo"
    assert orch("apply", "--nodes", "beta", "--yes").code == 0
    assert {argv[:3] for argv in machines["beta"].ran} == {("sudo", "-n", "ufw")}


def test_where_sudo_asks_one_password_reads_and_changes_the_rules(orch: Orch, machines: dict[str, Ufw]) -> None:
    for name in ("beta", "gamma"):
        machines[name].root, machines[name].sudo = "", AskingSudo()
    with answering_by(lambda *_: True), writing_by(lambda question: asked.append(question) or "right"):
        asked = list[str]()
        applied = orch("apply")
        assert (applied.code, asked) == (0, ["sudo password for 2 machines (beta, gamma)"]), applied.err
        assert machines["gamma"].rules[0] == "ufw allow from 10.0.0.12 proto tcp comment 'orch:lab'"
        shown = orch("show")
        assert "beta: ufw is active; open to 10.0.0.11, 10.0.0.13; nothing to be done" in shown.out
        assert orch("remove").code == 0
    assert [machine.rules for machine in machines.values()] == [[THEIRS]] * 3
    assert len(asked) == 3


def test_a_refused_password_is_one_error_and_changes_nothing_there(orch: Orch, machines: dict[str, Ufw]) -> None:
    machines["beta"].root, machines["beta"].sudo = "", AskingSudo("another")
    typed = iter(("right", "wrong"))
    with answering_by(lambda *_: True), writing_by(lambda _: next(typed)):
        ran = orch("apply")
    assert (ran.code, machines["beta"].ran) == (5, [])
    error = "error: beta: sudo refuses that password; nothing was changed there\n  → orch firewall apply --nodes beta\n"
    assert (ran.err.count("beta: sudo"), error in ran.err) == (1, True)
    assert len(machines["alpha"].ran) == 2


def test_without_a_terminal_nothing_is_asked(orch: Orch, machines: dict[str, Ufw]) -> None:
    machines["beta"].root = ""
    ran = orch("apply", "--yes")
    assert (ran.code, machines["alpha"].ran) == (2, [])
    assert "  → orch firewall apply --yes --sudo-password-fd 3 3< FILE " in ran.err
    assert orch("show", "--nodes", "beta").code == 4


def test_a_firewall_that_is_off_is_left_alone(orch: Orch, machines: dict[str, Ufw]) -> None:
    for machine in machines.values():
        machine.enabled = False
    ran = orch("apply", "--yes")
    assert (ran.code, [machine.ran for machine in machines.values()]) == (0, [[], [], []])
    assert "ufw is installed and not active: it blocks nothing; nothing to be done" in ran.err


def test_what_was_not_taken_is_an_error(orch: Orch, machines: dict[str, Ufw]) -> None:
    machines["beta"].deaf = True
    ran = orch("apply", "--yes")
    assert ran.code == 5
    assert "beta: ufw accepted the rules but does not list them" in ran.err


def test_a_machine_that_is_no_more_is_shut_out(orch: Orch, machines: dict[str, Ufw]) -> None:
    machines["beta"].rules.append("ufw allow from 10.0.0.99 proto tcp comment 'orch:lab'")
    machines["beta"].rules.append("ufw allow from 10.0.0.98 proto tcp comment 'orch:other'")
    orch("apply", "--nodes", "beta", "--yes")
    reported = " ".join(machines["beta"].rules)
    assert "10.0.0.99" not in reported
    assert "10.0.0.98" in reported


def test_a_rule_of_the_users_stays(orch: Orch, machines: dict[str, Ufw]) -> None:
    machines["beta"].rules.append("ufw allow from 10.0.0.11 proto tcp comment 'mine'")
    orch("apply", "--nodes", "beta", "--yes")
    assert [argv[6] for argv in machines["beta"].ran] == ["10.0.0.13"]
    orch("remove", "--nodes", "beta", "--yes")
    assert machines["beta"].rules == [THEIRS, "ufw allow from 10.0.0.11 proto tcp comment 'mine'"]


def test_as_json(orch: Orch) -> None:
    (beta,) = json_data(orch("show", "--json", "--nodes", "beta").out)["nodes"]
    assert (beta["tool"], beta["active"], beta["missing"]) == ("ufw", True, ["10.0.0.11", "10.0.0.13"])
    assert beta["commands"][0][:3] == ["ufw", "prepend", "allow"]
    (done,) = json_data(orch("apply", "--json", "--yes", "--nodes", "beta").out)["nodes"]
    assert (done["open_to"], done["commands"]) == (["10.0.0.11", "10.0.0.13"], [])
    assert orch("show", "-o", "name", "--nodes", "beta,gamma").out == "beta\ngamma\n"


NFT = Firewall(tool="nftables", active=True, openings=(), places=("inet filter input", "ip own in"))
IPTABLES = Firewall(tool="iptables", active=True, openings=())
FIREWALLD = Firewall(tool="firewalld", active=True, openings=(), places=("public",))


def facts(wall: Firewall) -> NetworkFacts:
    return NetworkFacts(wall=wall, mark="orch:lab", as_root=())


def test_every_chain_that_refuses_gets_a_rule() -> None:
    plan = plan_apply("beta", facts(NFT), ["10.0.0.11"])
    match = ("ip", "saddr", "10.0.0.11", "meta", "l4proto", "tcp", "accept", "comment", '"orch:lab"')
    assert plan.commands == (
        ("nft", "insert", "rule", "inet", "filter", "input", *match),
        ("nft", "insert", "rule", "ip", "own", "in", *match),
    )
    half = Opening(source="10.0.0.11", mark="orch:lab", place="ip own in", handle="9")
    partly = Firewall(tool="nftables", active=True, openings=(half,), places=NFT.places)
    assert [argv[3:6] for argv in plan_apply("beta", facts(partly), ["10.0.0.11"]).commands] == [
        ("inet", "filter", "input")
    ]
    assert plan_remove("beta", facts(partly)).commands == (("nft", "delete", "rule", "ip", "own", "in", "handle", "9"),)


def test_what_opens_and_what_closes_are_one_rule() -> None:
    ((insert),) = open_commands(IPTABLES, "10.0.0.11", "orch:lab")
    ((delete),) = close_commands("iptables", Opening(source="10.0.0.11", mark="orch:lab"))
    assert insert[3:] == delete[3:]
    assert (insert[2], delete[2]) == ("--insert", "--delete")
    adding = list(open_commands(FIREWALLD, "10.0.0.11", "orch:lab"))
    mark = known_mark("firewalld", "orch:lab")
    removing = list(close_commands("firewalld", Opening(source="10.0.0.11", mark=mark, place="public")))
    assert [[word.replace("--add", "--remove") for word in argv] for argv in adding] == [list(x) for x in removing]
    assert -32768 <= int(mark) < 0, "a priority that firewalld takes, before rules that refuse"
    assert mark != known_mark("firewalld", "orch:other")


@pytest.mark.parametrize("wall", [NFT, IPTABLES, FIREWALLD, Firewall(tool="ufw", active=True)])
def test_a_line_to_paste_is_what_would_be_run(wall: Firewall) -> None:
    line = line_to_paste(wall, ["10.0.0.11"], "orch:lab")
    pasted = [shlex.split(part) for part in line.split("; ")]
    assert [words[1:] for words in pasted] == [list(argv) for argv in open_commands(wall, "10.0.0.11", "orch:lab")]
    several = line_to_paste(wall, ["10.0.0.11", "10.0.0.12"], "orch:lab")
    assert several.startswith("for peer in 10.0.0.11 10.0.0.12; do sudo ")
    assert "$peer" in several
    assert "'$peer" not in several


def test_no_tool_no_line() -> None:
    assert line_to_paste(Firewall(active=True), ["10.0.0.11"], "orch:lab") == ""
