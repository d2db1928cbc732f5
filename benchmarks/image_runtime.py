"""Which OpenMP runtime and which allocator train fastest in the image: `python benchmarks/image_runtime.py IMAGE`.

Steps of a small GPT in containers of two cores, one after the other and interleaved, so that a busy machine slows all
variants alike. Prints median step time and peak memory of each variant, and its ratio to plain glibc with libgomp.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys

VARIANTS = {
    "glibc": "",
    "jemalloc": "libjemalloc.so.2",
    "tcmalloc": "libtcmalloc_minimal.so.4",
    "libomp": "libomp.so.5",
    "jemalloc+libomp": "libjemalloc.so.2 libomp.so.5",
}
"""What is preloaded; the wheel's own libgomp serves where no other OpenMP runtime is."""

DERIVED = "orch/benchmark:runtime"
DOCKERFILE = """FROM {image}
USER root
RUN apt-get update && apt-get install -y --no-install-recommends libomp5 libtcmalloc-minimal4
USER 1000:1000
"""

STEPS = """
import json, resource, statistics, sys, time
import torch
from torch import nn
torch.manual_seed(0)
vocab, width, depth, batch, length = 8192, 192, 4, 4, 128
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
print(json.dumps({"ms": 1000 * statistics.median(times[5:]), "loss": loss.item(),
                  "mib": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024,
                  "loaded": [n for n in ("jemalloc", "tcmalloc", "libomp.so") if n in maps]}))
"""


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("image", help="an image of profile cpu, as `orch build` made it")
    parser.add_argument("--rounds", type=int, default=4)
    parser.add_argument("--steps", type=int, default=30)
    given = parser.parse_args()
    build = ["docker", "build", "-q", "-t", DERIVED, "-"]
    subprocess.run(build, input=DOCKERFILE.format(image=given.image).encode(), check=True, stdout=subprocess.DEVNULL)
    measured: dict[str, list[dict[str, float]]] = {name: [] for name in VARIANTS}
    try:
        for _ in range(given.rounds):
            for name, preload in VARIANTS.items():
                measured[name].append(_train(preload, given.steps))
    finally:
        subprocess.run(["docker", "rmi", DERIVED], check=False, stdout=subprocess.DEVNULL)
    plain = statistics.median(run["ms"] for run in measured["glibc"])
    for name, runs in measured.items():
        each = [run["ms"] for run in runs]
        median, peak = statistics.median(each), max(run["mib"] for run in runs)
        every = " ".join(f"{ms:.0f}" for ms in each)
        print(f"{name:16} {median:6.1f} ms/step {median / plain - 1:+6.1%}  peak {peak:5.0f} MiB  (rounds: {every})")
    return 0


def _train(preload: str, steps: int) -> dict[str, float]:
    argv = ["docker", "run", "--rm", "--cpus", "2", "--network", "none", "-e", f"LD_PRELOAD={preload}", DERIVED]
    done = subprocess.run([*argv, "python", "-c", STEPS, str(steps)], check=True, capture_output=True, text=True)
    result: dict[str, float] = json.loads(done.stdout)
    return result


if __name__ == "__main__":
    sys.exit(main())
