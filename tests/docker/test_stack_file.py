"""The stack file of `orch export stack`, as Docker's own reader takes it: its schema, and words of any kind."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest
import yaml

from orchestrator.plan.stack import stack
from orchestrator.render.manifest import manifest_text
from orchestrator.specs.secret import Secret
from tests import lan

WORDS = (
    "$(HOME)", "${HOME}", "$HOME", "$$", "a: b", "# x", "'", '"', "no", "1e3", "é\u2028😀", "a\nb", "{{.Node.ID}}", "",
)  # fmt: skip


def _reads_stacks() -> bool:
    """Whether this docker has `stack config`, which came with 25.0 and asks no engine."""
    try:
        return subprocess.run(("docker", "stack", "config", "--help"), capture_output=True, check=False).returncode == 0
    except OSError:
        return False


pytestmark = [
    pytest.mark.docker,
    pytest.mark.skipif(not _reads_stacks(), reason="no `docker stack config` (docker 25 or newer)"),
]


def test_docker_reads_what_was_typed(tmp_path: Path) -> None:
    plan = lan.plan(
        lan.NAMES[:2],
        command=("python", "train.py", *WORDS),
        environment={"NOTE": "".join(WORDS), "API_KEY": "hush"},
        secrets=(Secret(name="HF_TOKEN"),),
    )
    file = tmp_path / "stack.yaml"
    file.write_text(manifest_text(stack(plan, dict.fromkeys(lan.NAMES, "orch"), dict.fromkeys(lan.NAMES, "here")), []))
    argv = ("docker", "stack", "config", "--compose-file", str(file))
    ran = subprocess.run(
        argv, env={**os.environ, "API_KEY": "from the shell"}, capture_output=True, text=True, check=False
    )
    assert (ran.returncode, ran.stderr) == (0, "")
    service = yaml.safe_load(ran.stdout)["services"]["rank1"]
    assert service["command"][-len(WORDS) :] == list(WORDS)
    assert service["environment"]["NOTE"] == "".join(WORDS)
    assert service["environment"]["API_KEY"] == "from the shell"
    assert [one["target"] for one in service["volumes"] if one["type"] == "tmpfs"] == ["/tmp", "/dev/shm"]
    assert json.dumps(service["secrets"]).count("0400") + json.dumps(service["secrets"]).count("256") == 2
    without = subprocess.run(argv, env={**os.environ, "API_KEY": ""}, capture_output=True, text=True, check=False)
    assert without.returncode != 0
    assert "API_KEY" in without.stderr
