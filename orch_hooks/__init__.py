"""Hooks for your own training script in a run of `orch`: `import orch_hooks as hooks`; see docs/own-scripts.md.

Outside of a run each function does nothing and returns its argument, so that the same script runs on a laptop.
"""

from __future__ import annotations

from typing import Any

from orch_hooks.functions import active, batch_sampler, checkpoint, ddp, resume, step

__all__ = [
    "LightningCallback",
    "TransformersCallback",
    "active",
    "batch_sampler",
    "checkpoint",
    "ddp",
    "resume",
    "step",
]

LightningCallback: Any
TransformersCallback: Any


def __getattr__(name: str) -> Any:
    """The callbacks are classes of packages that a script need not have."""
    if name in ("LightningCallback", "TransformersCallback"):
        from orch_hooks import callbacks

        return getattr(callbacks, name)()
    raise AttributeError(f"module {__name__} has no attribute {name}")
