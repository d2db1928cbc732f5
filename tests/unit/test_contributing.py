"""The worked examples of CONTRIBUTING.md, followed in a copy of the packages: what each adds works.

Those of the trainer are in tests/trainer/test_contributing_trainer.py.
"""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

pytestmark = pytest.mark.source

ROOT = Path(__file__).parents[2]
COPIED = ("contract", "orchestrator", "trainer", "docs/findings", "docs/causes", "scripts")

Insert = Callable[[str, str, str], None]
Python = Callable[[str], None]


@pytest.fixture(scope="module")
def clone(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The packages with their compiled modules, which stay valid: nothing is compiled again."""
    folder = tmp_path_factory.mktemp("clone")
    for name in COPIED:
        shutil.copytree(ROOT / name, folder / name, ignore=shutil.ignore_patterns("*.pyc.*"))  # being written
    return folder


@pytest.fixture
def insert(clone: Path) -> Insert:
    """Insert lines after a text that is in a file once."""

    def into(file: str, after: str, lines: str) -> None:
        path = clone / file
        text = path.read_text("utf-8")
        assert text.count(after) == 1, f"{file}: {after}"
        path.write_text(text.replace(after, after + lines), "utf-8")

    return into


@pytest.fixture
def python(clone: Path) -> Python:
    """Run a program with the copy's packages in place of the repository's, whose tests it may import."""

    def run(program: str) -> None:
        here = f"import orchestrator\nassert orchestrator.__file__.startswith({str(clone)!r})\n"
        argv = (sys.executable, "-c", here + program)
        ran = subprocess.run(argv, cwd=clone, capture_output=True, text=True, check=False, timeout=60)
        assert ran.returncode == 0, ran.stderr

    return run


def test_each_example_is_followed() -> None:
    headings = re.findall(r"^## (Add .+)$", (ROOT / "CONTRIBUTING.md").read_text("utf-8"), re.M)
    assert headings == [
        "Add a finding",
        "Add a cause of failed runs",
        "Add an event",
        "Add a sync method",
        "Add a workload",
        "Add a container engine",
    ]


READ_ONLY = """
## resources.read_only: a node boots from a read-only disk

```yaml
severity: warning
message: 'its root file system is mounted read-only'
cause: it starts from a medium that cannot be written to, or the kernel found a fault of the disk
fix: 'on it: sudo dmesg | grep -i remount'
```

**What it means.**
Nothing on the root file system of this node can be changed.

**Why it matters.**
Docker cannot keep an image.

**How to fix it.**
See why the kernel mounted it so.

**How it was found.**
`/proc/mounts` on the node.
"""


def test_a_finding(insert: Insert, python: Python) -> None:
    probe, checks = "orchestrator/nodes/probes/host_probe.py", "orchestrator/checks/resources.py"
    insert(probe, 'say open_files "$(ulimit -n)"\n', r"""while read -r _ place _ options _; do
  [ "$place" = / ] && case $options in ro|ro,*) say root_read_only yes;; *) say root_read_only no;; esac
done </proc/mounts
""")  # fmt: skip
    insert(probe, 'workspace_writable=_yes(one("writable")),\n', 'root_read_only=_yes(one("root_read_only")),\n')
    field = "    root_read_only: bool | None = None\n"
    insert("orchestrator/specs/host.py", "    workspace_writable: bool | None = None\n", field)
    insert(checks, "1024 are soon used up.\"\"\"\n", """

def read_only(node: Examined) -> Iterator[Finding]:
    if node.host and node.host.root_read_only:
        yield Finding.of("resources.read_only", node.name)
""")  # fmt: skip
    insert(checks, "NODE_CHECKS = (", "read_only, ")
    insert("docs/findings/resources.md", "A shell on the node tested it (`test -w`).\n", READ_ONLY)
    python(r"""
import runpy
from orchestrator.checks.doctor import diagnose
from orchestrator.cli import main
from orchestrator.nodes.local import LocalNode
from orchestrator.nodes.probes import host_probe
from tests.unit.findings.doctor import examined

def found(answer):
    facts, _ = host_probe.parse(answer, port=1)
    fleet = [examined("alpha", host={"root_read_only": facts.root_read_only}), examined("beta")]
    return [(one.id, one.node) for one in diagnose(fleet)["resources"] if one.id == "resources.read_only"]

assert found("root_read_only=yes\n") == [("resources.read_only", "alpha")]
assert found("root_read_only=no\n") == found("root_read_only=\x1b[2Jyes\n") == found("") == []
facts, _ = host_probe.ask(LocalNode("here"), workspace="~", project="none", port=1)
assert facts.root_read_only in (True, False), "the script reads the machine"
assert main(["explain", "resources.read_only"]) == 0
assert "resources.read_only" in "".join(runpy.run_path("scripts/docs.py")["_findings"]())
""")


LICENCE = """
## code.licence: a licence server cannot be reached

```yaml
owner: configuration
explanation: 'rank {rank} on {node} asked the licence server {server}, which did not answer'
fix:
- 'ask it from the node: orch exec {run} --rank {rank} -- getent hosts {server}'
- '{again}'
```
"""


def test_a_cause(insert: Insert, python: Python) -> None:
    signature = r"""    configuration("code.licence", r"fatal: licence server (?P<server>\S{1,200}) not reachable"),
"""
    insert("contract/failures/of_programs.py", "TRAINING = (\n", signature)
    insert("docs/causes/code.md", "`orch launch --nodes NODE -- …`.\n", LICENCE)
    python("""
from contract.failures.classify import FailedRank, classify
from orchestrator.checks.causes import Cause
from orchestrator.cli import main
from trainer.agent.rank_exit import read_rank_exit

own = ["loading", "fatal: licence server lic7 not reachable"]
found = classify(FailedRank(own=own, exit_code=1))
assert (found.id, found.owner, dict(found.values)) == ("code.licence", "configuration", {"server": "lic7"})
agents = read_rank_exit("beta", 1, [f"[rank1]: {line}" for line in own], first_rank=1)
assert (agents.cause, agents.outcome) == (found.id, found.owner)
cause = Cause.of(found, job=None, node="beta", rank="1", run="first")
assert "licence server lic7" in cause.explanation
assert cause.fix[0].endswith("orch exec first --rank 1 -- getent hosts lic7")
assert main(["explain", "code.licence"]) == 0
assert classify(FailedRank(own=["fatal: licence server " * 50_000], exit_code=1)).id == "code.exit"
""")


def test_an_event(insert: Insert, python: Python) -> None:
    insert("contract/events.py", "class SampleWritten(Event, kind=\"sample\"):\n    text: Text | None = None\n", """

@dataclass(frozen=True, kw_only=True)
class GpuHot(Event, kind="gpu_hot"):
    celsius: Float | None = None
""")  # fmt: skip
    insert(
        "orchestrator/state/run_state.py",
        "    position_at: float | None = None\n",
        "    celsius: float | None = None\n",
    )
    reducer = "orchestrator/state/line_reduce.py"
    insert(reducer, "from contract.events import (\n", "    GpuHot,\n")
    insert(reducer, "            rank.started = event\n", """        case GpuHot() if rank:
            rank.celsius = event.celsius
""")  # fmt: skip
    python("""
import io
from contract.event_lines import decode_event, encode_event
from contract.events import GpuHot
from contract.log_lines import EVENT_MARK
from orchestrator.specs.run_events import RunLine
from orchestrator.state.line_reduce import read_line
from orchestrator.state.run_state import NodeState
from trainer.config import RankInfo
from trainer.engine.reporting.events import Events

out = io.StringIO()
Events(RankInfo(rank=1, world_size=2, node="beta", events=True), out, clock=lambda: 5.0).emit(GpuHot(celsius=91.5))
(text,) = out.getvalue().splitlines()
sent = decode_event(text)
assert (sent.celsius, sent.rank, sent.node, decode_event(encode_event(sent))) == (91.5, 1, "beta", sent)
for value in ('"hot"', "true", "[91]"):
    assert decode_event(EVENT_MARK + '{"event": "gpu_hot", "celsius": %s}' % value) is None
assert decode_event(EVENT_MARK + '{"event": "gpu_hot", "celsius": 1e999}').celsius is None
node = NodeState(name="beta")
read_line(node, RunLine(time="2026-01-02T15:04:05Z", node="beta", node_rank=0, rank=1, text=text), 9.0)
assert node.part.ranks[1].celsius == 91.5
""")


def test_an_engine(insert: Insert, python: Python, clone: Path) -> None:
    """Processes stand for Podman's containers: what is followed here is the way from the inventory to an engine."""
    (clone / "orchestrator/nodes/podman_engine.py").write_text("""
from orchestrator.nodes.interface import Login, Progress
from orchestrator.nodes.processes.engine import ProcessEngine
from orchestrator.specs.errors import EngineError

class PodmanEngine(ProcessEngine):
    def push(self, reference, login=None):
        raise EngineError(f"{reference}: this engine sends no image", node=self._node)
""")  # fmt: skip
    insert("orchestrator/specs/inventory.py", 'engine: Annotated[Literal["docker", "process"', ', "podman"')
    insert("orchestrator/fleet/connect.py", "LocalNode(spec.name, spec.address, ProcessEngine(spec.name))\n", """\
    if spec.engine == "podman":
        from orchestrator.nodes.podman_engine import PodmanEngine

        return LocalNode(spec.name, spec.address, PodmanEngine(spec.name))
""")  # fmt: skip
    python("""
from orchestrator.fleet.connect import connect
from orchestrator.specs.errors import EngineError
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from tests.contract import test_engine as suite

text = "nodes:\\n  alpha: {address: 127.0.0.1, connection: local, engine: podman}\\n"
inventory = parse_inventory(text, filename="inventory.yaml")
engine = connect(inventory.nodes[0]).engine
assert type(engine).__name__ == "PodmanEngine"
made = []

def make(script, **other):
    made.append(engine.create(suite.spec(script, **other)))
    return made[-1]

suite.test_it_knows_itself(engine)
suite.test_an_image_that_is_not_there_is_none(engine)
for follow in (
    suite.test_a_container_lives_from_created_to_removed,
    suite.test_it_is_found_by_its_id_and_by_its_name,
    suite.test_containers_are_found_by_all_their_labels,
    suite.test_lines_come_with_times_that_sort,
):
    follow(engine, make)
    while made:
        engine.remove(made.pop())
refused = ""
try:
    engine.push("mine:1")
except EngineError as error:
    refused = str(error)
assert "sends no image" in refused
""")
