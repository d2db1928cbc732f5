"""Interface of a method that keeps ranks in common: all that the loop asks and knows of one."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass

from torch import Tensor, nn

State = Mapping[str, Tensor]


@dataclass(frozen=True, kw_only=True)
class RankState:
    """State that one rank had kept at a checkpoint."""

    rank: int
    world_size: int
    """Number of ranks at that checkpoint."""
    state: State

    @property
    def participant(self) -> tuple[int, int, int, int]:
        """Its number among those who exchanged, how many these were, and first value and number of values of the part
        of the bucket that they exchanged; see sync/in_nodes.py. Of a rank by itself: -1 values, which are all."""
        if "shard" not in self.state:
            return self.rank, self.world_size, 0, -1
        number, among, start, count = self.state["shard"].tolist()
        return number, among, start, count


class Sync(ABC):
    name: str
    layout = ""
    """Description that must be the same for a kept state to be of use again."""
    model: nn.Module
    """Module that a forward pass calls."""
    warm_up_exchanges = 0
    """Its first so many exchanges sum in another order than all others, and so are to be made before the first step."""
    waited = 0.0
    """Seconds so far in which this rank could only wait for the others."""
    weight = 1.0
    """This rank's share of a step's samples in proportion to an equal one."""

    @property
    def averages(self) -> bool:
        """True if the next step is by the mean gradient of all ranks; else by each rank's own."""
        return True

    @abstractmethod
    def gradients(self, *, last: bool) -> AbstractContextManager[None]:
        """Enter around each micro-batch's passes; the gradients of a step may go out in the last one's backward."""

    def interrupted(self) -> None:
        """A pass of this step has failed on this rank, and the step is computed again here. What has gone out stays as
        it is: the other ranks have it. What has not goes out in `finish`, so that they see one step as always."""
        return

    def close(self) -> None:
        """Let go of the model."""
        return

    def finish(self) -> None:
        """Finish a step after the last micro-batch. Where this method averages, every gradient is then the mean."""
        return

    def stepped(self, step: int) -> None:  # noqa: ARG002  # most ways do nothing then
        """Note that the optimizer has taken `step`."""
        return

    def shared(self) -> Sequence[Tensor]:
        """Tensors that are the same on all ranks now, but for rounding."""
        return list(self.model.parameters())

    def finalize(self) -> bool:
        """Bring all ranks to the same weights, at the end. Whether that has moved the common ones."""
        return False

    def use_averaged(self) -> AbstractContextManager[None]:
        """Give the model, within the block, the weights that all ranks share: what is judged and saved."""
        return nullcontext()

    def state(self) -> State:
        """State of this rank alone that a checkpoint must keep: errors not yet sent, its own weights and moments."""
        return {}

    def restore(self, saved: Sequence[RankState], *, exact: bool) -> None:  # noqa: ARG002  # some ways keep nothing
        """Continue from kept state. `exact`: every rank has its own; otherwise this one has its part of all ranks', and
        `agree` follows. Without collectives: an error is that of the files."""
        return

    def agree(self) -> None:
        """Share what all ranks must have alike and only some have restored."""
        return
