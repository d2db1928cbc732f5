"""Healthy training scripts of a few lines, as users write them, that look idle, silent or odd from outside.

`alarm_cases.script` makes one file of these and the others, which imports torch alone.
"""

from __future__ import annotations

import contextlib
import http.server
import os
import select
import signal
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

from benchmarks.alarm_training import (
    IDLE_S,
    LONG_S,
    RANK,
    SCALE,
    Training,
    compute,
    for_seconds,
    joined,
    mark,
)

# ── Healthy: they train ───────────────────────────────────────────────────────────────────────────────────────────────


def prints_on_rank_0() -> None:
    training = Training()
    for number in for_seconds(LONG_S):
        loss = training.step()
        if RANK == 0 and number % 8 == 0:
            print(f"epoch {number // 8} loss {loss:.4f}", flush=True)


def prints_per_epoch() -> None:
    training = Training()
    for epoch in range(2):
        for _ in for_seconds(LONG_S):
            training.step()
        print(f"epoch {epoch}", flush=True)


def silent() -> None:
    training = Training()
    for _ in for_seconds(LONG_S):
        training.step()


def long_steps() -> None:
    training = Training()
    for _ in range(2):
        compute(IDLE_S)  # a large batch on a slow machine
        training.step()


def accumulation() -> None:
    training = Training()
    for _ in for_seconds(LONG_S):
        training.optimizer.zero_grad()
        with training.model.no_sync():
            for _ in range(3):
                training.loss().backward()
        training.loss().backward()
        training.optimizer.step()


def local_sgd() -> None:
    training = Training(ddp=False)
    for number in for_seconds(LONG_S, 0.03):
        training.step()
        if number % 500 == 499:
            for weights in training.model.parameters():
                training.dist.all_reduce(weights.data)
                weights.data /= training.dist.get_world_size()


def gan() -> None:
    training = Training()
    nn = training.torch.nn
    judge = nn.parallel.DistributedDataParallel(nn.Linear(64, 1))
    other = training.torch.optim.Adam(judge.parameters())
    for _ in for_seconds(LONG_S):
        made = training.model(training.torch.randn(16, 64))
        judge(made.detach()).mean().backward()
        other.step()
        other.zero_grad()
        training.step()


def compiled_optimizer() -> None:
    training = Training()
    step = training.torch.compile(training.optimizer.step, backend="eager")
    for _ in for_seconds(LONG_S):
        training.loss().backward()
        step()


def zero_optimizer() -> None:
    training = Training()
    from torch.distributed.optim import ZeroRedundancyOptimizer

    training.optimizer = ZeroRedundancyOptimizer(training.model.parameters(), training.torch.optim.Adam, lr=1e-3)
    for _ in for_seconds(LONG_S):
        training.step()


def own_update() -> None:
    training = Training()
    for _ in for_seconds(LONG_S):
        training.loss().backward()
        for weights in training.model.parameters():  # an optimizer that is none of torch's
            weights.data -= 1e-3 * weights.grad
            weights.grad = None


def fsdp2() -> None:
    training = Training(ddp=False)
    from torch.distributed.fsdp import fully_shard

    for layer in (training.model[0], training.model[2], training.model):
        fully_shard(layer)
    training.optimizer = training.torch.optim.AdamW(training.model.parameters())
    for _ in for_seconds(LONG_S):
        training.step()


def hsdp() -> None:
    training = Training(ddp=False)
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard

    mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("replicate", "shard"))
    for layer in (training.model[0], training.model[2], training.model):
        fully_shard(layer, mesh=mesh)
    training.optimizer = training.torch.optim.AdamW(training.model.parameters())
    for _ in for_seconds(LONG_S):
        training.step()


def pipeline() -> None:
    torch, dist = joined()
    stage = torch.nn.Linear(64, 64)
    optimizer = torch.optim.SGD(stage.parameters(), lr=1e-3)
    for _ in for_seconds(LONG_S):
        values = torch.randn(16, 64)
        if RANK == 0:
            dist.send(stage(values).detach(), 1)
            dist.recv(values, 1)
            stage(torch.randn(16, 64)).backward(values)
        else:
            dist.recv(values, 0)
            values.requires_grad_()
            (stage(values) ** 2).mean().backward()
            dist.send(values.grad, 0)
        optimizer.step()


def actors() -> None:
    training = Training(ddp=False)
    for _ in for_seconds(LONG_S, 1.0):
        played = training.torch.randn(16, 64)  # rank 0 learns from the games that the others play
        parts = [training.torch.empty(16, 64) for _ in range(training.dist.get_world_size())] if RANK == 0 else None
        training.dist.gather(played, parts)
        if RANK == 0:
            training.steps(5)


def data_workers() -> None:
    training = Training()
    data = training.torch.utils.data
    samples = data.TensorDataset(training.torch.randn(int(LONG_S / 0.1) * 16, 64))
    for _ in data.DataLoader(samples, batch_size=16, num_workers=1, multiprocessing_context="spawn"):
        training.step()
        time.sleep(0.1)


def spawned() -> None:
    import torch.multiprocessing as mp

    os.environ["RANK_OF_NODE"] = os.environ.pop("RANK")
    mp.spawn(_spawned, nprocs=1)


def _spawned(_local: int) -> None:
    global RANK
    os.environ["RANK"] = os.environ["RANK_OF_NODE"]
    RANK = int(os.environ["RANK"])
    training = Training()
    for _ in for_seconds(LONG_S):
        training.step()


def transformer() -> None:
    training = Training()
    from transformers import GPT2Config, GPT2LMHeadModel

    model = GPT2LMHeadModel(GPT2Config(vocab_size=100, n_positions=16, n_embd=32, n_layer=1, n_head=2))
    training.model = training.torch.nn.parallel.DistributedDataParallel(model)
    training.optimizer = training.torch.optim.AdamW(model.parameters())
    for _ in for_seconds(LONG_S):
        tokens = training.torch.randint(0, 100, (2, 16))
        training.model(input_ids=tokens, labels=tokens).loss.backward()
        training.optimizer.step()


def starved() -> None:
    training = Training()
    if RANK == 1 and (parent := os.getpid()) and not os.fork():  # it gets a tenth of the time, as in a full machine
        for number in for_seconds(LONG_S, SCALE):
            with contextlib.suppress(ProcessLookupError):
                os.kill(parent, signal.SIGSTOP if number % 10 else signal.SIGCONT)
        os.kill(parent, signal.SIGCONT)
        os._exit(0)
    for _ in for_seconds(LONG_S / 4):
        training.step()


# ── Healthy: no gradients, or none yet ────────────────────────────────────────────────────────────────────────────────


def sweep() -> None:
    training = Training(ddp=False, group=False)
    for _ in for_seconds(LONG_S):
        training.step()


def other_library() -> None:
    sys.modules["horovod"] = type(sys)("horovod")  # it may exchange gradients, over a network that is not visible
    sweep()


def metrics_only() -> None:
    training = Training(ddp=False)
    for _ in for_seconds(LONG_S):
        loss = training.torch.tensor([training.step()])
        training.dist.all_reduce(loss)


def preprocess() -> None:
    mark("begins")
    compute(LONG_S)


def no_training() -> None:
    import torch

    mark("begins")
    torch.randn(10, 10).sum()


def numbers_alone() -> None:
    import numpy as np

    mark("begins")
    weights = np.random.randn(64, 64)
    for _ in for_seconds(LONG_S):
        weights -= 1e-3 * weights @ weights.T @ weights


def sharded_inference() -> None:
    training = Training(ddp=False)
    until = time.monotonic() + LONG_S
    with training.torch.no_grad():
        while time.monotonic() < until + 2 * SCALE * RANK:
            training.model(training.torch.randn(256, 64))
    training.dist.barrier()


def compiles_first() -> None:
    training = Training()
    subprocess.run(
        (sys.executable, "-c", f"import time\nwhile time.perf_counter() < {time.perf_counter() + LONG_S}: 0")
    )
    training.steps()


def evaluation() -> None:
    training = Training().steps()
    if RANK == 0:
        mark("hangs")
        compute(LONG_S)  # hangs
    training.dist.barrier()


def evaluation_grows() -> None:
    training = Training().steps()
    for share in (0.45, 1.0):  # the second one is no longer than three times the first
        if RANK == 0:
            compute(share * LONG_S)
        training.dist.barrier()
        training.steps()


def native_code() -> None:
    training = Training().steps()
    if RANK == 1:
        began = time.monotonic()
        sum(range(10**7))
        rate = 10**7 / (time.monotonic() - began)
        mark("hangs")
        # The interpreter is held, as in `json.loads` of a large file, but for the moment between both.
        [sum(range(int(rate * seconds))) for seconds in (1.5, LONG_S)]  # hangs
    training.dist.barrier()


def saves() -> None:
    training = Training().steps()
    if RANK == 0:
        mark("hangs")
        for _ in for_seconds(LONG_S):
            Path("weights").write_bytes(bytes(200_000))
    training.dist.barrier()


def _slow_server(receives: bool) -> int:
    """Port of a server that takes `LONG_S` for one transfer, in a process of its own."""
    server = socket.create_server(("127.0.0.1", 0))
    if not os.fork():
        peer, _ = server.accept()
        for _ in for_seconds(LONG_S):
            peer.recv(5_000) if receives else peer.sendall(bytes(5_000))
        os._exit(0)
    return int(server.getsockname()[1])


def downloads() -> None:
    training = Training().steps()
    if RANK == 0:
        port = _slow_server(receives=False)
        mark("hangs")
        with socket.create_connection(("127.0.0.1", port)) as server:
            while server.recv(65_536):
                pass
    training.dist.barrier()


def uploads() -> None:
    training = Training().steps()
    if RANK == 0:
        port = _slow_server(receives=True)
        mark("hangs")
        with contextlib.suppress(ConnectionError), socket.create_connection(("127.0.0.1", port)) as server:
            server.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 10_000)
            for _ in range(int(LONG_S / 0.1)):
                server.sendall(bytes(5_000))
    training.dist.barrier()


def sleeps() -> None:
    training = Training().steps()
    if RANK == 1:
        mark("hangs")
        time.sleep(LONG_S)  # hangs
    training.dist.barrier()


def polls() -> None:
    training = Training().steps()
    if RANK == 1:
        mark("hangs")
        for _ in for_seconds(LONG_S, 0.5):  # hangs, or in the pause of the loop
            Path("ready").exists()
    training.dist.barrier()


def polls_by_select() -> None:
    training = Training().steps()
    if RANK == 1:
        mark("hangs")
        for _ in range(int(LONG_S)):
            select.select([], [], [], 1.0)  # hangs
    training.dist.barrier()


def asks_input() -> None:
    mark("begins")
    input("continue? ")


def serves() -> None:
    joined()
    server = http.server.HTTPServer(("127.0.0.1", 0), http.server.BaseHTTPRequestHandler)
    threading.Timer(IDLE_S, server.shutdown).start()
    server.serve_forever()


def joins_late() -> None:
    import torch.distributed as dist

    mark("begins")
    if RANK == 1:
        mark("hangs")
        compute(LONG_S)  # hangs
    dist.init_process_group("gloo")
