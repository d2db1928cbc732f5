"""Other systems that train GPT-2, each according to its documentation, with transformers' GPT2LMHeadModel."""

from __future__ import annotations

import argparse
import json
import tempfile
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from benchmarks.arithmetic import utilisation
from benchmarks.side_by_side import Candidate
from benchmarks.stopwatch import Measured, Stopwatch

if TYPE_CHECKING:
    from trainer.models.gpt2 import Gpt2Shape

LR, BETAS, WEIGHT_DECAY, CLIP = 6e-4, (0.9, 0.95), 0.1, 1.0


def shape_of(given: argparse.Namespace) -> Gpt2Shape:
    from trainer.models.gpt2 import Gpt2Shape
    from trainer.workloads.gpt2 import PRESETS

    preset = PRESETS[given.preset]
    manifest = json.loads((given.data_dir / "manifest.json").read_text())
    return Gpt2Shape(
        layers=preset.layers,
        heads=preset.heads,
        width=preset.width,
        seq_len=given.seq_len,
        vocab_size=manifest["vocab_size"],
    )


def limit_memory(given: argparse.Namespace) -> None:
    """Limit the GPU memory: larger allocations fail as on a GPU of this size."""
    if given.memory_gib:
        import torch

        total = torch.cuda.get_device_properties(0).total_memory
        torch.cuda.set_per_process_memory_fraction(min(1.0, given.memory_gib * 2**30 / total))


def with_more(measured: Measured, more: Mapping[str, float | str]) -> Measured:
    return replace(measured, more={**measured.more, **more})


# ── The work, shared by all ─────────────────────────────────────────────────────────────────────


class Tokens:
    """A map-style dataset of torch: windows of the prepared tokens, in order."""

    def __init__(self, given: argparse.Namespace) -> None:
        import numpy as np

        manifest = json.loads((given.data_dir / "manifest.json").read_text())
        (shard, *_) = manifest["splits"]["train"]["shards"]
        dtype = np.dtype("<u2") if manifest["vocab_size"] <= 1 << 16 else np.dtype("<u4")
        self.tokens = np.memmap(given.data_dir / shard["file"], dtype, "r")
        self._length = given.seq_len

    def __len__(self) -> int:
        return len(self.tokens) // self._length

    def __getitem__(self, number: int) -> dict[str, Any]:
        import torch

        window = self.tokens[number * self._length : (number + 1) * self._length]
        tokens = torch.from_numpy(window.astype("int64"))
        return {"input_ids": tokens, "labels": tokens}


def hf_model(given: argparse.Namespace, *, dropout: bool, attention: str = "sdpa") -> Any:
    from transformers import GPT2Config, GPT2LMHeadModel

    shape = shape_of(given)
    none = {} if dropout else {"resid_pdrop": 0.0, "embd_pdrop": 0.0, "attn_pdrop": 0.0}
    config = GPT2Config(
        vocab_size=shape.vocab_size,
        n_positions=shape.seq_len,
        n_embd=shape.width,
        n_layer=shape.layers,
        n_head=shape.heads,
        bos_token_id=0,
        eos_token_id=0,
        attn_implementation=attention,
        **none,
    )
    return GPT2LMHeadModel(config)


def native_bf16(given: argparse.Namespace) -> bool:
    """Return whether bfloat16 is faster than float32 on this machine."""
    if given.device == "cuda":
        import torch

        return bool(torch.cuda.is_bf16_supported(including_emulation=False))
    from benchmarks.side_by_side import host

    return host()["native bf16"] != "no"


def result(given: argparse.Namespace, watch: Stopwatch, loss: float, micro_batch: int = 0) -> Measured:
    """`micro_batch`: sequences in one forward pass; 0: the whole batch."""
    measured = watch.measured(given.batch_size * given.seq_len, "tokens", loss=loss)
    more = utilisation(measured.units_per_s * shape_of(given).flops_per_token)
    return with_more(measured, {**more, "micro-batch": float(micro_batch or given.batch_size)})


# ── HF Trainer ────────────────────────────────────────────────────────────────────────────────────


def hf_trainer(kind: str) -> Callable[[argparse.Namespace], Measured]:
    """`shipped`: its defaults. `equal`: our optimizer's settings, no dropout. `tuned`: in addition, what its
    performance guide for one GPU enables."""

    def measure(given: argparse.Namespace) -> Measured:
        limit_memory(given)
        watch = Stopwatch.of(given)
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Timed(TrainerCallback):  # type: ignore[misc]  # transformers has no types
            def on_step_end(self, _args: Any, state: Any, _control: Any, **_rest: Any) -> None:
                watch.after(state.global_step)

        equal = {
            "learning_rate": LR, "lr_scheduler_type": "constant", "weight_decay": WEIGHT_DECAY,
            "adam_beta1": BETAS[0], "adam_beta2": BETAS[1], "max_grad_norm": CLIP,
        }  # fmt: skip
        on_gpu = given.device == "cuda"
        tuned = {
            "bf16": native_bf16(given), "tf32": True if on_gpu else None, "optim": "adamw_torch_fused",
            "torch_compile": on_gpu, "dataloader_num_workers": 4 if on_gpu else 0, "dataloader_pin_memory": on_gpu,
        }  # fmt: skip
        own = {"shipped": {}, "equal": equal, "tuned": equal | tuned}[kind]
        model = hf_model(given, dropout=kind == "shipped")
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=given.batch_size,
                max_steps=watch.last,
                save_strategy="no",
                report_to="none",
                use_cpu=not on_gpu,
                **own,
            )
            done = Trainer(model, arguments, train_dataset=Tokens(given), callbacks=[Timed()]).train()
        return result(given, watch, float(done.training_loss))

    return measure


# ── Lightning ─────────────────────────────────────────────────────────────────────────────────────


def lightning(kind: str) -> Callable[[argparse.Namespace], Measured]:
    def measure(given: argparse.Namespace) -> Measured:
        limit_memory(given)
        watch = Stopwatch.of(given)
        import lightning as L
        import torch
        from torch.utils.data import DataLoader

        tuned, on_gpu = kind == "tuned", given.device == "cuda"

        class Gpt2(L.LightningModule):  # type: ignore[misc]  # it has no types
            def __init__(self) -> None:
                super().__init__()
                model = hf_model(given, dropout=not tuned)
                self.model = torch.compile(model) if tuned and on_gpu else model
                self.loss = float("nan")

            def training_step(self, batch: dict[str, Any], _number: int) -> Any:
                return self.model(**batch).loss

            def configure_optimizers(self) -> Any:
                how = {"fused": True} if tuned else {}
                return torch.optim.AdamW(self.parameters(), lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY, **how)

            def configure_gradient_clipping(self, _optimizer: Any, **_value: Any) -> None:
                # Lightning refuses to clip for a fused optimizer under autocast, since with a scaler gradients would
                # be scaled still; bfloat16 has no scaler.
                torch.nn.utils.clip_grad_norm_(self.parameters(), CLIP)

            def on_train_batch_end(self, outputs: Any, _batch: Any, _number: int) -> None:
                if watch.after(self.trainer.global_step):
                    self.loss = float(outputs["loss"])

        if tuned:
            torch.set_float32_matmul_precision("high")
        module = Gpt2()
        workers = 4 if tuned and on_gpu else 0
        loader = DataLoader(
            Tokens(given),  # type: ignore[arg-type]  # has what a dataset needs
            given.batch_size, shuffle=True, num_workers=workers, pin_memory=tuned and on_gpu,
        )  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            trainer = L.Trainer(
                accelerator="gpu" if on_gpu else "cpu",
                devices=1,
                max_steps=watch.last,
                precision="bf16-mixed" if tuned and native_bf16(given) else "32-true",
                gradient_clip_val=CLIP,
                logger=False,
                enable_checkpointing=False,
                default_root_dir=folder,
            )
            trainer.fit(module, loader)
        return result(given, watch, module.loss)

    return measure


# ── Plain loops ───────────────────────────────────────────────────────────────────────────────────


def plain(given: argparse.Namespace) -> Measured:
    """A simple script: float32, explicit attention, the usual dropout, the loss read in each step."""
    limit_memory(given)
    watch = Stopwatch.of(given)
    import torch
    from torch.utils.data import DataLoader

    model = hf_model(given, dropout=True, attention="eager").to(given.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY)
    loader = DataLoader(Tokens(given), given.batch_size, shuffle=True)  # type: ignore[arg-type]  # has what a dataset needs
    for step, batch in enumerate(loader, start=1):
        loss = model(**{name: part.to(given.device) for name, part in batch.items()}).loss
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        last = loss.item()
        if watch.after(step):
            break
    return result(given, watch, last)


def plain_tuned(given: argparse.Namespace) -> Measured:
    """The same, optimized: autocast, SDPA, fused AdamW, no dropout, no synchronization; compiled on CUDA."""
    limit_memory(given)
    watch = Stopwatch.of(given)
    import torch
    from torch.utils.data import DataLoader

    on_gpu = given.device == "cuda"
    torch.set_float32_matmul_precision("high")
    model = hf_model(given, dropout=False).to(given.device).train()
    compiled = torch.compile(model) if on_gpu else model
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY, fused=True)
    loader = DataLoader(Tokens(given), given.batch_size, shuffle=True, pin_memory=on_gpu)  # type: ignore[arg-type]  # has what a dataset needs
    for step, batch in enumerate(loader, start=1):
        there = {name: part.to(given.device, non_blocking=True) for name, part in batch.items()}
        with torch.autocast(given.device, torch.bfloat16, enabled=native_bf16(given)):
            loss = compiled(**there).loss
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        if watch.after(step):
            break
    return result(given, watch, loss.item())


# ── nanoGPT ───────────────────────────────────────────────────────────────────────────────────────


def nanogpt(given: argparse.Namespace) -> Measured:
    """A model and a loop as nanoGPT's (github.com/karpathy/nanoGPT, MIT): vocabulary padded to a multiple of 64, no
    biases, compiled whole with its loss, fused AdamW, the next batch copied while the device computes."""
    limit_memory(given)
    watch = Stopwatch.of(given)
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional as F

    shape, on_gpu = shape_of(given), given.device == "cuda"
    heads, width, length = shape.heads, shape.width, shape.seq_len

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.before_attention, self.before_mlp = (nn.LayerNorm(width, bias=False) for _ in range(2))
            self.qkv, self.proj = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.up, self.down = nn.Linear(width, 4 * width, bias=False), nn.Linear(4 * width, width, bias=False)

        def forward(self, x: Any) -> Any:
            q, k, v = (
                part.view(*x.shape[:2], heads, width // heads).transpose(1, 2)
                for part in self.qkv(self.before_attention(x)).split(width, dim=2)
            )
            mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
            x = x + self.proj(mixed.transpose(1, 2).contiguous().view(x.shape))
            return x + self.down(F.gelu(self.up(self.before_mlp(x))))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.tokens = nn.Embedding(-(-shape.vocab_size // 64) * 64, width)
            self.positions = nn.Embedding(length, width)
            self.blocks = nn.ModuleList(Block() for _ in range(shape.layers))
            self.norm = nn.LayerNorm(width, bias=False)
            self.head = nn.Linear(width, self.tokens.num_embeddings, bias=False)
            self.head.weight = self.tokens.weight
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens: Any, following: Any) -> Any:
            x = self.tokens(tokens) + self.positions(torch.arange(length, device=tokens.device))
            for block in self.blocks:
                x = block(x)
            scores = self.head(self.norm(x))
            return F.cross_entropy(scores.view(-1, scores.size(-1)), following.view(-1))

    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = True
    data, chance = Tokens(given).tokens, np.random.default_rng(1)

    def batch() -> tuple[Any, Any]:
        starts = chance.integers(len(data) - length - 1, size=given.batch_size)
        rows = torch.from_numpy(np.stack([data[at : at + length + 1] for at in starts]).astype(np.int64))
        parts = rows[:, :-1].contiguous(), rows[:, 1:].contiguous()
        if not on_gpu:
            return parts
        x, y = (part.pin_memory().to("cuda", non_blocking=True) for part in parts)
        return x, y

    model = Model().to(given.device)
    matrices, vectors = ([p for p in model.parameters() if (p.dim() > 1) is two] for two in (True, False))
    groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
    optimizer = torch.optim.AdamW(groups, lr=LR, betas=BETAS, fused=True)
    compiled = torch.compile(model) if on_gpu else model
    there, step, done = batch(), 0, False
    while not done:
        with torch.autocast(given.device, torch.bfloat16, enabled=native_bf16(given)):
            loss = compiled(*there)
        there = batch()
        loss.backward()
        nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad(set_to_none=True)
        step += 1
        done = watch.after(step)
    return result(given, watch, loss.item())


HF = ("transformers", "accelerate")
CONTESTANTS = (
    Candidate(
        name="hf-trainer",
        measure=hf_trainer("shipped"),
        needs=HF,
        note="TrainingArguments' defaults; its loss: the mean of all steps",
    ),
    Candidate(
        name="hf-trainer-equal",
        measure=hf_trainer("equal"),
        needs=HF,
        note="float32, no dropout, our optimizer settings: what ours-fp32 does",
    ),
    Candidate(
        name="hf-trainer-tuned",
        measure=hf_trainer("tuned"),
        needs=HF,
        note="bf16 where it is native, fused AdamW, SDPA; on CUDA TF32, torch_compile, workers, pinned memory",
    ),
    Candidate(
        name="lightning",
        measure=lightning("shipped"),
        needs=("lightning", "transformers"),
        note="Trainer's defaults, AdamW, clipping",
    ),
    Candidate(
        name="lightning-tuned",
        measure=lightning("tuned"),
        needs=("lightning", "transformers"),
        note="bf16-mixed where it is native, fused AdamW, no dropout; on CUDA TF32, torch.compile, workers",
    ),
    Candidate(name="plain", measure=plain, needs=("transformers",), note="a simple script, as in the original guide"),
    Candidate(
        name="plain-tuned",
        measure=plain_tuned,
        needs=("transformers",),
        note="a hand-written loop with all optimizations",
    ),
    Candidate(
        name="nanogpt-like",
        measure=nanogpt,
        note="its own model without biases, 50,304 rows, compiled whole on CUDA, fused AdamW",
    ),
)
