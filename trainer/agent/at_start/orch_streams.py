"""Log destinations of torchrun's ranks: the agent's pipes.

torchrun looks this class up by name (`--logs-specs orch`) among the entry points of installed packages; it finds one in
this folder, which is on its PYTHONPATH. Imports nothing of this repository: the user's project may have a module of the
same name.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, LogsDest


class Piped(DefaultLogsSpecs):
    """Logs in the folder of the pipes (`--log-dir`), which also receives the last error of each rank.

    Ranks without a pipe there, as with another number of ranks or another `--log-dir`, have torchrun's own logs.
    """

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """`envs`: environment of each rank, by local rank."""
        own, folder = super().reify(envs), Path(self.root_log_dir)
        pipes = {
            name: {rank: str(path) for rank in envs if (path := folder / f"{rank}.{name}").is_fifo()}
            for name in ("out", "err")
        }
        return replace(own, stdouts={**own.stdouts, **pipes["out"]}, stderrs={**own.stderrs, **pipes["err"]})
