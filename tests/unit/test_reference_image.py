"""An image that orch has not built: brought to the nodes, looked into, refused or planned with."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.checks.doctor import LAUNCH_CHECKS
from orchestrator.fleet.gather import gather_facts
from orchestrator.fleet.images.distribute_image import Registry
from orchestrator.fleet.images.reference import provide_reference
from orchestrator.fleet.planning.request import build_request
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.interface import Progress
from orchestrator.plan.container import AGENT_INSIDE
from orchestrator.plan.lines import plan_lines
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import ConfigError, EngineRefusedError, PreflightError, UsageError
from orchestrator.specs.facts import ImageFacts, NodeFacts
from orchestrator.specs.finding import Finding
from orchestrator.specs.image import IMAGE_REFERENCE, whole_reference
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.launch_options import LaunchOptions
from tests import lan
from tests.cases.images.engines import LayerEngine

MINE = "lab/mine:1"
FOLDERS = {"alpha": "~/orch/orch", "beta": "~/orch/orch"}
IMAGE = ImageFacts(id="sha256:" + "5e" * 32, tags=(MINE,), labels={"orch.profile": "cpu", "orch.content": "below"})
INSIDE = {
    "python": "3.12.1", "torch": "2.13.0+cpu", "torch_error": "", "cuda": "", "torchrun": True, "backends": ["gloo"],
    "modules": ["numpy"],
}  # fmt: skip


def quiet(_node: str, _progress: Progress) -> None:
    return


def machine(name: str, *, has: bool = False, **registry: ImageFacts) -> FakeNode:
    engine = LayerEngine(name, held={IMAGE.id: IMAGE} if has else {}, registry=dict(registry))
    return FakeNode(name, engine=engine)


# ── Its name ──────────────────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.parametrize(
    "name", [MINE, "pytorch/pytorch:2.13-cuda12.6", "debian", "10.0.0.5:5000/team/mine:v1", f"sha256:{'0' * 64}"]
)
def test_names_that_an_engine_knows(name: str) -> None:
    assert IMAGE_REFERENCE.fullmatch(name)


@pytest.mark.parametrize("name", ["--privileged", "a b", "mine;id", "$(id)", "/mine", "mine@sha256:00"])
def test_anything_else_is_refused(name: str) -> None:
    assert not IMAGE_REFERENCE.fullmatch(name)


def test_a_name_without_a_tag_is_the_latest() -> None:
    assert whole_reference("10.0.0.5:5000/mine") == "10.0.0.5:5000/mine:latest"
    assert whole_reference(MINE) == MINE


# ── Brought to the nodes ──────────────────────────────────────────────────────────────────────────────────────────────


def test_a_node_that_has_it_supplies_the_others() -> None:
    controller, alpha, beta = machine("controller"), machine("alpha"), machine("beta", has=True)
    placed = provide_reference(MINE, [alpha, beta], FOLDERS, controller, quiet)
    assert [(one.node, one.builder, one.error) for one in placed] == [("alpha", "beta", None), ("beta", "beta", None)]
    found = alpha.engine.image(MINE)
    assert found
    assert found.id == IMAGE.id


def test_the_controllers_counts_where_a_node_has_another() -> None:
    other = replace(IMAGE, id="sha256:other")
    alpha = machine("alpha")
    alpha.engine.held = {other.id: other}
    (placed,) = provide_reference(MINE, [alpha], FOLDERS, machine("controller", has=True), quiet)
    assert placed.delivery
    assert placed.delivery.image_id == IMAGE.id
    assert (found := alpha.engine.image(MINE))
    assert found.id == IMAGE.id


def test_where_no_node_has_it_it_is_pulled_once() -> None:
    controller, alpha = machine("controller", **{MINE: IMAGE}), machine("alpha")
    (placed,) = provide_reference(MINE, [alpha], FOLDERS, controller, quiet)
    assert placed.builder == "controller"
    assert not any(call[0] == "pull" for call in alpha.engine.calls)


def test_where_no_node_can_pull_it_each_reports_why() -> None:
    with pytest.raises(PreflightError) as caught:
        provide_reference(MINE, [machine("alpha")], FOLDERS, machine("controller"), quiet)
    assert "controller: pulling" in str(caught.value)
    assert "alpha: pulling" in str(caught.value)
    assert f"docker build -t {MINE}" in caught.value.hint


def test_another_architecture_is_named() -> None:
    controller, alpha = machine("controller", has=True), machine("alpha")
    controller.engine.held = {IMAGE.id: replace(IMAGE, architecture="arm64")}
    with pytest.raises(PreflightError, match=r"alpha: .* is built for aarch64, and its engine is x86_64"):
        provide_reference(MINE, [alpha], FOLDERS, controller, quiet)


def test_through_a_registry_it_is_pushed_once_and_pulled_by_each() -> None:
    shared = dict[str, ImageFacts]()
    controller, alpha, beta = machine("controller", has=True), machine("alpha"), machine("beta")
    for node in (controller, alpha, beta):
        node.engine.registry = shared
    placed = provide_reference(MINE, [alpha, beta], FOLDERS, controller, quiet, Registry.of("http://10.0.0.5:5000/"))
    there = f"10.0.0.5:5000/{MINE}"
    assert [one.error for one in placed] == [None, None]
    assert [call for call in controller.engine.calls if call[0] == "push"] == [("push", there)]
    assert all(("pull", there) in node.engine.calls for node in (alpha, beta))
    assert all((found := node.engine.image(MINE)) and found.id == IMAGE.id for node in (alpha, beta))


@pytest.mark.parametrize(
    ("says", "hint"),
    [
        ("http: server gave HTTP response to HTTPS client", '{"insecure-registries": ["10.0.0.5:5000"]}'),
        ("no basic auth credentials: authentication required", "docker login 10.0.0.5:5000"),
        ("dial tcp 10.0.0.5:5000: connect: no route to host", "does alpha reach 10.0.0.5:5000?"),
    ],
)
def test_a_node_without_the_registry_is_named_with_what_to_do(says: str, hint: str) -> None:
    controller, alpha, beta = machine("controller", has=True), machine("alpha"), machine("beta")
    beta.engine.registry = controller.engine.registry
    alpha.engine.failures["pull"] = EngineRefusedError(says, node="alpha")
    first, second = provide_reference(MINE, [alpha, beta], FOLDERS, controller, quiet, Registry.of("10.0.0.5:5000"))
    assert first.error
    assert (first.error.node, hint in first.error.hint, second.error) == ("alpha", True, None)


def test_another_image_under_the_name_is_found_out() -> None:
    controller, alpha = machine("controller", has=True), machine("alpha")
    alpha.engine.registry = {f"10.0.0.5:5000/{MINE}": replace(IMAGE, id="sha256:other")}
    (placed,) = provide_reference(MINE, [alpha], FOLDERS, controller, quiet, Registry.of("10.0.0.5:5000"))
    assert placed.error
    assert "sha256:other" in placed.error.message


# ── Looked into ───────────────────────────────────────────────────────────────────────────────────────────────────────


def found_in(here: lan.Lan, *command: str) -> tuple[dict[str, NodeFacts], list[Finding]]:
    request = lan.request(tuple(here.nodes), image=MINE, command=command or ("python", "train.py"))
    facts = {one.item.name: one.value() for one in gather_facts(list(here.nodes.values()), request)}
    return facts, [
        finding for checks in LAUNCH_CHECKS.values() for check in checks for finding in check([*facts.values()])
    ]


def saying(**changes: object) -> Callable[[ContainerSpec], tuple[int, str, str]]:
    def answer(container: ContainerSpec) -> tuple[int, str, str]:
        assert (container.network, container.image) == ("none", IMAGE.id)
        return 0, json.dumps({**INSIDE, **changes}), ""

    return answer


def test_a_fit_image_has_no_finding() -> None:
    here = lan.lan("alpha", "beta", held={IMAGE.id: IMAGE}, programs=saying())
    facts, findings = found_in(here)
    assert findings == []
    assert facts["alpha"].image
    assert facts["alpha"].image.labels["orch.torch"] == "2.13.0+cpu"  # its own labels are of the image below it


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"python": "3.9.1"}, "has Python 3.9.1; 3.11 or newer is needed"),
        ({"torch": "", "torch_error": "ModuleNotFoundError: No module named 'torch'"}, "has no torch"),
        ({"torchrun": False}, "lacks torch.distributed.run"),
        ({"backends": []}, "lacks the backend gloo"),
        ({"modules": ["trainer"]}, "has packages with names of orch's own: trainer"),
    ],
)
def test_an_unfit_one_is_refused_with_all_its_nodes(changes: dict[str, object], message: str) -> None:
    here = lan.lan("alpha", "beta", held={IMAGE.id: IMAGE}, programs=saying(**changes))
    (finding,) = found_in(here)[1]
    assert (finding.id, finding.node) == ("image.unfit", "alpha, beta")
    assert f"{MINE}" in finding.message
    assert message in finding.message


def test_one_without_python_is_refused() -> None:
    here = lan.lan("alpha", held={IMAGE.id: IMAGE})
    here.nodes["alpha"].engine.failures["run_once"] = EngineRefusedError("exec: python3: not found", node="alpha")
    assert "runs no python3" in found_in(here)[1][0].message


def test_a_workload_needs_its_modules() -> None:
    here = lan.lan("alpha", held={IMAGE.id: IMAGE}, programs=saying())
    (finding,) = found_in(here, "gpt2")[1]
    assert "tokenizers" in finding.message
    assert "numpy" not in finding.message
    assert found_in(here, "test-ddp")[1] == []


def test_a_node_without_it_is_reported_with_the_way_to_get_it() -> None:
    (finding,) = found_in(lan.lan("alpha"))[1]
    assert (finding.id, finding.fix.partition("  ")[0]) == ("image.missing", f"orch build --image {MINE}")
    assert finding.auto_fix
    assert finding.auto_fix.orch == ("build", "--yes", "--image", MINE)


def test_the_version_of_torch_decides_what_differs() -> None:
    here = lan.lan("alpha", "beta", held={IMAGE.id: IMAGE}, programs=saying())
    other = replace(IMAGE, id="sha256:other")
    beta = here.nodes["beta"].engine
    beta.held, beta.programs = {other.id: other}, lambda _: (0, json.dumps(INSIDE), "")
    assert found_in(here)[1] == []
    beta.programs = lambda _: (0, json.dumps({**INSIDE, "torch": "2.12.0+cpu"}), "")
    (finding,) = found_in(here)[1]
    assert finding.id == "image.differs"
    assert "beta torch 2.12.0+cpu" in finding.message


# ── Planned with ──────────────────────────────────────────────────────────────────────────────────────────────────────


def inventory(text: str = "") -> Inventory:
    return parse_inventory(f"{text}\nnodes: {{alpha: {{address: 10.0.0.11}}}}\n", filename="inventory.yaml")


def test_the_plan_mounts_the_agent_and_starts_it_without_the_images_help(tmp_path: Path) -> None:
    options = LaunchOptions(command=("python", "train.py"), image=MINE, workdir=tmp_path)
    request = build_request(inventory(), options, None, {})
    assert len(request.agent_digest) == 16
    plan = lan.plan(("alpha",), image=MINE, agent_digest=request.agent_digest, command=("python", "train.py"))
    container = plan.nodes[0].container
    (mount,) = [mount for mount in container.mounts if mount.target == AGENT_INSIDE]
    assert (mount.source, mount.read_only) == (f"/home/ana/orch/orch/agent/{request.agent_digest}", True)
    assert container.command[0] == "python3"
    assert "-P" not in container.command
    assert container.environment["HOME"] == "/tmp"
    assert container.create_arguments()["Entrypoint"] == [""]
    assert any("copies orch's agent" in line for line in plan_lines(plan, {"alpha": lan.spec("alpha")}))


def test_the_inventory_names_it_for_every_launch_and_the_option_wins() -> None:
    named = inventory(f"image: {{reference: {MINE}}}")
    assert build_request(named, LaunchOptions(), None, {}).image == MINE
    assert build_request(named, LaunchOptions(image="debian"), None, {}).image == "debian"
    resumed = build_request(named, LaunchOptions(), lan.plan(("alpha",)), {})
    assert (resumed.image, resumed.agent_digest) == ("", "")  # as the run was launched


def test_reference_and_additions_exclude_each_other() -> None:
    with pytest.raises(ConfigError) as caught:
        inventory(f"image: {{reference: {MINE}, apt: apt.txt}}")
    assert "either reference, or what orch adds" in str(caught.value.problems)


def test_processes_have_no_image() -> None:
    text = "nodes: {alpha: {address: 127.0.0.1, engine: process, connection: local}}"
    processes = parse_inventory(text, filename="inventory.yaml")
    with pytest.raises(UsageError, match="needs containers"):
        build_request(processes, LaunchOptions(image=MINE), None, {})
