"""The ways to keep ranks in common, from the most that is sent to the least; `--sync` names one."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial

from torch import nn
from torch.optim import Optimizer

from contract.cost_model.measurement import Pattern
from trainer.config import SYNCS, TrainOptions
from trainer.engine.group import Group
from trainer.engine.hardware.compiling import last_together
from trainer.engine.sync.buckets import Bucket, before_the_last, by_backward
from trainer.engine.sync.codec import BlockCodec, FloatCodec, HalfCodec, SparseCodec
from trainer.engine.sync.ddp import Alone, Ddp, ddp_buckets
from trainer.engine.sync.every_step import STREAMS, EveryStep, LossScale, MeanOf
from trainer.engine.sync.exchange import Codecs, Exchange
from trainer.engine.sync.in_nodes import in_two_levels, summed_in_nodes
from trainer.engine.sync.local_steps import LocalSteps, Rounds
from trainer.engine.sync.low_rank import thin
from trainer.engine.sync.powersgd import Factors
from trainer.engine.sync.strategy import Sync

LOCAL = ("local", "diloco")
PROVEN = ("fp32", "fp16", "int8", "int4+8")
"""`auto` may take them: their mean loss over seeds was within 0.5 % of fp32's (docs/benchmarks.md)."""


def copies_held(name: str) -> int:
    """Copies of the trained weights, in float32, whose memory a method takes beside the training at most; `auto` may
    choose any proven one. DDP: its buckets. Exchanges: what is still to be sent, the flat bucket, and both payloads.
    Local steps: the weights of the last exchange, the outer momentum and their steps, too."""
    return 1 if name == "fp32" else 7 if name in LOCAL else 3


@dataclass(frozen=True, kw_only=True)
class SyncMethod:
    """One of the ways, and what the forecast has to know of it."""

    name: str
    mean_of: MeanOf | None
    """None: DDP's own, where no node has several ranks, or one has all."""
    bytes_per_parameter: float
    every: int
    overlap: float
    """Share of what travels that can do so before the backward pass ends, of the model as it is: compiled or not."""
    collectives: int
    """Collectives of one exchange, one after another: every bucket goes to the rank that averages it and comes back."""
    pattern: Pattern
    whole: bool = False
    """True if one rank exchanges for its node, because the method cannot work on a part of a bucket."""

    @property
    def proven(self) -> bool:
        return self.name in PROVEN


@dataclass(frozen=True, kw_only=True)
class SyncContext:
    """Training on which a sync method works."""

    model: nn.Module
    """The same on all ranks."""
    optimizer: Optimizer
    options: TrainOptions
    group: Group
    loss_scale: LossScale = lambda: None


def ladder(options: TrainOptions, model: nn.Module, nodes: Sequence[int] = ()) -> tuple[SyncMethod, ...]:
    """All rungs, as `options` would have them for `model`. `nodes`: of the ranks, as in `Group.nodes`."""
    return tuple(_rung(name, options, model, nodes) for name in SYNCS)


def build(name: str, context: SyncContext, step: int, *, static_graph: bool) -> Sync:
    """Build the method of this name, to continue after `step`. To be called by all ranks."""
    options, group = context.options, context.group
    if group.alone:
        return Alone(context.model)
    rung = _rung(name, options, context.model, group.nodes)
    if rung.mean_of is None:
        return Ddp(context.model, group, static_graph=static_graph)
    each_step = EveryStep(name, context.model, group, rung.mean_of, context.loss_scale)
    each_step.layout = f"{name}, rank {options.sync_rank}, {options.sync_fragments} fragments, {each_step.layout}"
    if name not in LOCAL:
        return each_step
    rounds = Rounds(
        every=options.sync_every,
        warmup=options.sync_warmup,
        fragments=options.sync_fragments,
        delay=options.sync_delay,
        lr=options.outer_lr if name == "diloco" else 1.0,
        momentum=options.outer_momentum if name == "diloco" else 0.0,
    )
    return LocalSteps(each_step, context.optimizer, rounds, rung.mean_of, step)


def _rung(name: str, options: TrainOptions, model: nn.Module, nodes: Sequence[int]) -> SyncMethod:
    two_levels = in_two_levels(nodes)
    if name == "fp32" and not two_levels:
        return _ddp(model)
    if name == "powersgd":
        return _powersgd(options, model, within=2 * two_levels)
    buckets = by_backward(model.parameters())
    codecs = codecs_named(options.sync_codec if name in LOCAL else name, options.sync_density)
    rounds = options.sync_fragments if name in LOCAL else -(-len(buckets) // STREAMS)

    def mean_of(bucket: Bucket, group: Group) -> Exchange:
        return Exchange(codecs, group, bucket.count, bucket.device, feedback=name != "fp32")

    return SyncMethod(
        name=name,
        mean_of=summed_in_nodes(mean_of),
        bytes_per_parameter=codecs.bytes_per_value,
        every=options.sync_every if name in LOCAL else 1,
        overlap=0 if name in LOCAL else _early(model, buckets, [bucket.count for bucket in buckets]),
        collectives=(2 + 2 * two_levels) * rounds,
        pattern="scatter_gather",
    )


def _ddp(model: nn.Module) -> SyncMethod:
    buckets = ddp_buckets(model.parameters())
    sizes = [sum(parameter.numel() for parameter in bucket) for bucket in buckets]
    return SyncMethod(
        name="fp32",
        mean_of=None,
        bytes_per_parameter=4,
        every=1,
        overlap=before_the_last(buckets, sizes, last_together(model)),
        collectives=2 * len(sizes),
        pattern="ring",
    )


def _powersgd(options: TrainOptions, model: nn.Module, *, within: int) -> SyncMethod:
    """`within`: collectives of a bucket within each node."""
    codecs = codecs_named(options.sync_codec, options.sync_density)

    def mean_of(bucket: Bucket, group: Group) -> Factors:
        return Factors(bucket, group, codecs, rank=options.sync_rank, seed=options.seed)

    shapes = [parameter.shape for parameter in model.parameters() if parameter.requires_grad]
    numbers = sum(map(partial(thin, rank=options.sync_rank), shapes))
    sent = codecs.bytes_per_value * numbers / sum(shape.numel() for shape in shapes)
    buckets = by_backward(model.parameters())
    return SyncMethod(
        name="powersgd",
        mean_of=summed_in_nodes(mean_of, whole=True),
        bytes_per_parameter=sent,
        every=1,
        overlap=_early(
            model, buckets, [sum(thin(p.shape, options.sync_rank) for p in one.parameters) for one in buckets]
        ),
        collectives=(4 + within) * -(-len(buckets) // STREAMS),
        pattern="scatter_gather",
        whole=True,
    )


def _early(model: nn.Module, buckets: Sequence[Bucket], sizes: Sequence[int]) -> float:
    return before_the_last([bucket.parameters for bucket in buckets], sizes, last_together(model))


def codecs_named(name: str, density: float) -> Codecs:
    """One of CODECS."""
    return {
        "fp32": Codecs.both(FloatCodec()),
        "fp16": Codecs.both(HalfCodec()),
        "int8": Codecs.both(BlockCodec(8)),
        # What comes back is in everybody's step: it may cost more than what goes into a mean.
        "int4+8": Codecs(there=BlockCodec(4), back=BlockCodec(8)),
        "int4": Codecs.both(BlockCodec(4)),
        "int2": Codecs.both(BlockCodec(2)),
        "topk": Codecs.both(SparseCodec(density)),
    }[name]
