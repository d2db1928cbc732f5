"""Fastest OpenMP runtime and allocator for training in the image: `python benchmarks/image_runtime.py IMAGE`.

Steps of a small GPT in containers of two cores, one after the other and interleaved, so that a busy machine slows all
variants equally. Prints the first decile and the median of all step times and the peak memory of each variant; the
ratio compares first deciles, because other load can only add time. The machine's load is printed to judge the figures.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from dataclasses import dataclass

VARIANTS = {
    "glibc": "",
    "jemalloc": "libjemalloc.so.2",
    "jemalloc, kept": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
    "libomp": "libomp.so.5",
    "tcmalloc+libomp": "libtcmalloc_minimal.so.4 libomp.so.5",
}
"""Preloaded libraries; without another OpenMP runtime, the wheel's own libgomp is used."""

KEEP = "dirty_decay_ms:-1,muzzy_decay_ms:-1"
"""MALLOC_CONF of a jemalloc that never returns pages to the kernel."""

SIZES = {"small": (8192, 192, 4), "larger": (16384, 384, 6)}
"""Vocabulary, width, depth."""

DERIVED = "orch/benchmark:runtime"
DOCKERFILE = """FROM {image}
USER root
RUN apt-get update && apt-get install -y --no-install-recommends libjemalloc2 libomp5
USER 1000:1000
"""

STEPS = """
import json, resource, sys, time
import torch
from torch import nn
torch.manual_seed(0)
vocab, width, depth = map(int, sys.argv[2:])
batch, length = 4, 128
class Gpt(nn.Module):
    def __init__(self):
        super().__init__()
        self.embed = nn.Embedding(vocab, width)
        layer = nn.TransformerEncoderLayer(width, 6, 4 * width, 0.0, "gelu", batch_first=True, norm_first=True)
        self.blocks = nn.TransformerEncoder(layer, depth, enable_nested_tensor=False)
        self.head = nn.Linear(width, vocab, bias=False)
    def forward(self, tokens):
        mask = nn.Transformer.generate_square_subsequent_mask(tokens.shape[1])
        return self.head(self.blocks(self.embed(tokens), mask=mask, is_causal=True))
model = Gpt()
optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
times = []
for step in range(int(sys.argv[1])):
    tokens = torch.randint(vocab, (batch, length + 1))
    began = time.perf_counter()
    loss = nn.functional.cross_entropy(model(tokens[:, :-1]).flatten(0, 1), tokens[:, 1:].flatten())
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    times.append(time.perf_counter() - began)
maps = open("/proc/self/maps").read()
print(json.dumps({"ms": [1000 * seconds for seconds in times[5:]],
                  "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                  "loaded": [name for name in ("jemalloc", "tcmalloc", "libomp.so") if name in maps]}))
"""


@dataclass(frozen=True)
class Trained:
    """One container's steps."""

    ms: list[float]
    mib: float
    loaded: list[str]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", help="an image of profile cpu, as `orch build` made it")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    parser.add_argument("--size", choices=SIZES, default="small")
    given = parser.parse_args()
    build = ["docker", "build", "-q", "-t", DERIVED, "-"]
    subprocess.run(build, input=DOCKERFILE.format(image=given.image).encode(), check=True, stdout=subprocess.DEVNULL)
    measured: dict[str, list[Trained]] = {name: [] for name in VARIANTS}
    try:
        for _ in range(given.rounds):
            for name in VARIANTS:
                measured[name].append(_train(name, given.steps, SIZES[given.size]))
                print(
                    f"{name}: {statistics.median(measured[name][-1].ms):.0f} ms, load {os.getloadavg()[0]:.1f}",
                    flush=True,
                )
    finally:
        subprocess.run(["docker", "rmi", DERIVED], check=False, stdout=subprocess.DEVNULL)
    plain = _decile(measured["glibc"])
    for name, runs in measured.items():
        best, median = _decile(runs), statistics.median(ms for run in runs for ms in run.ms)
        peak = max(run.mib for run in runs)
        print(f"{name:16} {best:6.1f} ms {best / plain - 1:+6.1%}   median {median:7.1f} ms   peak {peak:4.0f} MiB")
    return 0


def _decile(runs: list[Trained]) -> float:
    return statistics.quantiles((ms for run in runs for ms in run.ms), n=10)[0]


def _train(name: str, steps: int, size: tuple[int, int, int]) -> Trained:
    preload = VARIANTS[name]
    environment = ("-e", f"LD_PRELOAD={preload}", "-e", f"MALLOC_CONF={KEEP if 'kept' in name else ''}")
    argv = ["docker", "run", "--rm", "--cpus", "2", "--network", "none", *environment, DERIVED]
    argv += ["python", "-c", STEPS, str(steps), *map(str, size)]
    done = subprocess.run(argv, check=True, capture_output=True, text=True)
    result = Trained(**json.loads(done.stdout))
    wanted = preload.count("jemalloc") + preload.count("tcmalloc") + preload.count("libomp")
    if len(result.loaded) != wanted:
        raise SystemExit(f"{preload} was not loaded: {result.loaded}")
    return result


if __name__ == "__main__":
    sys.exit(main())
