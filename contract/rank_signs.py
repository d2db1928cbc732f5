"""Signs of life of a rank, as an agent reports them and the rules of liveness read them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

BUSY, IDLE = 0.2, 0.01
"""CPU seconds per second from which a rank computes, and below which it is idle."""

MOST_RANKS = 256
"""Maximum number of ranks of a node."""


@dataclass(frozen=True, kw_only=True)
class RankSigns:
    """Signs of one rank: its own status, written every second, and its process, read from /proc."""

    rank: int
    node: str = ""
    process: int = 0
    world: int = 1
    """Number of ranks, as this one knows it."""
    age_s: float | None = None
    """Seconds since its status was written; None: it writes none (no torch yet, another Python, `python -I`)."""
    optimizer_steps: int = 0
    groups: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    """Process group → number of collectives that were entered, and that are completed."""
    store_port: int = 0
    """Port of torch's store, on whose connections no gradient travels."""
    in_group: bool = False
    """True if a process group exists."""
    joined: bool = False
    """True if one was seen, which a script destroys at its end."""
    call: str = ""
    """Call into torch.distributed that its main thread is in."""
    line: str = ""
    """The user's line: `FILE:LINE in FUNCTION`."""
    importing: str = ""
    """Package that it is importing."""
    gpu: bool = False
    """True if it uses CUDA: then CPU time says nothing, as a wait may spin."""
    parameter: int | None = None
    """Elements of the largest parameter that it trains; None: not known."""
    largest: int | None = None
    """Elements of the largest tensor in the recorded collectives; None: not looked at, or none is recorded."""
    looked_at: int = 0
    """Optimizer steps at which these were read last."""
    libraries: tuple[str, ...] = ()
    """Packages that it has imported and that exchange gradients without torch.distributed."""
    work: int = 0
    """Units of work that the trainer has noted."""
    step: int = 0
    part: str = ""
    exchange: str = ""
    """The collective that the trainer has noted."""
    left_out: bool = False
    """True if it takes no part in the training."""
    cpu: float | None = None
    """CPU seconds per second of the process and its descendants; None: not known."""
    stood_s: float = 0.0
    """Seconds for which its process, without descendants, has used less than `IDLE`: a thread that waits for the
    interpreter uses 0.5 %."""
    io_bytes_s: float = 0.0
    """Bytes that it reads and writes per second, also on connections."""
    sent_bytes: int | None = None
    """Bytes on its TCP connections so far, without the store's; None: not known."""
    state: str = ""
    """The kernel's letter: T stopped, D held by a disk or a driver."""
    sleeps: bool = False
    """True if its main thread is in a timed sleep."""
    listens: bool = False
    """True if it waits for connections, as a server does."""
    lines: int = 0
    """Lines that the ranks of its node have written."""

    @property
    def name(self) -> str:
        return f"rank {self.rank} on {self.node}"

    @property
    def completed(self) -> int:
        return sum(completed for _, completed in self.groups.values())

    @property
    def pending(self) -> frozenset[tuple[str, int]]:
        """Group and number of each collective that it has entered and that is not completed."""
        return frozenset((name, entered) for name, (entered, completed) in self.groups.items() if entered > completed)

    @property
    def waits(self) -> bool:
        """True if it waits for other ranks."""
        waiting = self.call or self.exchange or self.pending
        return bool(waiting) and (self.gpu or self.cpu is None or self.cpu < BUSY)

    @property
    def progress(self) -> tuple[int, ...]:
        """Changes with each piece of work."""
        return self.process, int(self.in_group), self.optimizer_steps, self.completed, self.work, self.lines
