"""Causes: ranks with GPUs that do not find, or lose, each other."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Advice

ADVICE = (
    Advice(
        id="nccl.no_interface",
        what="NCCL finds no network interface of the name that it was given on {node}",
        todo=("ip -brief address on {node}; leave NCCL_SOCKET_IFNAME as the launch sets it, by route, for each node",),
        page="network.interface_missing",
    ),
    Advice(
        id="nccl.versions",
        what="the nodes run different versions of NCCL, or it is set up differently on them",
        todo=(
            "the same image everywhere: orch build; NCCL_* variables with --env reach all nodes alike",
            "orch doctor",
        ),
        page="consistency.nccl",
    ),
    Advice(
        id="nccl.same_gpu",
        what="two ranks of {node} use the same GPU",
        todo=("in the script: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group",),
    ),
    Advice(
        id="nccl.timeout",
        what="rank {rank} on {node} waited in {op} (the collective with number {number}) until NCCL's timeout",
        todo=(
            "the rank with the lowest number of its last collective is the one that the others waited for",
            "all at the same number: the network; orch test, orch doctor --only network,firewall",
        ),
    ),
    Advice(
        id="nccl.hang",
        what="NCCL made no progress on rank {rank} on {node}: its watchdog waited for a collective until its own limit",
        todo=(
            "which rank the others waited for: orch why {run}; a rank that leaves out a collective keeps all waiting",
            "the network: orch test, orch doctor --only network,firewall",
        ),
    ),
    Advice(
        id="nccl.peer_lost",
        what="rank {rank} on {node} lost a peer, or the network to it, in the middle of NCCL's exchange",
        todo=("is a machine gone? orch status {run}", "is it the network? orch test; orch doctor --only network"),
    ),
    Advice(
        id="nccl.system",
        what="a call of NCCL to the system failed on {node}: shared memory, a socket or the driver",
        todo=(
            "shared memory: limits: {{shm: 4g}} in inventory.yaml; then orch check-gpus, orch test",
            "NCCL's own words: orch launch --env NCCL_DEBUG=INFO",
        ),
        page="resources.shm",
    ),
)
