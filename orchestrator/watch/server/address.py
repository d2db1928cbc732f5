"""Address of the dashboard: loopback, or another one with TLS; the names by which browsers may ask for it."""

from __future__ import annotations

import getpass
import ipaddress
import os
import socket
import ssl
from dataclasses import dataclass
from pathlib import Path

from orchestrator.specs.errors import ConfigError, ConflictError, UsageError

LOOPBACK_NAMES = frozenset({"127.0.0.1", "localhost"})
TUNNEL_PORT = 8642
"""Port in lines to paste where none was chosen."""
WAITING = 64
"""Connections that wait to be accepted."""


@dataclass(frozen=True, kw_only=True)
class TlsFiles:
    """Certificate and key, both in PEM."""

    cert: Path
    key: Path


@dataclass(frozen=True, kw_only=True)
class WebAddress:
    """Address to listen on, and names of this server in requests. A port 0 stands for any free one."""

    host: str
    port: int
    names: frozenset[str]
    """Names in lower case, without a port; `*.` stands for one label."""
    tls: TlsFiles | None = None

    @property
    def scheme(self) -> str:
        return "https" if self.tls else "http"

    @property
    def is_loopback(self) -> bool:
        return ipaddress.IPv4Address(self.host).is_loopback

    def answers_to(self, host: str) -> bool:
        """Return whether a request with this Host header asks for this server. The port does not count: a tunnel may
        begin at another one, and a page of another origin cannot choose the name."""
        name = host.rpartition(":")[0] if ":" in host else host
        name = name.lower()
        return name in self.names or f"*.{name.partition('.')[2]}" in self.names

    def url(self, port: int, token: str) -> str:
        """Address to open, with the token."""
        wanted = sorted(name for name in self.names if not name.startswith("*."))
        named = self.host in self.names
        name = self.host if named else "127.0.0.1" if self.is_loopback else next(iter(wanted), "")
        return f"{self.scheme}://{name or socket.gethostname()}:{port}/?token={token}"


def web_address(bind: str, port: int, cert: Path | None, key: Path | None) -> WebAddress:
    """The address. UsageError: it is none, or other machines reach it and there is no TLS. ConfigError: certificate
    and key cannot be used."""
    try:
        address = ipaddress.IPv4Address("127.0.0.1" if bind == "localhost" else bind)
    except ValueError:
        raise UsageError(f"--bind {bind}: expected an IPv4 address of this computer, such as 127.0.0.1") from None
    if (cert is None) != (key is None):
        raise UsageError(f"--tls-{'key' if cert else 'cert'} is missing: TLS needs --tls-cert FILE and --tls-key FILE")
    own = LOOPBACK_NAMES if address.is_loopback else frozenset[str]()
    if cert is None or key is None:
        if not address.is_loopback:
            line = f"orch dashboard --port {port or TUNNEL_PORT}, and on the other computer: {tunnel_line(port)}"
            raise UsageError(
                f"--bind {bind}: other machines reach this address, and without TLS they can read the token",
                hint=f"{line}   (or --tls-cert FILE --tls-key FILE)",
            )
        return WebAddress(host=str(address), port=port, names=own)
    files = TlsFiles(cert=cert.expanduser(), key=key.expanduser())
    reached = frozenset() if address.is_unspecified else frozenset({str(address)})
    return WebAddress(host=str(address), port=port, names=own | reached | _names_in(files), tls=files)


def tunnel_line(port: int, environ: dict[str, str] | None = None, *, at: str = "127.0.0.1") -> str:
    """Line that brings the port of this computer to another one, on which the page is then at the same address."""
    words = (os.environ if environ is None else environ).get("SSH_CONNECTION", "").split()
    host = words[2] if len(words) == 4 else socket.gethostname()
    number = port or TUNNEL_PORT
    begin = "" if at == "127.0.0.1" else f"{at}:"
    return f"ssh -N -L {begin}{number}:{at}:{number} {getpass.getuser()}@{host}"


def listening_socket(address: WebAddress) -> socket.socket:
    """Listen. ConflictError: the port is taken, or this computer does not have the address."""
    listening = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
    try:
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listening.bind((address.host, address.port))
        listening.listen(WAITING)
    except OSError as error:
        listening.close()
        place = f"{address.host}:{address.port}"
        raise ConflictError(
            f"{place} cannot be listened on: {error.strerror or error}", hint="another port, any free one: --port 0"
        ) from None
    return listening


def _names_in(files: TlsFiles) -> frozenset[str]:
    """Names and addresses that the certificate is for."""
    from cryptography import x509

    try:
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(files.cert, files.key, password="")
        certificate = x509.load_pem_x509_certificate(files.cert.read_bytes())
    except (OSError, ValueError) as error:  # SSLError is an OSError
        raise ConfigError(
            f"--tls-cert {files.cert} and --tls-key {files.key} cannot be used: {error}",
            hint="both in PEM, the key without a password: openssl x509 -noout -text -in FILE",
        ) from None
    try:
        names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    except x509.ExtensionNotFound:
        raise ConfigError(
            f"--tls-cert {files.cert} names no host: browsers refuse it", hint="a certificate with subjectAltName"
        ) from None
    texts = [name.lower() for name in names.get_values_for_type(x509.DNSName)]
    return frozenset([*texts, *map(str, names.get_values_for_type(x509.IPAddress))])
