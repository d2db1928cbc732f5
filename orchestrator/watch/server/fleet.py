"""The machines that the page shows, over connections that stay open, and answers that take them seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import copy_context
from threading import Lock, Thread
from typing import Any, Generic, TypeVar

from orchestrator.fleet.checkpoints.survey import places_in, places_of, survey
from orchestrator.fleet.faults import as_error
from orchestrator.fleet.monitor import FleetWatch, watching
from orchestrator.fleet.runs.find_runs import FoundRuns, find_runs
from orchestrator.nodes.interface import Node
from orchestrator.plan.checkpoints import copies
from orchestrator.render.printable import printable
from orchestrator.specs.inventory import NodeSpec
from orchestrator.store.run_record import recorded_runs

RUNS_EVERY_S, CHECKPOINTS_EVERY_S = 10.0, 30.0
"""Age of an answer after which the nodes are asked again, while a page shows it."""
PLACES = 20
"""Newest runs whose folders are searched for checkpoints, besides those of the inventory."""
Answer = TypeVar("Answer")


class Refreshed(Generic[Answer]):
    """An answer that takes seconds: the last one at once, and a new one in the background when it is old."""

    def __init__(
        self, ask: Callable[[], Answer], every_s: float, *, clock: Callable[[], float] = time.monotonic
    ) -> None:
        self._ask, self._every_s, self._clock = ask, every_s, clock
        self._lock, self._asking, self._asked = Lock(), False, float("-inf")
        self.answer: Answer | None = None
        self.problem = ""
        """Reason why the newest attempt gave no answer."""

    def newest(self) -> Answer | None:
        """The last answer; None: there is none yet."""
        with self._lock:
            if not self._asking and self._clock() - self._asked > self._every_s:
                self._asking = True
                Thread(target=copy_context().run, args=(self._refresh,), daemon=True).start()
            return self.answer

    @property
    def age_s(self) -> float | None:
        return None if self.answer is None else max(0.0, self._clock() - self._asked)

    def _refresh(self) -> None:
        try:
            self.answer, self.problem = self._ask(), ""
        except Exception as error:
            self.problem = printable(as_error(error).message)
        finally:
            with self._lock:
                self._asked, self._asking = self._clock(), False


class WatchedFleet:
    """Nodes of the inventory, or those that hold the run, while a `LiveFeed` watches them."""

    def __init__(self, specs: Sequence[NodeSpec], project: str, run: str | None, *, some: bool = False) -> None:
        """`some`: as of `find_runs`."""
        self.specs, self.run = tuple(specs), run
        self._project, self._some = project, some
        self._nodes: tuple[Node, ...] = ()
        self.runs = Refreshed(self._find_runs, RUNS_EVERY_S)
        self._checkpoints = Refreshed(self._survey, CHECKPOINTS_EVERY_S)

    @contextmanager
    def watching(self) -> Iterator[FleetWatch]:
        """The watch for the feed; it ends with the feed."""
        with watching(self.specs, self.run, some=self._some) as watch:
            self._nodes = watch.nodes
            yield watch

    def _find_runs(self) -> FoundRuns:
        return find_runs(self._nodes, some=self._some)

    def checkpoints(self) -> dict[str, Any]:
        """Checkpoints on the nodes, as they were when the nodes were last asked."""
        held = self._checkpoints.newest()
        about = {"age_s": self._checkpoints.age_s, "problem": self._checkpoints.problem}
        if held is None:
            return {"asked": False, "checkpoints": [], "unreachable": {}, **about}
        return {"asked": True, **held, **about}

    def _survey(self) -> dict[str, Any]:
        from orchestrator.render.checkpoints import checkpoint_data, in_order  # with rich, for its table

        places = dict(places_in(self.specs, self._project))
        for plan in filter(None, (record.plan() for record in recorded_runs()[:PLACES])):
            places = {**places_of(plan), **places}
        found = survey([node for node in self._nodes if node.name in places], places)
        number = copies(found.held)
        return {
            "checkpoints": [checkpoint_data(one, number) for one in in_order(found.held)],
            "unreachable": {name: printable(error.message) for name, error in found.unreachable.items()},
        }
