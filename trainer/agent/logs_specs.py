"""Log destinations of torchrun's ranks: the agent's pipes.

torchrun looks this class up by name (`--logs-specs orch`) among the entry points of installed packages; it finds one in
`at_start`, which is on its PYTHONPATH. Imports torch, so only torchrun imports it.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from torch.distributed.elastic.multiprocessing.api import DefaultLogsSpecs, LogsDest

from trainer.agent.log_pipes import ERR, OUT, pipe


class Piped(DefaultLogsSpecs):
    """Logs in the folder of the pipes (`--log-dir`), which also receives the last error of each rank."""

    def reify(self, envs: dict[int, dict[str, str]]) -> LogsDest:
        """`envs`: environment of each rank, by local rank."""
        folder = Path(self.root_log_dir)
        return replace(
            super().reify(envs),
            stdouts={local_rank: str(pipe(folder, local_rank, OUT)) for local_rank in envs},
            stderrs={local_rank: str(pipe(folder, local_rank, ERR)) for local_rank in envs},
        )
