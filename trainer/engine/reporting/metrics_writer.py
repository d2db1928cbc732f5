"""Files with the figures of a training: RUN/metrics.jsonl and RUN/tensorboard."""

from __future__ import annotations

import json
import math
import time
from pathlib import Path


class MetricsWriter:
    """RUN/metrics.jsonl and RUN/tensorboard. After a restart a step may stand twice: the later counts."""

    def __init__(self, run_dir: Path, *, active: bool, first_step: int) -> None:
        self._file = None
        if active:
            from torch.utils.tensorboard import SummaryWriter

            run_dir.mkdir(parents=True, exist_ok=True)
            self._file = (run_dir / "metrics.jsonl").open("a", encoding="utf-8")
            # TensorBoard hides what an interrupted run had drawn beyond the step it resumes from.
            self._board = SummaryWriter(str(run_dir / "tensorboard"), purge_step=first_step)

    def write(self, kind: str, step: int, figures: dict[str, float]) -> None:
        if self._file:
            line = {"t": time.time(), "kind": kind, "step": step, **figures}
            # JSON has neither NaN nor infinities.
            finite = {k: None if isinstance(v, float) and not math.isfinite(v) else v for k, v in line.items()}
            self._file.write(json.dumps(finite) + "\n")
            self._file.flush()
            for name, value in figures.items():
                self._board.add_scalar(f"{kind}/{name}", value, step)

    def close(self) -> None:
        if self._file:
            self._file.close()
            self._board.close()
