"""Settings of a run: the environment from the orchestrator and the options of the user. Needs no torch."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from contract import environment
from contract.checkpoint import StartPoint, decode_start
from trainer.errors import OptionError
from trainer.options import option, out_of_range


@dataclass(frozen=True, kw_only=True)
class RankInfo:
    """Position of this process among all ranks, from the variables of torchrun and the orchestrator."""

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
    resume_from: StartPoint | None = None
    """The checkpoint that this attempt continues from; None: the newest intact one."""
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
            resume_from=_start(environ),
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
        """Name of this rank in messages."""
        return f"rank {self.rank} of {self.world_size}" + (f" ({self.node})" if self.node else "")

    @property
    def label(self) -> str:
        """Short name of this rank: its node, with the local rank if the node has several."""
        name = self.node or f"rank {self.rank}"
        return f"{name}.{self.local_rank}" if self.node and self.local_world_size > 1 else name


def _start(environ: Mapping[str, str]) -> StartPoint | None:
    try:
        return decode_start(environ.get(environment.RESUME_FROM, ""))
    except ValueError as error:
        raise OptionError(f"{environment.RESUME_FROM} in the environment: {error}") from None


BACKENDS = ("auto", "gloo", "nccl")


def _number(environ: Mapping[str, str], name: str, default: int) -> int:
    text = environ.get(name, "")
    if not text:
        return default
    try:
        return int(text)
    except ValueError:
        raise OptionError(f"{name}={text!r} in the environment: expected a whole number") from None


SYNCS = ("fp32", "fp16", "int8", "int4+8", "int4", "int2", "topk", "powersgd", "local", "diloco")
"""Sync methods: how ranks keep their weights equal. Implemented in trainer/engine/sync."""
CODECS = ("fp32", "fp16", "int8", "int4+8", "int4", "int2", "topk")

Every = int | Literal["epoch"]
"""Number of steps, 0 for never, or at the end of each epoch."""


@dataclass(frozen=True)
class OptionValue:
    """An option's value and its origin."""

    value: Any
    origin: str

    @property
    def by_user(self) -> bool:
        return self.origin not in ("default", WORKLOAD)


WORKLOAD = "the workload's default"


@dataclass(frozen=True, kw_only=True)
class TrainOptions:
    """Options of every training."""

    data_dir: Path = option(Path("Data"), "prepared data", section="input and output", aliases=("--preprocessed-dir",))
    run_dir: Path = option(Path(), "folder of checkpoints/, tensorboard/ and logs (default: $ORCH_RUN_DIR or .)")
    resume: str = option(
        "auto", "checkpoint to continue from (default: auto, the newest sound one of the run)",
        metavar="auto|never|PATH", constants={"--from-scratch": "never"},
    )  # fmt: skip

    epochs: int | None = option(
        None, "passes through the data (default: 1, or as many as --max-steps takes)", section="length and batch size",
        at_least=1,
    )  # fmt: skip
    max_steps: int | None = option(None, "stop after optimizer step N", at_least=1)
    batch_size: int = option(8, "samples per rank and batch, before gradient accumulation", at_least=1, varies=True)
    micro_batch_size: int | Literal["auto"] | None = option(
        None, "samples per forward pass (default: --batch-size; auto: as many as the memory holds, measured)",
        at_least=1,
    )  # fmt: skip
    grad_accum: int | None = option(
        None, "batches per optimizer step (default: 1)", aliases=("--gradient-accumulation-steps",), at_least=1
    )
    global_batch_size: int | None = option(
        None, "samples per optimizer step over all ranks (default: --batch-size × ranks × --grad-accum)", at_least=1
    )

    optimizer: str = option("adamw", "optimizer", section="optimization", choices=("adamw", "muon", "sgd"))
    optimizer_state: Literal["fp32", "bf16", "int8"] = option(
        "fp32", "format of the optimizer's moments: 8, 4 or 2 bytes a weight with adamw; bf16 and int8 change results"
        " a little",
    )  # fmt: skip
    lr: float = option(6e-4, "highest learning rate", aliases=("--learning-rate",), at_least=0, varies=True)
    min_lr: float | None = option(
        None, "learning rate that cosine and linear fall to (default: a tenth of --lr)", at_least=0
    )
    schedule: str = option(
        "cosine",
        "learning rate after the warmup; onecycle: as torch's OneCycleLR, without warmup, but beta1 stays as"
        " --betas says",
        choices=("cosine", "onecycle", "linear", "constant"),
        varies=True,
    )
    warmup_steps: int = option(20, "steps until the highest learning rate", at_least=0, varies=True)
    weight_decay: float = option(0.1, "weight decay of matrices", metavar="W", at_least=0, varies=True)
    betas: tuple[float, float] = option(
        (0.9, 0.95), "betas of AdamW", metavar="B1,B2", at_least=0, below=1, varies=True
    )
    clip: float = option(
        1.0, "largest gradient norm, 0 disables clipping", aliases=("--max-norm",), metavar="NORM", at_least=0
    )

    precision: str = option(
        "auto", "format of matrix products; weights stay float32 (default: auto: bf16 where the hardware has it, fp16"
        " on older GPUs, otherwise fp32)", section="hardware", choices=("auto", "fp32", "bf16", "fp16"),
    )  # fmt: skip
    amp: bool = option(True, "mixed precision as --precision says; off: float32 everywhere", aliases=("--use-amp",))
    tf32: bool = option(True, "use TF32 on GPUs from Ampere on")
    sdpa: str = option(
        "auto",
        "kernel of scaled dot-product attention (default: auto, as torch chooses)",
        choices=("auto", "flash", "efficient", "cudnn", "math"),
    )
    fused: bool | None = option(None, "fused kernels of the optimizer (default: where torch has them)")
    compile: bool | Literal["auto"] = option(
        "auto", "torch.compile (default: auto, in long runs on GPUs)", aliases=("--use-compile",),
        constants={"--no-compile": False},
    )  # fmt: skip
    cuda_graphs: bool = option(
        False, "record the kernels of compiled parts on a GPU and replay them, for steps of many small kernels; needs"
        " --compile, one rank and one micro-batch per step",
    )  # fmt: skip
    static_graph: bool = option(True, "let DDP assume that every step uses the same weights in the same order")
    num_workers: int | Literal["auto"] = option(
        "auto", "processes that load data (default: auto, measured at the start)", at_least=0
    )

    backend: str = option(
        "auto", "of torch.distributed (default: $ORCH_BACKEND, or nccl if every rank has a GPU, otherwise gloo)",
        section="distributed training", choices=BACKENDS,
    )  # fmt: skip
    sync: str = option(
        "auto", "how gradients or weights are exchanged (default: auto, by measurement the fastest method whose loss is"
        " that of fp32)", choices=("auto", *SYNCS),
    )  # fmt: skip
    shares: Literal["auto", "equal"] = option(
        "auto", "each rank's share of a step's samples (default: auto, in proportion to measured speed)"
    )
    forecast: bool = option(False, "measure speeds and links, print how fast each sync method would be, and end")
    sync_codec: str = option("int8", "encoding of what local, diloco and powersgd send", choices=CODECS)
    sync_every: int = option(20, "local steps between two exchanges", metavar="H", at_least=1)
    sync_warmup: int = option(0, "steps with averaged gradients before the first local step", at_least=0)
    sync_fragments: int = option(1, "parts of the model that are exchanged one after another", metavar="F", at_least=1)
    sync_delay: int = option(0, "steps that are computed while a fragment is sent", at_least=0)
    sync_rank: int = option(4, "rank of PowerSGD's matrices", metavar="R", at_least=1)
    sync_density: float = option(0.02, "share of the values that topk sends", metavar="D", above=0, at_most=1)
    outer_lr: float = option(0.7, "learning rate of DiLoCo's outer optimizer", at_least=0)
    outer_momentum: float = option(0.9, "momentum of DiLoCo's outer optimizer", at_least=0, below=1)

    seed: int = option(
        1337, "seed of weights, sample order and noise", section="reproducibility and failures", at_least=0
    )
    deterministic: bool = option(False, "use only kernels whose results are equal bit for bit")
    on_nan: Literal["stop", "skip"] = option("stop", "action after a loss that is NaN or infinite")
    on_spike: Literal["off", "warn", "skip", "stop"] = option(
        "warn", "action after a loss far above the last ones", varies=True
    )
    spike_factor: float = option(
        3.0, "a loss above X times the median of the last ones is a spike", metavar="X", at_least=1
    )

    log_every: int = option(
        10, "steps between two progress lines", section="evaluation, checkpoints and logs", at_least=1
    )
    eval_every: Every = option(100, "steps between two evaluations, 0 disables them", at_least=0, varies=True)
    eval_batches: int | None = option(
        None, "batches of --batch-size samples in an evaluation (default: all, or the workload's)", at_least=1
    )
    early_stopping: str | None = option(
        None, "end when METRIC has not improved for --patience evaluations", metavar="METRIC|none"
    )
    patience: int = option(3, "evaluations without a better value", at_least=1)
    best: str = option(
        "loss", "metric of the best checkpoint, unless --early-stopping names one", metavar="METRIC", varies=True
    )
    checkpoint_every: Every = option(
        100, "steps between two checkpoints, 0: only one at the end", at_least=0, varies=True
    )
    checkpoint_async: bool = option(
        True, "continue training while a checkpoint is written; off: needs no memory for a copy of the weights"
    )
    keep_checkpoints: int = option(3, "keep the newest K checkpoints, and the best", metavar="K", at_least=1)
    keep_hours: float = option(0.0, "keep also all checkpoints of the last H hours", metavar="H", at_least=0)
    profile: int = option(0, "write a trace and a summary of STEPS (10)", metavar="STEPS", without_value=10, at_least=0)
    reporter: str | None = option(
        None, "your own classes that also receive the figures, separated by commas (orch docs reporters)",
        metavar="MODULE:CLASS",
    )  # fmt: skip
    prompt: str | None = option(
        None, "generate a sample from TEXT at the end", aliases=("--sample-at-end",), metavar="TEXT"
    )

    chosen: Mapping[str, OptionValue] = field(default_factory=dict)
    """Values that are not a default of this class, also of the workload's own options, with their origin."""

    def __post_init__(self) -> None:
        wrong = out_of_range(self)
        most = self.sync_every // self.sync_fragments if self.sync_fragments > 0 else 0
        if self.sync_delay >= max(1, most):
            wrong.append(
                f"--sync-delay {self.sync_delay}: with --sync-every {self.sync_every} and --sync-fragments"
                f" {self.sync_fragments} expected less than {max(1, most)}"
            )
        if wrong:
            raise OptionError("\n".join(wrong))

    def batches(self, world_size: int) -> int:
        """Return the number of samples in one optimizer step."""
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
        values = asdict(replace(self, chosen={})).items()
        return {name: str(value) if isinstance(value, Path) else value for name, value in values if name != "chosen"}
