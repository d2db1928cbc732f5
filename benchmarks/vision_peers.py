"""Other systems that train image classifiers: a simple script, and timm with its own training recipe."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from benchmarks.gpt2_peers import native_bf16
from benchmarks.pictures import CLASSES
from benchmarks.side_by_side import Candidate
from benchmarks.stopwatch import Measured, Stopwatch

LR, CLIP = 1e-3, 1.0
MEAN, STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)


# ── A simple script ────────────────────────────────────────────────────────────────────────────────


@dataclass(frozen=True)
class Folder:
    """A map-style dataset of torch that processes image by image in float32, as in the original guide."""

    files: list[Path]
    side: int

    def __len__(self) -> int:
        return len(self.files)

    def __getitem__(self, number: int) -> tuple[Any, int]:
        import numpy as np
        import torch
        from PIL import Image

        file = self.files[number]
        stored = round(1.15 * self.side)
        with Image.open(file) as opened:
            picture = opened.convert("RGB").resize((stored, stored), Image.Resampling.BILINEAR)
        top, left, mirror = (int(torch.randint(n, ())) for n in (stored - self.side, stored - self.side, 2))
        view = np.asarray(picture, np.float32)[top : top + self.side, left : left + self.side]
        view = view[:, ::-1] if mirror else view
        normal = (view / 255 - np.array(MEAN, np.float32)) / np.array(STD, np.float32)
        return torch.from_numpy(normal.transpose(2, 0, 1).copy()), int(file.parent.name.rpartition("-")[2])


def naive(given: argparse.Namespace) -> Measured:
    """float32, NCHW, not compiled, loaded in the training process, the loss read in each step."""
    watch = Stopwatch.of(given)
    import torch
    from torch.utils.data import DataLoader

    from trainer.models.resnet import SHAPES, ResNet

    files = sorted(given.images.rglob("*.jpg"))[: given.batch_size * given.warmup]
    loader = DataLoader(Folder(files, given.image_size), given.batch_size, shuffle=True)  # type: ignore[arg-type]  # has what a dataset needs
    model = ResNet(SHAPES[given.model], 3, CLASSES).to(given.device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=LR, weight_decay=1e-4)

    def step(pictures: Any, labels: Any) -> float:
        loss = torch.nn.functional.cross_entropy(model(pictures.to(given.device)), labels.to(given.device))
        optimizer.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        return loss.item()

    loss = over_epochs(watch, loader, step)
    return watch.measured(given.batch_size, "images", loss=loss)


def over_epochs(watch: Stopwatch, loader: Any, step: Callable[[Any, Any], float]) -> float:
    """Train epochs until the watch is done; return the last loss."""
    number = 0
    while True:
        for pictures, labels in loader:
            loss = step(pictures, labels)
            number += 1
            if watch.after(number):
                return float(loss)


# ── timm ──────────────────────────────────────────────────────────────────────────────────────────


def timm_recipe(given: argparse.Namespace) -> Measured:
    """Train as `train.py --amp --channels-last --torchcompile` does: timm's model, loader with prefetcher and workers,
    optimizer; its random resized crops and mirroring, its other augmentation off."""
    watch = Stopwatch.of(given)
    import timm
    import torch
    from timm.data import create_dataset, create_loader
    from timm.optim import create_optimizer_v2

    on_gpu = given.device == "cuda"
    torch.backends.cudnn.benchmark = True
    torch.backends.cuda.matmul.allow_tf32 = True  # timm's train.py does
    dataset = create_dataset("", root=str(given.images), split="train", is_training=True, class_map="")
    loader = create_loader(
        dataset,
        input_size=(3, given.image_size, given.image_size),
        batch_size=given.batch_size,
        is_training=True,
        use_prefetcher=True,
        no_aug=False,
        color_jitter=0.0,
        hflip=0.5,
        mean=MEAN,
        std=STD,
        num_workers=given.workers,
        pin_memory=on_gpu,
        device=torch.device(given.device),
    )
    model = timm.create_model(given.model, num_classes=CLASSES).to(given.device, memory_format=torch.channels_last)
    optimizer = create_optimizer_v2(model, opt="adamw", lr=LR, weight_decay=1e-4)
    compiled = model if given.quick else torch.compile(model)
    criterion = torch.nn.CrossEntropyLoss()
    amp = native_bf16(given)

    def step(pictures: Any, labels: Any) -> Any:
        pictures = pictures.to(given.device).contiguous(memory_format=torch.channels_last)
        with torch.autocast(given.device, torch.bfloat16, enabled=amp):
            loss = criterion(compiled(pictures), labels.to(given.device))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), CLIP)
        optimizer.step()
        optimizer.zero_grad()
        return loss.detach()

    loss = over_epochs(watch, loader, step)
    return watch.measured(given.batch_size, "images", loss=loss)


CONTESTANTS = (
    Candidate(
        name="naive",
        measure=naive,
        needs=("PIL",),
        note="a simple script with the same model: the original guide's baseline",
    ),
    Candidate(
        name="timm",
        measure=timm_recipe,
        needs=("timm", "torchvision"),
        note="its recipe: AMP (bf16 where it is native), channels_last, torch.compile, its loader and workers",
    ),
)
