"""`python -m trainer.agent --nodes NAMES --node-rank N … -- torchrun …`."""

import os
import sys

from trainer.agent.node_agent import NodeAgent
from trainer.agent.options import read
from trainer.errors import TrainerError

if __name__ == "__main__":
    try:
        code = NodeAgent(read(sys.argv[1:], os.environ)).run()
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    os._exit(code)  # threads that listen may hold the end up
