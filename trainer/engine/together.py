"""Before the first step: which ranks train, what share each has of a step, and how they keep one model in common."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from trainer.config import TrainOptions
from trainer.engine.balance import better
from trainer.engine.group import Group
from trainer.engine.measure import Own, Work, measure
from trainer.engine.run import Run
from trainer.forecast.choice import AUTO, Forecast, forecast
from trainer.forecast.rows import ALONE
from trainer.forecast.split import split
from trainer.forecast.tell import as_event, summary, table


@dataclass(frozen=True, kw_only=True)
class Together:
    sync: str
    group: Group | None
    """None on a rank that is left out."""
    shares: tuple[int, ...] = ()
    """Samples of each rank in a step; none: equal."""
    per_s: float = 0.0
    """The forecast's speed; 0 where there is none."""
    names: tuple[str, ...] = ()

    def kept(self) -> dict[str, Any]:
        """For a checkpoint: who goes on in the same company does not measure again."""
        return {"sync": self.sync, "shares": list(self.shares), "names": list(self.names), "per_s": self.per_s}


def must_measure(run: Run) -> bool:
    options = run.options
    return not run.group.alone and (options.forecast or by_speed(run) or _wished(options) == AUTO)


def _wished(options: TrainOptions) -> str:
    """What repeats bit for bit cannot hang on what is measured."""
    return "fp32" if options.deterministic and options.sync == AUTO else options.sync


def come_together(run: Run, measure_own: Callable[[], Own], before: Mapping[str, Any]) -> Together:
    """How this run goes on. `measure_own`: asked where it must be; `before`: a checkpoint's."""
    group, wished = run.group, _wished(run.options)
    if group.alone:
        return Together(sync="fp32", group=group)
    names = tuple(group.texts(group.place.name))
    as_before = tuple(before.get("names", ())) == names and wished in (AUTO, before["sync"])
    if as_before and not run.options.forecast and sum(before["shares"]) in (0, run.per_step):
        run.events.say(f"as before: --sync {before['sync']}, shares {before['shares'] or 'equal'}")
        return Together(
            sync=before["sync"], group=group, shares=tuple(before["shares"]), per_s=before["per_s"], names=names
        )
    if not must_measure(run):
        return Together(sync=wished, group=group, names=names)
    # What all measured is the same on all; what follows from it is decided once all the same.
    found = _forecast(run, measure_own())
    if group.place.rank == 0:
        run.events.emit("forecast", **as_event(found))
    for line in [summary(found)] if group.place.events else table(found):  # who reads events draws its own table
        run.events.say(line)
    row = found.chosen
    decided = {"sync": row.sync, "ranks": row.ranks, "shares": row.shares, "per_s": row.per_s}
    heard = json.loads(group.broadcast_text(json.dumps(decided)))
    ranks = heard["ranks"]
    sync = "fp32" if heard["sync"] == ALONE else heard["sync"]
    shares = tuple(heard["shares"]) if by_speed(run) and _unequal(found, ranks) else ()
    if len(ranks) == group.place.world_size:
        return Together(sync=sync, group=group, shares=shares, per_s=heard["per_s"], names=names)
    for out in found.left_out:
        if out.rank == group.place.rank:
            run.events.emit("left_out", why=out.why)
    return Together(
        sync=sync, group=group.only(ranks), shares=shares, per_s=heard["per_s"], names=tuple(names[r] for r in ranks)
    )


def _unequal(found: Forecast, ranks: Sequence[int]) -> bool:
    """Whether other than equal shares are worth it: two trials of one machine differ by some percent."""
    total, equal = found.measured.samples_per_step, split(found.measured.samples_per_step, [1.0] * len(ranks))
    return better(total, equal, [found.measured.nodes[rank].sample_s for rank in ranks]) is not None


def by_speed(run: Run) -> bool:
    """Whether shares follow the nodes' speed."""
    return run.options.shares == "auto" and not run.options.deterministic and not run.workload.streamed


def _forecast(run: Run, own: Own) -> Forecast:
    workload, options = run.workload, run.options
    some = workload.order(options.seed).take(0, run.per_step)
    work = Work(
        model=workload.model,
        samples_per_step=run.per_step,
        units_per_sample=workload.units(some) / run.per_step,
        unit=workload.unit,
    )
    measured = measure(own, work, options, run.group)
    found = forecast(measured, sync=_wished(options), equal=not by_speed(run))
    if workload.streamed and len(found.chosen.ranks) < run.place.world_size and found.chosen.sync != ALONE:
        return forecast(measured, sync=found.chosen.sync, equal=True)  # its parts are cut for all ranks
    return found
