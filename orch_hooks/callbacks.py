"""Callbacks for the trainers of other packages, which are imported only where a script asks for one."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

from orch_hooks import functions as hooks


class TransformersMethods:
    """Methods of a `transformers.TrainerCallback`."""

    def __init__(self, trainer: Any = None, sync: str = "auto") -> None:
        """`trainer`: its model's gradients are exchanged by `sync`; None: as the trainer does it."""
        self._trainer, self._sync = trainer, sync
        self._figures: dict[str, float] = {}

    def on_train_begin(self, _args: Any, _state: Any, _control: Any, **_others: Any) -> None:
        if self._trainer is not None and self._trainer.args.world_size > 1:
            hooks.ddp(self._trainer.model_wrapped, self._sync)

    def on_step_end(self, args: Any, state: Any, _control: Any, **_others: Any) -> None:
        samples = args.train_batch_size * args.gradient_accumulation_steps * args.world_size
        hooks.step(state.global_step, samples=samples, total=state.max_steps or None, **self._figures)

    def on_log(self, _args: Any, _state: Any, _control: Any, logs: Any = None, **_others: Any) -> None:
        """Remember the figures for the next steps: they are known only after `on_step_end`."""
        names = {"loss": "loss", "learning_rate": "lr", "grad_norm": "grad_norm"}
        self._figures |= {names[name]: float(value) for name, value in (logs or {}).items() if name in names}

    def on_save(self, args: Any, state: Any, _control: Any, **_others: Any) -> None:
        if state.is_world_process_zero:
            hooks.checkpoint(Path(args.output_dir) / f"checkpoint-{state.global_step}", state.global_step)


class LightningMethods:
    """Methods of a `lightning.pytorch.Callback`."""

    def __init__(self, sync: str = "auto") -> None:
        self._sync = sync
        self._step = 0
        self._total: int | None = None
        """Steps of the whole training; None without a limit."""
        self._registered = ""
        """Checkpoint that was registered last."""

    def on_train_start(self, trainer: Any, _module: Any) -> None:
        if trainer.world_size > 1:
            hooks.ddp(trainer.strategy.model, self._sync)
        steps = trainer.estimated_stepping_batches
        self._total = int(steps) if 0 < steps < math.inf else None
        self._step, self._registered = trainer.global_step, _newest_file(trainer)  # those of a resumed run

    def on_train_batch_start(self, trainer: Any, *_others: Any) -> None:
        self._register(trainer)

    def on_train_batch_end(self, trainer: Any, *_others: Any) -> None:
        if trainer.global_step != self._step:
            self._step = trainer.global_step
            hooks.step(self._step, total=self._total, **dict(trainer.callback_metrics))

    def on_fit_end(self, trainer: Any, _module: Any) -> None:
        self._register(trainer)

    def _register(self, trainer: Any) -> None:
        """Register a new file of the trainer's `ModelCheckpoint`, which writes after other callbacks."""
        path = _newest_file(trainer)
        if path and path != self._registered and trainer.is_global_zero:
            self._registered = path
            hooks.checkpoint(path, trainer.global_step)


def _newest_file(trainer: Any) -> str:
    """Path of the file that a Lightning trainer has written last, as far as it tells; empty: none."""
    written = trainer.checkpoint_callback
    return (written.last_model_path or written.best_model_path) if written else ""


def TransformersCallback() -> type:
    from transformers import TrainerCallback

    return type("TransformersCallback", (TransformersMethods, TrainerCallback), {})


def LightningCallback() -> type:
    from lightning.pytorch import Callback

    return type("LightningCallback", (LightningMethods, Callback), {})
