"""`python -m trainer.survive --nodes NAMES --node-rank N … -- torchrun …`."""

import os
import sys

from trainer.survive.options import read
from trainer.survive.supervisor import Supervisor

if __name__ == "__main__":
    code = Supervisor(read(sys.argv[1:], os.environ)).run()
    os._exit(code)  # threads that listen may hold the end up
