"""The CPU image as a run uses it: read-only root, no capability, a uid without a name."""

from __future__ import annotations

import json

import pytest

from orchestrator.nodes.local import LocalNode
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.facts import ImageFacts

# The first of them builds the image: some minutes where nothing is cached.
pytestmark = [pytest.mark.docker, pytest.mark.timeout(1800)]

CONVOLUTION = "import torch; torch.nn.functional.conv2d(torch.randn(8, 3, 64, 64), torch.randn(8, 3, 3, 3))"
NUMPY = "import json, numpy; print(json.dumps(numpy.show_config('dicts')['Build Dependencies']['blas']['name']))"
WHOAMI = """
import getpass, json, os, pathlib, torch
print(json.dumps({"user": getpass.getuser(), "uid": os.getuid(), "home": os.environ["HOME"],
                  "threads": torch.get_num_threads(), "tcmalloc": "tcmalloc" in open("/proc/self/maps").read(),
                  "onednn": torch.backends.mkldnn.is_available(),
                  "pyc": pathlib.Path("/opt/orch/trainer/__pycache__").is_dir(),
                  "headers": pathlib.Path(torch.__file__, "../include/ATen").resolve().is_dir()}))
"""
COMPILE = """
import torch
step = torch.compile(lambda x: torch.nn.functional.gelu(x) * 2 + x.sin())
x = torch.randn(1000)
assert torch.allclose(step(x), torch.nn.functional.gelu(x) * 2 + x.sin(), atol=1e-5)
print("compiled")
"""


def ask(node: LocalNode, image: ImageFacts, *command: str, **environment: str) -> str:
    spec = ContainerSpec(
        name=f"orch-test-image-{abs(hash(command))}",
        image=image.id,
        command=command,
        environment=environment,
        labels={},
        user="54321:54321",
        network="none",
        working_dir="/tmp",
    )
    return node.engine.run_once(spec, timeout_s=300).check("test")


def test_labels(cpu_image: ImageFacts) -> None:
    assert cpu_image.labels["orch.profile"] == "cpu"
    assert cpu_image.labels["orch.torch"] == "2.13.0+cpu"
    assert cpu_image.labels["orch.cuda"] == ""
    assert len(cpu_image.labels["orch.content"]) == 64


def test_torchvision_is_the_build_for_this_torch_or_not_there(local_node: LocalNode, cpu_image: ImageFacts) -> None:
    ask_it = (
        "import importlib.util as u\nif u.find_spec('torchvision'): import torchvision; print(torchvision.__version__)"
    )
    version = ask(local_node, cpu_image, "python", "-c", ask_it).strip()
    assert version == cpu_image.labels["orch.torchvision"]
    assert version in ("", "0.28.0+cpu")


def test_torch_geometric_is_left_to_those_who_need_it(local_node: LocalNode, cpu_image: ImageFacts) -> None:
    assert cpu_image.labels["orch.torch_geometric"] == ""


def test_onednn_is_used(local_node: LocalNode, cpu_image: ImageFacts) -> None:
    message = ask(local_node, cpu_image, "python", "-c", CONVOLUTION, ONEDNN_VERBOSE="1")
    assert [line for line in message.splitlines() if line.startswith("onednn_verbose") and ",convolution," in line]


def test_numpy_uses_openblas(local_node: LocalNode, cpu_image: ImageFacts) -> None:
    assert "openblas" in json.loads(ask(local_node, cpu_image, "python", "-c", NUMPY))


def test_any_uid_works_in_a_read_only_root(local_node: LocalNode, cpu_image: ImageFacts) -> None:
    assert json.loads(ask(local_node, cpu_image, "python", "-c", WHOAMI)) == {
        "user": "orch",
        "uid": 54321,
        "home": "/tmp",
        "threads": 2,
        "tcmalloc": True,
        "onednn": True,
        "pyc": True,
        "headers": True,
    }


@pytest.mark.parametrize("shell", ["bash", "sh"])
def test_a_login_shell_finds_the_same_python(local_node: LocalNode, cpu_image: ImageFacts, shell: str) -> None:
    """Scripts and job files call `bash -lc "python …"`, whose /etc/profile sets a PATH of its own."""
    printed = ask(local_node, cpu_image, shell, "-lc", "python -c 'import torch; print(torch.ones(1).sum())'")
    assert printed == "tensor(1.)\n"


def test_torch_compile_works(local_node: LocalNode, cpu_image: ImageFacts) -> None:
    assert "compiled" in ask(local_node, cpu_image, "python", "-c", COMPILE, TORCHINDUCTOR_COMPILE_THREADS="1")


def test_the_trainer_is_there(local_node: LocalNode, cpu_image: ImageFacts) -> None:
    assert "gpt2" in ask(local_node, cpu_image, "python", "-m", "trainer", "--help")


def test_what_text_preparation_needs_is_there(local_node: LocalNode, cpu_image: ImageFacts) -> None:
    assert "Debian" in ask(local_node, cpu_image, "dpkg-deb", "--version")
    assert "apt" in ask(local_node, cpu_image, "apt-get", "--version")


def test_nothing_private_of_the_build_is_in_the_image(local_node: LocalNode, cpu_image: ImageFacts) -> None:
    history = local_node.run(("docker", "history", "--no-trunc", "--format", "{{.CreatedBy}}", cpu_image.id))
    assert "/site" not in history.check("reading the history")
    find = ("find", "/", "-xdev", "-path", "/proc", "-prune", "-o", "-path", "*/site/*", "-name", "*.crt", "-print")
    assert ask(local_node, cpu_image, "sh", "-c", f"{' '.join(find)} 2>/dev/null || true") == ""
