"""Environment variables of a training container: set by the orchestrator, read by trainer and agent."""

from __future__ import annotations

RUN_ID = "ORCH_RUN_ID"
ATTEMPT = "ORCH_ATTEMPT"
NODE = "ORCH_NODE"
NODE_RANK = "ORCH_NODE_RANK"
RUN_DIR = "ORCH_RUN_DIR"
"""The folder of the run in the container: checkpoints, TensorBoard files, records of the agents."""
DATA_DIR = "ORCH_DATA_DIR"
"""Folder of the run's data on the node, the first of several; `ORCH_DATA_DIR_NAME`: that of each."""
BACKEND = "ORCH_BACKEND"
PG_TIMEOUT_S = "ORCH_PG_TIMEOUT_S"
"""Timeout of the process group, in seconds."""
EVENTS = "ORCH_EVENTS"
"""`1`: ranks write events."""
RESUME = "ORCH_RESUME"
"""Path of the newest intact checkpoint of the run on the node, empty if there is none. The plan sets it for the user's
own scripts, and the agent fills it in at each start."""
RESUME_FROM = "ORCH_RESUME_FROM"
"""The checkpoint that this attempt continues from, as contract.checkpoint.encode_start writes it; the controller's
record chooses it. Not set in a job and by hand: the newest intact one counts."""
SYNC = "ORCH_SYNC"
"""Sync method that `orch_hooks.ddp` uses for `auto`; set by the user."""
CHECK_DATA_MIB_S = "ORCH_CHECK_DATA_MIB_S"
"""Rate at which the agent reads the run's data to compare it with its sums, in MiB/s; 0: it does not. Set by the user.
"""
SHUTDOWN_TIMEOUT_S = "TORCH_ELASTIC_SHUTDOWN_TIMEOUT"
"""Seconds in which ranks can write a checkpoint after a request to stop; torchrun reads it, too."""
PEERS = "ORCH_PEERS"
"""DNS names of all pods of a job, in order of node_rank, separated by commas; set by manifests for Kubernetes."""
RESTART_COUNT = "ORCH_RESTART_COUNT"
"""Number of times that Kubernetes has started the whole job again; optional."""
TOKEN_FILE = "ORCH_AGENTS_TOKEN_FILE"  # noqa: S105  # the name of a variable
"""File with the agents' token, where it is not in the run's folder: in a pod it is a Secret."""
