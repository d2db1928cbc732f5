"""Causes: a GPU, its driver and its memory."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Rule

RULES = (
    Rule(
        id="gpu.lost",
        kind="infrastructure",
        what="{node} lost a GPU: it no longer answers on the bus",
        todo=(
            "reboot {node}, then orch check-gpus; if it comes back: power, heat, seat of the card",
            "until then: orch resume {run} --nodes … without it",
        ),
        signs=(
            r"Xid \([^)]*\): 79\b",
            r"fallen off the bus",
            r"Unable to determine the device handle for",
            r"GPU is lost",
        ),
        page="gpu.lost",
    ),
    Rule(
        id="gpu.ecc",
        kind="infrastructure",
        what="a GPU of {node} has memory that fails (an uncorrectable ECC error)",
        todo=("reboot {node}; if it comes back, the card is to be replaced: nvidia-smi -q -d ECC", "orch check-gpus"),
        signs=(r"uncorrectable ECC error", r"Xid \([^)]*\): (?:48|63|64|94|95)\b"),
        page="gpu.ecc_uncorrected",
    ),
    Rule(
        id="gpu.nvml",
        kind="infrastructure",
        what="the container on {node} lost its GPUs while it ran: `systemctl daemon-reload` on the host does that",
        todo=(
            "orch resume {run}: a new container has them again",
            "to prevent it on {node}: orch explain gpu.lost_in_run",
        ),
        signs=(r"Failed to initialize NVML: Unknown Error", r"[Cc]an't initialize NVML"),
        page="gpu.lost_in_run",
    ),
    Rule(
        id="gpu.memory",
        kind="user",
        what="the GPU of rank {rank} on {node} has too little memory for this batch (asked for {asked} more)",
        todo=(
            "a smaller micro-batch, the same batch by accumulation: --micro-batch-size N, or auto; --precision bf16",
            "is another program on the card? orch check-gpus",
        ),
        signs=(
            r"CUDA out of memory\. Tried to allocate (?P<asked>[\d.]+ \w+)",
            r"(?:CUDA error: |CUBLAS_STATUS_ALLOC_FAILED|CUDNN_STATUS_ALLOC_FAILED)(?P<asked>)(?:out of memory)?$",
            r"out of memory with micro-batches of (?P<asked>\d+)",
        ),
        page="gpu.memory_held",
    ),
    Rule(
        id="gpu.driver_old",
        kind="configuration",
        what="the NVIDIA driver of {node} is too old for the image's CUDA (the driver knows {version})",
        todo=(
            "a newer driver on {node}: orch explain gpu.driver_too_old says which",
            "or an image with an older CUDA: orch build",
        ),
        signs=(
            r"NVIDIA driver on your system is too old \(found version (?P<version>\d+)\)",
            r"CUDA driver version is insufficient for CUDA runtime version(?P<version>)",
        ),
        page="gpu.driver_too_old",
    ),
    Rule(
        id="gpu.too_new_or_old",
        kind="configuration",
        what="the torch of the image was not built for the GPU of {node}",
        todo=(
            "an image with a CUDA that knows this card: orch explain gpu.arch_not_in_image",
            "or train there on the CPU: device: cpu",
        ),
        signs=(
            r"no kernel image is available for execution on the device",
            r"is not compatible with the current PyTorch installation",
        ),
        page="gpu.arch_not_in_image",
    ),
    Rule(
        id="gpu.none",
        kind="configuration",
        what="rank {rank} on {node} finds no GPU",
        todo=(
            "orch check-gpus --nodes {node}",
            "or train there on the CPU: device: cpu in inventory.yaml, --backend gloo",
        ),
        signs=(
            r"No CUDA GPUs are available",
            r"Found no NVIDIA driver on your system",
            r"Torch not compiled with CUDA enabled",
            r"backend nccl, but torch sees no GPU",
            r"ProcessGroupNCCL is only supported with GPUs",
            r"invalid device ordinal",
        ),
        page="gpu.torch_blind",
    ),
    Rule(
        id="gpu.assertion",
        kind="user",
        what="a check inside a GPU kernel failed on rank {rank}: an index or a label is out of range",
        todo=(
            "labels from 0 to classes-1, token ids below the vocabulary's size; on the CPU the same batch says which",
            "the exact line: orch launch --env CUDA_LAUNCH_BLOCKING=1",
        ),
        signs=(r"device-side assert triggered", r"\.cu:\d+: .*Assertion `.*` failed"),
    ),
    Rule(
        id="gpu.illegal_access",
        kind="user",
        what="a GPU kernel on rank {rank} reached for memory that is not its own",
        todo=(
            "an own or third-party kernel: the exact one with --env CUDA_LAUNCH_BLOCKING=1",
            "on one machine alone, with code that runs elsewhere: the card; orch check-gpus",
        ),
        signs=(r"an illegal memory access was encountered", r"CUDA error: misaligned address"),
    ),
    Rule(
        id="gpu.failed",
        kind="infrastructure",
        what="the GPU of rank {rank} on {node} failed: {error}",
        todo=("orch check-gpus --nodes {node}; journalctl -k -g Xid on {node}", "orch resume {run}"),
        signs=(
            r"CUDA error: (?P<error>unspecified launch failure|unknown error|.*)",
            r"(?P<error>Xid \([^)]*\): \d+.*)",
        ),
        page="gpu.xid",
    ),
)
