"""`orch setup` on machines with sshd and a sudo that asks for a password, and no Docker: Debian, its engine removed."""

from __future__ import annotations

import os
import re
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Event, Thread

import pytest

from orchestrator.nodes.ssh import SshNode
from orchestrator.nodes.sudo import Password, with_sudo
from orchestrator.specs.inventory_files.inventory_file import read_inventory
from tests.conftest import Figure
from tests.lab.bare_machines import BareLab, on_terminal
from tests.lab.conftest import Done, Orch

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

LAB = BareLab("orchsetup")
SECRET, OTHER = "corréct horse 'battery", "staple-of-beta"
ACCOUNTS = """
usermod --append --groups sudo orch
printf 'auth required pam_faillock.so preauth\n' | cat - /etc/pam.d/sudo > /tmp/sudo
printf 'auth [default=die] pam_faillock.so authfail\n' >> /tmp/sudo
sed -i 's/^@include common-auth/auth sufficient pam_unix.so/' /tmp/sudo && mv /tmp/sudo /etc/pam.d/sudo
for name in bob carla dora; do
  useradd --create-home --shell /bin/bash $name
  cp -r /home/orch/.ssh /home/$name/ && chown -R $name: /home/$name/.ssh
done
usermod --append --groups sudo carla; usermod --append --groups sudo dora
echo 'Defaults:carla requiretty' > /etc/sudoers.d/carla
echo 'Defaults:dora lecture=always' > /etc/sudoers.d/dora
sed -i 's/^AllowUsers.*/AllowUsers orch bob carla dora/' /etc/ssh/sshd_config.d/lab.conf
kill -HUP $(pgrep -o sshd)
"""
"""bob is no sudoer, carla's sudo wants a terminal, dora's lectures every time; faillock counts wrong passwords."""
as_root, wrong_ones = LAB.as_root, LAB.wrong_ones


@pytest.fixture(scope="module")
def bare(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Orch]:
    """A lab of two machines without Docker, and accounts of several kinds on alpha."""
    nodes = ("alpha", "beta")
    with LAB.up(tmp_path_factory.mktemp("setup"), nodes, ACCOUNTS) as command:
        for name in nodes:
            LAB.passwords(SECRET, "orch", "bob", "carla", "dora", on=name)
        yield command


@contextmanager
def nowhere(*secrets: str) -> Iterator[None]:
    """Look for the passwords in the arguments and environments of all processes, here and on the machines, meanwhile;
    then in the machines' files."""
    stop, seen, looked = Event(), list[str](), [0]
    wanted = [secret.encode() for secret in secrets]

    def look() -> None:
        while not stop.wait(0.005):
            for folder in Path("/proc").glob("[0-9]*"):
                for name in ("cmdline", "environ"):
                    try:
                        text = (folder / name).read_bytes()
                    except OSError:  # it has ended meanwhile
                        continue
                    looked[0] += 1
                    seen.extend(f"{folder}/{name}" for one in wanted if one in text)

    watcher = Thread(target=look)
    watcher.start()
    try:
        yield
    finally:
        stop.set()
        watcher.join()
    assert seen == []
    assert looked[0] > 1000
    for name in ("alpha", "beta"):
        places = "/etc /home /root /tmp /var /usr/share/keyrings"
        for secret in secrets:
            assert as_root(f"cat > /dev/shm/x; grep -rlFf /dev/shm/x {places} || true; rm /dev/shm/x", on=name,
                           stdin=secret) == ""  # fmt: skip


def with_password(orch: Orch, text: str, *words: str) -> Done:
    """Run the command with the password on file descriptor 3, without a terminal."""
    read, write = os.pipe()
    with os.fdopen(write, "w") as file:
        file.write(f"{text}\n")
    began = time.monotonic()
    try:
        ended = subprocess.run(
            [*orch.argv(words), "--sudo-password-fd", str(read)],
            **{"cwd": orch.folder, "env": orch.environment, "pass_fds": (read,)},
            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=400, check=False,
        )  # fmt: skip
    finally:
        os.close(read)
    return Done(ended.returncode, ended.stdout, ended.stderr, time.monotonic() - began)


def inventory(orch: Orch, **users: str) -> str:
    """A file with these machines, as other accounts."""
    lab = read_inventory(orch.folder / "state/orch/lab/inventory.yaml")
    nodes = "".join(
        f"  {name}: {{address: {lab.node(name).address}, user: {user}, identity: {lab.node(name).identity}}}\n"
        for name, user in users.items()
    )
    file = orch.folder / "accounts.yaml"
    file.write_text(f"nodes:\n{nodes}")
    return str(file)


def engines() -> list[str]:
    return [as_root("command -v dockerd || echo none", on=name) for name in ("alpha", "beta")]


def test_without_a_terminal_nothing_is_done_and_a_line_says_how(bare: Orch) -> None:
    done = bare("setup", "--yes")
    assert done.code == 2, done.err
    assert "sudo asks for a password on alpha, beta, and there is no terminal to ask on" in done.err
    assert "  → orch setup --yes --sudo-password-fd 3 3< FILE" in done.err
    shown = bare("setup", "--dry-run")
    assert shown.code == 0, shown.err
    assert "  sudo usermod --append --groups docker orch\n" in shown.out
    assert engines() == ["none", "none"]


def test_accounts_that_may_not_are_explained(bare: Orch) -> None:
    """A wrong password counts twice there: sudo asks again. These accounts never get to install anything."""
    file = inventory(bare, alpha="bob", beta="carla")
    with nowhere(SECRET):
        done = with_password(bare, SECRET, "setup", "--yes", "-i", file)
    assert done.code == 4, done.out + done.err
    assert "✗ this account may not use sudo: bob is not in the sudoers file." in done.out
    assert "→ on it, with root's password: su - -c 'usermod --append --groups sudo bob'; then: orch " in done.out
    assert "✗ its sudo works on a terminal alone (requiretty in its sudoers)" in done.out
    wrong = with_password(bare, "wrong", "setup", "--yes", "-i", inventory(bare, alpha="dora"))
    assert (wrong.code, wrong_ones(user="dora")) == (4, 2)
    assert "✗ sudo refuses that password; nothing was changed there" in wrong.out
    right = with_password(bare, SECRET, "firewall", "show", "-i", inventory(bare, alpha="dora"))
    assert right.code == 0, right.err  # through the lecture
    assert engines() == ["none", "none"]


def test_ctrl_c_at_the_question(bare: Orch) -> None:
    code, shown = on_terminal(bare, ("setup",), [("sudo password for 2 machines (alpha, beta): ", "\x03")])
    assert (code, "nothing was changed" in shown, engines()) == (130, True, ["none", "none"]), shown


def test_a_package_manager_that_another_process_holds(bare: Orch) -> None:
    """An upgrade of the machine holds it so: it is waited for, by name, until it has ended."""
    hold = (
        "import fcntl,os,time;f=open('/var/lib/apt/lists/lock','w');fcntl.lockf(f,fcntl.LOCK_EX)\n"
        "while not os.path.exists('/tmp/enough'): time.sleep(0.2)"
    )
    subprocess.run(["docker", "exec", "-d", f"orch-{LAB.name}-beta", "python3", "-c", hold], check=True)
    LAB.passwords(OTHER, "orch", on="beta")
    with nowhere(SECRET, OTHER):
        code, shown = on_terminal(
            bare,
            ("--debug", "setup"),
            [
                ("sudo password for 2 machines (alpha, beta): ", f"{SECRET}\n"),
                ("beta refuses that one. sudo password for beta: ", f"{OTHER}\n"),
                ("run these commands on alpha, beta?", "y\n"),
                (", which holds /var/lib", lambda: as_root("touch /tmp/enough", on="beta")),
            ],
        )
    assert code == 0, shown
    assert (wrong_ones("alpha"), wrong_ones("beta")) == (0, 0)
    assert re.search(r"beta: fetch the package lists: waits for process \d+ \(python3\), which holds /var/lib", shown)
    assert not [secret for secret in (SECRET, OTHER) if secret in shown]
    assert "beta: Docker Engine" in shown
    assert engines() == ["/usr/sbin/dockerd"] * 2
    groups = as_root("id -nG orch", on="beta")
    assert "docker" in groups.split()


def test_a_second_run_does_nothing_and_asks_nothing(bare: Orch, figure: Figure) -> None:
    again = bare("setup")
    assert (again.code, again.out.strip().rsplit("\n", 1)[-1]) == (0, "  nothing to do")
    figure(f"orch setup where nothing is to do: {again.seconds:.1f} s")


def test_a_firewall_is_opened_and_closed_with_one_password_each(bare: Orch) -> None:
    for rule in ("--in-interface lo --jump ACCEPT", "--protocol tcp --dport 22 --jump ACCEPT", "--jump DROP"):
        as_root(f"iptables --append INPUT {rule}")
    LAB.passwords(SECRET, "orch", on="beta")
    LAB.passwords(OTHER, "orch", on="alpha")
    asks, mine = ("sudo password for alpha: ", f"{OTHER}\n"), "iptables --list-rules INPUT | grep -c orch: || true"
    with nowhere(OTHER):
        code, shown = on_terminal(bare, ("firewall", "apply", "--nodes", "alpha"), [asks, ("Run 1 commands?", "y\n")])
    assert (code, as_root(mine)) == (0, "1"), shown
    done = with_password(bare, OTHER, "firewall", "remove", "--nodes", "alpha", "--yes")
    assert (done.code, as_root(mine)) == (0, "0"), done.err


def test_nothing_holds_the_password_here(bare: Orch) -> None:
    files = [file for file in bare.folder.rglob("*") if file.is_file()]
    text = b"".join(file.read_bytes() for file in files)
    assert not [secret for secret in (SECRET, OTHER) if secret.encode() in text]


def test_a_command_that_sudo_runs_without_a_password_does_not_get_it(
    bare: Orch, monkeypatch: pytest.MonkeyPatch
) -> None:
    """tee would write the line, which sudo did not read, into its file."""
    as_root("echo 'orch ALL=(ALL) NOPASSWD: /usr/bin/tee' > /etc/sudoers.d/tee", on="beta")
    monkeypatch.setenv("XDG_STATE_HOME", str(bare.folder / "state"))  # with the lab's known hosts
    spec = read_inventory(bare.folder / "state/orch/lab/inventory.yaml").node("beta")
    node = SshNode(spec)
    try:
        opened = with_sudo(node, Password(SECRET))
        for command, content in ((("tee", "/root/one"), "one\n"), (("sh", "-c", "cat > /root/two"), "two\n")):
            opened.run(("sudo", *command), stdin=content.encode()).check("writing")
    finally:
        node.close()
    assert as_root("cat /root/one /root/two", on="beta") == "one\ntwo"
