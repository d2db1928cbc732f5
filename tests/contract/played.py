"""The test in the part of the machine behind a fake: commands are really run, and containers end by themselves."""

from __future__ import annotations

import subprocess
import time
from collections.abc import Sequence

from orchestrator.nodes.fake import Answer, FakeEngine
from orchestrator.nodes.interface import Completed
from orchestrator.nodes.processes.files import timestamp
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import ConflictError, DeadlineError
from orchestrator.specs.run import State

FOR_EVER = "sleep 200"
"""Command that lasts longer than a test may take."""


def play(argv: Sequence[str], stdin: bytes, timeout_s: float) -> Answer:
    """Answer as a machine would."""
    if FOR_EVER in " ".join(argv):
        raise DeadlineError(f"{argv[0]} had not ended after {timeout_s:.0f} s", node="alpha")
    try:
        done = subprocess.run(list(argv), input=stdin, capture_output=True, timeout=60, check=False)
    except FileNotFoundError as error:
        return 127, "", str(error)
    return done.returncode, done.stdout.decode(errors="surrogateescape"), done.stderr.decode(errors="replace")


class PlayedEngine(FakeEngine):
    """A fake whose containers run their command when they are started; one that sleeps runs until stopped."""

    def __init__(self, node: str) -> None:
        super().__init__(node, programs=lambda spec: play(spec.command, b"", 60))

    def start(self, container: str) -> None:
        super().start(container)
        spec = self.made[container][0]
        if FOR_EVER in " ".join(spec.command):
            self.write(container, _now(), "asleep")
            return
        code, out, err = play(spec.command, b"", 60)
        for line in (out + err).splitlines():
            self.write(container, _now(), line)
        self.finish(container, code)

    def signal(self, container: str, signal: str) -> None:
        if self.made[container][1].state is not State.RUNNING:
            raise ConflictError("not running", node=self.node)
        super().signal(container, signal)
        self.finish(container, 137 if signal == "SIGKILL" else 0)

    def execute(self, container: str, argv: Sequence[str]) -> Completed:
        code, out, err = play(argv, b"", 60)
        return Completed(node=self.node, argv=tuple(argv), exit_code=code, stdout=out, stderr=err)

    def run_once(self, spec: ContainerSpec, *, timeout_s: float = 60.0) -> Completed:
        if FOR_EVER in " ".join(spec.command):
            raise DeadlineError(f"{spec.command[0]} had not ended after {timeout_s:.0f} s", node=self.node)
        return super().run_once(spec, timeout_s=timeout_s)


def _now() -> str:
    return timestamp(time.time_ns())
