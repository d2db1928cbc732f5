"""torchrun as started by an agent: `python -m trainer.agent.torchrun DESCRIPTOR STORE ARGUMENTS…`. Imports torch.

The torchrun of rank 0's node holds torch's store. If it leaves first, others that are still at torchrun's own exit
barrier end a successful run with a traceback (2 of 13 runs on a busy machine). So each reports through DESCRIPTOR, a
socket of the agent, that its ranks have succeeded, and stays until the agent ends it, once all nodes have. Until then
the store remains available to late ranks of other nodes.

STORE is a listening socket for torch's store, behind the agent's (`store_proxy`); -1: there is none, and the store
listens on every address.
"""

from __future__ import annotations

import signal
import socket
import sys
from collections.abc import Sequence
from typing import Any

from torch.distributed import TCPStore  # type: ignore[attr-defined]  # exported by a star
from torch.distributed.elastic.agent.server.api import SimpleElasticAgent
from torch.distributed.run import main, parse_args

from trainer.agent.waiting_ranks import WaitingRanks


def run(descriptor: int, listening: int, argv: Sequence[str], ranks: WaitingRanks | None = None) -> None:
    """Run torchrun. `ranks`: where its ranks come from; None: each is a start of Python."""
    if ranks:
        _start_from(ranks)
    with socket.socket(fileno=descriptor) as agent:
        agent.set_inheritable(False)  # otherwise a process that a rank leaves behind holds it open
        _held = _store(listening, argv)
        # It raises after 300 s if ranks of other nodes take longer; the agents end together anyway.
        SimpleElasticAgent._exit_barrier = lambda _self: None  # type: ignore[method-assign]  # torch has no option
        main(list(argv))
        for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP, signal.SIGQUIT):
            signal.signal(number, signal.SIG_DFL)  # torchrun's own handlers would raise
        agent.sendall(b"done")
        agent.recv(1)


def rank_handler() -> Any:
    """The class by which this torch starts a rank. ImportError: it has none."""
    from torch.distributed.elastic.multiprocessing.subprocess_handler import SubprocessHandler

    return SubprocessHandler


def _start_from(ranks: WaitingRanks) -> None:
    """Have torchrun start its ranks from these, each otherwise by itself: torch has no option."""
    handler = rank_handler()
    start_python = handler._popen

    def start(rank: Any, args: tuple[str, ...], env: dict[str, str]) -> object:
        try:
            outputs = [file.fileno() if file else number for file, number in ((rank._stdout, 1), (rank._stderr, 2))]
            forked = ranks.start(rank.local_rank_id, args, env, outputs)
        except AttributeError:  # another torch has other names
            forked = None
        return forked or start_python(rank, args, env)

    handler._popen = start


def _store(listening: int, argv: Sequence[str]) -> TCPStore | None:
    """Create the store that torchrun is about to create: a process has one per port, and keeps it while it is held."""
    given = parse_args(list(argv))  # type: ignore[no-untyped-call]  # torch's own
    if given.node_rank != 0 or (listening < 0 and given.nnodes == "1"):
        return None
    return TCPStore(
        given.master_addr, given.master_port, is_master=True, wait_for_workers=False, multi_tenant=True,
        master_listen_fd=listening if listening >= 0 else None,
    )  # fmt: skip


if __name__ == "__main__":
    run(int(sys.argv[1]), int(sys.argv[2]), sys.argv[3:])
