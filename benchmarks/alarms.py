"""Show that healthy scripts raise no alarm and that hangs are named: real runs of two or three agents on loopback.

    python -m benchmarks.alarms
    python -m benchmarks.alarms silent hang_read --out alarms.md

Each case is a script of `alarm_scripts.py`, with torchrun and gloo, at true time. What agents report is turned into the
lines that a user reads; a line that is not expected of the case, and one that is expected and missing, fails it. The
hangs wait for their line; the seconds until it are counted from the moment before the line that hangs. About 25 minutes
on two cores; `--scale 0.2` shortens scripts and limits alike, which a busy machine may not keep up with. `--record DIR`
writes the signs by which the coordinator decided, one file per case, which tests/unit/test_alarms.py judges again.
"""

from __future__ import annotations

import argparse
import contextlib
import inspect
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from benchmarks import alarm_scripts
from benchmarks.alarm_signs import save
from contract import environment
from contract.events import Finished
from contract.log_lines import split_rank
from contract.run_folder import AGENTS_TOKEN
from orchestrator.render.recovery import recovery_line
from orchestrator.specs.run_events import RunLine
from trainer.agent import processes

NAMES = ("alpha", "beta", "gamma")
ADDRESS = "127.0.0.1"
CUT = "hang_cut_link"
HERE = Path(__file__).parent
BEGIN_S = 180.0
"""Time for all ranks to begin, on a busy machine."""
HANG_S = 180.0
"""Time for the line that a hang must produce."""
END_S = 300.0
"""Time for a healthy script to end, beyond its own."""
AFTER_S = 5.0
"""Time after the expected line in which another one would be wrong."""


@dataclass(frozen=True, kw_only=True)
class Case:
    """One script and what a user may read about it."""

    script: str
    about: str
    variant: str = ""
    must: tuple[str, ...] = ()
    """Expressions: a line for each is expected. `HERE` stands for the line of the script marked `hangs`."""
    may: tuple[str, ...] = ()
    """Other lines that are true and no alarm."""
    nodes: int = 2
    ranks_per_node: int = 1
    code: int | None = 0
    """Exit code of every agent; None: the case is ended once its line was seen."""
    within_s: float | None = None
    """Time after which it is ended; None: a hang when its line was seen, another case not at all."""
    cores: float = 0.5
    """CPU time per second that it needs: as many cases run together as there are cores."""
    command: tuple[str, ...] = ()
    """Script and arguments, if it is none of alarm_scripts.py."""
    project: Path | None = None
    """Folder of that script, which every node gets a copy of."""
    agent: tuple[str, ...] = ()
    """Further options of the agents."""
    launcher: tuple[str, ...] = ()
    """Further options of torchrun."""
    variables: Mapping[str, str] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return "-".join(filter(None, (self.script, self.variant)))

    @property
    def is_hang(self) -> bool:
        return self.script.startswith("hang_")


def healthy(script: str, about: str, **changes: object) -> Case:
    return Case(script=script, about=about, **changes)  # type: ignore[arg-type]


def hang(script: str, about: str, *must: str, **changes: object) -> Case:
    return Case(script=script, about=about, must=must, code=None, **changes)  # type: ignore[arg-type]


ALPHA, BETA, GAMMA = "rank 0 on alpha", "rank 1 on beta", "rank 2 on gamma"
AT = r"at HERE in \w+"
LINE = r"alarm_scripts\.py:\d+"
LOOP, COMPUTE = rf"{LINE} in hang_endless_loop", rf"{LINE} in compute"
FOR_S, CPU = r"for \d+ s", r"\(\d+ % CPU\)"
NATIVE = rf"· {BETA} has been in native code {FOR_S} {CPU}, last Python line HERE; rank 0 is waiting for it"
NOT_JOINED = rf"· {BETA} has not reached init_process_group: .*HERE.*"
READS = (rf"· {ALPHA} has been (reading or writing|computing) .*; rank 1 is waiting for it",)
APART = r"! each rank trains its own model: [\d,]+ optimizer steps, nothing exchanged \(no process group\) → .*"
SCALARS = r"! the ranks exchange only scalars \(.*\): no gradients → .*"
STARTS = r"· rank \d on \w+ has not reached init_process_group: .*"
"""A start on a busy machine, which takes longer than limits that are scaled."""
AGAIN = r"· progress again after \d+ s"
DEADLOCK = rf"! deadlock: .*{ALPHA}.*{BETA}.*"


def _rank_1(what: str, waiting: str = "rank 0 is", sign: str = "·") -> str:
    """Expression for the line about rank 1, which `waiting` wait for."""
    return rf"{sign} {BETA} has been {what}; {waiting} waiting for it"


CASES = (
    healthy("prints_on_rank_0", "DDP, rank 0 alone prints", nodes=3),
    healthy("prints_per_epoch", "DDP, a line per epoch"),
    healthy("silent", "DDP, prints nothing", nodes=3),
    healthy("long_steps", "steps of two and a half minutes", cores=2.0),
    healthy("accumulation", "gradient accumulation, no_sync"),
    healthy("local_sgd", "local SGD: weights averaged every 500 steps"),
    healthy("gan", "two optimizers"),
    healthy("compiled_optimizer", "optimizer in torch.compile"),
    healthy("zero_optimizer", "ZeroRedundancyOptimizer"),
    healthy("own_update", "an optimizer that is none of torch's"),
    healthy("fsdp2", "FSDP2"),
    healthy("hsdp", "HSDP on a 2 × 2 mesh", ranks_per_node=2, cores=1.0),
    healthy("pipeline", "pipeline parallel: send and recv alone"),
    healthy("actors", "reinforcement learning: one learner, two actors", nodes=3),
    healthy("data_workers", "DataLoader with spawned workers"),
    healthy("spawned", "ranks by mp.spawn"),
    healthy("transformer", "a model of transformers in DDP"),
    healthy("starved", "a rank that gets a tenth of the time"),
    healthy("silent", "torch without a flight recorder", variant="unrecorded",
            variables={"TORCH_FR_BUFFER_SIZE": "0"}),
    healthy("silent", "`python -I`", variant="isolated", launcher=("--no-python", sys.executable, "-I")),
    healthy("sweep", "a model per rank", must=(APART,)),
    healthy("sweep", "a model per rank, intended", variant="independent", agent=("--independent",)),
    healthy("other_library", "gradients exchanged by another library"),
    healthy("metrics_only", "metrics reduced, no DDP", must=(SCALARS,)),
    healthy("preprocess", "preprocessing without torch", cores=2.0),
    healthy("no_training", "a script that ends without training",
            must=(r"done in \d+ s; no training detected: no optimizer step, no process group",)),
    healthy("numbers_alone", "numpy alone, no torch"),
    healthy("sharded_inference", "inference on all ranks, a barrier", cores=2.0),
    healthy("compiles_first", "the first step compiles in another process", cores=2.0),
    healthy("evaluation", "rank 0 evaluates, the others wait", nodes=3, cores=1.0,
            must=(rf"· {ALPHA} has been computing at {COMPUTE} {FOR_S} {CPU}; ranks 1, 2 are waiting for it",)),
    healthy("evaluation_grows", "a second evaluation takes twice as long", cores=1.0),
    healthy("native_code", "native code holds the interpreter", must=(NATIVE,), cores=1.0),
    healthy("saves", "rank 0 writes a large file", may=READS),
    healthy("downloads", "rank 0 downloads slowly", may=READS),
    healthy("uploads", "rank 0 uploads slowly", may=READS),
    healthy("sleeps", "sleeps on purpose", must=(_rank_1(f"sleeping {AT} {FOR_S}"),)),
    healthy("polls", "polls a file", must=(_rank_1(f"sleeping .* {FOR_S}"),)),
    healthy("polls_by_select", "polls by select", must=(_rank_1(f"idle {AT} {FOR_S}", sign="!"),)),
    healthy("asks_input", "input() without a terminal", code=1),
    healthy("serves", "servers that wait for requests"),
    healthy("joins_late", "a rank joins late", must=(NOT_JOINED.replace("HERE", COMPUTE),), cores=1.0),
    hang("hang_sleep", "sleep in user code", _rank_1(f"sleeping {AT} {FOR_S}")),
    hang("hang_stopped", "SIGSTOP", rf"! {BETA} is stopped \(SIGSTOP\).*"),
    hang("hang_skipped_collective", "a rank skips a collective", DEADLOCK),
    hang("hang_two_groups", "collectives of two groups", rf"! deadlock: {ALPHA}.*\(HERE\), {BETA}.*\(HERE\).*"),
    hang("hang_two_collectives", "different collectives of one group", DEADLOCK),
    hang(CUT, "the link is cut", r"! all ranks are waiting in \w+ \d+ and no data .* alpha and beta.*"),
    hang("hang_endless_loop", "endless loop", _rank_1(f"computing at {LOOP} {FOR_S} {CPU}", "ranks 0, 2 are"), nodes=3,
         cores=1.0),
    hang("hang_share", "state D", rf"! {BETA} is blocked in the kernel.*"),
    hang("hang_read", "a read that never ends", _rank_1(f"idle {AT} {FOR_S}", "ranks 0, 2 are", "!"), nodes=3),
    hang("hang_unnoticed_exit", "a rank ends, its connections stay open",
         rf"! {ALPHA} is waiting in collective \d+ of group 0 \(HERE\), for rank 1, which has ended"),
    hang("hang_native_code", "a C call that never ends", NATIVE.replace("HERE", LINE), cores=1.0),
    hang("hang_never_joins", "init_process_group never reached", NOT_JOINED),
    hang("hang_lock", "a lock that is never released", _rank_1(f"idle {AT} {FOR_S}", sign="!")),
    hang("hang_all_idle", "all ranks read what is never written",
         rf"! all ranks have been idle {FOR_S}: rank 0 at HERE.*"),
)  # fmt: skip


@dataclass
class Seen:
    """Line for the user, at a time."""

    at: float
    text: str


@dataclass
class Outcome:
    case: Case
    seen: list[Seen] = field(default_factory=list)
    codes: list[int | None] = field(default_factory=list)
    reported_s: float | None = None
    """Seconds from the moment before the line that hangs until the line about it."""
    faults: list[str] = field(default_factory=list)
    output: list[str] = field(default_factory=list)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("scripts", nargs="*", metavar="NAME", help="only these cases; with --project, torchrun's words")
    parser.add_argument(
        "--project", type=Path, metavar="DIR", help="instead: run a script of this folder on three nodes"
    )
    parser.add_argument("--seconds", type=float, default=300.0, help="with --project: end it after so long")
    parser.add_argument("--scale", type=float, default=1.0, help="of all times")
    parser.add_argument("--cores", type=float, default=float(os.cpu_count() or 1), help="use as many (default: all)")
    parser.add_argument("--record", type=Path, metavar="DIR", help="write the signs of each case")
    parser.add_argument("--out", type=Path, metavar="FILE", help="write the table, too")
    given = parser.parse_args()
    if given.project:
        own = Case(
            script="", variant=given.project.name, about=" ".join(given.scripts), project=given.project, nodes=3,
            command=tuple(given.scripts), code=None, within_s=given.seconds, may=("·", "done in"),
        )  # fmt: skip
        cases = [own]
    elif unknown := set(given.scripts) - {case.name for case in CASES}:
        parser.error(f"no such case: {', '.join(sorted(unknown))}")
    else:
        cases = [case for case in CASES if case.name in given.scripts or not given.scripts]
    began = time.monotonic()
    outcomes = run_all(cases, scale=given.scale, cores=given.cores, record=given.record)
    text = "\n".join(table(outcomes))
    bad = [outcome for outcome in outcomes if outcome.faults]
    print(f"{text}\n\n{len(outcomes) - len(bad)} of {len(outcomes)} as expected, {time.monotonic() - began:.0f} s")
    for outcome in outcomes if given.project else bad:
        print("\n".join([f"\noutput of {outcome.case.name}:", *(f"    {line}" for line in outcome.output[-15:])]))
    if given.out:
        given.out.write_text(text + "\n")
    return int(bool(bad))


def run_all(cases: Sequence[Case], *, scale: float, cores: float, record: Path | None) -> list[Outcome]:
    """Run as many cases at a time as the cores have time for; one at least."""
    free, changed = [cores], threading.Condition()

    def one(case: Case) -> Outcome:
        need = min(case.cores, cores)
        with changed:
            changed.wait_for(lambda: free[0] >= need)
            free[0] -= need
        try:
            outcome = run(case, scale=scale, record=record)
        finally:
            with changed:
                free[0] += need
                changed.notify_all()
        print("; ".join([f"{'FAILED' if outcome.faults else 'ok'} {case.name}", *outcome.faults]), flush=True)
        return outcome

    with ThreadPoolExecutor(max_workers=max(1, int(cores / min(case.cores for case in cases)))) as pool:
        return list(pool.map(one, cases))


def run(case: Case, *, scale: float = 1.0, record: Path | None = None) -> Outcome:
    with tempfile.TemporaryDirectory(prefix="alarms-") as folder, _nodes(case, Path(folder), scale) as nodes:
        outcome = Outcome(case)
        try:
            _watch(case, nodes, outcome, scale)
        finally:
            outcome.output = [line for node in nodes for line in node.output[-8:]]
            if record and nodes[0].signs.exists():
                record.mkdir(parents=True, exist_ok=True)
                save(nodes[0].signs, record / f"{case.name}.jsonl", line_of(case.script))
        allowed = replace(case, may=(*case.may, STARTS)) if scale < 1 else case
        outcome.faults += faults_of(allowed, [seen.text for seen in outcome.seen])
        if case.code is not None and outcome.codes != [case.code] * case.nodes:
            outcome.faults.append(f"exit codes {outcome.codes}")
        return outcome


def _watch(case: Case, nodes: Sequence[Node], outcome: Outcome, scale: float) -> None:
    if not case.project:
        _until(lambda: len(_marks(nodes, "begins")) >= case.nodes * case.ranks_per_node or _over(nodes), BEGIN_S)
    if case.script == CUT:
        _until(lambda: len(_marks(nodes, "trains")) >= case.nodes or _over(nodes), BEGIN_S)
        nodes[0].cut()
    if case.is_hang:
        _until(lambda: _named(case, nodes) or _over(nodes), HANG_S * scale + 10)
        time.sleep(AFTER_S * scale)
    else:
        _until(lambda: _over(nodes), case.within_s or END_S + 2 * alarm_scripts.IDLE_S * scale)
    hangs = _marks(nodes, "hangs")
    outcome.codes = [node.code() for node in nodes]
    outcome.seen = sorted((seen for node in nodes for seen in node.seen), key=lambda seen: seen.at)
    if hangs and (named := _named(case, nodes)):
        outcome.reported_s = named.at - max(hangs)


def _named(case: Case, nodes: Sequence[Node]) -> Seen | None:
    """The first line that is expected."""
    seen = sorted((seen for node in nodes for seen in node.seen), key=lambda seen: seen.at)
    patterns = _patterns(case, case.must, None)
    return next((one for one in seen if any(re.match(pattern, one.text) for pattern in patterns)), None)


def faults_of(case: Case, lines: Sequence[str], here: int | None = None) -> Iterator[str]:
    """Faults of the lines that a user reads. `here`: number of the script's line marked `hangs`, if it has
    changed since."""
    must, may = _patterns(case, case.must, here), _patterns(case, case.may, here)
    for pattern in must:
        if not any(re.match(pattern, line) for line in lines):
            yield f"missing: {pattern}"
    may = [*must, *may, *([AGAIN] if must or may else [])]
    yield from (f"not expected: {line}" for line in lines if not any(re.match(pattern, line) for pattern in may))


def _patterns(case: Case, given: Sequence[str], here: int | None) -> list[str]:
    place = re.escape(f"alarm_scripts.py:{line_of(case.script) if here is None else here}")
    return [pattern.replace("HERE", place) for pattern in given]


def line_of(script: str) -> int:
    """Number of the line marked `hangs`."""
    if script not in alarm_scripts.SCRIPTS:
        return 0
    lines, first = inspect.getsourcelines(alarm_scripts.SCRIPTS[script])
    marked = [number for number, line in enumerate(lines, first) if "# hangs" in line]
    return marked[0] if marked else 0


def table(outcomes: Sequence[Outcome]) -> Iterator[str]:
    yield "| script | | reported after | lines |"
    yield "|---|---|---|---|"
    for outcome in outcomes:
        after = "" if outcome.reported_s is None else f"{outcome.reported_s:.0f} s"
        lines = "<br>".join(dict.fromkeys(f"`{seen.text}`" for seen in outcome.seen)) or "none"
        wrong = " **wrong**" if outcome.faults else ""
        yield f"| `{outcome.case.name}` | {outcome.case.about}{wrong} | {after} | {lines} |"


# ── Nodes ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


class Node:
    """One agent with its own folder, in the network namespace of a process where it has one."""

    def __init__(
        self, case: Case, rank: int, scale: float, *, folder: Path, ports: tuple[int, int], within: int
    ) -> None:
        self.name, self.ports, self._within = NAMES[rank], ports, within
        self.folder = folder / self.name
        if case.project:
            shutil.copytree(case.project, self.folder, ignore=shutil.ignore_patterns(".git"))
        else:
            self.folder.mkdir()
            shutil.copy(HERE / "alarm_scripts.py", self.folder)
        (self.folder / AGENTS_TOKEN).write_text("ab" * 32)
        self.seen: list[Seen] = []
        self.output: list[str] = []
        self.signs = self.folder / "signs.jsonl"
        torchrun = (
            "torchrun", "--nnodes", str(case.nodes), "--node-rank", str(rank), "--nproc-per-node",
            str(case.ranks_per_node), "--master-addr", ADDRESS, "--master-port", str(ports[1]), "--rdzv-id", "alarms",
            "--max-restarts", "0", *case.launcher, *(case.command or ("alarm_scripts.py", case.script)),
        )  # fmt: skip
        words = (
            "--nodes", ",".join(NAMES[: case.nodes]), "--node-rank", str(rank), "--first-rank",
            str(rank * case.ranks_per_node), "--address", ADDRESS, "--port", str(ports[0]), "--stuck", str(30 * scale),
            "--frozen", str(60 * scale), *case.agent,
        )  # fmt: skip
        self.agent = subprocess.Popen(
            (*self._prefix, sys.executable, "-m", "benchmarks.alarm_signs", str(self.signs), *words, "--", *torchrun),
            cwd=self.folder,
            env=self._environment(case, scale),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            start_new_session=True,
        )
        self._rank = rank
        self._reader = threading.Thread(target=self._read, daemon=True)
        self._reader.start()

    @property
    def _prefix(self) -> tuple[str, ...]:
        return ("nsenter", "--target", str(self._within), "--net") if self._within else ()

    def _environment(self, case: Case, scale: float) -> dict[str, str]:
        paths = os.pathsep.join(filter(None, (str(HERE.parent), os.environ.get("PYTHONPATH", ""))))
        return {
            **os.environ, "PYTHONPATH": paths, "PYTHONUNBUFFERED": "1", "OMP_NUM_THREADS": "1",
            "GLOO_SOCKET_IFNAME": "lo", environment.RUN_ID: "alarms", environment.ATTEMPT: "0",
            environment.NODE: self.name, environment.RUN_DIR: str(self.folder), environment.SHUTDOWN_TIMEOUT_S: "2",
            "ALARMS_SCALE": str(scale), **case.variables,
        }  # fmt: skip

    def _read(self) -> None:
        """Turn each line into one for the user, as the launch screen does."""
        assert self.agent.stdout  # noqa: S101  # a pipe
        with self.agent.stdout as lines:
            for text in lines:
                rank, own = split_rank(text.rstrip("\n"))
                line = RunLine(time="", node=self.name, node_rank=self._rank, rank=rank, text=own)
                if line.event is None:
                    self.output.append(f"{self.name}: {text.rstrip()}")
                elif (shown := recovery_line(line) or self._last_line(line)) and not shown.startswith("…"):
                    self.seen.append(Seen(time.time(), shown))

    def _last_line(self, line: RunLine) -> str:
        """The sentence about a run that has ended well."""
        return (line.event.note or "") if isinstance(line.event, Finished) and not self._rank else ""

    def cut(self) -> None:
        """Drop all packets between ranks; those of the agents and of torchrun's store pass."""
        (self.folder / f"hangs-{self._rank}").touch()
        table = (*self._prefix, "iptables", "--append", "OUTPUT", "--protocol", "tcp")
        for port in self.ports:
            for side in ("--dport", "--sport"):
                subprocess.run((*table, side, str(port), "--jump", "ACCEPT"), check=True)
        subprocess.run((*table, "--jump", "DROP"), check=True)

    def marks(self, name: str) -> list[float]:
        return [path.stat().st_mtime for path in self.folder.glob(f"{name}-*")]

    def code(self) -> int | None:
        """Exit code, once all its output was read; None while it runs."""
        if (code := self.agent.poll()) is not None:
            self._reader.join(10.0)
        return code

    def end(self) -> None:
        """Kill the agent and all that it has started."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.agent.pid, signal.SIGSTOP)  # otherwise it starts others in their place
        for process in processes.descendants(self.agent.pid):
            process.kill()
        self.agent.kill()
        self.agent.wait()
        self._reader.join(10.0)


@contextmanager
def _nodes(case: Case, folder: Path, scale: float) -> Iterator[list[Node]]:
    nodes: list[Node] = []
    with contextlib.ExitStack() as stack:
        within = stack.enter_context(_namespace()) if case.script == CUT else 0
        ports = _free_port(), _free_port()
        try:
            for rank in range(case.nodes):
                nodes.append(Node(case, rank, scale, folder=folder, ports=ports, within=within))
            yield nodes
        finally:
            for node in nodes:
                node.end()


@contextmanager
def _namespace() -> Iterator[int]:
    """A process in a network namespace of its own: what is cut there, is cut nowhere else."""
    words = ("unshare", "--net", "sh", "-c", "ip link set lo up && echo up && exec sleep infinity")
    with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as holder:
        try:
            if not holder.stdout or holder.stdout.readline() != "up\n":
                raise PermissionError("a network namespace needs root")
            yield holder.pid
        finally:
            holder.kill()


def _marks(nodes: Sequence[Node], name: str) -> list[float]:
    return [at for node in nodes for at in node.marks(name)]


def _over(nodes: Sequence[Node]) -> bool:
    return all(node.agent.poll() is not None for node in nodes)


def _until(true: Callable[[], object], limit_s: float) -> None:
    deadline = time.monotonic() + limit_s
    while not true() and time.monotonic() < deadline:
        time.sleep(0.2)


def _free_port() -> int:
    with socket.socket() as free:
        free.bind((ADDRESS, 0))
        return int(free.getsockname()[1])


if __name__ == "__main__":
    sys.exit(main())
