"""Commands of the user that run on this computer when something happens to a run: it ended, failed, or lost a node.

They run only as they were granted: the text of an inventory's hooks and the files that they name, by one digest, for
the folder of that inventory (ADR 63). Values of the run go through the environment, as printable text of a bounded
length: nothing that a node says becomes a part of a command line.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shlex
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from tempfile import TemporaryFile
from typing import TYPE_CHECKING

from platformdirs import user_state_path

from orchestrator.fleet.fan_out import begin
from orchestrator.nodes.state_files import open_private
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory import HookCommand, HookSpec
from orchestrator.specs.plan import Plan
from orchestrator.specs.run_events import ContainerExited, NodeBack, NodeLost, RunLine
from orchestrator.state.phase import phase_of

if TYPE_CHECKING:
    from orchestrator.fleet.supervise.followed import FollowedRun
    from orchestrator.state.recovery import Update
    from orchestrator.state.run_outcome import RunOutcome

TIMEOUT_S = 60.0
"""Longest time of a command; then it is killed, with all processes that it has started in its session."""
LONGEST = 1000
"""Characters of a variable."""
OUTPUT_BYTES = 16_384
"""The end of a command's output that is kept."""
LOG = "hooks.log"
"""File with the output of the commands, in the folder of the run."""
SHOWN_DIGITS = 16
"""Digits of a digest in a line to paste: too many for other hooks of the same ones to be found."""
_NO_PATH = re.compile(r"[\s;|&()<>`'\"$={}]+")
_WRITTEN = re.compile(r">\s*([^\s;|&()<>`'\"$={}]+)")
NODE_LOST = "node_lost-"
"""Beginning of the mark of a node that is away."""


@dataclass(frozen=True, kw_only=True)
class HookResult:
    """A command that has ended."""

    name: str
    """`ended`, `failed`, `node_lost` or `--notify`."""
    command: HookCommand
    problem: str = ""
    """Reason why it failed; empty if it did not."""
    output: str = ""

    @property
    def text(self) -> str:
        """The command as one types it."""
        return _typed(self.command)


def _typed(command: HookCommand) -> str:
    return command if isinstance(command, str) else shlex.join(command)


def named_files(spec: HookSpec, folder: Path) -> tuple[str, ...]:
    """Files that a word of a hook names by a path from the inventory's folder, such as `./webhook.sh`; not those that a
    shell writes for it (`>> runs.txt`)."""
    names = dict[str, None]()
    for command in spec.model_dump().values():
        words = _shell_words(command) if isinstance(command, str) else command or ()
        names |= {word: None for word in words if not word.startswith("/") and _is_file(folder / word)}
    return tuple(names)


def _shell_words(command: str) -> Iterator[str]:
    """Everything in the text that may be a path, also within quotation marks: rather too much than too little."""
    parts = _NO_PATH.split(command)
    written = _WRITTEN.findall(command)
    yield from (part for part in parts if part not in written or parts.count(part) > 1)
    with suppress(ValueError):  # a quotation without an end, which the shell refuses, too
        yield from (word for word in shlex.split(command) if " " in word)


def _is_file(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a word that can be no path
        return False


def hooks_digest(spec: HookSpec, folder: Path) -> str:
    """SHA-256 of the hooks and of the files that they name; empty where there are no hooks.

    ConfigError: a file cannot be read.
    """
    if spec == HookSpec():
        return ""
    digest = hashlib.sha256(spec.model_dump_json().encode())
    for name in named_files(spec, folder):
        try:
            with (folder / name).open("rb") as file:
                content = hashlib.file_digest(file, "sha256").hexdigest()
        except OSError as error:
            raise ConfigError(f"{folder / name}, which a hook runs, cannot be read: {error.strerror}") from None
        digest.update(json.dumps([name, content]).encode())
    return digest.hexdigest()


def hook_lines(spec: HookSpec, folder: Path) -> tuple[str, ...]:
    """The hooks as a person is to see them before they are granted."""
    commands = {name: command for name, command in spec.model_dump().items() if command is not None}
    files = (f"and the file {folder / name}" for name in named_files(spec, folder))
    return (*(f"{name}: {_typed(command)}" for name, command in commands.items()), *files)


def is_granted(digest: str, folder: Path) -> bool:
    """Return whether the user has granted hooks of this digest for an inventory in this folder."""
    try:
        lines = _granted().read_text("utf-8").splitlines()
    except FileNotFoundError:
        return False
    return _grant_line(digest, folder) in lines


def grant(digest: str, folder: Path) -> None:
    """Let these hooks run for an inventory in this folder."""
    if not is_granted(digest, folder):
        with open_private(_granted()) as file:
            file.write(f"{_grant_line(digest, folder)}\n".encode())


def _granted() -> Path:
    return user_state_path("orch") / "granted-hooks"


def _grant_line(digest: str, folder: Path) -> str:
    return json.dumps([digest, str(folder.resolve())])


def run_hook(
    name: str, command: HookCommand, variables: Mapping[str, object], folder: Path, *, timeout_s: float = TIMEOUT_S
) -> HookResult:
    """Run a command to its end, in `folder`, with variables `ORCH_…` of these names added to the environment.

    A text is given to /bin/sh; a list of words is run as it is. Never raises: `problem` says what failed.
    """
    argv = ["/bin/sh", "-c", command] if isinstance(command, str) else list(command)
    environment = {**os.environ, **{f"ORCH_{key}": as_variable(value) for key, value in variables.items()}}
    problem = ""
    with TemporaryFile() as out:  # a pipe would wait for processes that the command leaves behind
        try:
            process = subprocess.Popen(
                argv, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=out, stderr=out,
                start_new_session=True,
            )  # fmt: skip
        except (OSError, ValueError) as error:
            return HookResult(name=name, command=command, problem=f"it could not be started: {error}")
        try:
            code = process.wait(timeout_s)
            problem = f"exit code {code}" if code else ""
        except subprocess.TimeoutExpired:
            problem = f"no end after {timeout_s:.0f} s: it was killed"
            with suppress(ProcessLookupError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        out.seek(max(0, out.seek(0, os.SEEK_END) - OUTPUT_BYTES))
        text = out.read().decode("utf-8", "replace")
    return HookResult(name=name, command=command, problem=problem, output=text)


def as_variable(value: object) -> str:
    """A value as a variable: printable characters on one line, at most `LONGEST`."""
    text = "" if value is None else str(value)
    return "".join(one if one.isprintable() else " " for one in text[:LONGEST])


def outcome_variables(plan: Plan, outcome: RunOutcome) -> dict[str, object]:
    """The variables for the end of a run."""
    failure, event = outcome.failure, outcome.last_event
    return {
        "RUN": plan.run_id,
        "STATE": outcome.phase.value,
        "REASON": failure.reason if failure else "",
        "NODE": failure.node if failure else "",
        "STEP": event.step if event else None,
        "COMMAND": shlex.join(plan.command),
    }


@dataclass
class Hooks:
    """The hooks of one run, each once per event: a supervisor that is started again does not repeat them."""

    spec: HookSpec
    plan: Plan
    followed: FollowedRun
    folder: Path = field(default_factory=Path)
    """Folder that the commands run in: the inventory's."""
    timeout_s: float = TIMEOUT_S
    _running: list[Future[HookResult]] = field(default_factory=list)
    _away: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.record = self.followed.record
        marks = self.record.journal.hooks
        self._away = {mark.removeprefix(NODE_LOST) for mark in marks if mark.startswith(NODE_LOST)}

    def hear(self, update: Update) -> None:
        """Take an event of the run."""
        if isinstance(update, NodeLost):
            if update.node not in self._away:
                self._away.add(update.node)
                phase = phase_of(self.followed.state)
                values = {"STATE": phase.value, "REASON": update.error.message, "NODE": update.node}
                self._fire("node_lost", f"{NODE_LOST}{update.node}", values)
        elif isinstance(update, NodeBack | RunLine | ContainerExited) and update.node in self._away:
            self._away.discard(update.node)
            self.record.end_hook(f"{NODE_LOST}{update.node}")

    def end(self, outcome: RunOutcome) -> None:
        """Take the end of the run: `ended`, and `failed` before it where it failed."""
        plan = self.record.plan() or self.plan
        for name in ("failed", "ended") if outcome.failure else ("ended",):
            self._fire(name, f"{name}-{plan.attempt}", outcome_variables(plan, outcome))

    def results(self, *, wait: bool = False) -> list[HookResult]:
        """Results that were not returned before. `wait`: of all commands, which takes at most their timeout."""
        ended = [future for future in self._running if wait or future.done()]
        self._running = [future for future in self._running if future not in ended]
        return [future.result() for future in ended]

    def _fire(self, name: str, mark: str, values: Mapping[str, object]) -> None:
        """Start the hook, unless this event has started it before."""
        command: HookCommand | None = getattr(self.spec, name)
        if command is None or not self._claim(mark):
            return
        variables = {"COMMAND": shlex.join(self.plan.command), "STEP": self.followed.step, **values,
                     "EVENT": name, "RUN": self.plan.run_id}  # fmt: skip
        self._running.append(begin(self._work(name, command, variables)))

    def _work(self, name: str, command: HookCommand, variables: Mapping[str, object]) -> Callable[[], HookResult]:
        def work() -> HookResult:
            result = self._not_granted(name, command) or run_hook(
                name, command, variables, self.folder, timeout_s=self.timeout_s
            )
            with suppress(OSError), open_private(self.record.folder / LOG) as log:
                at = datetime.now().astimezone().isoformat(timespec="seconds")
                head = f"{at} {name}: {result.text}: {result.problem or 'done'}\n"
                log.write((head + result.output.rstrip("\n") + "\n").encode("utf-8", "backslashreplace"))
            return result

        return work

    def _not_granted(self, name: str, command: HookCommand) -> HookResult | None:
        """A result without a run: the hooks or their files are not as they were granted at the launch."""
        try:
            digest = hooks_digest(self.spec, self.folder)
        except ConfigError as error:
            return HookResult(name=name, command=command, problem=f"it was not run: {error.message}")
        if is_granted(digest, self.folder):
            return None
        line = f"orch trust --hooks {digest[:SHOWN_DIGITS]}"
        problem = f"it was not run: you have not agreed to the hooks as they are now; for the next time: {line}"
        return HookResult(name=name, command=command, problem=problem)

    def _claim(self, mark: str) -> bool:
        """Note the event before its command starts: one that is cut off is not repeated."""
        try:
            return self.record.begin_hook(mark)
        except OSError:
            return True  # a full disk is no reason for silence
