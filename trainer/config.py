"""What a run is told: by the orchestrator through the environment, by the user through options.

Nothing here imports torch: the same module serves `--help` and the contract test with the orchestrator. How options
are declared and where their values come from stands in options.py.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from contract import environment
from trainer.errors import OptionError


@dataclass(frozen=True, kw_only=True)
class RankInfo:
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
    def from_environ(cls, environ: Mapping[str, str]) -> RankInfo:
        place = cls(
            rank=_number(environ, "RANK", 0),
            world_size=_number(environ, "WORLD_SIZE", 1),
            local_rank=_number(environ, "LOCAL_RANK", 0),
            local_world_size=_number(environ, "LOCAL_WORLD_SIZE", 1),
            master=f"{environ.get('MASTER_ADDR', '')}:{environ.get('MASTER_PORT', '')}",
            node=environ.get(environment.NODE, ""),
            node_rank=_number(environ, environment.NODE_RANK, 0),
            run_id=environ.get(environment.RUN_ID, ""),
            run_dir=environ.get(environment.RUN_DIR, ""),
            attempt=_number(environ, environment.ATTEMPT, 0),
            backend=environ.get(environment.BACKEND, "") or "auto",
            pg_timeout_s=_number(environ, environment.PG_TIMEOUT_S, 300),
            events=environ.get(environment.EVENTS) == "1",
        )
        if not 0 <= place.rank < max(place.world_size, 1):
            raise OptionError(f"RANK={place.rank} does not fit WORLD_SIZE={place.world_size}")
        if place.backend not in BACKENDS:
            raise OptionError(f"{environment.BACKEND}={place.backend}: expected one of {', '.join(BACKENDS)}")
        return place

    @property
    def name(self) -> str:
        """How people call this rank."""
        return f"rank {self.rank} of {self.world_size}" + (f" ({self.node})" if self.node else "")

    @property
    def label(self) -> str:
        """The same in a word: the node, with its local rank where it holds several."""
        name = self.node or f"rank {self.rank}"
        return f"{name}.{self.local_rank}" if self.node and self.local_world_size > 1 else name


BACKENDS = ("auto", "gloo", "nccl")


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name}={text!r} in the environment: expected a whole number") from None


OPTIMIZERS = ("adamw", "muon", "sgd")
SCHEDULES = ("cosine", "onecycle", "linear", "constant")
PRECISIONS = ("auto", "fp32", "bf16", "fp16")
SYNCS = ("fp32", "fp16", "int8", "int4+8", "int4", "int2", "topk", "powersgd", "local", "diloco")
"""How ranks keep one model in common: the way of each stands in trainer/engine/sync."""
CODECS = ("fp32", "fp16", "int8", "int4+8", "int4", "int2", "topk")
SDPA = ("auto", "flash", "efficient", "cudnn", "math")

Every = int | Literal["epoch"]
"""Steps, 0 for never, or at the end of each epoch."""


@dataclass(frozen=True)
class OptionValue:
    """An option's value, and who said so."""

    value: Any
    origin: str

    @property
    def by_user(self) -> bool:
        return self.origin not in ("default", WORKLOAD)


WORKLOAD = "the workload's default"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """The options that every workload shares: what the engine needs to know. A workload has defaults of its own."""

    data_dir: Path = Path("Data")
    run_dir: Path = Path()
    resume: str = "auto"

    epochs: int | None = None
    """None: as many as `max_steps` takes; one if that is not given either."""
    max_steps: int | None = None
    batch_size: int = 8
    """Samples of one rank that one pass of `grad_accum` takes."""
    micro_batch_size: int | Literal["auto"] | None = None
    """Samples in one forward pass. None: batch_size. auto: what the memory holds, found by trial."""
    grad_accum: int | None = None
    global_batch_size: int | None = None
    """Samples in one optimizer step, over all ranks. None: batch_size × world_size × grad_accum."""

    optimizer: str = "adamw"
    lr: float = 6e-4
    min_lr: float | None = None
    """None: a tenth of `lr`."""
    schedule: str = "cosine"
    warmup_steps: int = 20
    weight_decay: float = 0.1
    betas: tuple[float, float] = (0.9, 0.95)
    clip: float = 1.0
    """Largest gradient norm; 0 turns clipping off."""

    amp: bool = True
    precision: str = "auto"
    """Of the matrix products; auto: what the hardware computes fast. The weights stay float32."""
    tf32: bool = True
    sdpa: str = "auto"
    fused: bool | None = None
    """The optimizer's fused kernels. None: where torch has them."""
    compile: bool | Literal["auto"] = "auto"
    static_graph: bool = True
    """DDP's promise that every step uses the same parameters in the same order."""
    num_workers: int | Literal["auto"] = "auto"
    """Processes that load data. auto: measured at the start."""

    seed: int = 1337
    deterministic: bool = False
    on_nan: Literal["stop", "skip"] = "stop"
    on_spike: Literal["off", "warn", "skip", "stop"] = "warn"
    spike_factor: float = 3.0
    """A loss above this many times the median of the last ones is a spike."""

    eval_every: Every = 100
    eval_batches: int | None = None
    """Batches of `batch_size`, spread over the validation split. None: all of it."""
    early_stopping: str | None = None
    """The metric to watch, `none` for not to stop."""
    patience: int = 3
    """Evaluations without a better value."""
    best: str = "loss"
    """The metric by which the best checkpoint is chosen, where `early_stopping` names none."""
    checkpoint_every: Every = 100
    checkpoint_async: bool = True
    """Written from a copy in memory while the training goes on. Off: it stands still, and no copy is needed."""
    keep_checkpoints: int = 3
    keep_hours: float = 0.0
    """Beside the newest `keep_checkpoints`, those that are younger than this."""
    log_every: int = 10
    profile: int = 0
    """Steps to record."""
    find_lr: int = 0
    """Steps of the learning-rate range test, in place of training."""
    prompt: str | None = None

    backend: str = "auto"
    sync: str = "auto"
    """One of SYNCS. auto: the fastest by the forecast, of those whose loss is known to be fp32's."""
    sync_codec: str = "int8"
    """What local steps send their weights in, and powersgd its factors."""
    sync_every: int = 20
    """Local steps between two exchanges."""
    sync_warmup: int = 0
    """Steps by the mean gradient before the first local one."""
    sync_fragments: int = 1
    """Parts of the model that are exchanged at times of their own."""
    sync_delay: int = 0
    """Steps that go on while a fragment is on its way."""
    sync_rank: int = 4
    """Of PowerSGD's matrices."""
    sync_density: float = 0.02
    """Share of the values that topk sends."""
    outer_lr: float = 0.7
    """Of DiLoCo's outer optimizer."""
    outer_momentum: float = 0.9
    shares: Literal["auto", "equal"] = "auto"
    """Of a step's samples, by rank. auto: in proportion to measured speed."""
    forecast: bool = False
    """Measure, tell what every way would give, and end."""
    said: Mapping[str, OptionValue] = field(default_factory=dict)
    """What is not a default here, also of the workload's own options, and where it came from."""

    def __post_init__(self) -> None:
        least = {
            "epochs": 1, "max_steps": 1, "batch_size": 1, "micro_batch_size": 1, "global_batch_size": 1,
            "grad_accum": 1, "lr": 0, "min_lr": 0, "warmup_steps": 0, "weight_decay": 0, "clip": 0, "seed": 0,
            "num_workers": 0, "spike_factor": 1, "log_every": 1, "eval_every": 0, "eval_batches": 1, "patience": 1,
            "checkpoint_every": 0, "keep_checkpoints": 1, "keep_hours": 0, "profile": 0, "find_lr": 0,
            "sync_every": 1, "sync_warmup": 0, "sync_fragments": 1, "sync_delay": 0, "sync_rank": 1,
            "outer_lr": 0, "outer_momentum": 0,
        }  # fmt: skip
        wrong = [
            f"--{name.replace('_', '-')} {value:g}: expected at least {smallest}"
            for name, smallest in least.items()
            if isinstance(value := getattr(self, name), int | float) and not value >= smallest
        ]
        wrong += [f"--betas {b:g}: expected 0 or more and less than 1" for b in self.betas if not 0 <= b < 1]
        if not 0 < self.sync_density <= 1:
            wrong.append(f"--sync-density {self.sync_density:g}: expected more than 0 and at most 1")
        if not self.outer_momentum < 1:
            wrong.append(f"--outer-momentum {self.outer_momentum:g}: expected less than 1")
        most = self.sync_every // self.sync_fragments
        if self.sync_delay >= max(1, most):
            wrong.append(
                f"--sync-delay {self.sync_delay}: with --sync-every {self.sync_every} and --sync-fragments"
                f" {self.sync_fragments} expected less than {max(1, most)}"
            )
        if wrong:
            raise OptionError("\n".join(wrong))

    def batches(self, world_size: int) -> int:
        """Samples in one optimizer step."""
        by_parts = self.batch_size * world_size * (self.grad_accum or 1)
        total = self.global_batch_size or by_parts
        if self.grad_accum and total != by_parts:
            raise OptionError(
                f"--global-batch-size {total} is not --batch-size {self.batch_size} × {world_size} ranks"
                f" × --grad-accum {self.grad_accum} = {by_parts}: leave one of them out"
            )
        if total < world_size:
            raise OptionError(f"--global-batch-size {total} leaves some of {world_size} ranks without a sample")
        return total

    def as_json(self) -> dict[str, Any]:
        values = asdict(replace(self, said={}))
        del values["said"]
        return {name: str(value) if isinstance(value, Path) else value for name, value in values.items()}
