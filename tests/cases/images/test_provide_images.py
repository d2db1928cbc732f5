"""Way from options and engines to every node's image: builders, what is sent, what happens when a node fails."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from types import MappingProxyType

import pytest

from orchestrator.fleet.images.build import BuildOptions, needed_images, provide_images
from orchestrator.fleet.images.build_context import Site, site_of
from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.nodes.interface import Progress
from orchestrator.nodes.probes import nvidia_smi
from orchestrator.plan.packages import Additions
from orchestrator.specs.errors import ConfigError, EngineError, NodeUnreachableError, PreflightError
from orchestrator.specs.image import Placed
from orchestrator.specs.inventory import NodeSpec
from tests.cases.images.engines import ASKED, LayerEngine, engine

RECORDED = Path(__file__).parents[2] / "fixtures" / "nvidia_smi"
NO_GPU: dict[tuple[str, ...], Answer] = {("nvidia-smi", "*"): (127, "", "nvidia-smi: command not found")}


def gpu(recording: str) -> dict[tuple[str, ...], Answer]:
    """Answers of a node with this card and driver."""
    return {
        nvidia_smi.QUERY_XML: (0, (RECORDED / recording).read_text(), ""),
        nvidia_smi.QUERY_CAPABILITY: (2, "", 'Field "compute_cap" is not a valid field to query.'),
    }


CUDA_13, CUDA_12 = gpu("rtx-3080__595.58.03.xml"), gpu("rtx-4090__535.86.05.xml")


class Fleet:
    """Fake nodes by name, and what was reported of their progress."""

    def __init__(
        self,
        *engines: LayerEngine,
        controller: LayerEngine | None = None,
        gpus: Mapping[str, dict[tuple[str, ...], Answer]] = MappingProxyType({}),
    ) -> None:
        self.controller = FakeNode("controller", engine=controller or engine("controller"))
        self.nodes = [FakeNode(e.node, engine=e, answers=dict(gpus.get(e.node, NO_GPU))) for e in engines]
        self.progress: list[tuple[str, Progress]] = []

    def provide(self, **options: object) -> tuple[Placed, ...]:
        specs = [NodeSpec(name=node.name, address="10.0.0.1") for node in self.nodes]
        given = BuildOptions(project="maize", **options)  # type: ignore[arg-type]
        return provide_images(given, specs, self.nodes, self.controller, lambda n, p: self.progress.append((n, p)))

    @property
    def texts(self) -> str:
        return "\n".join(f"{node}: {progress.text}" for node, progress in self.progress)


@pytest.fixture(autouse=True)
def _cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


def test_built_once_and_brought_to_every_node() -> None:
    controller, alpha, beta = engine("controller"), engine("alpha"), engine("beta")
    placed = Fleet(alpha, beta, controller=controller).provide()
    assert [result.node for result in placed] == ["alpha", "beta"]
    image = controller.image("orch/maize:cpu")
    assert image is not None
    for held in (alpha, beta):
        assert (there := held.image("orch/maize:cpu")) is not None
        assert there.id == image.id
        assert there.labels["orch.content"] == placed[0].content
        assert there.labels["orch.torch"] == "2.13.0+cpu"
    assert {result.builder for result in placed} == {"controller"}
    assert len(controller.requests) == 2  # the image, then its labels
    assert not [call for call in alpha.calls if call[0] == "build"]


def test_an_image_that_a_machine_has_needs_no_build() -> None:
    """Images on this computer, or on one of the nodes; a computer without an engine has none."""
    fleet = Fleet(engine("alpha"), engine("beta"))
    options = BuildOptions(project="maize", profile="cpu")
    specs = [NodeSpec(name=node.name, address="10.0.0.1") for node in fleet.nodes]
    (needed,) = needed_images(options, specs, fleet.nodes)
    assert not needed.is_built(fleet.controller)
    fleet.provide(profile="cpu")
    bare = FakeNode("controller", engine=engine("controller"))
    assert needed.is_built(bare)
    (one,) = needed_images(options, specs[:1], [FakeNode("gamma", engine=engine("gamma"), answers=NO_GPU)])
    assert one.is_built(fleet.controller)
    assert not one.is_built(bare)


def test_an_image_without_a_torchvision_that_fits_is_reported_and_labelled() -> None:
    builder = engine("controller")
    placed = Fleet(engine("alpha"), controller=builder).provide()
    assert [result.has_torchvision for result in placed] == [False]
    with_it = engine("controller")
    versions = (
        '{"python": "3.11.2", "torch": "2.13.0+cpu", "cuda": "", "onednn": true, "packages": {"torchvision": "1"}}'
    )
    with_it.programs = lambda _spec: (0, versions, "")
    placed = Fleet(engine("alpha"), controller=with_it).provide()
    assert [result.has_torchvision for result in placed] == [True]
    for held, version in ((builder, ""), (with_it, "1")):
        image = held.image("orch/maize:cpu")
        assert image
        assert image.labels["orch.torchvision"] == version


def test_packages_above_the_cpu_image_never_bring_the_indexs_torchvision() -> None:
    controller = engine("controller")
    additions = Additions(requirements=("timm",))
    Fleet(engine("alpha"), controller=controller).provide(additions=additions)
    (lines,) = [files for files in controller.contexts if "packages/constraints.txt" in files]
    assert b"torchvision==" in lines["packages/constraints.txt"]
    assert lines["packages/constraints.txt"].rstrip().endswith(b"+cpu")


def test_only_layers_missing_on_a_node_are_sent() -> None:
    alpha, bare = engine("alpha"), engine("bare")
    bare.held.clear()
    placed = Fleet(alpha, bare).provide()
    assert (alpha.loaded, bare.loaded) == ([2], [3])
    moved = {result.node: result.delivery.moved_bytes for result in placed if result.delivery}
    assert 0 < moved["alpha"] < moved["bare"]


def test_an_engine_that_refuses_an_incomplete_archive_gets_all_of_it() -> None:
    alpha = engine("alpha", whole_only=True)
    fleet = Fleet(alpha)
    placed = fleet.provide()
    assert alpha.loaded == [2, 3]
    assert placed[0].error is None
    assert "alpha: sending all layers" in fleet.texts


def test_nodes_that_have_the_image_cost_nothing() -> None:
    controller, alpha = engine("controller"), engine("alpha")
    Fleet(alpha, controller=controller).provide()
    controller.calls.clear()
    placed = Fleet(alpha, controller=controller).provide()
    assert placed[0].delivery is not None
    assert placed[0].delivery.moved_bytes == 0
    assert not {"build", "save"} & {call[0] for call in controller.calls}
    assert len(alpha.loaded) == 1


def test_no_cache_builds_what_is_there() -> None:
    controller, alpha = engine("controller"), engine("alpha")
    Fleet(alpha, controller=controller).provide()
    Fleet(alpha, controller=controller).provide(no_cache=True)
    assert [request.no_cache for request in controller.requests] == [False, False, True, False]


def test_a_node_that_has_the_image_gives_it_to_the_others() -> None:
    alpha, beta = engine("alpha"), engine("beta")
    Fleet(beta).provide()  # another controller built it
    fresh = engine("controller")
    placed = Fleet(alpha, beta, controller=fresh).provide()
    assert {result.builder for result in placed} == {"beta"}
    assert not fresh.requests
    assert alpha.image("orch/maize:cpu") is not None


def test_a_broken_transfer_is_named_and_the_rest_continue() -> None:
    alpha, beta = engine("alpha"), engine("beta")
    alpha.failures["load"] = NodeUnreachableError("connection lost", node="alpha")
    placed = Fleet(alpha, beta).provide()
    assert str(placed[0].error) == "alpha: connection lost"
    assert placed[1].error is None
    assert beta.image("orch/maize:cpu") is not None


def test_auto_builds_what_each_device_needs() -> None:
    alpha, gamma = engine("alpha"), engine("gamma")
    placed = Fleet(alpha, gamma, gpus={"gamma": CUDA_13}).provide()
    assert [result.profile for result in placed] == ["cpu", "cuda"]
    assert alpha.image("orch/maize:cuda") is None
    cuda = gamma.image("orch/maize:cuda")
    assert cuda is not None
    assert cuda.labels["orch.cuda"] == "13.0"
    placed = Fleet(alpha, gamma, gpus={"gamma": CUDA_13}).provide(profile="cpu")
    assert [result.profile for result in placed] == ["cpu", "cpu"]


def test_the_driver_decides_which_cuda_is_built() -> None:
    controller, alpha, gamma = engine("controller"), engine("alpha"), engine("gamma")
    fleet = Fleet(alpha, gamma, controller=controller, gpus={"alpha": CUDA_13, "gamma": CUDA_12})
    with pytest.raises(EngineError, match=r"cuda='13\.0'"):
        fleet.provide()  # the image holds another build than was asked for
    controller.programs = lambda spec: (0, ASKED % ("cu126", "12.6"), "")
    placed = fleet.provide()
    assert {(result.profile, result.cuda) for result in placed} == {("cuda", "12.6")}
    assert "driver 535.86.05 (CUDA 13.0 needs 580.65.06) on gamma" in placed[0].cuda_reason
    assert controller.requests[0].args["CUDA"] == "12.6"
    (alone,) = Fleet(alpha, gpus={"alpha": CUDA_13}).provide()
    assert (alone.cuda, alone.cuda_reason) == ("13.0", "")
    with pytest.raises(PreflightError, match=r"CUDA 13\.0 does not serve gamma"):
        Fleet(gamma, gpus={"gamma": CUDA_12}).provide(cuda="13.0")


def test_another_architecture_is_built_where_it_is_at_home() -> None:
    controller, alpha, pi = engine("controller"), engine("alpha"), engine("pi", architecture="aarch64")
    placed = Fleet(alpha, pi, controller=controller).provide()
    assert [result.builder for result in placed] == ["controller", "pi"]
    with pytest.raises(PreflightError, match=r"alpha: its engine is x86_64, pi need aarch64"):
        Fleet(alpha, pi).provide(on="alpha", no_cache=True)


def test_on_chooses_the_builder_and_a_controller_without_engine_is_no_fault() -> None:
    alpha, beta, without = engine("alpha"), engine("beta"), engine("controller")
    without.failures["facts"] = EngineError("no engine", node="controller")
    assert {result.builder for result in Fleet(alpha, beta, controller=without).provide()} == {"alpha"}
    gamma, delta = engine("gamma"), engine("delta")
    assert {result.builder for result in Fleet(gamma, delta).provide(on="delta")} == {"delta"}
    with pytest.raises(PreflightError, match="no such node"):
        Fleet(gamma).provide(on="omega")


def test_each_node_builds_the_same_content_for_itself() -> None:
    alpha, beta = engine("alpha"), engine("beta")
    beta.held.clear()  # its base comes from the controller
    placed = Fleet(alpha, beta).provide(each_node=True)
    assert [result.builder for result in placed] == ["alpha", "beta"]
    assert len({result.content for result in placed}) == 1
    assert all(held.requests for held in (alpha, beta))
    assert beta.loaded == [1]


def test_a_failed_build_shows_the_builders_last_lines_without_credentials() -> None:
    class Failing(LayerEngine):
        def build(self, request, context):  # type: ignore[no-untyped-def]
            yield Progress(text="Looking in indexes: https://me:secret@index.example")
            yield Progress(text="ERROR: No matching distribution found")
            raise EngineError("non-zero code: 1", node=self.node)

    failing = Failing("controller", held=engine("controller").held)
    fleet = Fleet(engine("alpha"), controller=failing)
    with pytest.raises(EngineError) as caught:
        fleet.provide()
    assert "No matching distribution" in str(caught.value)
    assert "secret" not in str(caught.value) + fleet.texts


def test_an_image_without_onednn_is_refused() -> None:
    controller = engine("controller")
    message = '{"python": "3", "torch": "2", "cuda": "", "onednn": false}'
    controller.programs = lambda spec: (0, message, "")
    with pytest.raises(EngineError, match="not an image of profile cpu"):
        Fleet(engine("alpha"), controller=controller).provide()


def test_private_settings_go_into_the_site_folder_alone(tmp_path: Path) -> None:
    bundle, wheels = tmp_path / "ca.crt", tmp_path / "wheels"
    bundle.write_text("CERTIFICATE")
    wheels.mkdir()
    (wheels / "torch-2.13.0+cpu-cp311-cp311-manylinux_2_28_x86_64.whl").write_bytes(b"wheel")
    environment = {"PIP_INDEX_URL": "https://me:secret@index.example/simple", "PIP_CERT": str(bundle)}
    controller = engine("controller")
    Fleet(engine("alpha"), controller=controller).provide(site=site_of(environment, wheels=wheels))
    context, request = controller.contexts[0], controller.requests[0]
    assert context["images/site/ca-bundle.crt"] == b"CERTIFICATE"
    assert b"secret" in context["images/site/pip.conf"]
    assert [path for path in context if path.endswith(".whl")]
    assert request.args["TORCH_CPU_INDEX"] == ""
    assert "secret" not in repr(request) + repr(controller.requests[1])
    assert b"secret" not in b"".join(controller.contexts[1].values())


def test_without_wheels_pytorchs_own_index_serves() -> None:
    controller = engine("controller")
    Fleet(engine("alpha"), controller=controller).provide(site=Site(environment={"https_proxy": "http://p:1"}))
    assert "TORCH_CPU_INDEX" not in controller.requests[0].args
    assert controller.requests[0].args["HTTPS_PROXY"] == "http://p:1"
    assert not [path for path in controller.contexts[0] if "ca-bundle" in path or "pip.conf" in path]


def test_paths_that_lead_nowhere_are_refused() -> None:
    with pytest.raises(ConfigError, match="--wheels /nowhere"):
        site_of({}, wheels=Path("/nowhere"))
    with pytest.raises(ConfigError, match="--ca-bundle /nowhere"):
        site_of({}, ca_bundle=Path("/nowhere"))


def test_nothing_is_left_in_the_cache(tmp_path: Path) -> None:
    Fleet(engine("alpha")).provide()
    assert not list((tmp_path / "cache" / "orch").iterdir())
