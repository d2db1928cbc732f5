"""`python -m trainer.agent --nodes NAMES --node-rank N … -- torchrun …`; in a job: `--place slurm … -- torchrun …`."""

import os
import signal
import sys
from types import FrameType

from contract.failures.owners import EXIT_CODES
from trainer.agent.line_stamps import stamp_output
from trainer.agent.node_agent import STOP_SIGNALS, NodeAgent
from trainer.agent.options import complete, parse
from trainer.agent.stdin_end import StdinEnd
from trainer.errors import TrainerError


def _leave(_number: int, _frame: FrameType | None) -> None:
    """End: a request to stop before there are ranks, such as while `complete` waits for a name to get an address."""
    os._exit(EXIT_CODES["stopped"])


if __name__ == "__main__":
    given = parse(sys.argv[1:], os.environ)
    if given.stamp_lines:
        stamp_output()
    for number in STOP_SIGNALS:  # the first process of a container gets no signal that it has no handler for
        signal.signal(number, _leave)
    stdin_end = StdinEnd()
    if given.end_with_stdin:
        stdin_end.watch()
    if given.end_with_parent:
        stdin_end.watch_parent()
    try:
        code = NodeAgent(complete(given, os.environ), stdin_end).run()
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    os._exit(code)  # threads that listen may hold the end up
