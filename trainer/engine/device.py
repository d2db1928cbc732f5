"""On what this rank computes: device, threads, precision. Said in one line at the start."""

from __future__ import annotations

import os
import re
import tempfile
from collections.abc import Mapping
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.config import Place
from trainer.engine.limits import usable_threads
from trainer.engine.workload import Batch


@dataclass(frozen=True, kw_only=True)
class Hardware:
    device: torch.device
    threads: int
    dtype: torch.dtype
    """Of the matrix products; the weights stay float32."""
    onednn: str
    """oneDNN's version, empty where torch cannot use it."""

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    def move(self, batch: Batch) -> Batch:
        """To the device; from pinned memory while the CPU goes on."""
        return tuple(part.to(self.device, non_blocking=True) for part in batch)

    def autocast(self) -> AbstractContextManager[object]:
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)


def prepare_hardware(place: Place, *, amp: bool, environ: Mapping[str, str] = os.environ) -> Hardware:
    """Choose the device and set torch's threads."""
    if "OMP_NUM_THREADS" not in environ:
        torch.set_num_threads(max(1, usable_threads() // place.local_world_size))
    _give_inductor_a_home()
    device, dtype = torch.device("cpu"), torch.float32
    if torch.cuda.is_available():
        device = torch.device("cuda", place.local_rank % torch.cuda.device_count())
        torch.cuda.set_device(device)
        # bfloat16 needs Ampere; before it float16, whose gradients the loop scales. A CPU emulates both, some
        # 200 times slower than float32 (pytorch/pytorch#118499), so it keeps float32.
        ampere = torch.cuda.get_device_capability(device) >= (8, 0)
        dtype = (torch.bfloat16 if ampere else torch.float16) if amp else torch.float32
    return Hardware(device=device, threads=torch.get_num_threads(), dtype=dtype, onednn=_onednn_version())


def _give_inductor_a_home() -> None:
    """torch.compile names its cache after the user, and a container's uid may have no name."""
    cache = Path(tempfile.gettempdir()) / f"torchinductor-{os.getuid()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "triton"))


def _onednn_version() -> str:
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]
        return ""
    found = re.search(r"MKL-DNN v(\d+\.\d+)", torch.__config__.show())
    return found.group(1) if found else "?"


def start_line(hardware: Hardware, place: Place, backend: str, environ: Mapping[str, str] = os.environ) -> str:
    spanish = (environ.get("LC_ALL") or environ.get("LANG") or "").startswith("es")
    words = _SPANISH if spanish else _ENGLISH
    device, threads = hardware.device, hardware.threads
    threads_text = words["thread" if threads == 1 else "threads"].format(threads)
    if place.world_size > 1:
        node = f" ({place.node})" if place.node else ""
        rank = words["rank"].format(place.rank, place.world_size)
        uses = f"{device}, {threads_text}, {hardware.precision}, {backend}"
        return f"🌐 {words['distributed']}: {rank}{node}: {uses}"
    onednn = words["onednn"].format(hardware.onednn) if hardware.onednn else words["no onednn"]
    uses = f"{words['using']} {device} {words['with']} {threads_text}"
    line = f"💻 {words['local']}: {uses} · {hardware.precision}"
    return line if hardware.on_gpu else f"{line} · {onednn}"


_ENGLISH = {
    "local": "LOCAL MODE", "using": "using", "with": "with", "thread": "{} thread", "threads": "{} threads",
    "onednn": "oneDNN {} active", "no onednn": "no oneDNN", "distributed": "DISTRIBUTED MODE",
    "rank": "rank {} of {}",
}  # fmt: skip
_SPANISH = {
    "local": "MODO LOCAL", "using": "Usando", "with": "con", "thread": "{} hilo", "threads": "{} hilos",
    "onednn": "oneDNN {} activo", "no onednn": "sin oneDNN", "distributed": "MODO DISTRIBUIDO",
    "rank": "rango {} de {}",
}  # fmt: skip
