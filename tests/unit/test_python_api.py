"""The public Python API: its page names all of it, and the page's example runs."""

from __future__ import annotations

import inspect
import re
import subprocess
import sys
from pathlib import Path

import pytest

import orchestrator
from orchestrator.fleet.connect import connecting_by
from tests import lan
from tests.unit.conftest import INVENTORY, THREE

PAGE = (Path(__file__).parents[2] / "docs" / "python-api.md").read_text(encoding="utf-8")
FUNCTIONS = dict(re.findall(r"^### `(\w+)\((.*?)\)", PAGE, re.MULTILINE))


def test_the_page_names_the_whole_api_and_nothing_else() -> None:
    types = re.findall(r"^\| `(\w+)` \|", PAGE, re.MULTILINE)
    assert sorted([*FUNCTIONS, *types]) == orchestrator.__all__
    assert set(orchestrator.__all__) <= set(dir(orchestrator))
    assert all(getattr(orchestrator, name) for name in orchestrator.__all__)
    with pytest.raises(AttributeError, match="no_such_name"):
        _ = orchestrator.no_such_name  # type: ignore[attr-defined]  # this is the test


@pytest.mark.parametrize(("name", "parameters"), FUNCTIONS.items())
def test_the_page_has_the_parameters_of_each_function(name: str, parameters: str) -> None:
    assert list(inspect.signature(getattr(orchestrator, name)).parameters) == parameters.split(", ")


def test_importing_the_package_imports_none_of_its_modules() -> None:
    program = "import sys, orchestrator; print([name for name in sys.modules if name.startswith('orchestrator.')])"
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert ran.stdout == "[]\n"


def test_the_example_plans_launches_follows_and_stops(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    here = lan.lan(*THREE, says=("[rank0]: hello",), ends_with=None)
    (tmp_path / "inventory.yaml").write_text(INVENTORY, encoding="utf-8")
    monkeypatch.chdir(tmp_path)
    example = re.search(r"```python\n(.*?)```", PAGE, re.DOTALL)
    assert example
    with connecting_by(here.connect):
        exec(compile(example[1], "docs/python-api.md", "exec"), {})  # noqa: S102  # the page's own example
    out = capsys.readouterr().out
    assert out.startswith("# run demo-")
    assert "hello\nstopped 3 containers, checkpoint of step None\n" in out
    assert here.containers == {}


def test_a_run_is_resumed_once_it_has_ended() -> None:
    here = lan.lan(*THREE, ends_with=None)
    plan = lan.plan(THREE)
    orchestrator.launch(here.nodes, plan)
    pool = orchestrator.NodePool(nodes=here.nodes, request=lan.request(THREE))
    with pytest.raises(orchestrator.ConflictError, match="still runs on alpha"):
        orchestrator.resume_run(pool, plan)
    orchestrator.stop_run(list(here.nodes.values()), orchestrator.RunRecord(plan.run_id), timeout_s=1)
    again, containers = orchestrator.resume_run(pool, plan)
    assert (again.run_id, again.attempt, len(containers)) == (plan.run_id, 1, 3)
    run = orchestrator.run_on_nodes(orchestrator.find_runs(list(here.nodes.values())), None)
    assert orchestrator.running_containers(run, here.nodes) == containers
