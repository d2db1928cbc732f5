"""The pods of an exported JobSet as containers: the words, variables, mounts and rights of the manifest, and no others.

This is no cluster: it shows that what the manifest says is enough for the ranks to meet, fail and start again.
"""

from __future__ import annotations

import re
import secrets
import subprocess
from collections.abc import Iterator, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import pytest
import yaml

from orchestrator.fleet.planning.export import Machines, described, export_request
from orchestrator.plan.jobset import jobset
from orchestrator.plan.launch import plan_launch
from orchestrator.plan.pod import FINAL_EXIT_CODES, ClusterPlace
from orchestrator.render.manifest import manifest_text
from orchestrator.specs.facts import ImageFacts
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.secret import Secret
from tests import lan

pytestmark = [
    pytest.mark.docker,
    pytest.mark.timeout(1800),
    pytest.mark.skipif(not find_spec("trainer.agent.place"), reason="this agent does not find its place in a pod"),
]
TRAIN = """
import os, sys, torch, torch.distributed as dist
if sys.argv[1:] == ["fail"]:
    raise ValueError("a fault of my own")
dist.init_process_group("gloo")
rank = torch.tensor(float(dist.get_rank()))
dist.all_reduce(rank)
print("sum", int(rank), "of", dist.get_world_size(), "attempt", os.environ["ORCH_ATTEMPT"],
      "secret", open(os.environ["KEY_FILE"]).read(), "note", os.environ["NOTE"], "words", sys.argv[1:], flush=True)
dist.destroy_process_group()
"""
NOTE = "a $(ORCH_RUN_ID) $HOME 'b'"


def docker(*words: str) -> str:
    ran = subprocess.run(("docker", *words), capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout + ran.stderr


class Pods:
    """The pods of one JobSet on a network of their own."""

    def __init__(self, folder: Path, image: str) -> None:
        self._claim, self._secret = folder / "claim", folder / "secret"
        (self._claim / "mine").mkdir(parents=True)
        (self._claim / "mine" / "train.py").write_text(TRAIN)
        self._secret.mkdir()
        for name, value in (("agents.token", secrets.token_hex(32)), ("KEY", "opened")):
            (self._secret / name).write_text(value)
        for path in (self._claim, *self._claim.rglob("*"), *self._secret.rglob("*")):
            path.chmod(0o777)  # the claim's fsGroup
        self.image, self.network = image, f"orch-test-pods-{secrets.token_hex(3)}"
        docker("network", "create", self.network)

    def close(self) -> None:
        for name in docker("ps", "--all", "--quiet", "--filter", f"network={self.network}").split():
            docker("rm", "--force", name)
        docker("network", "rm", self.network)

    def run(self, *words: str, restarts: int = 0) -> tuple[list[int], str]:
        """Start all pods of these words; exit codes and lines of all, when they have ended."""
        options = LaunchOptions(
            command=("python", "mine/train.py", *words), secrets=(Secret(name="KEY"),), environment={"NOTE": NOTE}
        )
        nodes, facts = described(Machines(count=3, cpus=1, memory_mib=1024, gpus=0))
        request = export_request(options, nodes, {}, project="orch", master_port=12355)
        plan = plan_launch(request, facts, lan.IDENTITY)
        read = yaml.safe_load(manifest_text(jobset(plan, ClusterPlace(image=self.image)), []))
        job = read["spec"]["replicatedJobs"][0]["template"]["spec"]
        pods = [self._start(read, job["template"]["spec"], rank, restarts) for rank in range(job["completions"])]
        codes = [int(docker("wait", pod)) for pod in pods]
        lines = "".join(docker("logs", pod) for pod in pods)
        docker("rm", *pods)
        return codes, lines

    def _start(self, manifest: Any, pod: Any, rank: int, restarts: int) -> str:
        (container,), name = pod["containers"], manifest["metadata"]["name"]
        values = {one["name"]: one["value"] for one in container["env"] if "value" in one}
        values |= {"JOB_COMPLETION_INDEX": str(rank), "ORCH_RESTART_COUNT": str(restarts)}
        expanded = {key: _expanded(value, values) for key, value in values.items()}
        first, *rest = [_expanded(word, expanded) for word in (*container["command"], *container["args"])]
        rights = container["securityContext"]
        assert (rights["readOnlyRootFilesystem"], rights["allowPrivilegeEscalation"]) == (True, False)
        host = f"{name}-{pod['containers'][0]['name']}-0-{rank}"
        return docker(
            "run", "--detach", "--network", self.network, "--hostname", host, "--network-alias", f"{host}.{name}",
            "--user", f"{rights['runAsUser']}:{rights['runAsGroup']}", "--read-only", "--init",
            "--security-opt", "no-new-privileges", "--workdir", container["workingDir"],
            *(word for cap in rights["capabilities"]["drop"] for word in ("--cap-drop", cap)),
            *(word for pair in expanded.items() for word in ("--env", "=".join(pair))),
            *self._mounts(container["volumeMounts"], {one["name"]: one for one in pod["volumes"]}),
            "--entrypoint", first, container["image"], *rest,
        ).strip()  # fmt: skip

    def _mounts(self, mounts: Any, volumes: Mapping[str, Any]) -> Iterator[str]:
        for mount in mounts:
            volume, target = volumes[mount["name"]], mount["mountPath"]
            if "persistentVolumeClaim" in volume:
                yield from ("--volume", f"{self._claim}:{target}")
            elif "secret" in volume:
                yield from ("--volume", f"{self._secret / mount['subPath']}:{target}:ro")
            else:
                yield from ("--tmpfs", f"{target}:exec,mode=1777")


def _expanded(text: str, values: Mapping[str, str]) -> str:
    """Text as Kubernetes passes it on."""
    pattern = r"\$\$|\$\(([A-Za-z_][A-Za-z0-9_]*)\)"
    return re.sub(pattern, lambda found: values.get(found[1], found[0]) if found[1] else "$", text)


@pytest.fixture
def pods(tmp_path: Path, cpu_image: ImageFacts) -> Iterator[Pods]:
    pods = Pods(tmp_path, cpu_image.id)
    yield pods
    pods.close()


def test_pods_meet_and_start_again(pods: Pods) -> None:
    words = ("$(NOTE)", "no", 'a "b"\n')
    for attempt in (0, 1):
        codes, lines = pods.run(*words, restarts=attempt)
        assert codes == [0, 0, 0], lines
        message = f"sum 3 of 3 attempt {attempt} secret opened note {NOTE} words {list(words)!r}"
        assert lines.count(message) == 3, lines
        assert "could not be written" not in lines
        assert "not sampled" not in lines


def test_an_error_of_ones_own_ends_every_pod_for_good(pods: Pods) -> None:
    codes, lines = pods.run("fail")
    assert set(codes) <= set(FINAL_EXIT_CODES), lines
    assert "a fault of my own" in lines
