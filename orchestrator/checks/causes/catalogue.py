"""All rules, from the particular to the general: the first that finds a sign gives the cause."""

from __future__ import annotations

from orchestrator.checks.causes import checkpoint, code, gpu, memory, nccl, network, start, storage

RULES = (
    *memory.RULES,
    *gpu.RULES,
    *nccl.RULES,
    *checkpoint.RULES,
    *code.RULES,
    *start.RULES,
    *storage.RULES,
    *network.RULES,
    *code.GENERAL,
)
