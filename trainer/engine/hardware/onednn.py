"""The proof that oneDNN computes here, not only that torch was built with it: its own account of a small product."""

from __future__ import annotations

import ctypes
import os
import re
import sys
from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch.nn import functional as F


@dataclass(frozen=True, kw_only=True)
class Proof:
    version: str
    """Version of oneDNN, empty if torch was built without it."""
    convolution: str
    """The kernel that computed it, such as `jit:avx2`; empty if oneDNN did not compute it."""
    bf16: str
    """The kernel of a bfloat16 product, such as `brg_matmul:avx512_core_bf16`; empty if it was not oneDNN's."""
    blas: str
    """The library of float32 products: `MKL` in torch's wheels."""

    @property
    def active(self) -> bool:
        return bool(self.convolution)

    def __str__(self) -> str:
        """Format as the start line does: `3.12 jit:avx512_core`."""
        return f"{self.version} {self.convolution}" if self.active else ""


def prove() -> Proof:
    """Takes some milliseconds. Not for a process whose other threads write to stdout meanwhile."""
    version, blas = built_with(torch.__config__.show())
    if not torch.backends.mkldnn.is_available():  # type: ignore[no-untyped-call]  # torch's own gap
        return Proof(version="", convolution="", bf16="", blas=blas)
    convolution, bf16 = computed_by(_account_of(_convolve_and_multiply))
    return Proof(version=version, convolution=convolution, bf16=bf16, blas=blas)


def built_with(config: str) -> tuple[str, str]:
    """oneDNN's version and the BLAS library, as torch.__config__ names them."""
    onednn = re.search(r"MKL-DNN v(\d+\.\d+)", config)
    blas = re.search(r"BLAS_INFO=(\w+)", config)
    return onednn.group(1) if onednn else "", blas.group(1).upper() if blas else ""


def computed_by(account: str) -> tuple[str, str]:
    """The kernels of the convolution and of the bfloat16 product."""
    kernels = dict(re.findall(r"^onednn_verbose,.*?exec,cpu,(convolution|matmul),([^,]+),", account, re.MULTILINE))
    return kernels.get("convolution", ""), kernels.get("matmul", "")


def _convolve_and_multiply() -> None:
    # Large enough for torch to ask oneDNN: it computes smaller ones itself. Filled with ones, as drawing numbers here
    # would change what the seed gives to the run.
    F.conv2d(torch.ones(2, 16, 32, 32), torch.ones(16, 16, 3, 3))
    F.linear(torch.ones(32, 64, dtype=torch.bfloat16), torch.ones(64, 64, dtype=torch.bfloat16))


def _account_of(compute: Callable[[], None]) -> str:
    """oneDNN writes its account to the C library's stdout: that is led into a file meanwhile."""
    c_library = ctypes.CDLL(None)
    sys.stdout.flush()
    c_library.fflush(None)
    with os.fdopen(os.memfd_create("onednn"), "w+b") as file:
        stdout = os.dup(1)
        os.dup2(file.fileno(), 1)
        try:
            with torch.no_grad(), torch.backends.mkldnn.verbose(torch.backends.mkldnn.VERBOSE_ON):  # type: ignore[no-untyped-call]  # torch's own gap
                compute()
        finally:
            c_library.fflush(None)
            os.dup2(stdout, 1)
            os.close(stdout)
        file.seek(0)
        return file.read().decode("utf-8", errors="replace")
