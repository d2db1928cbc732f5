"""`orch dashboard`: where it listens and where not, what it says, and its end."""

from __future__ import annotations

import datetime
import ipaddress
import os
import re
import signal
import ssl
import subprocess
import sys
import urllib.request
from pathlib import Path
from threading import Thread

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

from orchestrator.cli import dashboard
from orchestrator.specs.errors import ConfigError, ConflictError, UsageError
from orchestrator.watch.server import actions
from orchestrator.watch.server.actions import perform_here
from orchestrator.watch.server.address import listening_socket, tunnel_line, web_address
from tests import lan
from tests.unit.conftest import INVENTORY, THREE, Orch

ROOT = Path(__file__).parents[2]


def certificate(folder: Path, *names: str, password: bool = False) -> tuple[Path, Path]:
    """A certificate for these names that has signed itself, and its key."""
    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, "orch")])
    now = datetime.datetime.now(datetime.UTC)
    built = x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number(), now,
                                    now + datetime.timedelta(days=1))  # fmt: skip
    if names:
        kinds = [x509.IPAddress(ipaddress.ip_address(one)) if one[0].isdigit() else x509.DNSName(one) for one in names]
        built = built.add_extension(x509.SubjectAlternativeName(kinds), critical=False)
    files = folder / "cert.pem", folder / "key.pem"
    files[0].write_bytes(built.sign(key, hashes.SHA256()).public_bytes(serialization.Encoding.PEM))
    hidden = serialization.BestAvailableEncryption(b"x") if password else serialization.NoEncryption()
    files[1].write_bytes(key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, hidden))
    return files


@pytest.mark.parametrize("bind", ["0.0.0.0", "192.168.1.5", "10.0.0.1"])  # noqa: S104  # refused
def test_2_another_address_without_tls(orch: Orch, bind: str) -> None:
    ran = orch("dashboard", "--bind", bind, "--port", "8700", on=lan.lan(*THREE))
    assert (ran.code, ran.out) == (2, "")
    assert "without TLS" in ran.err
    line = re.search(r"ssh -N -L 8700:127\.0\.0\.1:8700 \S+@\S+", ran.err)
    assert line
    assert "orch dashboard --port 8700" in ran.err


@pytest.mark.parametrize("words", ["--bind nowhere", "--bind ::1", "--tls-cert cert.pem", "--tls-key key.pem"])
def test_2_what_is_no_address_or_half_of_tls(orch: Orch, words: str) -> None:
    ran = orch("dashboard", *words.split(), on=lan.lan(*THREE))
    assert (ran.code, ran.out) == (2, "")


def test_3_without_the_extra(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(dashboard, "NEEDED", ("starlette", "no_such_package"))
    ran = orch("dashboard", on=lan.lan(*THREE))
    assert (ran.code, ran.out) == (3, "")
    assert "no_such_package" in ran.err
    assert "uv tool install '.[dashboard]'" in ran.err


def test_6_a_port_that_is_taken(orch: Orch) -> None:
    with listening_socket(web_address("127.0.0.1", 0, None, None)) as taken:
        ran = orch("dashboard", "--port", str(taken.getsockname()[1]), on=lan.lan(*THREE))
    assert (ran.code, ran.out) == (6, "")
    assert "cannot be listened on" in ran.err


def test_the_names_of_a_certificate_are_those_of_the_server(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "orch.lan", "*.nodes.lan", "192.168.1.5")
    address = web_address("0.0.0.0", 443, cert, key)  # noqa: S104  # no socket is opened
    assert address.scheme == "https"
    assert all(map(address.answers_to, ("orch.lan:443", "ORCH.lan", "a.nodes.lan:443", "192.168.1.5:443")))
    assert not any(
        map(address.answers_to, ("nodes.lan", "a.b.nodes.lan", "127.0.0.1:443", "evil.example", "", "*.nodes.lan.x"))
    )
    assert address.url(443, "t") in ("https://192.168.1.5:443/?token=t", "https://orch.lan:443/?token=t")


def test_a_certificate_that_cannot_be_used(tmp_path: Path) -> None:
    cert, key = certificate(tmp_path, "orch.lan")
    with pytest.raises(ConfigError, match="cannot be used"):
        web_address("192.168.1.5", 0, cert, cert)
    with pytest.raises(ConfigError, match="cannot be used"):
        web_address("192.168.1.5", 0, tmp_path / "none.pem", key)
    with pytest.raises(ConfigError, match="cannot be used"):
        web_address("192.168.1.5", 0, *certificate(tmp_path, "orch.lan", password=True))
    with pytest.raises(ConfigError, match="names no host"):
        web_address("192.168.1.5", 0, *certificate(tmp_path))


def test_errors_of_an_address() -> None:
    with pytest.raises(UsageError, match="other machines reach"):
        web_address("192.168.1.5", 0, None, None)
    with pytest.raises(ConflictError, match="cannot be listened on"):
        listening_socket(web_address("127.0.0.1", 1 if os.getuid() else 0, None, None)) if os.getuid() else _unbound()


def _unbound() -> None:
    """Listen on an address of documentation, which no computer has."""
    from orchestrator.watch.server.address import WebAddress

    listening_socket(WebAddress(host="192.0.2.1", port=0, names=frozenset()))


def test_the_line_of_a_tunnel_names_the_address_of_the_login() -> None:
    line = tunnel_line(8700, {"SSH_CONNECTION": "10.0.0.9 50000 10.0.0.7 22"})
    assert re.fullmatch(r"ssh -N -L 8700:127\.0\.0\.1:8700 \S+@10\.0\.0\.7", line)
    assert re.fullmatch(r"ssh -N -L 8642:127\.0\.0\.1:8642 \S+@\S+", tunnel_line(0, {}))


@pytest.mark.parametrize("tls", [False, True])
def test_it_serves_until_ctrl_c_though_no_node_answers(tmp_path: Path, tls: bool) -> None:
    (tmp_path / "inventory.yaml").write_text("nodes:\n  alpha: {address: 127.0.0.1, port: 9}\n")
    words = [
        f"--tls-{name}={file}"
        for name, file in zip(("cert", "key"), certificate(tmp_path, "localhost", "127.0.0.1"), strict=True)
    ]
    with subprocess.Popen(
        (sys.executable, "-m", "orchestrator", "dashboard", *(words if tls else ())),
        cwd=tmp_path, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, bufsize=1,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
    ) as process:  # fmt: skip
        assert process.stdout
        assert process.stderr
        url = process.stdout.readline().strip()
        assert re.fullmatch(rf"http{'s' if tls else ''}://127\.0\.0\.1:\d+/\?token=[\w-]{{20,}}", url)
        trusting = ssl.create_default_context(cafile=str(tmp_path / "cert.pem"))
        opener = urllib.request.build_opener(
            urllib.request.HTTPCookieProcessor(), urllib.request.HTTPSHandler(context=trusting)
        )
        with opener.open(url, timeout=20) as page:
            assert b"<title>orch</title>" in page.read()
            assert page.url == url.partition("?")[0]
        process.send_signal(signal.SIGINT)
        assert process.wait(20) == 0
        output = process.stderr.read()
    assert "Traceback" not in output
    assert "ssh -N -L" in output
    assert "runs continue" in output


def test_a_command_that_writes_more_than_is_shown_ends(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = tmp_path / "writes-much"
    program.write_text("#!/bin/sh\nhead -c 1000000 /dev/zero | tr '\\0' x\n")
    program.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(program))
    monkeypatch.setattr(actions, "MOST_OUTPUT", 1000)
    ended: list[tuple[int, str]] = []
    running = Thread(target=lambda: ended.append(perform_here(None)(("doctor",), print)), daemon=True)
    running.start()
    running.join(20)
    assert ended == [(0, "x" * 1000)]


def test_actions_are_commands_of_orch(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(INVENTORY)
    lines: list[str] = []
    code, output = perform_here(inventory)(("inventory", "list", "-o", "name"), lines.append)
    assert (code, output.split(), lines) == (0, list(THREE), [])
    code, output = perform_here(inventory)(("inventory", "show", "no-such-node"), lines.append)
    assert (code, output) == (3, "")
    assert "no-such-node" in lines[0]
