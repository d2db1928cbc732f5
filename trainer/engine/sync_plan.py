"""Plan before the first step: ranks that train, the share of each in a step, and the sync method."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass, replace
from typing import Any

from contract.cost_model.choice import AUTO, SyncChoice, choose_sync
from contract.cost_model.forecast import forecast
from contract.cost_model.measurement import CostModelError, HostStats, Measurement
from contract.cost_model.shares import split
from contract.cost_model.step_time import ALONE
from contract.events import ForecastMade, NodesMeasured, RankLeftOut
from trainer.config import TrainOptions
from trainer.engine import last_measurement
from trainer.engine.autotune.host_stats import of_all
from trainer.engine.autotune.measure import Own, Work, measure
from trainer.engine.rank_speed import better
from trainer.engine.reporting.forecast_text import summary, table
from trainer.engine.run import TrainingRun
from trainer.errors import OptionError

SHORT_S = 5.0
"""Seconds that a measurement takes at least (measured: 5.2 with two ranks of a tiny model, 6.8 with three): a run that
needs less is not measured."""
SHORT_STEPS = 1000
"""A run of more steps is not short: each takes some milliseconds at least."""
SAMPLE_S, VALUES = 0.3, 1 << 16
"""Seconds of the micro-batches, and values of the exchange, that a short run is recognized by."""


@dataclass(frozen=True, kw_only=True)
class SyncPlan:
    everyone: tuple[str, ...] = ()
    """All processes, by rank."""
    ranks: tuple[int, ...] = ()
    """Those who train."""
    sync: str
    shares: tuple[int, ...] = ()
    """Samples of each of them in a step; none: equal."""
    per_s: float = 0.0
    """The forecast's speed; 0 where there is none."""
    gain: float = 0.0
    """Speed-up of the run's steps since then, because it has compiled its model."""

    @classmethod
    def remembered(cls, saved: Mapping[str, Any]) -> SyncPlan:
        values: dict[str, Any] = {name: tuple(v) if isinstance(v, list) else v for name, v in saved.items()}
        return cls(**values)


def must_measure(run: TrainingRun) -> bool:
    options = run.options
    return options.forecast or (not run.group.alone and (by_speed(run) or wished_sync(options) == AUTO))


def by_speed(run: TrainingRun) -> bool:
    """Return whether shares follow the nodes' speed."""
    return run.options.shares == "auto" and not run.options.deterministic and not run.workload.streamed


def negotiate(
    run: TrainingRun,
    measure_own: Callable[[], Own],
    sample_s: Callable[[float], float],
    before: Mapping[str, Any],
    steps: int,
) -> SyncPlan:
    """Plan to continue by, alike on all ranks. `measure_own`, `sample_s` (of so many seconds): called where they must
    be; `before`: a checkpoint's; `steps`: those that are left."""
    wished = wished_sync(run.options)
    everyone = tuple(run.group.all_gather_text(run.place.name))
    if before and not run.options.forecast:
        earlier = SyncPlan.remembered(before)
        fits = earlier.everyone == everyone and sum(earlier.shares) in (0, run.per_step)
        was_measured = earlier.per_s > 0 or not must_measure(run)  # a short run was not
        if fits and was_measured and wished in (AUTO, earlier.sync):  # with the same nodes nothing is measured again
            run.events.say(f"as before: --sync {earlier.sync}, shares {list(earlier.shares) or 'equal'}")
            return earlier
    if not must_measure(run):
        return _unmeasured(run, everyone)
    measured, around = _measured(run, measure_own, sample_s, steps)
    if measured is None:
        return _unmeasured(run, everyone)
    found = _choose(run, measured)
    if run.place.rank == 0:
        whole = replace(found.measured, samples_per_epoch=run.workload.train_samples, around=around)
        run.events.emit(NodesMeasured(measurement=whole))
        run.events.emit(ForecastMade(forecast=forecast(found)))
    for line in [summary(found)] if run.place.events else table(found):  # who reads events draws its own table
        run.events.say(line)
    for out in found.left_out:
        if out.rank == run.place.rank and not run.options.forecast:
            run.events.emit(RankLeftOut(why=out.why))
    row = found.chosen
    decided = SyncPlan(
        everyone=everyone,
        ranks=row.ranks,
        sync="fp32" if row.sync == ALONE else row.sync,
        shares=row.shares if by_speed(run) and _unequal(found) else (),
        per_s=row.per_s,
    )
    # All ranks have the same measurements. Sent by one rank, the plan is the same too, whatever a machine's arithmetic.
    return SyncPlan.remembered(json.loads(run.group.broadcast_text(json.dumps(asdict(decided)))))


def _unmeasured(run: TrainingRun, everyone: tuple[str, ...]) -> SyncPlan:
    """All ranks with equal shares, by the method that is asked for."""
    wished = wished_sync(run.options)
    return SyncPlan(everyone=everyone, ranks=tuple(range(len(everyone))), sync="fp32" if wished == AUTO else wished)


def wished_sync(options: TrainOptions) -> str:
    """Method that is asked for: a run that repeats bit for bit cannot depend on what is measured."""
    return "fp32" if options.deterministic and options.sync == AUTO else options.sync


def _unequal(found: SyncChoice) -> bool:
    """Return whether other than equal shares are worth it: two trials of one machine differ by some percent."""
    total, ranks = found.measured.samples_per_step, found.chosen.ranks
    equal = split(total, [1.0] * len(ranks))
    return better(total, equal, [found.measured.nodes[rank].sample_s for rank in ranks]) is not None


def _measured(
    run: TrainingRun, measure_own: Callable[[], Own], sample_s: Callable[[float], float], steps: int
) -> tuple[Measurement | None, tuple[HostStats, ...]]:
    """Measurement to plan by: that of an earlier start where it holds, none for a run that is shorter than one,
    otherwise a new one; and for a forecast, figures of the ranks' nodes."""
    last = None if run.options.forecast else last_measurement.load(run)
    if last:
        changed = last_measurement.differs(last, run, sample_s)
        run.events.say(f"measured again: {changed}" if changed else f"planned by the measurement of {last.time}")
        if not changed:
            return last.measured, ()
    if not run.options.forecast and steps <= SHORT_STEPS and (seconds := _run_s(run, sample_s, steps)) < SHORT_S:
        run.events.say(f"not measured, as {steps} steps take about {seconds:.1f} s: equal shares on all nodes")
        return None, ()
    own = measure_own()
    measured = _measure(run, own)
    if not run.options.forecast:
        last_measurement.save(run, measured)
    return measured, of_all(own.around, run.group) if own.around else ()


def _run_s(run: TrainingRun, sample_s: Callable[[float], float], steps: int) -> float:
    """Seconds of so many steps with equal shares and --sync fp32, alike on all ranks. To be called by all ranks."""
    group = run.group
    parameters = sum(one.numel() for one in run.workload.model.parameters() if one.requires_grad)
    computed_s = max(group.all_gather_scalar(sample_s(SAMPLE_S))) * run.per_step / run.place.world_size
    return steps * (computed_s + last_measurement.exchange_s(group, VALUES) * max(1.0, parameters / VALUES))


def _measure(run: TrainingRun, own: Own) -> Measurement:
    workload, options = run.workload, run.options
    some = workload.order(options.seed).take(0, run.per_step)
    work = Work(
        model=workload.model,
        samples_per_step=run.per_step,
        units_per_sample=workload.count_units(some) / run.per_step,
        unit=workload.unit,
    )
    return measure(own, work, options, run.group)


def _choose(run: TrainingRun, measured: Measurement) -> SyncChoice:
    workload, options = run.workload, run.options
    try:
        found = choose_sync(measured, sync=wished_sync(options), equal=not by_speed(run))
    except CostModelError as error:
        raise OptionError(str(error)) from error
    if len(found.chosen.ranks) < run.place.world_size:
        if workload.streamed and found.chosen.sync != ALONE:
            return choose_sync(measured, sync=found.chosen.sync, equal=True)  # its parts are cut for all ranks
        if workload.sharded:  # no other node has the samples of one that would be left out
            return with_all_nodes(found, equal=not by_speed(run))
    return found


def with_all_nodes(found: SyncChoice, *, equal: bool) -> SyncChoice:
    """The choice with no node left out: its method, or the fastest proven one instead of one node alone."""
    methods = [row for row in found.rows if row.sync != ALONE and row.proven]
    method = max(methods, key=lambda row: row.per_s).sync if found.chosen.sync == ALONE else found.chosen.sync
    return choose_sync(found.measured, sync=method, equal=equal)
