"""Record the cases again: `python -m tests.cases.why.record [NAME…]`, as root on Linux, with torch.

Every program of programs.yaml fails under torchrun on loopback; what torchrun of each node wrote is kept as the log of
a container would have it. Only paths are changed.
"""

from __future__ import annotations

import os
import re
import shlex
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from secrets import token_hex

import torch

from contract.log_lines import EVENT_MARK
from contract.run_folder import AGENTS_TOKEN
from tests.cases.why.programs import Program, programs
from trainer.agent.handshake import SHORTEST

LOGS = Path(__file__).parent / "logs"
DEADLINE_S = 120
NODES = ("alpha", "beta", "gamma")
SOURCE = f"torch {torch.__version__}, torchrun on loopback, tests/cases/why/programs.yaml"


def record(name: str, program: Program) -> str:
    """The text of the case."""
    with tempfile.TemporaryDirectory() as folder:
        Path(folder).chmod(0o755)  # some programs give up root
        script = Path(folder) / "train.py"
        if name != "start.script_missing":
            script.write_text(program.script)
        if program.supervised:
            (Path(folder) / AGENTS_TOKEN).write_text(token_hex(SHORTEST))
        with socket.create_server(("", 0)) as taken:
            port = taken.getsockname()[1]
            if "TAKE_PORT" not in program.environment:
                taken.close()
            ranks = program.ranks or tuple(range(program.nodes))
            started = [_start(program, rank, seat, port, Path(folder)) for seat, rank in enumerate(ranks)]
            written = [process.communicate(timeout=DEADLINE_S)[0] for process in started]
        parts = [
            f"--- {NODES[seat]} {rank} exit={process.returncode}\n{_clean(text, folder)}"
            for seat, (rank, process, text) in enumerate(zip(ranks, started, written, strict=True))
            if NODES[seat] in (program.keep or NODES)
        ]
    frame = f"/workspace/code/train.py:{program.frame}" if program.frame else ""
    return f"made: {SOURCE}\nrank: {program.rank}\nframe: {frame}\n\n" + "".join(parts)


def _start(program: Program, rank: int, seat: int, port: int, folder: Path) -> subprocess.Popen[str]:
    alone = (sys.executable, "-m", "torch.distributed.run", "--tee", "3", "--log-dir", str(folder / f"logs-{seat}"))
    words = [
        *shlex.split(program.before), *((*_supervisor(program, rank), "torchrun") if program.supervised else alone),
        "--nnodes", str(program.nodes), "--node-rank", str(rank), "--nproc-per-node", "1",
        "--master-addr", "127.0.0.1", "--master-port", str(port), "--max-restarts", "0",
        *program.options, str(folder / "train.py"),
    ]  # fmt: skip
    environment = {
        **os.environ, **program.environment, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1",
        "ORCH_NODE": NODES[seat], "ORCH_RUN_DIR": str(folder), "PYTHONPATH": str(Path(__file__).parents[3]),
        "TORCHELASTIC_LOG_LINE_PREFIX_TEMPLATE": "[rank${rank}]: ",
    }  # fmt: skip
    if program.nodes > 1:
        environment.setdefault("GLOO_SOCKET_IFNAME", "lo")
    return subprocess.Popen(
        words, cwd=folder, env=environment, text=True, errors="replace",
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
    )  # fmt: skip


def _supervisor(program: Program, rank: int) -> list[str]:
    nodes = ("--nodes", ",".join(NODES[: program.nodes]), "--node-rank", str(rank), "--first-rank", str(rank))
    where = ("--address", "127.0.0.1", "--port", "29411", "--restarts", "0")
    return [sys.executable, "-m", "trainer.agent", *nodes, *where, "--"]


def _clean(text: str, folder: str) -> str:
    """Clean a log as in a container: its paths, and lines no longer than a person reads."""
    python = re.escape(str(Path(sys.executable).parents[1]))
    text = re.sub(
        rf"(?:{python}|/usr/local|/usr)(?=/lib/python3|/bin/)", "/opt/venv", text.replace(folder, "/workspace/code")
    )
    for ours, theirs in ((sys.base_prefix, "/usr/local"), (str(Path(__file__).parents[3]), "/opt/orch")):
        text = text.replace(ours, theirs)
    text = text.replace(socket.gethostname(), "localhost")
    lines = (line if line.startswith(EVENT_MARK) else line[:600].rstrip() for line in text.splitlines())
    return "".join(f"{line}\n" for line in lines)


if __name__ == "__main__":
    known = programs()
    for wanted in sys.argv[1:] or known:
        (LOGS / f"{wanted}.log").write_text(record(wanted, known[wanted]))
