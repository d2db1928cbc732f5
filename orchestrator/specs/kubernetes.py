"""Words of Kubernetes that the renderers and the checks of a manifest share."""

from __future__ import annotations

KUBEFLOW_SETS = ("PET_NNODES", "PET_NPROC_PER_NODE", "PET_NODE_RANK", "PET_MASTER_ADDR", "PET_MASTER_PORT")
"""Variables that Kubeflow's runtime for torch sets itself and refuses in a TrainJob."""
