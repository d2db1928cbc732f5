"""Causes: ranks with GPUs that do not find, or lose, each other."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Rule

RULES = (
    Rule(
        id="nccl.no_interface",
        kind="configuration",
        what="NCCL finds no network interface of the name that it was given on {node}",
        todo=("ip -brief address on {node}; leave NCCL_SOCKET_IFNAME as the launch sets it, by route, for each node",),
        signs=(
            r"Bootstrap ?: no socket interface found",
            r"connecting to address.*family \d+ is neither AF_INET",
        ),
        page="network.interface_missing",
    ),
    Rule(
        id="nccl.versions",
        kind="configuration",
        what="the nodes run different versions of NCCL, or it is set up differently on them",
        todo=(
            "the same image everywhere: orch build; NCCL_* variables with --env reach all nodes alike",
            "orch doctor",
        ),
        signs=(
            r"[Mm]ismatched? (?:NCCL )?version",
            r"collective mismatch error",
            r"receiving \d+ bytes instead of \d+",
            r"Message truncated",
        ),
        page="sameness.nccl",
    ),
    Rule(
        id="nccl.same_gpu",
        kind="user",
        what="two ranks of {node} use the same GPU",
        todo=("in the script: torch.cuda.set_device(int(os.environ['LOCAL_RANK'])) before init_process_group",),
        signs=(r"Duplicate GPU detected",),
    ),
    Rule(
        id="nccl.timeout",
        kind="infrastructure",
        what="rank {rank} on {node} waited in {op} (the collective with number {number}) until NCCL's timeout",
        todo=(
            "the rank with the lowest number of its last collective is the one that the others waited for",
            "all at the same number: the network; orch test, orch doctor --only network,firewall",
        ),
        signs=(r"collective operation timeout: WorkNCCL\((?:SeqNum=(?P<number>\d+), )?OpType=(?P<op>\w+)",),
    ),
    Rule(
        id="nccl.peer_lost",
        kind="infrastructure",
        what="rank {rank} on {node} lost a peer, or the network to it, in the middle of NCCL's exchange",
        todo=("is a machine gone? orch status {run}", "is it the network? orch test; orch doctor --only network"),
        signs=(
            r"ncclRemoteError",
            r"remote process exited or there was a network error",
            r"NCCL WARN.*(?:Connection closed by remote peer|Connection reset by peer)",
        ),
    ),
    Rule(
        id="nccl.system",
        kind="infrastructure",
        what="a call of NCCL to the system failed on {node}: shared memory, a socket or the driver",
        todo=(
            "shared memory: limits: {{shm: 4g}} in inventory.yaml; then orch check-gpus, orch test",
            "NCCL's own words: orch launch --env NCCL_DEBUG=INFO",
        ),
        signs=(r"ncclSystemError", r"ncclInternalError", r"ncclUnhandledCudaError"),
        page="room.shm",
    ),
)
