"""Stop, restart, and the check of the machines: the commands of the command line, started by a page."""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections import deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from threading import Lock, Thread
from typing import Any

from orchestrator.render.printable import printable
from orchestrator.specs.errors import ConflictError, UsageError
from orchestrator.specs.finding import Finding
from orchestrator.specs.run import RUN_ID
from orchestrator.watch.plain import shown

VERBS = {"stop": ("--yes",), "restart": ("--yes", "--detach")}
"""Commands on a run, and the words that follow it: the page has asked."""
DOCTOR = ("doctor", "--json")
MAX_ACTIONS, LINES, LONGEST = 10, 40, 500
"""Newest actions, besides older ones that are running; newest lines of each, and their characters."""
MOST_OUTPUT = 4 * 1024 * 1024
Perform = Callable[[Sequence[str], Callable[[str], object]], "tuple[int, str]"]
"""Runs a command with these words, gives each line of its messages to the function, returns exit code and stdout."""


@dataclass(kw_only=True)
class PageAction:
    """A command that the page has started."""

    number: int
    verb: str
    run_id: str
    began: float
    lines: deque[str] = field(default_factory=lambda: deque(maxlen=LINES))
    code: int | None = None
    """Exit code; None: it is running."""

    def data(self) -> dict[str, Any]:
        return {
            "number": self.number, "verb": self.verb, "run_id": self.run_id, "began": self.began,
            "lines": list(self.lines), "code": self.code,
        }  # fmt: skip


class PageActions:
    """Actions that pages ask for."""

    def __init__(self, perform: Perform) -> None:
        self._perform, self._lock = perform, Lock()
        self._actions: list[PageAction] = []
        self._number = 0
        self.findings: dict[str, Any] | None = None
        """The newest answer of the check of the machines: that of `orch doctor --json`, with the findings folded."""

    def begin(self, verb: str, run_id: str) -> PageAction:
        """Start an action on a run. UsageError: it is none."""
        if verb not in VERBS or not re.fullmatch(RUN_ID, run_id):
            raise UsageError(f"{verb} {run_id}: no action")
        return self._begin(verb, run_id, (verb, run_id, *VERBS[verb]))

    def examine(self) -> PageAction:
        """Start the check of all machines, which changes nothing on them."""
        return self._begin("doctor", "", DOCTOR)

    def data(self) -> list[dict[str, Any]]:
        """The newest actions, in the order of their start."""
        with self._lock:
            return [one.data() for one in self._actions]

    def _begin(self, verb: str, run_id: str, words: Sequence[str]) -> PageAction:
        with self._lock:
            if any(one.run_id == run_id and one.code is None for one in self._actions):
                raise ConflictError(f"another action on {run_id or 'the machines'} is running", hint="wait for its end")
            self._number += 1
            action = PageAction(number=self._number, verb=verb, run_id=run_id, began=time.time())
            running = [one for one in self._actions[: 1 - MAX_ACTIONS] if one.code is None]
            self._actions = [*running, *self._actions[1 - MAX_ACTIONS :], action]
        Thread(target=self._carry_out, args=(action, words), daemon=True).start()
        return action

    def _carry_out(self, action: PageAction, words: Sequence[str]) -> None:
        def hear(line: str) -> None:
            with self._lock:
                action.lines.append(printable(line)[:LONGEST])

        code = 1
        try:
            code, output = self._perform(words, hear)
            if action.verb == "doctor":
                self._keep_findings(output)
        except Exception as error:
            hear(f"{type(error).__name__}: {error}")
        finally:
            action.code = code

    def _keep_findings(self, output: str) -> None:
        import json

        from pydantic import TypeAdapter

        from orchestrator.render.findings import folded_data  # with rich, which the page has no other need of

        try:
            data = json.loads(output)["data"]
            record = {name: data[name] for name in ("at", "unfit", "not_checked")}
            found = TypeAdapter(list[Finding]).validate_python(data["findings"])
        except (ValueError, KeyError, TypeError):
            return  # it was refused: its lines say why
        self.findings = shown({**record, "findings": folded_data(found)})


def perform_here(inventory: Path | None) -> Perform:
    """Run commands of `orch` on this computer with this inventory, detached from the terminal: Ctrl-C ends the page,
    and not a stop half way."""

    def perform(words: Sequence[str], hear: Callable[[str], object]) -> tuple[int, str]:
        given = ("-i", str(inventory)) if inventory else ()
        argv = (sys.executable, "-P", "-m", "orchestrator", *words, *given)
        with subprocess.Popen(
            argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
            text=True, encoding="utf-8", errors="replace", start_new_session=True,
        ) as process:  # fmt: skip
            output: list[str] = []
            reading = Thread(target=lambda: output.append(_read(process)), daemon=True)
            reading.start()
            for line in process.stderr or ():
                hear(line.rstrip("\n"))
            reading.join()
            return process.wait(), "".join(output)

    return perform


def _read(process: subprocess.Popen[str]) -> str:
    """The beginning of stdout. The rest is read, too, as otherwise the command waits for a reader."""
    if process.stdout is None:
        return ""
    text = process.stdout.read(MOST_OUTPUT)
    while process.stdout.read(MOST_OUTPUT):
        pass
    return text
