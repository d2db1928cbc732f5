"""The compose file, read and run by docker-compose: the seed's single-machine commands."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from tests.docker.conftest import PROJECT

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not shutil.which("docker-compose"), reason="no docker-compose (apt-get install docker-compose)"),
]
FOLDER = Path(__file__).parents[2] / "compose"
PROFILES = ("--profile", "cpu", "--profile", "gpu")


def compose(*arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    argv = ("docker-compose", "-p", "orch-test-compose", *arguments)
    return subprocess.run(
        argv, cwd=FOLDER, env={**os.environ, **environment}, capture_output=True, text=True, check=False
    )


def test_it_is_valid_and_says_what_the_seed_asks_for() -> None:
    config = compose(*PROFILES, "config")
    assert config.returncode == 0, config.stderr
    services = YAML(typ="safe").load(config.stdout)["services"]
    assert set(services) == {"trainer-cpu", "trainer-gpu", "tensorboard", "monitor"}
    for service in services.values():
        assert service["read_only"] is True
        assert service["init"] is True
        assert service["cap_drop"] == ["ALL"]
        assert service["security_opt"] == ["no-new-privileges:true"]
        assert service["user"] == "1000:1000"
        assert service["logging"]["options"]["max-size"] == "50m"
    for name in ("trainer-cpu", "trainer-gpu"):
        limits = services[name]
        assert (float(limits["cpus"]), limits["mem_limit"], limits["mem_reservation"]) == (2.0, "4g", "1g")
        assert limits["stop_grace_period"] in ("75s", "1m15s")
    devices = services["trainer-gpu"]["deploy"]["resources"]["reservations"]["devices"]
    assert devices[0]["capabilities"] == ["gpu"]
    assert str(services["tensorboard"]["ports"][0]).startswith("127.0.0.1:")


@pytest.mark.usefixtures("cpu_image")
def test_the_trainer_runs(tmp_path: Path) -> None:
    tmp_path.chmod(0o755)
    try:
        ran = compose(
            "run",
            "--rm",
            "trainer-cpu",
            "python",
            "-m",
            "trainer",
            "--help",
            ORCH_WORKSPACE=str(tmp_path),
            ORCH_PROJECT=PROJECT,
        )
        assert ran.returncode == 0, ran.stderr
        assert "gpt2" in ran.stdout
    finally:
        compose(*PROFILES, "down")
