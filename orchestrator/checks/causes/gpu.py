"""Causes: a GPU, its driver and its memory."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Advice

ADVICE = (
    Advice(
        id="gpu.lost",
        what="{node} lost a GPU: it no longer answers on the bus",
        todo=(
            "reboot {node}, then orch check-gpus; if it comes back: power, heat, seat of the card",
            "until then: orch resume {run} --nodes … without it",
        ),
        page="gpu.lost",
    ),
    Advice(
        id="gpu.ecc",
        what="a GPU of {node} has memory that fails (an uncorrectable ECC error)",
        todo=("reboot {node}; if it comes back, the card is to be replaced: nvidia-smi -q -d ECC", "orch check-gpus"),
        page="gpu.ecc_uncorrected",
    ),
    Advice(
        id="gpu.no_driver",
        what="{node} has no NVIDIA driver that its containers could use: libraries of the driver are missing there",
        todo=(
            "on {node}: nvidia-smi must answer; install the driver or the NVIDIA container toolkit: orch check-gpus",
            "or train there on the CPU: device: cpu in inventory.yaml",
        ),
        launch_again=True,
        page="gpu.driver_not_loaded",
    ),
    Advice(
        id="gpu.busy",
        what="the GPU of rank {rank} on {node} is held by another process, or in exclusive mode",
        todo=("which process: orch check-gpus --nodes {node}; nvidia-smi -q -d COMPUTE on {node}", "orch resume {run}"),
        page="gpu.memory_held",
    ),
    Advice(
        id="gpu.forked",
        what="rank {rank} used CUDA in a forked process, for instance in a DataLoader worker",
        todo=("move tensors to the GPU in the main process only, or multiprocessing_context='spawn'",),
    ),
    Advice(
        id="gpu.library",
        what="{library} could not start on the GPU of rank {rank} on {node}: most often the GPU's memory is full",
        todo=(
            "a smaller batch: --micro-batch-size; is another process on the card? orch check-gpus --nodes {node}",
            "the exact line: orch launch --env CUDA_LAUNCH_BLOCKING=1",
        ),
        page="gpu.memory_held",
    ),
    Advice(
        id="gpu.nvml",
        what="the container on {node} lost its GPUs while it ran: `systemctl daemon-reload` on the host does that",
        todo=(
            "orch resume {run}: a new container has them again",
            "to prevent it on {node}: orch explain gpu.lost_in_run",
        ),
        page="gpu.lost_in_run",
    ),
    Advice(
        id="gpu.memory",
        what="the GPU of rank {rank} on {node} has too little memory for this batch",
        todo=(
            "a smaller micro-batch, the same batch by accumulation: --micro-batch-size N, or auto; --precision bf16",
            "is another program on the card? orch check-gpus",
        ),
        page="gpu.memory_held",
    ),
    Advice(
        id="gpu.driver_old",
        what="the NVIDIA driver of {node} is too old for the image's CUDA",
        todo=(
            "a newer driver on {node}: orch explain gpu.driver_too_old says which",
            "or an image with an older CUDA: orch build",
        ),
        page="gpu.driver_too_old",
    ),
    Advice(
        id="gpu.too_new_or_old",
        what="the torch of the image was not built for the GPU of {node}",
        todo=(
            "an image with a CUDA that knows this card: orch explain gpu.arch_not_in_image",
            "or train there on the CPU: device: cpu",
        ),
        page="gpu.arch_not_in_image",
    ),
    Advice(
        id="gpu.none",
        what="rank {rank} on {node} finds no GPU",
        todo=(
            "orch check-gpus --nodes {node}",
            "or train there on the CPU: device: cpu in inventory.yaml, --backend gloo",
        ),
        page="gpu.torch_blind",
    ),
    Advice(
        id="gpu.assertion",
        what="a check inside a GPU kernel failed on rank {rank}: an index or a label is out of range",
        todo=(
            "labels from 0 to classes-1, token ids below the vocabulary's size; on the CPU the same batch says which",
            "the exact line: orch launch --env CUDA_LAUNCH_BLOCKING=1",
        ),
    ),
    Advice(
        id="gpu.illegal_access",
        what="a GPU kernel on rank {rank} reached for memory that is not its own",
        todo=(
            "an own or third-party kernel: the exact one with --env CUDA_LAUNCH_BLOCKING=1",
            "on one machine alone, with code that runs elsewhere: the card; orch check-gpus",
        ),
    ),
    Advice(
        id="gpu.failed",
        what="the GPU of rank {rank} on {node} failed: {error}",
        todo=("orch check-gpus --nodes {node}; journalctl -k -g Xid on {node}", "orch resume {run}"),
        page="gpu.xid",
    ),
)
