"""The sudo password: how often it is asked for, which nodes get it, and that it shows nowhere."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from traceback import format_exception

import pytest

from orchestrator.cli.consent import writing_by
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.sudo import BEGIN, CHECK, SKIP, SUDO, Password, prove, with_sudo
from orchestrator.specs.errors import NodeUnreachableError, SudoRefusal, SudoRefusedError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.reach import Reach
from tests.unit.conftest import Orch
from tests.unit.machines import AskingSudo, Fleet, Machine, fleet

SECRET = "correct horse battery"  # noqa: S105  # of fake machines
OTHER = "staple"


def asking(**other: str) -> Fleet:
    """alpha, beta and gamma, whose sudo asks for SECRET, or for the password that is given."""
    here = fleet(rights="password")
    for name, machine in here.machines.items():
        machine.sudo = AskingSudo(other.get(name, SECRET))
    return here


@contextmanager
def typing(*words: str) -> Iterator[list[str]]:
    """Type these words, one for each question; yields the questions."""
    left, questions = list(words), list[str]()

    def person(question: str) -> str:
        questions.append(question)
        return left.pop(0)

    with writing_by(person):
        yield questions
    assert left == []


def tried(here: Fleet) -> list[list[str]]:
    """Wrong passwords that sudo got, by machine."""
    return [[one for one in machine.sudo.tried if one != machine.sudo.password] for machine in here.machines.values()]


def test_one_question_sets_up_all_machines(orch: Orch) -> None:
    here = asking()
    with typing(SECRET) as questions:
        ran = orch("setup", on=here)
    assert questions == ["sudo password for 3 machines (alpha, beta, gamma)"]
    assert ran.asked == ("run these commands on alpha, beta, gamma?",)
    assert ran.code == 0, ran.err
    assert all(machine.daemon and "docker" in machine.groups for machine in here.machines.values())
    again = orch("setup", on=here)
    assert (again.code, again.asked) == (0, ()), "no password where nothing is to do"


def test_only_machines_that_ask_get_it(orch: Orch) -> None:
    here = asking()
    here.machines["beta"].rights = "free"
    here.machines["gamma"] = Machine(name="gamma", rights="password", sudo=AskingSudo(SECRET), user="root")
    here.machines["gamma"].rights = "root"
    with typing(SECRET) as questions:
        assert orch("setup", "--yes", on=here).code == 0
    assert questions == ["sudo password for alpha"]
    assert [bool(machine.sudo.tried) for machine in here.machines.values()] == [True, False, False]


def test_a_machine_with_another_password_is_asked_for_by_name(orch: Orch) -> None:
    here = asking(beta=OTHER)
    with typing(SECRET, OTHER) as questions:
        ran = orch("setup", "--yes", on=here)
    assert questions[1] == "beta refuses that one. sudo password for beta"
    assert (ran.code, tried(here)) == (0, [[], [], []]), ran.err
    assert here.machines["beta"].sudo.compared == [SECRET]


def test_what_all_refuse_was_mistyped(orch: Orch) -> None:
    here = asking()
    with typing("corect", SECRET) as questions:
        assert orch("setup", "--yes", on=here).code == 0
    assert questions[1].startswith("All of them refuse that one. sudo password for 3 machines")
    assert tried(here) == [[], [], []]


def test_sudo_gets_one_wrong_password_at_most_and_nothing_was_changed(orch: Orch) -> None:
    here = asking(beta=OTHER)
    with typing(SECRET, "stable"):
        ran = orch("setup", "--yes", on=here)
    assert (ran.code, tried(here)) == (5, [[], ["stable"], []])
    assert "  ✗ sudo refuses that password; nothing was changed there\n    → orch setup --nodes beta\n" in ran.out
    assert here.machines["beta"].commands == []
    assert here.machines["gamma"].daemon


def test_where_nothing_can_compare_sudo_decides_and_is_not_asked_again(orch: Orch) -> None:
    here = asking(beta=OTHER)
    here.machines["beta"].sudo.helper = ""
    with typing(SECRET):
        assert orch("setup", "--yes", on=here).code == 5
    assert tried(here) == [[], [SECRET], []]


def test_a_sudo_that_wants_another_password_than_the_account_s_gets_it_at_the_second_question(orch: Orch) -> None:
    """`rootpw` in sudoers: the helper knows the account's own alone."""
    here = asking()
    for machine in here.machines.values():
        machine.sudo.helper = "the account's"
    with typing(SECRET, SECRET):
        assert orch("setup", "--yes", on=here).code == 0


def test_each_can_be_asked_for(orch: Orch) -> None:
    here = asking(beta=OTHER)
    with typing(SECRET, OTHER, SECRET) as questions:
        assert orch("setup", "--yes", "--ask-each", on=here).code == 0
    assert questions == [f"sudo password for {name}" for name in ("alpha", "beta", "gamma")]
    assert tried(here) == [[], [], []]


def test_a_machine_whose_host_key_is_unknown_is_neither_asked_for_nor_sent_anything(orch: Orch) -> None:
    here = asking()
    strange = FakeNode("beta", answers={("sh", "*"): NodeUnreachableError("unknown key", reach=Reach.KEY_UNKNOWN)})

    class OneIsStrange(Fleet):
        def connect(self, wanted: NodeSpec) -> FakeNode:
            return strange if wanted.name == "beta" else super().connect(wanted)

    with typing(SECRET) as questions:
        assert orch("setup", "--yes", on=OneIsStrange(here.machines)).code == 5
    assert questions == ["sudo password for 2 machines (alpha, gamma)"]
    assert not [call for call in strange.calls if "sudo" in call or CHECK in call]


@pytest.mark.parametrize("form", [("--json",), ("-o", "name")])
def test_a_refusal_is_one_line_on_stderr_in_other_forms(orch: Orch, form: tuple[str, ...]) -> None:
    here = asking(beta=OTHER)
    with typing(SECRET, "wrong"):
        ran = orch("setup", "--yes", *form, on=here)
    assert ran.err.count("error: beta: sudo refuses that password; nothing was changed there\n  → orch setup") == 1


def test_a_dry_run_asks_for_none(orch: Orch) -> None:
    here = asking()
    ran = orch("setup", "--dry-run", on=here, says=None)
    assert (ran.code, tried(here)) == (0, [[], [], []])
    assert "  sudo systemctl enable --now docker\n" in ran.out
    assert "sudo asks for a password on alpha, beta, gamma: orch setup asks you for it once" in ran.err


def test_without_a_terminal_there_is_a_line_to_paste(orch: Orch) -> None:
    here = asking()
    ran = orch("setup", "--nodes", "alpha,beta", on=here, says=None)
    assert (ran.code, here.commands) == (2, [])
    assert "error: sudo asks for a password on alpha, beta, and there is no terminal to ask on" in ran.err
    assert "  → orch setup --nodes alpha,beta --yes --sudo-password-fd 3 3< FILE " in ran.err


@contextmanager
def reading(content: str) -> Iterator[str]:
    """The number of a file descriptor with this content."""
    with tempfile.TemporaryFile() as file:
        file.write(content.encode())
        file.seek(0)
        yield str(file.fileno())


def test_a_file_descriptor_stands_for_the_terminal(orch: Orch) -> None:
    here = asking(beta=OTHER)
    with reading(f"{SECRET}\n{OTHER}\n") as number:
        ran = orch("setup", "--yes", "--sudo-password-fd", number, on=here, says=None)
        os.fstat(int(number))  # it is the caller's to close
    assert (ran.code, tried(here)) == (5, [[], [SECRET], []])
    assert "✗ sudo refuses that password; nothing was changed there" in ran.out


@pytest.mark.parametrize("content", ["", "\nsecond line\n", b"\xff\xfe\n"])
def test_a_file_without_a_password_is_refused(orch: Orch, content: str | bytes) -> None:
    here = asking()
    with tempfile.TemporaryFile() as file:
        file.write(content if isinstance(content, bytes) else content.encode())
        file.seek(0)
        ran = orch("setup", "--yes", "--sudo-password-fd", str(file.fileno()), on=here, says=None)
    assert (ran.code, tried(here)) == (2, [[], [], []])
    closed = orch("setup", "--yes", "--sudo-password-fd", "987", on=here, says=None)
    assert (closed.code, closed.err.count("error:")) == (2, 1)


LOCKED = "The account is locked due to 3 failed logins.\n"
EXPIRED = "sudo: account validation failure, is your account locked?\n"


@pytest.mark.parametrize(
    ("refusal", "message", "advice"),
    [
        ("bob is not in the sudoers file.\n", "may not use sudo: bob is not in the sudoers file.", "su - -c 'usermod"),
        ("Sorry, user bob is not allowed to execute '/usr/bin/true' as root on x.\n", "may not use sudo", "usermod"),
        ("sudo: sorry, you must have a tty to run sudo\n", "requiretty", "remove requiretty"),
        (f"{LOCKED}sudo: 1 incorrect password attempt\n", "sudo refuses: The account is locked due to 3", "sudo true"),
        (f"{EXPIRED}sudo: a password is required\n", "sudo refuses: account validation failure", "log in there"),
        ("", "exit code 1", "log in there"),
    ],
)
def test_other_refusals_are_explained_once_and_not_tried_again(
    orch: Orch, refusal: str, message: str, advice: str
) -> None:
    here = asking()
    here.machines["beta"].sudo.refusal = refusal or "\n"
    with typing(SECRET):
        ran = orch("setup", "--yes", on=here)
    assert ran.code == 5
    (line,) = (number for number, line in enumerate(ran.out.splitlines()) if "✗" in line)
    assert message in ran.out.splitlines()[line]
    assert advice in ran.out.splitlines()[line + 1]
    assert "beta: ✗" not in ran.err
    assert (here.machines["beta"].commands, here.machines["beta"].sudo.tried) == ([], [SECRET])


def test_ctrl_c_at_the_question_changes_nothing(orch: Orch) -> None:
    def interrupt(_: str) -> str:
        raise KeyboardInterrupt

    here = asking()
    with writing_by(interrupt):
        ran = orch("setup", on=here)
    assert (ran.code, here.commands, tried(here)) == (130, [], [[], [], []])
    assert ran.err.endswith("nothing was changed\n")


def test_what_root_alone_can_see_is_asked_before_the_consent(orch: Orch) -> None:
    """A GPU node with an engine that answers root alone: a restart of it would end a run that only root sees."""
    machine = Machine(rights="password", sudo=AskingSudo(SECRET), driver="570.1", daemon=True, enabled=True)
    machine.hides, machine.running = True, "one-ab12"
    machine.packages.add("docker.io")
    machine.programs |= {"docker", "dockerd"}
    here = Fleet({"alpha": machine})
    with typing(SECRET):
        ran = orch("setup", "--yes", "--nodes", "alpha", on=here)
    assert (ran.code, machine.commands) == (4, [])
    assert "run one-ab12 is active there" in ran.out


def places(folder: Path) -> str:
    return "".join(file.read_text(errors="replace") for file in folder.rglob("*") if file.is_file())


@pytest.mark.parametrize("words", [("-v",), ("--debug",), ()])
def test_it_shows_in_no_output_log_record_or_call(orch: Orch, tmp_path: Path, words: tuple[str, ...]) -> None:
    calls = list[tuple[str, ...]]()

    class Recorded(Fleet):
        def connect(self, wanted: NodeSpec) -> FakeNode:
            node = super().connect(wanted)
            calls.extend(node.calls)
            node.calls = calls
            return node

    here = Recorded(asking(beta=OTHER).machines)
    here.machines["gamma"].fails = "install"
    with typing(SECRET, "wrong one"):
        ran = orch(*words, "setup", "--yes", "--json", on=here)
    assert ran.code == 5
    assert any("-S" in call for call in calls)
    text = ran.out + ran.err + repr(calls) + places(tmp_path)
    assert not [secret for secret in (SECRET, OTHER, "wrong one") if secret in text]


def test_it_shows_in_no_object_and_no_error() -> None:
    password = Password(SECRET)
    node = FakeNode("alpha", answers={("env", "*"): (1, "", "sudo: 1 incorrect password attempt")})
    with pytest.raises(SudoRefusedError) as caught:
        prove(node, password, doubt=False)
    assert caught.value.refusal is SudoRefusal.PASSWORD
    opened = with_sudo(node, password)
    shown = [repr(password), str(password), f"{password}", repr(opened), *format_exception(caught.value)]
    with pytest.raises(Exception, match="exited with 1") as failed:
        opened.run(("sudo", "apt-get", "update")).check("updating")
    assert SECRET not in "".join([*shown, *format_exception(failed.value), repr(caught.value.__dict__), repr(node)])


def test_a_command_gets_its_own_input_and_never_the_password() -> None:
    got = list[tuple[tuple[str, ...], bytes]]()

    def program(argv: tuple[str, ...], stdin: bytes, _timeout_s: float) -> tuple[int, str, str]:
        got.append((tuple(argv), stdin))
        return 0, "", ""

    node = with_sudo(FakeNode("alpha", programs=program), Password("päss"))  # type: ignore[arg-type]  # a fake's
    answer = node.run(("sudo", "--preserve-env=http_proxy", "tee", "/x"), stdin=b"own\n")
    node.run(("tee", "/y"), stdin=b"plain\n")
    wrapped = (*SUDO, "--preserve-env=http_proxy", "sh", "-c", SKIP, BEGIN, "tee", "/x")
    assert got == [(wrapped, f"päss\n{BEGIN}\nown\n".encode()), (("tee", "/y"), b"plain\n")]
    assert answer.argv == ("sudo", "--preserve-env=http_proxy", "tee", "/x")
