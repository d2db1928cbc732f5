"""Other systems that classify texts with three heads: transformers' BertModel, in HF Trainer and in a plain loop."""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from typing import Any

from benchmarks.gpt2_peers import native_bf16
from benchmarks.side_by_side import Candidate
from benchmarks.stopwatch import Measured, Stopwatch

LR, BETAS, WEIGHT_DECAY, CLIP = 5e-5, (0.9, 0.999), 0.01, 1.0


class Texts:
    """A map-style dataset of torch: the prepared rows, padded to the full length or, `padded=False`, not yet."""

    def __init__(self, given: argparse.Namespace, *, padded: bool) -> None:
        from trainer.data.manifests import PreparedText
        from trainer.data.text_prepared import Rows

        self._rows = Rows(PreparedText.open(given.data_dir), "train", given.max_length)
        self._padded = padded

    def __len__(self) -> int:
        return len(self._rows)

    def __getitem__(self, number: int) -> dict[str, Any]:
        import numpy as np
        import torch

        length = int(self._rows.lengths[number])
        width = self._rows.max_length if self._padded else length
        return {
            "input_ids": torch.from_numpy(self._rows.take(np.array([number]), width)[0]),
            "attention_mask": (torch.arange(width) < length).long(),
            "labels": torch.from_numpy(self._rows.labels[number]),
        }

    @property
    def lengths(self) -> list[int]:
        return [int(length) for length in self._rows.lengths]


def together(samples: list[dict[str, Any]]) -> dict[str, Any]:
    """A batch padded to its longest text."""
    import torch
    from torch.nn.utils.rnn import pad_sequence

    names = ("input_ids", "attention_mask")
    batch = {name: pad_sequence([sample[name] for sample in samples], batch_first=True) for name in names}
    return {**batch, "labels": torch.stack([sample["labels"] for sample in samples])}


def three_heads(given: argparse.Namespace, *, attention: str = "sdpa", frozen: int = 0) -> Any:
    """Build the original guide's model: BERT, dropout, a linear layer per head, weighted losses, class weights for
    causa."""
    import numpy as np
    import torch
    from torch import nn
    from torch.nn import functional as F
    from transformers import BertConfig, BertModel

    from trainer.data.manifests import PreparedText
    from trainer.data.text_prepared import Rows
    from trainer.models.encoder import EncoderShape

    prepared = PreparedText.open(given.data_dir)
    shape = EncoderShape(**prepared.manifest["shape"])
    heads, weights = prepared.heads, list(prepared.head_weights.values())
    causa = list(heads).index("causa")
    counts = np.bincount(Rows(prepared, "train", 8).labels[:, causa], minlength=len(heads["causa"]))
    balanced = torch.tensor(counts.sum() / (len(counts) * np.maximum(counts, 1)), dtype=torch.float32)
    config = BertConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.width,
        num_hidden_layers=shape.layers,
        num_attention_heads=shape.attention_heads,
        intermediate_size=shape.inner_width,
        attn_implementation=attention,
    )

    class ThreeHeads(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.bert = BertModel(config)
            self.heads = nn.ModuleList(nn.Linear(shape.width, len(names)) for names in heads.values())
            self.register_buffer("balanced", balanced)

        def forward(self, input_ids: Any, attention_mask: Any, labels: Any) -> dict[str, Any]:
            pooled = self.bert(input_ids=input_ids, attention_mask=attention_mask).pooler_output
            pooled = F.dropout(pooled, 0.1, self.training)
            losses = [
                weights[at] * F.cross_entropy(head(pooled), labels[:, at], self.balanced if at == causa else None)
                for at, head in enumerate(self.heads)
            ]
            return {"loss": torch.stack(losses).sum()}

    model = ThreeHeads()
    for part in [model.bert.embeddings, *model.bert.encoder.layer[:frozen]] if frozen else []:
        part.requires_grad_(False)
    return model


def hf_trainer(*, tuned: bool = False, frozen: bool = False) -> Callable[[argparse.Namespace], Measured]:
    """Fixed padding; `tuned`: the options of its performance guides, including texts grouped by length."""

    def measure(given: argparse.Namespace) -> Measured:
        watch = Stopwatch.of(given)
        from transformers import Trainer, TrainerCallback, TrainingArguments

        class Timed(TrainerCallback):  # type: ignore[misc]  # transformers has no types
            def on_step_end(self, _args: Any, state: Any, _control: Any, **_rest: Any) -> None:
                watch.after(state.global_step)

        on_gpu = given.device == "cuda"
        more = {
            "bf16": native_bf16(given), "optim": "adamw_torch_fused", "train_sampling_strategy": "group_by_length",
            "tf32": True if on_gpu else None, "dataloader_pin_memory": on_gpu,
            "torch_compile": on_gpu, "dataloader_num_workers": 4 if on_gpu else 0,
        }  # fmt: skip
        with tempfile.TemporaryDirectory() as folder:
            arguments = TrainingArguments(
                folder,
                per_device_train_batch_size=given.batch_size,
                max_steps=watch.last,
                learning_rate=LR,
                lr_scheduler_type="constant",
                weight_decay=WEIGHT_DECAY,
                adam_beta1=BETAS[0],
                adam_beta2=BETAS[1],
                max_grad_norm=CLIP,
                save_strategy="no",
                report_to="none",
                use_cpu=not on_gpu,
                **(more if tuned else {}),
            )
            model = three_heads(given, frozen=given.freeze_layers if frozen else 0)
            texts = Texts(given, padded=not tuned)
            done = Trainer(model, arguments, train_dataset=texts, data_collator=together, callbacks=[Timed()]).train()
        return watch.measured(given.batch_size, "texts", loss=float(done.training_loss))

    return measure


def plain(given: argparse.Namespace) -> Measured:
    """The original guide's script: float32, all padded, explicit attention, the loss read in each step."""
    watch = Stopwatch.of(given)
    import torch
    from torch.utils.data import DataLoader

    model = three_heads(given, attention="eager").to(given.device).train()
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, betas=BETAS, weight_decay=WEIGHT_DECAY)
    loader = DataLoader(Texts(given, padded=True), given.batch_size, shuffle=True)  # type: ignore[arg-type]  # has what a dataset needs
    step = 0
    while True:
        for batch in loader:
            step += 1
            optimizer.zero_grad()
            loss = model(**{name: part.to(given.device) for name, part in batch.items()})["loss"]
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
            optimizer.step()
            last = loss.item()
            if watch.after(step):
                return watch.measured(given.batch_size, "texts", loss=last)


HF = ("transformers", "accelerate")
CONTESTANTS = (
    Candidate(
        name="plain",
        measure=plain,
        needs=("transformers",),
        note="a simple script: padded, float32, eager",
    ),
    Candidate(
        name="hf-trainer",
        measure=hf_trainer(),
        needs=HF,
        note="all padded to --max-length, float32, our optimizer settings; its loss: the mean of all steps",
    ),
    Candidate(
        name="hf-trainer-tuned",
        measure=hf_trainer(tuned=True),
        needs=HF,
        note="texts grouped by length, bf16 where it is native, fused AdamW; on CUDA TF32, torch_compile, workers",
    ),
    Candidate(
        name="hf-trainer-frozen",
        measure=hf_trainer(frozen=True),
        needs=HF,
        note="like hf-trainer, with lower layers frozen",
    ),
)
