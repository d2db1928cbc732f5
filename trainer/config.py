"""What a run is told: by the orchestrator through the environment, by the user through options.

Nothing here imports torch: the same module serves `--help` and the contract test with the orchestrator.
"""

from __future__ import annotations

import argparse
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from pathlib import Path
from typing import Any

from trainer.errors import UsageError


@dataclass(frozen=True, kw_only=True)
class Place:
    """Where this process stands among all ranks: torchrun's variables and the orchestrator's."""

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_world_size: int = 1
    master: str = ""
    node: str = ""
    node_rank: int = 0
    run_id: str = ""
    run_dir: str = ""
    attempt: int = 0
    backend: str = "auto"
    pg_timeout_s: int = 300
    events: bool = False

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> Place:
        place = cls(
            rank=_number(environ, "RANK", 0),
            world_size=_number(environ, "WORLD_SIZE", 1),
            local_rank=_number(environ, "LOCAL_RANK", 0),
            local_world_size=_number(environ, "LOCAL_WORLD_SIZE", 1),
            master=f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}",
            node=environ.get("ORCH_NODE", ""),
            node_rank=_number(environ, "ORCH_NODE_RANK", 0),
            run_id=environ.get("ORCH_RUN_ID", ""),
            run_dir=environ.get("ORCH_RUN_DIR", ""),
            attempt=_number(environ, "ORCH_ATTEMPT", 0),
            backend=environ.get("ORCH_BACKEND", "") or "auto",
            pg_timeout_s=_number(environ, "ORCH_PG_TIMEOUT_S", 300),
            events=environ.get("ORCH_EVENTS") == "1",
        )
        if not 0 <= place.rank < max(place.world_size, 1):
            raise UsageError(f"RANK={place.rank} does not fit WORLD_SIZE={place.world_size}")
        if place.backend not in BACKENDS:
            raise UsageError(f"ORCH_BACKEND={place.backend}: expected one of {', '.join(BACKENDS)}")
        return place

    @property
    def name(self) -> str:
        """How people call this rank."""
        return f"rank {self.rank} of {self.world_size}" + (f" ({self.node})" if self.node else "")


BACKENDS = ("auto", "gloo", "nccl")


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise UsageError(f"{name}={text!r} in the environment: expected a whole number") from None


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options that every workload shares: what the engine needs to know."""

    data_dir: Path = Path("Data")
    run_dir: Path = Path()
    epochs: int | None = None
    """None: as many as `max_steps` takes; one if that is not given either."""
    max_steps: int | None = None
    batch_size: int = 8
    """Sequences in one forward pass of one rank."""
    global_batch_size: int | None = None
    """Sequences in one optimizer step, over all ranks. None: batch_size × world_size × grad_accum."""
    grad_accum: int | None = None
    lr: float = 6e-4
    min_lr: float | None = None
    """None: a tenth of `lr`."""
    warmup_steps: int = 20
    weight_decay: float = 0.1
    clip: float = 1.0
    """Largest gradient norm; 0 turns clipping off."""
    seed: int = 1337
    log_every: int = 10
    eval_every: int = 100
    eval_batches: int = 20
    checkpoint_every: int = 100
    keep_checkpoints: int = 3
    prompt: str | None = None
    resume: str = "auto"
    amp: bool = True
    compile: bool | None = None
    """None: on where there is a GPU; a CPU gains 5 % after half a minute of compiling."""
    backend: str = "auto"

    def __post_init__(self) -> None:
        least = {
            "epochs": 1, "max_steps": 1, "batch_size": 1, "global_batch_size": 1, "grad_accum": 1, "lr": 0,
            "min_lr": 0, "warmup_steps": 0, "weight_decay": 0, "clip": 0, "seed": 0, "log_every": 1,
            "eval_every": 0, "eval_batches": 1, "checkpoint_every": 0, "keep_checkpoints": 1,
        }  # fmt: skip
        wrong = [
            f"--{name.replace('_', '-')} {value:g}: expected at least {smallest}"
            for name, smallest in least.items()
            if (value := getattr(self, name)) is not None and not value >= smallest
        ]
        if wrong:
            raise UsageError("\n".join(wrong))

    def batches(self, world_size: int) -> int:
        """Sequences in one optimizer step."""
        by_parts = self.batch_size * world_size * (self.grad_accum or 1)
        total = self.global_batch_size or by_parts
        if self.grad_accum and total != by_parts:
            raise UsageError(
                f"--global-batch-size {total} is not --batch-size {self.batch_size} × {world_size} ranks"
                f" × --grad-accum {self.grad_accum} = {by_parts}: leave one of them out"
            )
        if total < world_size:
            raise UsageError(f"--global-batch-size {total} leaves some of {world_size} ranks without a sequence")
        return total

    def as_json(self) -> dict[str, Any]:
        return {name: str(value) if isinstance(value, Path) else value for name, value in asdict(self).items()}


def train_options(given: argparse.Namespace, defaults: Mapping[str, Any], place: Place) -> TrainOptions:
    """What the user gave, else what the preset says, else the defaults above."""
    chosen = dict(defaults)
    chosen["run_dir"] = Path(place.run_dir or ".")
    chosen["backend"] = place.backend
    for field in fields(TrainOptions):
        value = getattr(given, field.name, None)
        if value is not None:
            chosen[field.name] = value
    if given.from_scratch:
        chosen["resume"] = "never"
    return TrainOptions(**chosen)


def add_train_options(parser: argparse.ArgumentParser) -> None:
    """Every default is None, so that a preset may speak before the general default does."""
    where = parser.add_argument_group("where")
    where.add_argument("--data-dir", type=Path, metavar="DIR", help="prepared data (default: Data)")
    where.add_argument(
        "--run-dir",
        type=Path,
        metavar="DIR",
        help="for checkpoints/, tensorboard/ (default: $ORCH_RUN_DIR or .)",
    )
    where.add_argument("--resume", metavar="auto|never|PATH", help="default auto: the newest sound checkpoint")
    where.add_argument("--from-scratch", action="store_true", help="the same as --resume never")
    much = parser.add_argument_group("how much")
    much.add_argument("--epochs", type=int, metavar="N", help="default 1, unless --max-steps is given")
    much.add_argument("--max-steps", type=int, metavar="N", help="stop after optimizer step N")
    much.add_argument("--batch-size", type=int, metavar="N", help="sequences per forward pass and rank")
    much.add_argument("--grad-accum", type=int, metavar="N", help="forward passes per optimizer step (default 1)")
    much.add_argument("--global-batch-size", type=int, metavar="N", help="sequences per step over all ranks")
    how = parser.add_argument_group("how")
    how.add_argument("--lr", type=float, help="highest learning rate")
    how.add_argument("--min-lr", type=float, help="at the end of the cosine (default: a tenth of --lr)")
    how.add_argument("--warmup-steps", type=int, metavar="N")
    how.add_argument("--weight-decay", type=float, metavar="W")
    how.add_argument("--clip", type=float, metavar="NORM", help="largest gradient norm, 0 for none (default 1)")
    how.add_argument("--seed", type=int)
    how.add_argument("--no-amp", dest="amp", action="store_const", const=False, help="float32 on a GPU too")
    how.add_argument("--compile", action=argparse.BooleanOptionalAction, help="torch.compile (default: on a GPU only)")
    how.add_argument("--backend", choices=BACKENDS, help="default auto: $ORCH_BACKEND, else nccl if all have a GPU")
    seen = parser.add_argument_group("what is seen and kept")
    seen.add_argument("--log-every", type=int, metavar="N", help="steps between two lines (default 10)")
    seen.add_argument("--eval-every", type=int, metavar="N", help="steps; 0 for never (default 100)")
    seen.add_argument("--eval-batches", type=int, metavar="N", help="of --batch-size sequences (default 20)")
    seen.add_argument("--checkpoint-every", type=int, metavar="N", help="steps; 0: at the end only (default 100)")
    seen.add_argument("--keep-checkpoints", type=int, metavar="K", help="the newest K (default 3)")
    seen.add_argument("--prompt", "--sample-at-end", metavar="TEXT", help="write a sample from TEXT at the end")
