"""Train a small ResNet on pictures in an .npz file, with plain DistributedDataParallel.

torchrun train.py [--config config.yaml] [KEY=VALUE ...]     e.g. epochs=5 lr=3e-4
torchrun --nproc-per-node 2 train.py --tiny                random pictures, no file is needed
"""

import argparse
import os
from pathlib import Path

import numpy as np
import torch
import torch.distributed as dist
import yaml
from torch import nn
from torch.nn.parallel import DistributedDataParallel
from torch.utils.data import DataLoader, DistributedSampler, TensorDataset

TINY = {"data": "", "width": 8, "epochs": 3, "batch_size": 16}


class Block(nn.Module):
    def __init__(self, channels, out, stride):
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(channels, out, 3, stride, 1, bias=False), nn.GroupNorm(4, out), nn.ReLU(),
            nn.Conv2d(out, out, 3, 1, 1, bias=False), nn.GroupNorm(4, out),
        )  # fmt: skip
        self.shortcut = nn.Conv2d(channels, out, 1, stride, bias=False)

    def forward(self, x):
        return torch.relu(self.layers(x) + self.shortcut(x))


def build_model(width, channels, classes):
    return nn.Sequential(
        Block(channels, width, 1), Block(width, 2 * width, 2), Block(2 * width, 4 * width, 2),
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(4 * width, classes),
    )  # fmt: skip


def load_data(config):
    if not config["data"]:
        generator = np.random.default_rng(1)
        labels = generator.integers(0, 3, 600)
        images = generator.integers(0, 120, (600, 28, 28, 3)) + 60 * (np.arange(3) == labels[:, None])[:, None, None]
        arrays = images[:480], labels[:480], images[480:], labels[480:]
    else:
        with np.load(config["data"]) as file:
            arrays = [file[f"{part}_{name}"] for part in ("train", "val") for name in ("images", "labels")]
    images, labels = map(torch.as_tensor, arrays[::2]), map(torch.as_tensor, arrays[1::2])
    images = (image if image.ndim == 4 else image[..., None] for image in images)  # grey ones have no axis of colours
    images = (image.permute(0, 3, 1, 2).float() / 127.5 - 1 for image in images)
    return [TensorDataset(x, y.flatten().long()) for x, y in zip(images, labels, strict=True)]


def read_config():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--config", type=Path, default=Path(__file__).with_name("config.yaml"))
    parser.add_argument("--tiny", action="store_true", help="a tiny model and random pictures")
    parser.add_argument("changes", nargs="*", metavar="KEY=VALUE")
    arguments = parser.parse_args()
    config = yaml.safe_load(arguments.config.read_text()) | (TINY if arguments.tiny else {})
    for change in arguments.changes:
        key, _, value = change.partition("=")
        if key not in config:
            parser.error(f"{key}: expected one of {', '.join(config)}")
        config[key] = type(config[key])(value)
    return config


def main():
    config = read_config()
    on_gpu = torch.cuda.is_available()
    dist.init_process_group("nccl" if on_gpu else "gloo")
    rank, ranks = dist.get_rank(), dist.get_world_size()
    device = torch.device("cuda", int(os.environ["LOCAL_RANK"])) if on_gpu else torch.device("cpu")
    torch.manual_seed(config["seed"])
    train, val = load_data(config)
    sampler = DistributedSampler(train, seed=config["seed"])
    loader = DataLoader(train, config["batch_size"], sampler=sampler, drop_last=True)
    classes = int(train.tensors[1].max()) + 1
    net = build_model(config["width"], train.tensors[0].shape[1], classes).to(device)
    optimizer = torch.optim.AdamW(net.parameters(), lr=config["lr"])
    last, first = Path(config["out"], "last.pt"), 0
    if last.exists():  # continue where the last run was interrupted
        state = torch.load(last, map_location=device, weights_only=True)
        net.load_state_dict(state["model"])
        optimizer.load_state_dict(state["optimizer"])
        first = state["epoch"]
        print(f"rank {rank}: resumed at epoch {first}", flush=True)
    model = DistributedDataParallel(net)
    for epoch in range(first + 1, config["epochs"] + 1):
        sampler.set_epoch(epoch)
        net.train()
        for x, y in loader:
            loss = nn.functional.cross_entropy(model(x.to(device)), y.to(device))
            optimizer.zero_grad()
            loss.backward()
            optimizer.step()
        net.eval()
        with torch.no_grad():  # each rank counts a part of the validation
            batches = DataLoader(val, 256, sampler=range(rank, len(val), ranks))
            right = sum((net(x.to(device)).argmax(1) == y.to(device)).sum() for x, y in batches)
        right = torch.as_tensor(right, device=device)
        dist.all_reduce(right)
        if rank == 0:
            print(f"epoch {epoch}/{config['epochs']} loss {loss:.4f} accuracy {right / len(val):.3f}", flush=True)
            last.parent.mkdir(parents=True, exist_ok=True)
            state = {"model": net.state_dict(), "optimizer": optimizer.state_dict(), "epoch": epoch}
            torch.save(state, f"{last}.new")
            Path(f"{last}.new").replace(last)  # a half-written file would be worse than an old one
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
