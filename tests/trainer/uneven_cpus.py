"""`python -m tests.trainer.uneven_cpus FILE WORDS…`: a training of traces, whose rank 0 has two CPUs and rank 1 one.

Each rank writes the number of every trace that it trains on to a file of its own, FILE with the rank's number.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

from torch import Tensor, nn

from trainer.cli import parse
from trainer.config import RankInfo
from trainer.workloads.traces_lstm import LstmTraces

FILE = Path(f"{sys.argv[1]}-{os.environ['RANK']}")


class Telling(LstmTraces):
    def loss_sums(self, model: nn.Module, batch: Any) -> Tensor:
        with FILE.open("a") as file:
            file.writelines(f"{int(events[0])}\n" for events in batch[0])
        return super().loss_sums(model, batch)


if __name__ == "__main__":
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: 2 - int(os.environ["RANK"])])
    Telling.train(parse(sys.argv[2:], os.environ), RankInfo.from_environ(os.environ))
