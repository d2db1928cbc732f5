"""Device, threads and precision of this rank, printed in one line at the start."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from pathlib import Path

import torch

from trainer.config import RankInfo, TrainOptions
from trainer.engine.hardware.onednn import prove
from trainer.engine.hardware.peaks import peak_flops
from trainer.engine.hardware.precision import choose_dtype
from trainer.engine.seeding import be_deterministic
from trainer.errors import ConfigurationError
from trainer.limits import usable_threads


@dataclass(frozen=True, kw_only=True)
class Hardware:
    device: torch.device
    threads: int
    dtype: torch.dtype
    """Type of the matrix products; the weights stay float32."""
    onednn: str
    """Its version and the kernel that computed a convolution just now; empty where it computes none."""
    everyones: tuple[tuple[str, torch.dtype], ...] = ()
    """Each rank's label and `dtype`, where there are several ranks."""
    lowered_for: tuple[str, ...] = ()
    """The ranks without bfloat16 for which CPUs that have it compute in float32."""

    @property
    def scales(self) -> bool:
        """True if the loss is scaled: on all ranks, if one of them computes in float16."""
        return torch.float16 in self._dtypes

    @property
    def dtype_of_updates(self) -> torch.dtype:
        """Type in which the optimizer multiplies: the same on all ranks."""
        return self.dtype if len(self._dtypes) == 1 else torch.float32

    @property
    def _dtypes(self) -> set[torch.dtype]:
        return {self.dtype, *(dtype for _, dtype in self.everyones)}

    @property
    def precision(self) -> str:
        return str(self.dtype).removeprefix("torch.")

    @property
    def on_gpu(self) -> bool:
        return self.device.type == "cuda"

    @property
    def peak_bytes(self) -> int:
        """Peak of allocated GPU memory so far; 0 on a CPU."""
        return torch.cuda.max_memory_allocated(self.device) if self.on_gpu else 0

    @property
    def peak_flops(self) -> float:
        """Peak rate of the GPU at this precision, in FLOP/s; 0 on a CPU, and for a card that is not known."""
        if not self.on_gpu:
            return 0.0
        tf32 = torch.backends.cuda.matmul.allow_tf32
        return peak_flops(torch.cuda.get_device_properties(self.device), self.dtype, tf32=tf32)

    def autocast(self) -> AbstractContextManager[object]:
        """Set the precision of the products of a forward pass."""
        if self.dtype is torch.float32:
            return nullcontext()
        return torch.autocast(self.device.type, self.dtype)


def prepare_hardware(place: RankInfo, options: TrainOptions, environ: Mapping[str, str] = os.environ) -> Hardware:
    """Choose the device and the precision, and set torch's threads."""
    if "OMP_NUM_THREADS" not in environ:
        torch.set_num_threads(max(1, usable_threads() // place.local_world_size))
    _give_inductor_a_home()
    if options.deterministic:
        be_deterministic()
    device = torch.device("cpu")
    if torch.cuda.is_available():
        device = own_gpu(place, torch.cuda.device_count(), options.backend)
        torch.cuda.set_device(device)
    torch.set_float32_matmul_precision("high" if options.tf32 else "highest")
    torch.backends.cudnn.allow_tf32 = options.tf32
    dtype, _ = choose_dtype(options.precision, device, amp=options.amp)
    onednn = str(prove())
    return Hardware(device=device, threads=torch.get_num_threads(), dtype=dtype, onednn=onednn)


def own_gpu(place: RankInfo, gpus: int, backend: str) -> torch.device:
    """The one of this rank. Two ranks on a GPU share its memory and its time, and NCCL refuses them: only who names
    gloo may have that."""
    if place.local_world_size > gpus and backend != "gloo":
        raise ConfigurationError(
            f"{place.name}: {place.local_world_size} ranks on this node, which shows {gpus} GPU{'s' * (gpus > 1)}:"
            f" at most one rank for each GPU; set nproc_per_node: {gpus} (or auto) for it in inventory.yaml, or give"
            " --backend gloo for ranks that are to share a GPU"
        )
    return torch.device("cuda", place.local_rank % gpus)


def _give_inductor_a_home() -> None:
    """torch.compile names its cache after the user, and a container's uid may have no name."""
    cache = Path(tempfile.gettempdir()) / f"torchinductor-{os.getuid()}"
    os.environ.setdefault("TORCHINDUCTOR_CACHE_DIR", str(cache))
    os.environ.setdefault("TRITON_CACHE_DIR", str(cache / "triton"))


def start_line(
    hardware: Hardware,
    place: RankInfo,
    backend: str,
    environ: Mapping[str, str] = os.environ,
    *,
    without_gpu: Sequence[str] = (),
) -> str:
    """`without_gpu`: the ranks for which all exchange gradients by gloo."""
    spanish = (environ.get("LC_ALL") or environ.get("LANG") or "").startswith("es")
    words = _SPANISH if spanish else _ENGLISH
    threads_text = words["thread" if hardware.threads == 1 else "threads"].format(hardware.threads)
    if place.world_size > 1:
        node = f" ({place.node})" if place.node else ""
        rank = words["rank"].format(place.rank, place.world_size)
        uses = [str(hardware.device), threads_text, hardware.precision, backend, *_agreed(hardware, words)]
        if hardware.lowered_for:
            uses[2] += f" ({words['lowered'].format(', '.join(hardware.lowered_for))})"
        if without_gpu:
            uses[3] += f" ({words['no gpu'].format(', '.join(without_gpu))})"
        return f"🌐 {words['distributed']}: {rank}{node}: {', '.join(uses)}"
    onednn = words["onednn"].format(hardware.onednn) if hardware.onednn else words["no onednn"]
    line = f"💻 {words['local']}: {words['using']} {hardware.device} {words['with']} {threads_text}"
    line = f"{line} · {hardware.precision}"
    return line if hardware.on_gpu else f"{line} · {onednn}"


def _agreed(hardware: Hardware, words: Mapping[str, str]) -> Iterator[str]:
    """Yield the precisions of the ranks, where they differ, and why the loss is scaled on all of them."""
    by_dtype: dict[str, list[str]] = {}
    for label, dtype in hardware.everyones:
        by_dtype.setdefault(str(dtype).removeprefix("torch."), []).append(label)
    if len(by_dtype) > 1:
        yield words["precisions"].format("; ".join(f"{dtype}: {', '.join(on)}" for dtype, on in by_dtype.items()))
        if hardware.scales:
            yield words["scaled"].format(", ".join(by_dtype["float16"]))


_ENGLISH = {
    "local": "LOCAL MODE", "using": "using", "with": "with", "thread": "{} thread", "threads": "{} threads",
    "onednn": "oneDNN {} active", "no onednn": "no oneDNN", "distributed": "DISTRIBUTED MODE",
    "rank": "rank {} of {}", "no gpu": "no GPU on {}", "lowered": "CPUs alike: no bfloat16 on {}",
    "precisions": "mixed precision ({})",
    "scaled": "loss scaled on all ranks for the float16 of {}",
}  # fmt: skip
_SPANISH = {
    "local": "MODO LOCAL", "using": "Usando", "with": "con", "thread": "{} hilo", "threads": "{} hilos",
    "onednn": "oneDNN {} activo", "no onednn": "sin oneDNN", "distributed": "MODO DISTRIBUIDO",
    "rank": "rango {} de {}", "no gpu": "sin GPU en {}", "lowered": "las CPU iguales: sin bfloat16 en {}",
    "precisions": "precisión mixta ({})",
    "scaled": "pérdida escalada en todos los rangos por el float16 de {}",
}  # fmt: skip
