"""Docker's SDK over an SSH connection that is open already."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import docker
import paramiko
from docker.transport import SSHHTTPAdapter
from docker.transport.sshconn import SSHConnection, SSHConnectionPool

from orchestrator.nodes.login_shell import FIRST, START, Preface, second_line

_DIAL = ("docker", "system", "dial-stdio")


class _Dialled(SSHConnection):
    """The SDK's connection, behind whatever the startup files of the login shell print."""

    def connect(self) -> None:
        transport: Any = self.ssh_transport
        channel = transport.open_session()
        channel.settimeout(self.timeout)
        channel.exec_command(START)
        channel.sendall(FIRST + second_line(_DIAL))
        preface = Preface()
        while not preface.seen:  # no engine writes before it is asked
            if not (chunk := channel.recv(1024)):
                raise ConnectionError("the login shell started no sh")
            preface.strip(chunk)
        self.sock = channel


class _Pool(SSHConnectionPool):
    def __init__(self, timeout_s: int, *, maxsize: int) -> None:
        super().__init__(timeout=timeout_s, maxsize=maxsize)
        self._timeout_s = timeout_s

    def _new_conn(self) -> Any:  # as the SDK's class, which urllib3's types do not know
        return _Dialled(self.ssh_transport, self._timeout_s, self.ssh_host)


class _TransportAdapter(SSHHTTPAdapter):
    """The SDK's SSH adapter on a connection that is open already, in place of one of its own.

    One pool for all addresses: the SDK's pool for each would soon use up the ten sessions that sshd allows.
    """

    def __init__(self, transport: Callable[[], paramiko.Transport], timeout_s: int) -> None:
        super().__init__("ssh://node", timeout=timeout_s, shell_out=True)
        self._pool = _Pool(timeout_s, maxsize=self.max_pool_size)
        self._pool.ssh_transport = transport()

    def get_connection(self, url: Any, proxies: Any = None) -> Any:  # noqa: ARG002  # the SDK's signature
        return self._pool


def docker_client_over(transport: Callable[[], paramiko.Transport], *, timeout_s: int = 60) -> docker.APIClient:
    """A Docker SDK client that talks to the engine at the other end through `docker system dial-stdio`."""
    client: Any = docker.APIClient(base_url="tcp://node:1", version="1.41", timeout=timeout_s)
    client._custom_adapter = _TransportAdapter(transport, timeout_s)
    client.mount("http+docker://ssh", client._custom_adapter)
    client.base_url = "http+docker://ssh"
    # As the docker program negotiates: a ping costs a fifth of the full answer about versions.
    client._version = client._get(client._url("/_ping", versioned_api=False)).headers["Api-Version"]
    return client  # type: ignore[no-any-return]  # Any above: these attributes are the SDK's own, not its public ones
