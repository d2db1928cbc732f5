"""Gradients of the user's own DDP model, averaged by a sync method."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import nn
from torch.nn.parallel import DistributedDataParallel

from contract import environment
from contract.cost_model.choice import AUTO, WORTH
from contract.cost_model.measurement import Measurement
from contract.cost_model.step_time import node_set, step_s
from trainer.config import SYNCS, RankInfo, TrainOptions
from trainer.engine.autotune.measure import Own, Work, measure
from trainer.engine.group import Group
from trainer.engine.reporting.events import Events
from trainer.engine.sync.ddp_hook import DdpHook
from trainer.engine.sync.methods import LOCAL, ladder
from trainer.hooks.shares import SharedBatches, SpeedShares

METHODS = tuple(name for name in SYNCS if name not in LOCAL)


def ddp(
    model: nn.Module,
    environ: Mapping[str, str],
    sync: str,
    options: Mapping[str, Any],
    batches: SharedBatches | None = None,
) -> None:
    """Register the sync method with a DDP model; nothing for a rank alone, and for fp32 with equal shares. To be called
    by all ranks.

    `options`: of `TrainOptions`; `batches`: their shares follow the ranks' speed. ValueError: no method of this name
    for gradients. TypeError: not a DDP model.
    """
    place = RankInfo.from_environ(environ)
    wished = environ.get(environment.SYNC, "") or AUTO if sync == AUTO else sync
    _check(wished)
    if place.world_size == 1:
        return
    if not isinstance(model, DistributedDataParallel):
        raise TypeError(
            f"hooks.ddp expects a DistributedDataParallel, not a {type(model).__name__}: call"
            " hooks.ddp(DistributedDataParallel(model))"
        )
    if model.process_group.size() == 1 or (wished == "fp32" and batches is None):
        return
    settings = TrainOptions(**options)
    group = Group.beside(place, model.process_group, next(model.parameters()).device)
    events = Events(place)
    if wished == AUTO:
        wished = _measured(model, settings, group, events)
    method = next(one for one in ladder(settings, model.module, group.nodes) if one.name == wished)
    if method.mean_of is None and batches is None:
        return
    weight = SpeedShares(model, batches, group, events).weight if batches else lambda: 1.0
    hook = DdpHook(method.mean_of, group, next(model.parameters()).device, weight)
    model.register_comm_hook(None, lambda _, bucket: hook.send(bucket))  # torch checks the annotations of a method
    if method.mean_of is not None:
        events.say(f"gradients are exchanged as {wished}, from the second step on")


def _check(sync: str) -> None:
    expected = f"expected auto or one of {', '.join(METHODS)}"
    if sync in LOCAL:
        raise ValueError(
            f"sync {sync!r} averages weights every some steps, not gradients, and cannot be a hook of DDP: {expected};"
            f" or train your model with `orch launch -- custom --module my_file.py:build --sync {sync}`"
        )
    if sync not in (AUTO, *METHODS):
        raise ValueError(f"sync {sync!r}: {expected}")


def _measured(model: DistributedDataParallel, settings: TrainOptions, group: Group, events: Events) -> str:
    """The most exact proven method whose exchange is nearly as fast as the fastest. Measures links and encoding for
    some seconds. How long a script computes in a step is not known here, so that nothing is hidden behind it."""
    work = Work(model=model.module, samples_per_step=group.place.world_size, units_per_sample=1.0, unit="samples")
    measured = measure(Own(sample_s=0.0, step_s=0.0, micro_batch=1), work, settings, group)
    seconds = exchange_s(measured)
    chosen = group.broadcast_text(most_exact(seconds))
    times = ", ".join(f"{name} {each:.2g} s" for name, each in seconds.items())
    events.say(f"sync auto: {chosen} (predicted exchange of a step: {times})")
    return chosen


def exchange_s(measured: Measurement) -> dict[str, float]:
    """Predicted seconds of one exchange between all ranks, by proven method, the most exact first."""
    together = node_set(measured.nodes, measured.samples_per_step, equal=True)
    return {cost.sync: step_s(measured, together, cost) for cost in measured.costs if cost.proven}


def most_exact(seconds: Mapping[str, float]) -> str:
    """The first method that takes hardly longer than the fastest."""
    return next(name for name, each in seconds.items() if each <= WORTH * min(seconds.values()))
