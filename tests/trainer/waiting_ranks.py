"""Ranks that wait, before the first step, for one that does not come: `python -m tests.trainer.waiting_ranks FOLDER`.

Prints each rank's exit code as JSON, after the lines of the ranks.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable
from multiprocessing.process import BaseProcess
from pathlib import Path
from typing import Any

from torch.distributed import TCPStore

from tests.trainer.forked import FORK, LOOPBACK
from tests.trainer.observed import Observed, Wishes
from trainer.agent import heartbeat
from trainer.config import RankInfo, TrainOptions
from trainer.engine import loop

DEADLINE_S = 10
ENDS_S = 30.0
"""Longer than any of these ranks may take to end, and shorter than a collective waits in `signalled`."""


class Late(Observed):
    """Rank 0 stays where its optimizer is to be made; rank 1 continues to the next collective, the resume's."""

    def parameter_groups(self) -> None:
        if os.environ["RANK"] == "0":
            threading.Event().wait()


def rank(folder: Path, environ: dict[str, str], *, signals_itself: bool) -> None:
    os.environ.update(environ)
    if signals_itself:
        threading.Thread(target=_signal_when_waiting, daemon=True).start()
    place = RankInfo.from_environ(os.environ)
    options = TrainOptions(
        run_dir=folder, batch_size=2, global_batch_size=4, max_steps=2, precision="fp32", compile=False, num_workers=0,
        sync="fp32", shares="equal",
    )  # fmt: skip
    os._exit(loop.train(lambda: Late(options, Wishes(), place), options, place))


def _signal_when_waiting() -> None:
    looks = threading.Event()
    while heartbeat.position() != ("resume", "broadcast"):
        looks.wait(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def start(folder: Path, name: str, started: int, *, timeout_s: int, signals_itself: bool = False) -> Callable[[], Any]:
    """Begin `started` ranks of two; return what waits for all but rank 0, ends that one, and gives their exit codes."""
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(store.port), "WORLD_SIZE": "2", "ORCH_EVENTS": "1"}
    common |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "ORCH_PG_TIMEOUT_S": str(timeout_s)}
    ranks: list[BaseProcess] = []
    for number in range(started):
        environ = {**common, "RANK": str(number), "ORCH_NODE": f"{name}-{number}"}
        options = {"signals_itself": signals_itself and number == 1}
        ranks.append(FORK.Process(target=rank, args=(folder / name, environ), kwargs=options))
        ranks[-1].start()

    def end() -> list[int | None]:
        for process in ranks[1:] or ranks:
            process.join(ENDS_S)
        codes = [process.exitcode for process in ranks[1:]]
        if ranks[1:]:
            ranks[0].terminate()
        ranks[0].join(ENDS_S)
        codes.insert(0, ranks[0].exitcode)
        for process in ranks:
            process.kill()
        del store_of[name]
        return codes

    store_of[name] = store
    return end


store_of: dict[str, TCPStore] = {}
"""Stores that are to live as long as their ranks."""


def main(folder: Path) -> int:
    ends = {
        "signalled": start(folder, "signalled", 2, timeout_s=600, signals_itself=True),
        "deadline": start(folder, "deadline", 2, timeout_s=DEADLINE_S),
        "absent": start(folder, "absent", 1, timeout_s=DEADLINE_S),
    }
    codes = {name: end() for name, end in ends.items()}
    sys.stdout.write(json.dumps(codes) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
