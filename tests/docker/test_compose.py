"""The compose file, read and run by docker-compose: the seed's single-machine commands."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import urllib.request
from collections.abc import Sequence
from pathlib import Path
from typing import Any, cast

import pytest
from ruamel.yaml import YAML

from tests.contract.sshd import free_port
from tests.docker.conftest import PROJECT

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not shutil.which("docker-compose"), reason="no docker-compose (apt-get install docker-compose)"),
]
FOLDER = Path(__file__).parents[2] / "compose"


def compose(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = ("docker-compose", "-p", "orch-test-compose", *arguments)
    return subprocess.run(
        argv, cwd=FOLDER, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_it_is_valid_and_says_what_the_seed_asks_for() -> None:
    services = config()
    assert set(services) == {"trainer", "tensorboard", "monitor"}
    for service in services.values():
        assert service["read_only"] is True
        assert service["init"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"] == "1000:1000"
        assert service["logging"]["options"]["max-size"] == "50m"
    trainer = services["trainer"]
    assert (float(trainer["cpus"]), trainer["mem_limit"], trainer["mem_reservation"]) == (2.0, "4g", "1g")
    assert trainer["stop_grace_period"] in ("75s", "1m15s")
    assert (trainer["image"], trainer["runtime"]) == ("orch/orch:cpu", "runc")
    assert str(services["tensorboard"]["ports"][0]).startswith("127.0.0.1:")


def test_with_gpus_it_is_the_cuda_image_and_nvidias_runtime() -> None:
    trainer = config(ORCH_PROFILE="cuda", ORCH_RUNTIME="nvidia")["trainer"]
    assert (trainer["image"], trainer["runtime"]) == ("orch/orch:cuda", "nvidia")
    assert trainer["build"]["args"]["PROFILE"] == "cuda"
    assert trainer["environment"]["NVIDIA_VISIBLE_DEVICES"] == "all"


def test_the_variables_of_a_training_on_several_machines_are_passed() -> None:
    set_here = {
        "MASTER_ADDR": "192.168.1.50",
        "MASTER_PORT": "12355",
        "NNODES": "5",
        "NODE_RANK": "3",
        "GPUS_PER_NODE": "1",
    }
    trainer = config(LANG="es_ES.UTF-8", **set_here)["trainer"]
    assert set_here.items() <= trainer["environment"].items()
    assert trainer["environment"]["LANG"] == "es_ES.UTF-8"
    assert trainer["network_mode"] == "host"


def config(**environment: str) -> dict[str, Any]:
    """Return the services as docker-compose reads them."""
    read = compose("config", **environment)
    assert read.returncode == 0, read.stderr
    return cast(dict[str, Any], YAML(typ="safe").load(read.stdout)["services"])


# ── The guide's commands, from a fresh checkout ───────────────────────────────────────────────────────────────────────

ROOT = FOLDER.parent
GUIDE = [
    shlex.split(line, comments=True)
    for line in (ROOT / "docs/compose.md").read_text(encoding="utf-8").splitlines()
    if line.startswith("    docker compose ")
]
TINY = ("--preset", "tiny", "--max-steps", "3")


@pytest.fixture(scope="module")
def checkout(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The repository's files alone, without data and checkpoints, and a text to prepare."""
    folder = tmp_path_factory.mktemp("checkout")
    names = subprocess.run(
        ("git", "ls-files", "-z", "--", "compose", "docs"), cwd=ROOT, capture_output=True, check=True
    )
    for name in filter(None, names.stdout.decode().split("\0")):
        (folder / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / name, folder / name)
    (folder / "text.txt").write_text("En un lugar de la Mancha, de cuyo nombre no quiero acordarme.\n" * 2000)
    return folder


def run_in(checkout: Path, words: Sequence[str], *files: Path, **environment: str) -> subprocess.Popen[str]:
    """Start `docker compose` with the words of the guide, as its user."""
    own = {"ORCH_UID": str(os.getuid()), "ORCH_GID": str(os.getgid()), "ORCH_PROJECT": PROJECT}
    chosen = [word for file in (checkout / "compose/compose.yaml", *files) for word in ("-f", str(file))]
    return subprocess.Popen(
        ("docker-compose", "-p", "orch-test-guide", *chosen, *words), cwd=checkout / "compose",
        env={**os.environ, **own, **environment}, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    )  # fmt: skip


@pytest.mark.timeout(600)
@pytest.mark.usefixtures("cpu_image")
def test_the_commands_of_the_guide_work_on_a_fresh_checkout(checkout: Path, tmp_path: Path) -> None:
    """Those of the GPU are only read; trainings have a tiny model, and the text of the test."""
    services = YAML(typ="safe").load((checkout / "compose/compose.yaml").read_text())["services"]
    seen = []
    try:
        for _, _, *words in GUIDE:
            action = next(word for word in words if word in ("run", "up"))
            seen.append(action)
            if action == "up":
                _up(checkout, words, tmp_path / "tiny.yaml")
                continue
            assert words[2] in services
            if "nvidia-smi" in words:
                continue
            if "monitor" in words:  # it ends with Ctrl-C
                _watch(checkout, words)
                continue
            own = ["/workspace/text.txt" if word == "spanish" else word for word in words]
            training = "gpt2" in own and "prepare" not in own
            with run_in(checkout, [*own, *(TINY if training else ())]) as ran:
                out = ran.communicate(timeout=300)[0]
            assert ran.returncode == 0, (own, out)
            if "prepare" in own:
                assert (checkout / "Data/manifest.json").stat().st_uid == os.getuid(), out
            if training:
                assert "done: step 3" in out
                assert (checkout / "checkpoints/step-00000003/state.pt").exists()
        assert sorted(seen) == ["run"] * 5 + ["up"]
    finally:
        with run_in(checkout, ("down", "--timeout", "5")) as down:
            down.communicate(timeout=120)


def _watch(checkout: Path, words: Sequence[str]) -> None:
    """Read the first line of the monitor, then Ctrl-C."""
    with run_in(checkout, words) as ran:
        assert ran.stdout is not None
        assert any("RAM" in line for line in ran.stdout)
        ran.send_signal(signal.SIGINT)
        ran.communicate(timeout=100)


def _up(checkout: Path, words: Sequence[str], tiny: Path) -> None:
    """Train beyond the step that was saved, until TensorBoard and the monitor have answered, too; then Ctrl-C."""
    command = ["python", "-m", "trainer", "gpt2", "--batch-size", "2", "--seq-len", "128", "--preset", "tiny"]
    command += ["--max-steps", "1000000", "--no-compile"]  # which a stop would wait for
    tiny.write_text(json.dumps({"services": {"trainer": {"command": command}}}))
    port = free_port()
    with run_in(checkout, words, tiny, ORCH_TENSORBOARD_PORT=str(port)) as up:
        assert up.stdout is not None
        wanted = {r"step ([4-9]|\d\d+)/1000000  loss", "TensorBoard 2", "RAM"}
        lines = []
        for line in up.stdout:
            lines.append(line)
            wanted -= {pattern for pattern in wanted if re.search(pattern, line)}
            if not wanted or "exited with code" in line:
                break
        assert not wanted, (wanted, lines)
        with urllib.request.urlopen(f"http://127.0.0.1:{port}/data/runs", timeout=30) as answer:
            assert json.load(answer), "TensorBoard shows the run"
        up.send_signal(signal.SIGINT)
        rest = up.communicate(timeout=150)[0]
    steps = [int(folder.name.removeprefix("step-")) for folder in (checkout / "checkpoints").glob("step-*")]
    assert max(steps) > 3, rest
