"""The container that downloads a repository or a file into the cache of a node."""

from __future__ import annotations

from dataclasses import replace

from contract.downloads import Source
from orchestrator.plan.command import CONTAINER_WORKSPACE
from orchestrator.plan.container import secret_environment, secret_mounts
from orchestrator.specs.container import ContainerSpec, Mount
from orchestrator.specs.errors import UsageError
from orchestrator.specs.labels import LABEL_PURPOSE, LABEL_SECRETS
from orchestrator.specs.launch_options import OFFLINE
from orchestrator.specs.plan import NodePlan, Plan

CACHE = f"{CONTAINER_WORKSPACE}/cache"
TOKEN = "HF_TOKEN"  # noqa: S105  # the name of a variable
OTHER_CACHES = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "TRANSFORMERS_CACHE", "TORCH_HOME")


def cache_folder(part: NodePlan) -> str:
    """The project's cache on the node."""
    return f"{part.folder}/cache"


def must_use_our_cache(plan: Plan) -> None:
    """UsageError: the ranks would look for downloads elsewhere."""
    if others := [name for name in OTHER_CACHES if name in plan.environment]:
        raise UsageError(
            f"--fetch-once fills the cache of the project, and --env {others[0]} makes the ranks read another one",
            hint=f"leave --env {others[0]} out; every rank has the project's cache as HF_HOME and TORCH_HOME",
        )


def fetch_container(plan: Plan, part: NodePlan, source: Source, name: str) -> ContainerSpec:
    """Container of the run's image and limits that sees nothing but the cache, and the token if the run has it."""
    token = [secret for secret in plan.secrets if secret.name == TOKEN]
    environment = {key: value for key, value in plan.environment.items() if key not in OFFLINE}
    return replace(
        part.container,
        name=name,
        command=("python", "-P", "-m", "trainer.tools.fetch", source.text, "--cache", CACHE),
        environment={**environment, **secret_environment(token)},
        labels={LABEL_PURPOSE: "fetch"},
        mounts=(
            Mount(source=cache_folder(part), target=CACHE),
            *secret_mounts(token, part.container.labels.get(LABEL_SECRETS, "")),
        ),
        working_dir=CACHE,
        gpus=False,
        ulimits={},
        restart_on_failure=0,
    )
