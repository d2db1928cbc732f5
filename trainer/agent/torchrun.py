"""torchrun as an agent starts it: `python -m trainer.agent.torchrun DESCRIPTOR ARGUMENTS…`, with torch.

The torchrun of rank 0's node takes torch's store along when it leaves: others, still at torchrun's own barrier, then
end a run that went well with a traceback (2 of 13 runs on a busy machine). So each says through DESCRIPTOR, a socket of
the agent's, that its ranks have ended well, and stays until the agent, which knows when all have, ends it. Until then
the store is there, for late ranks of other nodes, too.
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
        agent.set_inheritable(False)  # else a process that a rank leaves behind holds it open
        _held = _store(argv)
        # It gives up after 300 s with a traceback, where ranks of other nodes take longer; ours end together anyway.
        SimpleElasticAgent._exit_barrier = lambda _self: None  # type: ignore[method-assign]  # torch has no option
        main(list(argv))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)  # torchrun's own handlers would raise
        agent.sendall(b"done")
        agent.recv(1)


def _store(argv: Sequence[str]) -> TCPStore | None:
    """The store that torchrun is about to make, which a process has but once at a port: held, it stays."""
    given = parse_args(list(argv))  # type: ignore[no-untyped-call]  # torch's own
    if given.nnodes == "1" or given.node_rank != 0:
        return None
    return TCPStore(given.master_addr, given.master_port, is_master=True, wait_for_workers=False, multi_tenant=True)


if __name__ == "__main__":
    run(int(sys.argv[1]), sys.argv[2:])
