"""A measurement of three machines, as a trainer tells it: gamma on a link that is ten times slower."""

from __future__ import annotations

from typing import Any

from tests.unit.conftest import THREE

RATE = 117e6
COMMAND = ("gpt2", "--batch-size", "2")


def measured(**changes: Any) -> dict[str, Any]:
    """The values of a `measured` event; `changes` go before them."""
    cost = {"codec_s_per_parameter": 0.0, "collectives": 2, "every": 1, "overlap": 0.0, "pattern": "ring"}
    return {
        "nodes": [
            {"node": name, "rank": rank, "sample_s": 0.02 * (rank + 1), "step_s": 0.001, "upload": link,
             "download": link, "micro_batch": 2}
            for rank, (name, link) in enumerate(zip(THREE, (RATE, RATE, RATE / 10), strict=True))
        ],
        "around": [
            {"loaded_per_s": 4000.0, "memory_peak": 2.0 * 2**30, "memory_limit": 4.0 * 2**30, "gpu_peak": 0.0,
             "gpu_memory": 0.0, "disk_write": 250e6, "disk_read": 500e6}
        ] * 3,
        "links": [[0, RATE, RATE / 10], [RATE, 0, RATE / 10], [RATE / 10, RATE / 10, 0]],
        "samples_per_step": 60, "samples_per_epoch": 6000, "units_per_sample": 128, "unit": "tokens",
        "parameters": 1_000_000, "latency_s": 0.0004,
        "costs": [
            {**cost, "sync": "fp32", "bytes_per_parameter": 4.0, "efficiency": 0.9, "proven": True},
            {**cost, "sync": "int8", "bytes_per_parameter": 1.02, "efficiency": 0.8, "proven": True},
            {**cost, "sync": "int2", "bytes_per_parameter": 0.27, "efficiency": 0.8, "proven": False},
        ],
        **changes,
    }  # fmt: skip
