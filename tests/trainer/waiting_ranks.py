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
from trainer.engine import loop, setup
from trainer.engine.sync_plan import SyncPlan

DEADLINE_S = 10
ENDS_S = 120.0
"""Longer than any of these ranks may take to end, and shorter than a collective waits in `signalled`."""


class Late(Observed):
    """Rank 0 stays where its optimizer is to be made; rank 1 continues to the next collective, the resume's."""

    def parameter_groups(self) -> None:
        if os.environ["RANK"] == "0":
            threading.Event().wait()


def stopped(folder: Path, environ: dict[str, str]) -> None:
    """One of two ranks of which rank 1 is left out; each gets a signal to stop, rank 0 in a step."""
    os.environ.update(environ)
    place = RankInfo.from_environ(os.environ)
    resting = ("plan", heartbeat.RESTING)
    asked = (lambda: heartbeat.current_step() >= 2) if place.rank == 0 else lambda: heartbeat.position() == resting
    threading.Thread(target=_signal_when, args=(asked,), daemon=True).start()
    setup.negotiate = lambda *_: SyncPlan(everyone=("a", "b"), ranks=(0,), sync="fp32", shares=(4,))
    options = TrainOptions(
        run_dir=folder, batch_size=2, global_batch_size=4, max_steps=1_000_000, precision="fp32", compile=False,
        num_workers=0, sync="fp32", shares="equal",
    )  # fmt: skip
    os._exit(loop.train(lambda: Observed(options, Wishes(), place), options, place))


def rank(folder: Path, environ: dict[str, str], *, signals_itself: bool) -> None:
    os.environ.update(environ)
    if signals_itself:
        waits = ("resume", "broadcast")
        threading.Thread(target=_signal_when, args=(lambda: heartbeat.position() == waits,), daemon=True).start()
    place = RankInfo.from_environ(os.environ)
    options = TrainOptions(
        run_dir=folder, batch_size=2, global_batch_size=4, max_steps=2, precision="fp32", compile=False, num_workers=0,
        sync="fp32", shares="equal",
    )  # fmt: skip
    os._exit(loop.train(lambda: Late(options, Wishes(), place), options, place))


def _signal_when(true: Callable[[], bool]) -> None:
    looks = threading.Event()
    while not true():
        looks.wait(0.01)
    os.kill(os.getpid(), signal.SIGTERM)


def start(
    folder: Path,
    name: str,
    started: int,
    *,
    timeout_s: int,
    signals_itself: bool = False,
    target: Callable[..., None] = rank,
) -> Callable[[], Any]:
    """Begin `started` ranks of two; return what waits for all but rank 0, ends that one, and gives their exit codes."""
    store = TCPStore(LOOPBACK, 0, is_master=True, wait_for_workers=False)
    common = {"MASTER_ADDR": LOOPBACK, "MASTER_PORT": str(store.port), "WORLD_SIZE": "2", "ORCH_EVENTS": "1"}
    common |= {"LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "ORCH_PG_TIMEOUT_S": str(timeout_s)}
    ranks: list[BaseProcess] = []
    for number in range(started):
        environ = {**common, "RANK": str(number), "ORCH_NODE": f"{name}-{number}"}
        options = {} if target is stopped else {"signals_itself": signals_itself and number == 1}
        ranks.append(FORK.Process(target=target, args=(folder / name, environ), kwargs=options))
        ranks[-1].start()

    def end() -> list[int | None]:
        for process in ranks[1:] or ranks:
            process.join(ENDS_S)
        codes = [process.exitcode for process in ranks[1:]]
        if ranks[1:] and target is rank:
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
        "stopped": start(folder, "stopped", 2, timeout_s=600, target=stopped),
    }
    codes = {name: end() for name, end in ends.items()}
    sys.stdout.write(json.dumps(codes) + "\n")
    sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1])))
