"""The words for every signature of `contract.failures`, by its id."""

from __future__ import annotations

from orchestrator.checks.causes import checkpoint, code, gpu, memory, nccl, network, start, storage

ADVICE = {
    advice.id: advice
    for advice in (
        *memory.ADVICE,
        *gpu.ADVICE,
        *nccl.ADVICE,
        *checkpoint.ADVICE,
        *code.ADVICE,
        *start.ADVICE,
        *storage.ADVICE,
        *network.ADVICE,
    )
}
