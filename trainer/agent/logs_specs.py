"""Where torchrun's ranks write: into the agent's pipes.

torchrun looks this class up by name (`--logs-specs orch`), among the entry points of what is installed; `at_start`, on
its PYTHONPATH, is where it finds one. With torch, so only torchrun imports it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, LogsDest

from trainer.agent.log_pipes import ERR, OUT, pipe


class Piped(DefaultLogsSpecs):
    """Its own folder, for what a rank leaves as its last error, is that of the pipes (`--log-dir`)."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """`envs`: of each rank, by local rank."""
        folder = Path(self.root_log_dir)
        return replace(
            super().reify(envs),
            stdouts={local_rank: str(pipe(folder, local_rank, OUT)) for local_rank in envs},
            stderrs={local_rank: str(pipe(folder, local_rank, ERR)) for local_rank in envs},
        )
