"""`python -m trainer.survive --nodes NAMES --node-rank N … -- torchrun …`."""

import os
import sys

from trainer.errors import TrainerError
from trainer.survive.options import read
from trainer.survive.supervisor import Supervisor

if __name__ == "__main__":
    try:
        code = Supervisor(read(sys.argv[1:], os.environ)).run()
    except TrainerError as error:
        print(f"error: {error}", file=sys.stderr, flush=True)
        code = error.exit_code
    os._exit(code)  # threads that listen may hold the end up
