"""Times of one forward and backward pass, operator by operator: the part of it that torch.compile can make shorter.

Matrix products, convolutions, attention and recurrent layers are the same kernels in a compiled model. Only what the
compiled parts compute beside them is fused, and only their calls from Python, of autograd and of the dispatcher become
fewer.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import islice
from typing import Any, TypeAlias

import torch
from torch import Tensor, nn
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves
from torch.utils.hooks import RemovableHandle

KEPT = (
    "mm", "addmm", "bmm", "baddbmm", "addmv", "addbmm", "dot", "mv", "_addmm_activation", "_int_mm", "_scaled_mm",
    "linear", "mkldnn_linear", "convolution", "_convolution", "mkldnn_convolution", "miopen_convolution",
    "cudnn_convolution", "slow_conv", "thnn_conv2d", "conv_depthwise", "_scaled_dot_product", "_flash_attention",
    "_efficient_attention", "_cudnn_attention", "mkldnn_rnn_layer", "_cudnn_rnn", "_thnn_fused_lstm_cell",
    "_thnn_fused_gru_cell", "lstm", "gru", "embedding_dense_backward", "index_put", "index_add", "scatter_add",
)  # fmt: skip
"""Beginnings of the names of operators that take as long in a compiled model: `aten::mm`, `aten::convolution_backward`.
Those of other libraries than ATen (collectives, own kernels) stay, too."""
PROBED = 200
"""Small operators by which the cost of watching one is measured."""

Mark: TypeAlias = "float | torch.cuda.Event"


@dataclass(frozen=True, kw_only=True)
class PassTimes:
    """Seconds of one forward and backward pass: of the main thread's work on a CPU, of the stream on a GPU."""

    whole_s: float
    wall_s: float
    """The whole by the clock, of a CPU's too: other processes may share it."""
    fusable_s: float
    """Within the parts to be compiled, all but the operators that stay: those that torch.compile can fuse, and the time
    between operators, of Python, autograd and the dispatcher."""

    def fusable(self, pass_s: float) -> float:
        """Share of a step that can be fused. `pass_s`: seconds of a usual step for each of its passes; what a step does
        beside them (exchange, update of the weights) stays as it is."""
        return self.fusable_s / max(self.whole_s, 1e-9) * min(1.0, self.wall_s / max(pass_s, 1e-9))


class PassTimer:
    """Measures the model's next forward pass and its backward pass, from hooks, then takes them away.

    The operators pass through Python meanwhile, 5 to 20 µs each, which is left out of the figures on a CPU. No
    operator is changed, added or waited for.
    """

    def __init__(self, model: nn.Module, regions: Sequence[nn.Module], device: torch.device) -> None:
        """`regions`: parts of the model to be compiled, none within another."""
        self._now = _stream_time if device.type == "cuda" else time.thread_time
        self._watching_s = 0.0 if device.type == "cuda" else _watching_s()
        self._operators = _Operators(self._now)
        self._spans: list[tuple[Mark, Mark]] = []
        """Begin and end of each stay in a region."""
        self._inside: tuple[nn.Module, Mark] | None = None
        self._began: Mark | None = None
        self._ended: Mark | None = None
        self._wall_began = self._wall_s = 0.0
        self._watches = False
        self._hooks: list[RemovableHandle] = [
            model.register_forward_pre_hook(self._begin),
            *(region.register_forward_pre_hook(self._enter_forward) for region in regions),
            *(region.register_forward_hook(self._leave_forward) for region in regions),
            model.register_forward_hook(self._expect_backward),
            register_optimizer_step_pre_hook(lambda *_: self._unwatch()),
        ]

    def stop(self) -> None:
        """Take the hooks away. To be called by the thread that runs the model."""
        for hook in self._hooks:
            hook.remove()
        self._hooks = []
        self._unwatch()

    def read(self) -> PassTimes | None:
        """Times of the pass; None: it has not come to its end. On a GPU, waits for the pass."""
        self.stop()
        if self._began is None or self._ended is None:
            return None
        on_gpu = isinstance(self._ended, torch.cuda.Event)
        if isinstance(self._ended, torch.cuda.Event):
            self._ended.synchronize()
        operators = self._operators
        watched_s = self._watching_s * operators.seen
        whole_s = max(0.0, _between(self._began, self._ended) - watched_s)
        inside_s = sum(_between(*span) for span in self._spans) - self._watching_s * operators.seen_inside
        return PassTimes(
            whole_s=whole_s,
            wall_s=whole_s if on_gpu else max(whole_s, self._wall_s - watched_s),
            fusable_s=min(whole_s, max(0.0, inside_s - sum(_between(*each) for each in operators.kept))),
        )

    # ── Hooks ─────────────────────────────────────────────────────────────────────────────────────

    def _begin(self, *_: object) -> None:
        if self._began is not None:  # the next micro-batch, or the same one again after a lack of memory
            self._unwatch()
            return
        self._watches = True
        self._operators.__enter__()  # type: ignore[no-untyped-call]  # torch's own gap
        self._began, self._wall_began = self._now(), time.perf_counter()

    def _enter_forward(self, region: nn.Module, inputs: tuple[object, ...]) -> None:
        self._enter(region)
        self._when_reached(inputs, lambda: self._leave(region))

    def _leave_forward(self, region: nn.Module, _inputs: object, output: object) -> None:
        self._leave(region)
        self._when_reached(output, lambda: self._enter(region))

    def _expect_backward(self, _model: nn.Module, _inputs: object, output: object) -> None:
        self._when_reached(output, lambda: _at_the_end(self._finish))

    def _when_reached(self, values: object, call: Callable[[], None]) -> None:
        """Call when the backward pass has the gradient of the first of `values` that has one."""
        tensors = (one for one in tree_leaves(values) if isinstance(one, Tensor) and one.requires_grad)
        for first in islice(tensors, 1):
            self._hooks.append(first.register_hook(lambda _: call()))  # type: ignore[no-untyped-call]  # torch's own gap

    def _finish(self) -> None:
        """The backward pass has ended, perhaps in a thread of autograd: `stop` is for the model's."""
        self._leave(None)
        self._operators.inside = False
        if self._ended is None:
            self._ended, self._wall_s = self._now(), time.perf_counter() - self._wall_began

    def _unwatch(self) -> None:
        self._operators.inside = False
        if self._watches:
            self._watches = False
            self._operators.__exit__(None, None, None)  # type: ignore[no-untyped-call]  # torch's own gap

    # ── Regions ───────────────────────────────────────────────────────────────────────────────────

    def _enter(self, region: nn.Module) -> None:
        self._leave(None)
        if self._ended is None:
            self._inside, self._operators.inside = (region, self._now()), True

    def _leave(self, region: nn.Module | None) -> None:
        """None: whichever it is."""
        if self._inside and region in (None, self._inside[0]):
            self._spans.append((self._inside[1], self._now()))
            self._inside, self._operators.inside = None, False


class _Operators(TorchDispatchMode):  # type: ignore[no-untyped-call]  # torch's __init_subclass__
    """Times of the operators that stay, whether called from Python, by autograd or by other operators."""

    def __init__(self, now: Callable[[], Mark]) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # torch's own gap
        self.inside = False
        """Whether what runs is to be compiled."""
        self.seen = self.seen_inside = 0
        self.kept: list[tuple[Mark, Mark]] = []
        """Begin and end of each operator inside that stays when compiled."""
        self._now = now
        self._stay: dict[object, bool] = {}

    @classmethod
    def _should_skip_dynamo(cls) -> bool:
        """Nothing is compiled meanwhile. With True, torch imports its compiler at the first operator: a second."""
        return False

    def __torch_dispatch__(self, func: Any, _types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.seen += 1
        if not self.inside:
            return func(*args, **(kwargs or {}))
        self.seen_inside += 1
        stays = self._stay.get(func)
        if stays is None:
            stays = self._stay[func] = _stays(func.name())
        if not stays:
            return func(*args, **(kwargs or {}))
        began = self._now()
        result = func(*args, **(kwargs or {}))
        self.kept.append((began, self._now()))
        return result


def _stays(operator: str) -> bool:
    """`operator`: `aten::mm.out`, `c10d::allreduce_`."""
    library, _, name = operator.partition("::")
    return library != "aten" or name.startswith(KEPT)


def _watching_s() -> float:
    """Seconds of this thread that watching an operator costs."""
    value, watched = torch.zeros(8), _Operators(time.thread_time)
    watched.inside = True

    def add() -> float:
        began = time.thread_time()
        for _ in range(PROBED):
            value.add_(1.0)
        return time.thread_time() - began

    add()
    bare_s = add()
    with watched:
        return max(0.0, add() - bare_s) / PROBED


def _at_the_end(call: Callable[[], None]) -> None:
    """Call at the end of the backward pass that is under way."""
    torch.autograd.Variable._execution_engine.queue_callback(call)  # as torch's FSDP does


def _stream_time() -> torch.cuda.Event:
    event = torch.cuda.Event(enable_timing=True)  # type: ignore[no-untyped-call]  # torch's own gap
    event.record()
    return event


def _between(began: Mark, ended: Mark) -> float:
    if isinstance(began, float) or isinstance(ended, float):
        return float(ended) - float(began)  # type: ignore[arg-type]  # both are of one kind
    return float(began.elapsed_time(ended)) / 1000
