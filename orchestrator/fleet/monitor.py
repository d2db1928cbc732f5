"""Watch machines and their run: samples of every node, and the lines and ends of the run's containers, as facts."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from logging import getLogger
from queue import Empty, SimpleQueue
from threading import Event, Thread

from orchestrator.fleet.connect import connected_for
from orchestrator.fleet.faults import as_error
from orchestrator.fleet.runs.find_runs import find_runs, run_or_record, running_containers
from orchestrator.fleet.runs.load_state import journal_of, load_state, recorded_state
from orchestrator.fleet.runs.one_supervisor import supervisor_sought
from orchestrator.fleet.supervise.follow import follow
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes.usage_probe import samples
from orchestrator.specs.errors import ConfigError, PreflightError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.run import Run, State
from orchestrator.specs.run_events import Tick
from orchestrator.specs.seen import seen_now
from orchestrator.state.facts import Fact, NodeAnswered, NodeUnanswered, RunFound, fact_of
from orchestrator.store.run_record import RunRecord, known_records
from orchestrator.store.segments import Ends

LOOK_EVERY_S = 10.0
"""Seconds between two looks for a new run; a run that is followed reports its own end."""
FIRST_PAUSE_S, LONGEST_PAUSE_S = 1.0, 10.0
"""Seconds before a node that did not answer is asked again."""
SUPERVISOR_EVERY_S = 5.0
"""Seconds between two looks for a supervisor of the run on this computer."""
UNHEARD_S = 12.0
"""Seconds without a sample after which the connection is closed: a machine without power keeps it open."""

Pause = Callable[[float], object]


@contextmanager
def watching(specs: Sequence[NodeSpec], run: str | None, *, some: bool) -> Iterator[FleetWatch]:
    """Watch these nodes, or those that hold the run. Arguments: as of `FleetWatch`."""
    with connected_for(specs, run) as reached:
        yield FleetWatch(reached, {spec.name: spec for spec in specs}, run, some=some)


class FleetWatch:
    """Watches nodes from threads of its own; what they see comes out of `facts`.

    One command per node, over the connection that is open anyway, writes a sample every two seconds: that is also the
    sign of life of the node. While a run holds the node, the sample is the newest line of its agent's file.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        specs: Mapping[str, NodeSpec],
        run: str | None,
        *,
        some: bool = False,
        tick_s: float = 0.5,
        pause: Pause | None = None,
    ) -> None:
        """`run`: the run to watch; None: the newest, and each that is launched later. `some`: as of `find_runs`."""
        self._nodes, self._specs, self._wanted = {node.name: node for node in nodes}, specs, run
        self._some, self._tick_s = some, tick_s
        self._closed = Event()
        self._pause = pause or self._closed.wait
        self._queue: SimpleQueue[Fact | RunFound | ConfigError] = SimpleQueue()
        self._sample_files: dict[str, str] = {}
        """The file of samples on each node that a run holds."""
        self._looked = False
        self._received = dict.fromkeys(self._nodes, 0)
        """Samples of each node since the last look at its connection."""

    @property
    def nodes(self) -> tuple[Node, ...]:
        """The nodes, in order."""
        return tuple(self._nodes.values())

    @property
    def names(self) -> tuple[str, ...]:
        """Names of the nodes, in order."""
        return tuple(self._nodes)

    def facts(self) -> Iterator[Fact | RunFound | Tick]:
        """Start to watch; facts as they come, a `Tick` after each `tick_s` without one, until `close`.

        ConfigError: the run that was asked for is not there.
        """
        for node in self._nodes.values():
            Thread(target=self._sample, args=(node,), daemon=True).start()
            Thread(target=self._check_connection, args=(node,), daemon=True).start()
        Thread(target=self._watch_runs, daemon=True).start()
        while not self._closed.is_set():
            try:
                fact = self._queue.get(timeout=self._tick_s)
            except Empty:
                yield Tick()
                continue
            if isinstance(fact, ConfigError):
                raise fact
            yield fact

    def close(self) -> None:
        self._closed.set()

    # ── Samples ───────────────────────────────────────────────────────────────────────────────────────────────────────

    def _sample(self, node: Node) -> None:
        pause_s = FIRST_PAUSE_S
        while not self._closed.is_set():
            samples_file = self._sample_files.get(node.name, "")
            try:
                folder = self._specs[node.name].workspace if node.name in self._specs else ""
                reading = samples(node, samples_file=samples_file, folder=folder)
                for usage in reading:
                    self._received[node.name] += 1
                    self._queue.put(NodeAnswered(seen=seen_now(), node=node.name, usage=usage))
                    pause_s = FIRST_PAUSE_S
                    if self._closed.is_set() or self._sample_files.get(node.name, "") != samples_file:
                        break
                else:
                    self._pause(pause_s)  # it has ended by itself
            except Exception as error:
                reason = as_error(error, node=node.name).message
                self._queue.put(NodeUnanswered(seen=seen_now(), node=node.name, error=reason))
                self._pause(pause_s)
                pause_s = min(2 * pause_s, LONGEST_PAUSE_S)

    def _check_connection(self, node: Node) -> None:
        """Close a connection over which nothing comes, so that its readers notice, and connect again."""
        while not self._closed.is_set():
            before = self._received[node.name]
            self._pause(UNHEARD_S)
            if self._received[node.name] == before and not self._closed.is_set():
                with suppress(Exception):  # it is broken anyhow
                    node.close()

    # ── Runs ──────────────────────────────────────────────────────────────────────────────────────────────────────────

    def _watch_runs(self) -> None:
        while not self._closed.is_set():
            try:
                run, ends = self._look()
                if run and run.is_going:
                    # Of a launch that is under way not all containers are there: the others would count as lost.
                    if all(member.state is not State.CREATED for member in run.members):
                        self._follow(run, ends)
                    self._pause(FIRST_PAUSE_S)  # the next attempt may be on its way
                    continue
            except ConfigError as error:  # several runs begin so, or none does
                if not self._looked:
                    self._queue.put(error)
                    return
            except Exception as error:
                getLogger("orch").info("looking for runs failed: %s", as_error(error), exc_info=True)
            self._pause(LOOK_EVERY_S)

    def _look(self) -> tuple[Run | None, Ends]:
        """Ask the nodes for the run, and report it; the ends of the recorded lines that its state includes."""
        found = find_runs(list(self._nodes.values()), some=self._some)
        silent = tuple(found.unreachable)
        chosen: Run | RunRecord | None = None
        if found.runs or self._wanted is not None or known_records():
            with suppress(PreflightError):  # a node that does not answer may hold it
                chosen = run_or_record(found, self._wanted)
        self._looked = True
        state, ends = None, dict[str, tuple[int, int]]()
        if isinstance(chosen, Run):
            ends |= RunRecord(chosen.run_id).ends()
            state = load_state(chosen, found, self._nodes, seen_now())
        elif chosen:
            state = recorded_state(chosen, seen_now(), unreachable=silent)
        self._queue.put(RunFound(state=state, unreachable=silent))
        return (chosen if isinstance(chosen, Run) else None), ends

    def _follow(self, run: Run, ends: Ends) -> None:
        record = RunRecord(run.run_id)
        self._sample_files, sought_at, is_stopping = self._files(run, record), seen_now(), False
        try:
            for event in follow(running_containers(run, self._nodes), record, patient=True, ends=ends):
                if self._closed.is_set():
                    return
                now = seen_now()
                if now - sought_at >= SUPERVISOR_EVERY_S:
                    sought_at = now
                    self._queue.put(supervisor_sought(record, now))
                if not is_stopping and record.is_stopping():
                    is_stopping = True
                    self._queue.put(journal_of(record, now))
                if fact := fact_of(event, now):
                    self._queue.put(fact)
        finally:
            self._sample_files = {}

    def _files(self, run: Run, record: RunRecord) -> dict[str, str]:
        """The agent's file of samples on each node, by the plan on record; none without one."""
        plan = record.plan()
        folders = {part.node: part.folder for part in plan.nodes} if plan else {}
        return {
            member.node: f"{folders[member.node]}/runs/{run.run_id}/resources-{member.node_rank}.jsonl"
            for member in run.members
            if member.node in folders
        }
