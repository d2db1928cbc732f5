"""torchrun as started by an agent: `python -m trainer.agent.torchrun DESCRIPTOR ARGUMENTS…`. Imports torch.

The torchrun of rank 0's node holds torch's store. If it leaves first, others that are still at torchrun's own exit
barrier end a successful run with a traceback (2 of 13 runs on a busy machine). So each reports through DESCRIPTOR, a
socket of the agent, that its ranks have succeeded, and stays until the agent ends it, once all nodes have. Until then
the store remains available to late ranks of other nodes.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported by a star
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.run import main, parse_args


def run(descriptor: int, argv: Sequence[str]) -> None:
    with socket.socket(fileno=descriptor) as agent:
        agent.set_inheritable(False)  # otherwise a process that a rank leaves behind holds it open
        _held = _store(argv)
        # It raises after 300 s if ranks of other nodes take longer; the agents end together anyway.
        SimpleElasticAgent._exit_barrier = lambda _self: None  # type: ignore[method-assign]  # torch has no option
        main(list(argv))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)  # torchrun's own handlers would raise
        agent.sendall(b"done")
        agent.recv(1)


def _store(argv: Sequence[str]) -> TCPStore | None:
    """Create the store that torchrun is about to create: a process has one per port, and keeps it while it is held."""
    given = parse_args(list(argv))  # type: ignore[no-untyped-call]  # torch's own
    if given.nnodes == "1" or given.node_rank != 0:
        return None
    return TCPStore(given.master_addr, given.master_port, is_master=True, wait_for_workers=False, multi_tenant=True)


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2:])
