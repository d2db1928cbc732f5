"""A plan as a TrainJob of Kubeflow Trainer (trainer.kubeflow.org/v1alpha1). Pure."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from orchestrator.plan import pod
from orchestrator.specs.kubernetes import KUBEFLOW_SETS
from orchestrator.specs.plan import Plan

MANAGER = "orch/export"


def trainjob(plan: Plan, place: pod.ClusterPlace) -> dict[str, Any]:
    """The runtime of the cluster makes a JobSet of it; what a TrainJob has no field for is a patch of the runtime."""
    spec = pod.container_of(plan)
    set_by_runtime = [name for name in KUBEFLOW_SETS if name not in plan.environment]  # a user's own is refused
    patched = {
        "terminationGracePeriodSeconds": spec.stop_timeout_s,
        "securityContext": pod.pod_security_context(),
        "containers": [
            {
                "name": pod.CONTAINER,
                "securityContext": pod.security_context(),
                "volumeMounts": pod.volume_mounts(plan),
            }
        ],
        "volumes": pod.volumes(plan, spec, place),
    }
    job = {"name": pod.JOB, "template": {"spec": {"template": {"spec": patched}}}}
    return {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": pod.metadata(plan, place),
        "spec": {
            "runtimeRef": {"name": place.runtime},
            "trainer": {
                "image": place.image or spec.image,
                **pod.command_and_args(spec),
                "env": pod.variables(plan, spec, without=set_by_runtime),
                "numNodes": plan.nnodes,
                "numProcPerNode": pod.one_for_all(plan).nproc_per_node,
                "resourcesPerNode": pod.resources(plan, spec),
            },
            "runtimePatches": [
                {
                    "manager": MANAGER,
                    "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": [job]}}},
                }
            ],
        },
    }


def trainjob_notes(plan: Plan, place: pod.ClusterPlace, file: str) -> Iterator[str]:
    """Notes of the cluster, and what a TrainJob cannot say."""
    yield from pod.cluster_notes(plan, place, file)
    yield f"the runtime {place.runtime} has to have a job and a container called {pod.JOB}, as Kubeflow's own have"
    yield f"dropped: the restart of lost pods and one pod for each machine, which are the runtime's ({place.runtime})"
