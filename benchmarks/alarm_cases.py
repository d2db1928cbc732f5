"""The cases of `benchmarks.alarms`: scripts, and the lines that a user may read about each."""

from __future__ import annotations

import ast
import re
import sys
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

from benchmarks import alarm_hangs, alarm_healthy, alarm_training

CUT = "hang_cut_link"


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
    return Case(script=script, about=about, **changes)  # type: ignore[arg-type]  # fields of Case


def hang(script: str, about: str, *must: str, **changes: object) -> Case:
    return Case(script=script, about=about, must=must, code=None, **changes)  # type: ignore[arg-type]  # fields of Case


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


_ENTRY = """\
if __name__ == "__main__":
    import sys

    globals()[sys.argv[1]]()
"""


@cache
def script() -> str:
    """All scripts as one file, `alarm_scripts.py NAME`, which imports nothing of this project, as a user's does."""
    found = "".join(
        _without_own_imports(str(module.__file__)) for module in (alarm_training, alarm_healthy, alarm_hangs)
    )
    return f'from __future__ import annotations\n{found}\n\nif __name__ == "__main__":\n    globals()[sys.argv[1]]()\n'


def _without_own_imports(path: str) -> str:
    text = Path(path).read_text("utf-8")
    lines = text.splitlines(keepends=True)
    for node in ast.parse(text).body:
        if isinstance(node, ast.ImportFrom) and (node.module or "").startswith(("benchmarks", "__future__")):
            lines[node.lineno - 1 : node.end_lineno] = ["\n"] * (1 + (node.end_lineno or 0) - node.lineno)
    return "".join(lines)


def faults_of(case: Case, lines: Sequence[str], here: int | None = None) -> Iterator[str]:
    """Faults of the lines that a user reads. `here`: number of the script's line marked `hangs`, if it has
    changed since."""
    must, may = expressions(case, case.must, here), expressions(case, case.may, here)
    for pattern in must:
        if not any(re.match(pattern, line) for line in lines):
            yield f"missing: {pattern}"
    may = [*must, *may, *([AGAIN] if must or may else [])]
    yield from (f"not expected: {line}" for line in lines if not any(re.match(pattern, line) for pattern in may))


def expressions(case: Case, given: Sequence[str], here: int | None = None) -> list[str]:
    """These expressions with the place at which the script hangs."""
    place = re.escape(f"alarm_scripts.py:{line_of(case.script) if here is None else here}")
    return [pattern.replace("HERE", place) for pattern in given]


def line_of(name: str) -> int:
    """Number of the line of this script that is marked `hangs`; 0: there is none."""
    own = ""
    for number, line in enumerate(script().splitlines(), 1):
        own = line[4 : line.index("(")] if line.startswith("def ") else own
        if own == name and "# hangs" in line:
            return number
    return 0
