"""A compiled training in several ranks: `torchrun … -m tests.trainer.compiled_ranks WORDS…`. Each rank prints what was
compiled when it was measured, and what at its end. torch traces, and translates nothing: that takes ten seconds more.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Sequence
from functools import partial

from torch import nn
from torch._dynamo.utils import counters

from trainer.cli import main
from trainer.engine import compiler, loop
from trainer.engine.autotune import tuning
from trainer.engine.hardware import compiling
from trainer.engine.setup import TrainingSetup

SEEN: dict[str, object] = {}


def train(words: Sequence[str]) -> int:
    compiling.missing_requirement = lambda device: ""  # type: ignore[assignment, misc]  # nothing is translated
    compiling.compile_in_place = partial(compiling.compile_in_place, backend="aot_eager")
    compiler.CompileTimes.get = lambda *_: None  # type: ignore[method-assign]
    compiler.CompileTimes.put = lambda *_: None  # type: ignore[method-assign]
    measured, usual = tuning.Bench.sample_s, loop._loop

    def sample_s(bench: tuning.Bench, *given: object) -> float:
        measured(bench, *given)  # type: ignore[arg-type]
        SEEN["measured"] = _state(bench._workload.model)
        return 0.01  # alike on all ranks, and so are their shares, on a busy machine too

    def steps(setup: TrainingSetup | None) -> None:
        usual(setup)
        if setup:
            SEEN["trained"] = _state(setup.run.workload.model)
        sys.stdout.write(f"seen {json.dumps(SEEN)}\n")

    tuning.Bench.sample_s, loop._loop = sample_s, steps  # type: ignore[method-assign]
    return main(words)


def _state(model: nn.Module) -> dict[str, object]:
    """Return whether the model is compiled, and the graphs that torch has made so far."""
    return {"compiled": compiling.is_compiled(model), "graphs": counters["stats"].get("unique_graphs", 0)}


if __name__ == "__main__":
    sys.exit(train(sys.argv[1:]))
