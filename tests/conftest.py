"""Fixtures and output of all tests: the figures of a run are printed at its end, and tests are counted by cost."""

from __future__ import annotations

import gc
import signal
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from fcntl import LOCK_EX, flock
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import settings
from xdist.scheduler import LoadScopeScheduling

if TYPE_CHECKING:
    from tests.lab.conftest import Orch

settings.register_profile("house", deadline=None)  # the machine may be busy; what counts is the outcome
settings.register_profile("newer", deadline=None, max_examples=20)  # another interpreter: the cases are searched once
settings.load_profile("house")

FIGURES = pytest.StashKey[list[str]]()
CONTAINERS = "containers"
SHARING = {
    CONTAINERS: (
        "tests/lab/test_setup.py",
        "tests/docker/",
        "tests/contract/test_engine.py",
        "tests/contract/test_docker_engine.py",
    ),
    "a lab of runs that break": (
        "tests/lab/test_survival.py",
        "tests/lab/test_chaos.py",
        "tests/lab/test_checkpoints.py",
    ),
    "a Slurm cluster": ("tests/lab/test_slurm.py", "tests/contract/test_slurm.py"),
    "another lab": ("tests/lab/",),
}
DOCKERFILE = Path(__file__).parents[1] / "images" / "Dockerfile"

NO_TORCH = "torch is not installed"
NEEDS_TORCH = pytest.mark.skipif(not find_spec("torch"), reason=NO_TORCH)

Figure = Callable[[str], None]


def pytest_configure(config: pytest.Config) -> None:
    # Where the tests were started in the background, Ctrl-C is ignored, and so it would be in all that they start.
    signal.signal(signal.SIGINT, signal.default_int_handler)
    config.stash[FIGURES] = []


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Iterator[None]:
    """Collect without looking for garbage, which modules and tests are not: neither now nor in each test after it."""
    gc.disable()
    try:
        return (yield)
    finally:
        gc.freeze()
        gc.enable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Start with what takes the longest: the labs, then the files with slow tests. The Docker Engine's tests, of which
    `orch setup` in a lab of its own is one, need the image that the first lab builds, and come after them instead of
    waiting for it: no worker computes while two labs are set up otherwise."""
    slow = {item.path for item in items if item.get_closest_marker("slow")}
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(300))  # it counts as hanging later: beside two labs some take threefold
    items.sort(
        key=lambda item: (
            not item.get_closest_marker("lab") or group_of(item.nodeid) == CONTAINERS,
            item.path not in slow,
            not item.get_closest_marker("docker") and group_of(item.nodeid) != CONTAINERS,
        )
    )


class TestModule(pytest.Module):
    """A file of tests, skipped where it imports a package of the trainer and there is no torch."""

    __test__ = False

    def collect(self) -> Iterable[pytest.Item | pytest.Collector]:
        try:
            return super().collect()
        except self.CollectError as error:
            if isinstance(error.__cause__, ModuleNotFoundError) and not find_spec("torch"):
                pytest.skip(f"{NO_TORCH} ({error.__cause__})", allow_module_level=True)
            raise


def pytest_pycollect_makemodule(module_path: Path, parent: pytest.Collector) -> TestModule:
    return TestModule.from_parent(parent, path=module_path)  # type: ignore[no-any-return]  # pytest's own gap


def group_of(nodeid: str) -> str:
    """The group of a test that runs on one worker: that of its file in SHARING, otherwise the file."""
    file = nodeid.partition("::")[0]
    return next((group for group, files in SHARING.items() if file.startswith(files)), file)


class ByFile(LoadScopeScheduling):
    """Tests of a file run on one pytest-xdist worker, and files that share containers or a lab run on the same one.

    Not `--dist loadgroup`: pytest-xdist 3.8 does not see the groups of pytest 9.2, which has no `_nodeid`.
    """

    def _split_scope(self, nodeid: str) -> str:
        return group_of(nodeid)


def pytest_xdist_make_scheduler(config: pytest.Config, log: Any) -> ByFile:
    return ByFile(config, log)


@contextmanager
def only_builder() -> Iterator[None]:
    """Wait while another pytest-xdist worker builds an image, whose layers are then found instead of built twice."""
    with DOCKERFILE.open() as file:
        flock(file, LOCK_EX)
        yield


@pytest.fixture(scope="session", autouse=True)
def own_state(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Give the tests their own state, configuration and cache folders, and no terminal width."""
    folder = tmp_path_factory.mktemp("xdg")
    with pytest.MonkeyPatch.context() as patch:
        for name in ("STATE", "CONFIG", "CACHE"):
            patch.setenv(f"XDG_{name}_HOME", str(folder / name.lower()))
        patch.delenv("COLUMNS", raising=False)  # readline, which pytest imports, exports it to the workers of xdist
        yield


@pytest.fixture(scope="session")
def figure(request: pytest.FixtureRequest) -> Figure:
    """Note a measured figure, in words with its unit."""
    return request.config.stash[FIGURES].append


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory, figure: Figure) -> Iterator[Orch]:
    """A Slurm cluster of three nodes for all tests, its inventory and state in a folder of its own."""
    from tests.lab.slurm_jobs import a_cluster  # tests without a lab do without these modules, too

    with a_cluster(tmp_path_factory.mktemp("cluster"), figure) as command:
        yield command


def pytest_sessionfinish(session: pytest.Session) -> None:
    if output := getattr(session.config, "workeroutput", None):
        output["figures"] = session.config.stash[FIGURES]


def pytest_testnodedown(node: Any) -> None:
    """Collect the figures of a pytest-xdist worker."""
    node.config.stash[FIGURES] += getattr(node, "workeroutput", {}).get("figures", [])


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    reports = terminalreporter.getreports("passed") + terminalreporter.getreports("failed")
    kinds = Counter(Path(report.nodeid).parts[1] for report in reports if report.when == "call")
    terminalreporter.section("figures")
    for text in config.stash[FIGURES]:
        terminalreporter.write_line(text)
    terminalreporter.write_line("tests by kind: " + ", ".join(f"{kind} {n}" for kind, n in sorted(kinds.items())))
