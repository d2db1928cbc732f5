"""Kernel of attention: torch's order, without cuDNN's for texts of all lengths, or the one that was asked for."""

from __future__ import annotations

import torch
from torch.nn import attention as torch_attention
from torch.nn import functional as F
from torch.nn.attention import SDPBackend

from trainer.engine.hardware.attention import KERNELS, attention_by
from trainer.workloads.gpt2 import Gpt2
from trainer.workloads.text import Text


def allowed() -> set[SDPBackend]:
    return set(torch_attention._cur_sdpa_kernel_backends())


def test_torch_chooses_but_never_cudnn_where_shapes_vary() -> None:
    every = allowed()
    with attention_by("auto", same_shapes=Gpt2.same_shapes):
        assert allowed() == every
    with attention_by("auto", same_shapes=Text.same_shapes):
        assert allowed() == every - {SDPBackend.CUDNN_ATTENTION}
        query = torch.randn(1, 2, 4, 8)
        F.scaled_dot_product_attention(query, query, query)
    assert allowed() == every


def test_the_kernel_that_was_asked_for_is_the_only_one_until_the_training_ends() -> None:
    every = allowed()
    for name, kernel in KERNELS.items():
        with attention_by(name, same_shapes=True):
            assert allowed() == {kernel}
    assert allowed() == every
