"""`python -m trainer.agent --nodes NAMES --node-rank N … -- torchrun …`; in a job: `--place slurm … -- torchrun …`."""

import os
import sys

from trainer.agent.line_stamps import stamp_output
from trainer.agent.node_agent import NodeAgent
from trainer.agent.options import complete, parse
from trainer.errors import TrainerError

if __name__ == "__main__":
    given = parse(sys.argv[1:], os.environ)
    if given.stamp_lines:
        stamp_output()
    try:
        code = NodeAgent(complete(given, os.environ)).run()
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    os._exit(code)  # threads that listen may hold the end up
