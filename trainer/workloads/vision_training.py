"""The vision workload as the engine sees it: model, pictures, loss and measures wired together."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path

import numpy as np
import torch
from torch import Tensor, nn
from torch.utils.flop_counter import FlopCounterMode

from trainer.config import RankInfo, TrainOptions
from trainer.data import image_cache, image_store
from trainer.data.augment import Augmentation, Images, middle, partners
from trainer.data.batch import Batch, BatchRequest
from trainer.data.files import write_atomic
from trainer.data.images import Frame, from_folder
from trainer.data.order import Indices, Shuffled, uniform
from trainer.data.randaugment import RandAugment
from trainer.engine.workload import Outputs, Workload
from trainer.errors import OptionError
from trainer.models.classification_loss import ClassificationLoss, balanced, soft_labels
from trainer.models.classifier import Classifier, ClassifierShape, build
from trainer.workloads import vision_metrics
from trainer.workloads.vision_options import ROOM, VisionOptions

USUAL_MEAN, USUAL_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
"""Mean and standard deviation of ImageNet, for a folder of pictures that was not prepared."""


@dataclass(frozen=True, kw_only=True)
class Pictures:
    """Both splits, and what one must know of them to use a model elsewhere."""

    splits: Mapping[str, Images]
    classes: tuple[str, ...]
    frame: Frame
    mean: tuple[float, ...]
    std: tuple[float, ...]
    content: str
    labels: Indices
    """Labels of all images to train with, on whatever node they are."""

    def about(self) -> bytes:
        values = {"classes": self.classes, "frame": asdict(self.frame), "mean": self.mean, "std": self.std}
        return json.dumps(values, indent=2, ensure_ascii=False).encode()


def open_pictures(options: TrainOptions, choices: VisionOptions, size: int | None, place: RankInfo) -> Pictures:
    """Open prepared pictures, or those of a folder. `size`: crop that the user gave."""
    if choices.images is None:
        data = image_store.PreparedImages.open(options.data_dir)
        frame = Frame(**{**asdict(data.frame), **({"crop": size} if size else {})})
        stored = {split: image_store.StoredImages(data, split) for split in data.manifest["splits"]}
        return Pictures(
            splits=stored,
            labels=stored["train"].all_labels,
            classes=data.classes,
            frame=frame,
            mean=tuple(data.manifest["mean"]),
            std=tuple(data.manifest["std"]),
            content=data.content,
        )
    gallery = from_folder(choices.images)
    crop = size or choices.image_size
    frame = Frame(stored=round(ROOM * crop), crop=crop, channels=1 if choices.grey else 3)
    if choices.cache_mib is None:
        budget = image_cache.default_budget(place.local_world_size)
    else:
        budget = choices.cache_mib * image_cache.MIB
    splits: dict[str, Images] = {}
    for name, split in gallery.splits.items():
        splits[name] = cached = image_cache.CachedImages(split, frame, budget)
        budget -= cached.bytes
        if place.rank == 0:
            print(f"{name}: {len(split)} images, {cached.in_memory} of them kept in memory ({cached.bytes >> 20} MiB)")
    return Pictures(
        splits=splits,
        labels=gallery.splits["train"].labels,
        classes=gallery.classes,
        frame=frame,
        mean=USUAL_MEAN if frame.channels == 3 else (sum(USUAL_MEAN) / 3,),
        std=USUAL_STD if frame.channels == 3 else (sum(USUAL_STD) / 3,),
        content=gallery.content,
    )


class Vision(Workload):
    name = "vision"
    unit = "images"
    same_shapes = True

    def __init__(self, options: TrainOptions, choices: VisionOptions, pictures: Pictures, place: RankInfo) -> None:
        frame, classes = pictures.frame, pictures.classes
        self._pictures, self._classes, self._seed = pictures.splits, classes, options.seed
        self._augmentation = augmentation(choices, frame)
        counts = np.bincount(pictures.labels, minlength=len(classes)).tolist()
        self._loss = ClassificationLoss(
            smoothing=choices.label_smoothing,
            gamma=choices.focal_loss,
            weights=balanced(counts) if choices.class_weights == "balanced" else None,
        )
        shape = ClassifierShape(
            model=choices.model, image_size=frame.crop, channels=frame.channels, classes=len(classes)
        )
        network = build(shape, checkpointing=choices.gradient_checkpointing, pretrained=choices.pretrained)
        self._shape = (frame.channels, frame.crop, frame.crop)
        self.memory_format = torch.channels_last if choices.channels_last else torch.contiguous_format
        self.model = in_memory(Classifier(network, pictures.mean, pictures.std), self.memory_format)
        self.train_samples, here = len(pictures.labels), len(pictures.splits["train"])
        self.held_samples = here if here < self.train_samples else None
        self.validation_samples = len(pictures.splits["validation"])
        self._order = Shuffled(self.samples_here, options.seed)
        about = pictures.about()
        self.identity = {
            "workload": self.name,
            **asdict(shape),
            "classes_sha256": hashlib.sha256(about).hexdigest(),
            "data_sha256": pictures.content,
        }
        if place.rank == 0:
            options.run_dir.mkdir(parents=True, exist_ok=True)
            write_atomic(options.run_dir / "classes.json", about)
        self.attachments = {"classes.json": options.run_dir / "classes.json"}

    def flops_per_unit(self) -> float:
        """Three times the operations of a forward pass, as torch counts them: a backward pass has two for each."""
        weight = next(self.model.parameters())
        picture = torch.zeros(1, *self._shape, device=weight.device).contiguous(memory_format=self.memory_format)
        was_training = self.model.training
        with torch.no_grad(), FlopCounterMode(display=False) as counter:
            self.model.eval()(picture)
        self.model.train(was_training)
        return 3.0 * float(counter.get_total_flops())

    # ── From samples to a loss ────────────────────────────────────────────────────────────────────

    def batch(self, request: BatchRequest) -> Batch:
        """Pixels as bytes, a fourth of what floats would weigh; what else chance does to them, the device computes.
        With mixup, each sample's weight and its partner's row come first; partners from elsewhere are the last rows."""
        images, indices = self._pictures[request.split], request.indices
        if request.split != "train":
            return torch.from_numpy(middle(images, indices, self._augmentation.crop)), self._labels(images, indices)
        if not self._augmentation.mixup:
            return self._drawn(images, indices, request.positions)
        # Of a picture that is in this batch itself, the partner is there already: read, cropped and augmented once.
        positions = partners(request.positions, self.samples_here)
        outside = np.setdiff1d(positions, request.positions)
        everywhere = np.concatenate([request.positions, outside])
        indices = np.concatenate([indices, *(self._order.take(int(position), 1) for position in outside)])
        by_position = np.argsort(everywhere, kind="stable")
        rows = by_position[np.searchsorted(everywhere, positions, sorter=by_position)]
        chance = uniform(self._seed, request.positions, self._augmentation.columns)
        own_weight = torch.from_numpy(self._augmentation.weights(chance))
        return own_weight, torch.from_numpy(rows), *self._drawn(images, indices, everywhere)

    def _drawn(self, images: Images, indices: Indices, positions: Indices) -> Batch:
        chance = uniform(self._seed, positions, self._augmentation.columns)
        views = torch.from_numpy(self._augmentation.views(images, indices, chance))
        rounded = chance.astype(np.float32)
        return views, self._labels(images, indices), torch.from_numpy(rounded), *self._augmentation.plan(rounded)

    def loss_sums(self, model: nn.Module, batch: Batch) -> Tensor:
        pictures, target = self.seen(batch)
        return self._loss(model(pictures), target)[None]

    @torch.no_grad()
    def seen(self, batch: Batch) -> tuple[Tensor, Tensor]:
        """Augment a batch for training: pictures from 0 to 255, and soft labels, (n, classes)."""
        # Positions of pixels need more than the 8 bits that bfloat16 has.
        with torch.autocast(batch[0].device.type, enabled=False):
            mixes = self._augmentation.mixup > 0
            pictures, target = self._augmented(*batch[2 if mixes else 0 :])
            if mixes:
                weight, rows = batch[:2]
                own = len(weight)
                pictures = torch.lerp(pictures[rows], pictures[:own], weight[:, None, None, None])
                target = torch.lerp(target[rows], target[:own], weight[:, None])
            return pictures.contiguous(memory_format=self.memory_format), target

    def _augmented(self, views: Tensor, labels: Tensor, chance: Tensor, *plan: Tensor) -> tuple[Tensor, Tensor]:
        return self._augmentation.on_device(planes(views), chance, plan), soft_labels(labels, len(self._classes))

    def _labels(self, images: Images, indices: Indices) -> Tensor:
        return torch.from_numpy(images.labels[indices])

    # ── Validation ────────────────────────────────────────────────────────────────────────────────

    def evaluate_batch(self, model: nn.Module, batch: Batch) -> tuple[Tensor, Tensor]:
        """Evaluate by plain cross entropy, whatever the training loss, so that runs can be compared."""
        views, labels = batch
        logits = model(planes(views).contiguous(memory_format=self.memory_format)).float()
        loss = nn.functional.cross_entropy(logits, labels, reduction="sum")
        return loss[None], vision_metrics.outputs_of(logits, labels)

    def metrics(self, losses: Mapping[str, float], outputs: Outputs, indices: Indices) -> dict[str, float]:
        return vision_metrics.figures(outputs, len(self._classes))

    def save_report(self, outputs: Outputs, indices: Indices, folder: Path) -> list[Path]:
        return vision_metrics.write(outputs, self._classes, folder)


def planes(views: Tensor) -> Tensor:
    """(n, height, width, channels) of bytes to (n, channels, height, width) of floats; in memory nothing moves."""
    return views.permute(0, 3, 1, 2).float()


def in_memory(model: Classifier, memory_format: torch.memory_format) -> Classifier:
    """Weights of convolutions laid out like the pictures."""
    return model.to(memory_format=memory_format)  # type: ignore[call-overload, no-any-return]  # torch's stub lacks it


def augmentation(choices: VisionOptions, frame: Frame) -> Augmentation:
    padding, scales = choices.crop_padding, choices.crop_scale < 1
    if padding is None:
        padding = frame.crop // 8 if frame.stored == frame.crop and not scales else 0
    if frame.crop > frame.stored:
        raise OptionError(
            f"--image-size {frame.crop} is larger than the {frame.stored} pixels that are stored:"
            f" `vision prepare --image-size {frame.crop}` stores more"
        )
    if not padding < frame.crop:
        raise OptionError(f"--crop-padding {padding}: expected less than the crop's {frame.crop} pixels")
    if padding and scales:
        raise OptionError(f"--crop-padding {padding} is for crops of one size: add --crop-scale 1")
    drawn = choices.randaugment
    return Augmentation(
        crop=frame.crop,
        crop_scale=choices.crop_scale,
        padding=padding,
        flip=choices.flip,
        mixup=choices.mixup,
        erase=choices.erase,
        randaugment=RandAugment(operations=drawn[0], magnitude=drawn[1]) if drawn else None,
    )
