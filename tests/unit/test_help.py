"""Help is quick and has an example; a dry run needs no machine."""

from __future__ import annotations

import importlib.util
import re
import subprocess
import sys
from pathlib import Path

import pytest

from orchestrator import __version__
from orchestrator.cli import COMMANDS, MAIN
from orchestrator.cli.help import OPTION_GROUPS
from orchestrator.specs.run_events import RunLine
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.each_case import failures_of
from tests.unit.conftest import Orch


def test_help_of_every_command_has_an_example(orch: Orch) -> None:
    def check(command: str) -> None:
        ran = orch(command, "--help")
        assert (ran.code, ran.err) == (0, "")
        assert ran.out.startswith(f"Usage: orch {command}")
        assert f"orch {command}" in ran.out.split("\n", 1)[1]

    assert failures_of(check, COMMANDS) == []


def test_help_shows_eight_commands_in_a_screen_and_names_the_others(orch: Orch) -> None:
    ran = orch("--help")
    assert ran.code == 0
    assert len(ran.out.splitlines()) <= 40
    assert [name for name in MAIN if f"  {name}" not in ran.out or COMMANDS[name] not in ran.out] == []
    assert len(MAIN) == 8
    assert set(COMMANDS) <= set(ran.out.split())


def test_help_of_all_lists_every_command(orch: Orch) -> None:
    ran = orch("help", "all")
    assert ran.code == 0
    for command, summary in COMMANDS.items():
        assert f"  {command}" in ran.out
        assert summary in " ".join(ran.out.split())


def test_the_options_of_a_launch_are_in_groups(orch: Orch) -> None:
    shown = orch("launch", "--help").out
    assert [title for title in OPTION_GROUPS if f"\n{title}:\n" not in shown] == []
    rest = shown.partition("\nOptions:\n")[2].partition("\n\n")[0]
    assert set(re.findall(r"^  (?:-\w, )?(--[\w-]+)", rest, re.MULTILINE)) <= {
        "--json", "--output", "--quiet", "--verbose", "--debug", "--help",
    }  # fmt: skip
    assert "\nNodes:" not in orch("logs", "--help").out


def test_help_and_another_name_of_a_command(orch: Orch) -> None:
    help_of = {words: orch(*words.split()).out for words in ("supervise --help", "help supervise")}
    assert set(help_of.values()) == {help_of["supervise --help"]}


def _fresh(program: str, *, timeout_s: float = 60) -> subprocess.CompletedProcess[str]:
    """A process of its own: what is imported here says nothing there."""
    return subprocess.run(
        (sys.executable, "-c", program), capture_output=True, text=True, timeout=timeout_s, check=False
    )


def test_help_loads_nothing_that_only_work_needs() -> None:
    """Measured: fabric, docker and rich take half a second, pydantic and ruamel.yaml a tenth."""
    argvs = [["--help"], ["--version"], *([command, "--help"] for command in COMMANDS)]
    program = f"""
import sys
from orchestrator.cli import main
heavy = {{"fabric", "paramiko", "docker", "rich", "torch", "pydantic", "ruamel.yaml"}}
for argv in {argvs}:
    code = main(argv)
    if code or heavy & set(sys.modules):
        sys.stderr.write(f"{{argv}}: exit code {{code}}, loads {{heavy & set(sys.modules)}}\\n")
        heavy -= set(sys.modules)
"""
    ran = _fresh(program)
    assert (ran.returncode, ran.stderr) == (0, "")
    assert ran.stdout.count("Usage: orch") == len(argvs) - 1


def test_the_version_is_shown_without_what_reads_command_lines() -> None:
    program = (
        "import sys; sys.argv[1:] = ['--version']; from orchestrator.__main__ import run; run(); "
        "print(*sorted(name for name in sys.modules if name.startswith(('orchestrator', 'typer'))))"
    )
    assert _fresh(program).stdout == f"orch {__version__}\norchestrator orchestrator.__main__\n"


def test_commands_without_an_inventory_load_no_pydantic() -> None:
    """Typer from 0.29 on would: 0.2 s of CPU in each command."""
    program = """
import sys
from orchestrator.cli import main
for line in ("--help", "launch --help", "kill mine", "explain clock.skew", "search nothing"):
    main(line.split())
    if "pydantic" in sys.modules:
        sys.exit(line)
"""
    ran = _fresh(program)
    assert ran.returncode == 0, ran.stderr


def test_the_lines_of_a_record_are_shown_without_what_only_nodes_need(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Measured: rich takes 30 ms, what copies code and data to nodes 40 ms."""
    monkeypatch.chdir(tmp_path)  # where no inventory is
    record = RunRecord("red-1")
    record.save_plan(lan.plan(lan.NAMES))
    with record.open_log("alpha", "c1") as log:
        log.add(RunLine(time=lan.moment(1), node="alpha", node_rank=0, rank=0, text="a\tb"))
    heavy = ("rich", "ruamel", "docker", "paramiko", "orchestrator.fleet.relay")
    program = (
        "import sys; from orchestrator.cli import main; code = main(['logs', 'red-1', '--tail', '50']); "
        f"sys.stderr.write(' '.join(name for name in {heavy} if name in sys.modules)); sys.exit(code)"
    )
    ran = _fresh(program)
    assert (ran.returncode, ran.stdout) == (0, "[0 alpha] a     b\n")
    assert [line for line in ran.stderr.splitlines() if not line.startswith("note: ")] == []


def test_the_page_of_processes_is_served_without_what_only_terminals_and_other_machines_need() -> None:
    """rich and its tables take 2 MiB, until checkpoints or findings are shown; the Docker SDK with its SSH 20 MiB."""
    heavy = ("rich", "docker", "paramiko", "fabric", "starlette")
    program = (
        "import sys, orchestrator.watch.server.serving; from orchestrator.fleet.connect import connect; "
        "from orchestrator.specs.inventory import NodeSpec; "
        "connect(NodeSpec(name='here', address='127.0.0.1', connection='local', engine='process')); "
        f"print(*[name for name in {heavy} if name in sys.modules])"
    )
    loaded = _fresh(program)
    assert loaded.stdout == "starlette\n", loaded.stderr


def test_dry_run_of_real_addresses_without_an_answer(tmp_path: Path) -> None:
    """Five addresses that no packet comes back from (RFC 5737)."""
    nodes = "".join(f"  n{number}: {{address: 192.0.2.{number}}}\n" for number in range(1, 6))
    (tmp_path / "inventory.yaml").write_text(f"nodes:\n{nodes}")
    argv = ["launch", "-i", str(tmp_path / "inventory.yaml"), "--dry-run", "--nodes", "5"]
    ran = _fresh(f"import sys; from orchestrator.cli import main; sys.exit(main({argv}))")
    assert (ran.returncode, ran.stdout.count("docker -H ssh://")) == (0, 5)


def test_a_launch_on_machines_loads_only_what_each_launch_needs_before_its_start() -> None:
    """A third of 1.45 s of CPU went to resuming, copies, clusters, the doctor's probes and the supervisor."""
    parts = (
        "nodes.slurm", "fleet.relay", "fleet.readiness.doctor", "fleet.supervise.replan", "fleet.supervise.loop",
        "fleet.checkpoints.newest", "fleet.runs.load_state", "state.reduce",
    )  # fmt: skip
    program = f"""
import sys, orchestrator.cli.launch, orchestrator.cli.launching.launch, orchestrator.cli.launching.machines
print(*sorted({{f"orchestrator.{{part}}" for part in {parts}}} & set(sys.modules)))
"""
    assert _fresh(program).stdout == "\n"
    for part in parts:
        assert importlib.util.find_spec(f"orchestrator.{part}"), part
