"""A plan as a JobSet of Kubernetes (jobset.x-k8s.io/v1alpha2). Pure."""

from __future__ import annotations

from typing import Any

from orchestrator.plan import pod
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.plan import Plan


def jobset(plan: Plan, place: pod.ClusterPlace) -> dict[str, Any]:
    """One job whose pods are the nodes. Ranks belong to the agents, pods to Kubernetes: one policy for each.

    An agent that ends with a final exit code fails the job for good; a pod that is lost, evicted or killed restarts
    all of them, at the next attempt, as often as agents restart ranks.
    """
    spec = pod.container_of(plan)
    job = {
        "parallelism": plan.nnodes,
        "completions": plan.nnodes,
        "completionMode": "Indexed",
        "backoffLimit": 0,
        "podFailurePolicy": {
            "rules": [
                {
                    "action": "FailJob",
                    "onExitCodes": {
                        "containerName": pod.CONTAINER,
                        "operator": "In",
                        "values": list(pod.FINAL_EXIT_CODES),
                    },
                }
            ]
        },
        "template": {"metadata": {"labels": pod.run_labels(plan)}, "spec": _pod(plan, spec, place)},
    }
    return {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": pod.metadata(plan, place),
        "spec": {
            "network": {"enableDNSHostnames": True, "publishNotReadyAddresses": True},
            "failurePolicy": {
                "maxRestarts": plan.max_restarts,
                # a new pod has the name of an old one: that has to be gone
                "restartStrategy": "BlockingRecreate",
                "rules": [
                    {"name": "final", "action": "FailJobSet", "onJobFailureReasons": ["PodFailurePolicy"]},
                ],
            },
            "replicatedJobs": [{"name": pod.JOB, "replicas": 1, "template": {"spec": job}}],
        },
    }


def _pod(plan: Plan, spec: ContainerSpec, place: pod.ClusterPlace) -> dict[str, Any]:
    apart = {
        "labelSelector": {"matchLabels": {pod.LABEL_OF_JOBSET: pod.object_name(plan.run_id)}},
        "topologyKey": "kubernetes.io/hostname",
    }
    return {
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": spec.stop_timeout_s,
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "shareProcessNamespace": True,  # its first process collects ended ones, as Docker's --init does
        "securityContext": {"fsGroup": pod.USER, "fsGroupChangePolicy": "OnRootMismatch"},
        # a node of a run is a machine
        "affinity": {"podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}},
        "containers": [
            {
                "name": pod.CONTAINER,
                "image": place.image or spec.image,
                **pod.command_and_args(spec),
                "env": pod.variables(plan, spec),
                "workingDir": spec.working_dir,
                "resources": pod.resources(plan, spec),
                "securityContext": pod.security_context(),
                "volumeMounts": pod.volume_mounts(plan),
            }
        ],
        "volumes": pod.volumes(plan, spec, place),
    }
