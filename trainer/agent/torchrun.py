"""torchrun as started by an agent: `python -m trainer.agent.torchrun DESCRIPTORS ARGUMENTS…`. Imports torch.

The torchrun of rank 0's node holds torch's store. If it leaves first, others that are still at torchrun's own exit
barrier end a successful run with a traceback (2 of 13 runs on a busy machine). So each reports through the first of
DESCRIPTORS, a socket of the agent, that its ranks have succeeded, and stays until the agent ends it, once all nodes
have. Until then the store remains available to late ranks of other nodes.

Two more descriptors, as in `3,4,5`, are those of `StoreServer`. Without them the store listens on every address.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
from collections.abc import Sequence

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported by a star
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.run import main, parse_args

from trainer.agent.log_pipes import LogWriter
from trainer.agent.store_server import StoreServer


def run(agent: socket.socket, store: Sequence[socket.socket], argv: Sequence[str]) -> None:
    with agent:
        for one in (agent, *store):
            one.set_inheritable(False)  # otherwise a process that a rank leaves behind holds it open
        _held = _store(store, argv)
        # It raises after 300 s if ranks of other nodes take longer; the agents end together anyway.
        SimpleElasticAgent._exit_barrier = lambda _self: None  # type: ignore[method-assign]  # torch has no option
        main(list(argv))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)  # torchrun's own handlers would raise
        agent.sendall(b"done")
        agent.recv(1)


def _store(passed: Sequence[socket.socket], argv: Sequence[str]) -> TCPStore | None:
    """Create the store that torchrun is about to create: a process has one per port, and keeps it while it is held."""
    given = parse_args(list(argv))  # type: ignore[no-untyped-call]  # torch's own
    if given.node_rank != 0 or (not passed and given.nnodes == "1"):
        return None
    listening = None
    if passed:  # until now, what connects has waited in the kernel
        listener, control = passed
        server = StoreServer(listener, control, LogWriter(sys.stderr.buffer).note, os.getppid())
        listening = server.store.listening.detach()
    return TCPStore(
        given.master_addr, given.master_port, is_master=True, wait_for_workers=False, multi_tenant=True, use_libuv=True,
        master_listen_fd=listening,
    )  # fmt: skip


if __name__ == "__main__":
    agent_socket, *for_store = [socket.socket(fileno=int(word)) for word in sys.argv[1].split(",")]
    run(agent_socket, for_store, sys.argv[2:])
