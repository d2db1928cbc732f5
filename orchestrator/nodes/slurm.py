"""Slurm as a `Carrier`: its commands on the login node, and the files of runs on the shared storage."""

from __future__ import annotations

import json
import re
import shlex
import time
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from threading import Lock

from contract.log_lines import readable
from orchestrator.nodes.carrier import Carried, CarriedAttempt
from orchestrator.nodes.interface import Completed, LogLine, Node
from orchestrator.nodes.log_stream import WINDOW, after, later
from orchestrator.nodes.slurm_answers import (
    LONGEST_FILE,
    MOST_RUNS,
    SILENT,
    UNREADABLE,
    EndedJob,
    carried,
    read_look,
    read_sacct,
    submit_problem,
)
from orchestrator.specs.cluster import JOB_PREFIX, ClusterSpec
from orchestrator.specs.errors import (
    CommandFailedError,
    ConfigError,
    DeadlineError,
    EngineError,
    NodeUnreachableError,
    OrchError,
    PreflightError,
)

ASK_S = 30.0
FRESH_S = 1.0
"""Age at which an answer is asked for again: a command asks for each node of a run."""
POLL_S = 1.0
"""Seconds between two looks at a run that is followed."""
CANCEL_S = 60.0
"""Slurm kills a cancelled job after its KillWait, 30 s by default."""
CHUNK = 1024 * 1024
"""Bytes of a log that are read at once."""
SILENT_S = 60.0
"""Seconds without any answer of the scheduler after which a job that is waited for is given up."""
EXECUTE_S = 7 * 86400.0
"""Longest time of a command beside the ranks; a poll takes no timeout of 25 days."""
_ID = re.compile(r"^\s*([0-9]{1,12})(?:;\S+)?\s*$", re.MULTILINE)
"""The answer to `--parsable`, among lines of a site's own: some have a program around sbatch."""
_STAMP = re.compile(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:\.\d{1,9})?(?:Z|[+-]\d\d:\d\d)) ?(.*)", re.DOTALL)

# Constants for the login node's shell. $1: the run's folder, $2: the attempt; the script on stdin.
_KEEP = """
umask 077
cd -- "$1" && mkdir -p logs && cat > "job-$2.sbatch"
"""
_SUBMIT = """
cd -- "$1" && exec sbatch --parsable "job-$2.sbatch"
"""
_NOTE = """
umask 077
cd -- "$1" && cat > ".submitted-$2" && mv -f -- ".submitted-$2" "submitted-$2.json"
"""
# $1: the job's name. For a job whose number is not known.
_CANCEL_NAMED = """
exec scancel --user="$(id -un)" --name="$1"
"""
_DROP_SECRETS = """
folder=$1; case $folder in "~"*) folder=$HOME${folder#"~"};; esac
rm -rf -- "$folder/runs/$2/secrets"
"""
_FORGET = """
folder=$1; case $folder in "~"*) folder=$HOME${folder#"~"};; esac
cd -- "$folder/runs/$2" 2>/dev/null && rm -rf -- submitted-*.json secrets
exit 0
"""
# $1: the project's folder (which may begin with ~), $2: most runs, $3: the longest file, $4: a run that is
# wanted in any case. First the files of each run, one a line; then squeue's exit code and answer. Each node's agent
# leaves an exit record; that of rank 0, which decides on the end, is enough: a look costs 1.3 ms a file or more.
_LOOK = r"""
folder=$1; case $folder in "~"*) folder=$HOME${folder#"~"};; esac
if cd -- "$folder/runs" 2>/dev/null; then
  {
    [ -n "$4" ] && [ -d "./$4" ] && printf '%s\n' "$4"
    ls -t -- */submitted-*.json 2>/dev/null | head -n "$2" | sed 's|/.*||'
  } | awk '!seen[$0]++' | while IFS= read -r run; do
    for file in "./$run"/submitted-*.json "./$run"/place-*.json "./$run"/ended.* "./$run"/over-0.json; do
      [ -f "$file" ] || continue
      printf 'file\t%s\t' "${file#./}"
      head -c "$3" "$file" | tr -s '\n\r\t ' ' '
      echo
    done
  done
fi
queue=$(squeue -h -u "$(id -un)" -o '%i|%T|%j|%r' 2>&1)
printf 'squeue\t%s\n%s\n' "$?" "$queue"
"""
# $1: the project's folder, $2: the run, $3: a log, $4: its first byte to read, counted from 1, $5: most bytes.
_READ = """
folder=$1; case $folder in "~"*) folder=$HOME${folder#"~"};; esac
cd -- "$folder/runs/$2/logs" 2>/dev/null && [ -f "$3" ] || exit 4
tail -c "+$4" -- "$3" | head -c "$5"
"""
# $1: the project's folder, $2: the run, $3: a log, $4: a number of lines. The answer is the number of bytes before so
# many newest lines. The size is taken first: the log may grow meanwhile.
_BEFORE_NEWEST = """
folder=$1; case $folder in "~"*) folder=$HOME${folder#"~"};; esac
cd -- "$folder/runs/$2/logs" 2>/dev/null && [ -f "$3" ] || { echo 0; exit 0; }
size=$(wc -c < "$3")
echo $((size - $(head -c "$size" -- "$3" | tail -n "$4" | wc -c)))
"""


class SlurmCarrier:
    """`Carrier` of one cluster. Threads share its answers."""

    def __init__(
        self,
        login: Node,
        cluster: ClusterSpec,
        *,
        clock: Callable[[], float] = time.monotonic,
        rest: Callable[[float], object] = time.sleep,
    ) -> None:
        self.login, self.cluster = login, cluster
        self._clock, self.rest = clock, rest
        self._looking, self._stopping = Lock(), Lock()
        self._newest: tuple[float, str, Carried] | None = None
        self._ended: dict[str, EndedJob] = {}
        self._asked: dict[str, float] = {}
        """Jobs that were asked to stop, and when."""

    @property
    def name(self) -> str:
        return self.cluster.name

    def submit(self, run_folder: str, attempt: int, script: str, labels: Mapping[str, str], nnodes: int = 1) -> str:
        written = self.login.run(["sh", "-c", _KEEP, "sh", run_folder, str(attempt)], stdin=script.encode())
        written.check(f"writing the batch script to {run_folder}")
        job = self._submit(run_folder, attempt)
        values = {"job": job, "attempt": attempt, "nnodes": nnodes, "labels": dict(labels)}
        try:
            noted = self.login.run(
                ["sh", "-c", _NOTE, "sh", run_folder, str(attempt)], stdin=json.dumps(values).encode()
            )
            noted.check(f"noting job {job} in {run_folder}")
        except BaseException:  # Ctrl-C too: no job without a trace
            with suppress(OrchError):
                self.cancel(job)
            raise
        self._newest = None
        return job

    def _submit(self, run_folder: str, attempt: int) -> str:
        words = ["sh", "-c", _SUBMIT, "sh", run_folder, str(attempt)]
        return self._number(words, f"{JOB_PREFIX}{run_folder.rpartition('/')[2]}")

    def hold(self, script: str, name: str) -> str:
        """Submit a job of this name that is no run, and return its id."""
        return self._number(["sbatch", "--parsable"], name, script)

    def _number(self, words: Sequence[str], name: str, script: str = "") -> str:
        """The id of the new job. A job of which none is known, as the answer is late or strange, is cancelled."""
        try:
            answer = self.login.run(words, stdin=script.encode(), timeout_s=ASK_S)
            found = _ID.findall(answer.stdout)
            if answer.exit_code == 0 and not found:
                output = readable(answer.stdout[:200])
                hint = self.on_login("squeue --me")
                raise EngineError(f"sbatch did not say the number of the job: {output!r}", node=self.name, hint=hint)
        except BaseException:  # Ctrl-C too
            with suppress(OrchError):
                self.login.run(["sh", "-c", _CANCEL_NAMED, "sh", name], timeout_s=ASK_S)
            raise
        if answer.exit_code:
            raise self._refused(answer)
        return str(found[-1])

    def drop_secrets(self, run_id: str) -> None:
        """Remove the secrets of a run whose job may have ended without doing so."""
        words = ["sh", "-c", _DROP_SECRETS, "sh", self.cluster.folder, run_id]
        self.login.run(words, timeout_s=ASK_S).check(f"removing the secrets of run {run_id}")

    def runs(self, run_id: str = "", *, fresh: bool = False) -> Carried:
        with self._looking:
            if self._newest and not fresh and self._newest[1] == run_id and self._clock() - self._newest[0] < FRESH_S:
                return self._newest[2]
            words = [self.cluster.folder, str(MOST_RUNS), str(LONGEST_FILE), run_id]
            answer = self.login.run(["sh", "-c", _LOOK, "sh", *words], timeout_s=ASK_S)
            found = read_look(answer.check("looking for runs", hint=self.on_login("squeue")))
            self._account(found.unexplained())
            result = carried(found, self._ended, self.cluster.project)
            self._newest = (self._clock(), run_id, result)
            return result

    def _account(self, jobs: Sequence[str]) -> None:
        """Ask the accounting, once for each job that has left the queue. Without slurmdbd it has no answer."""
        new = [job for job in jobs if job not in self._ended]
        if not new:
            return
        asked = ["sacct", "-P", "-n", "-D", "-X", "-o", "JobIDRaw,State,ExitCode", "-j", ",".join(new)]
        with suppress(CommandFailedError, DeadlineError):
            answer = self.login.run(asked, timeout_s=ASK_S)
            found = read_sacct(answer.stdout) if answer.exit_code == 0 else {}
            self._ended |= {job: one for job, one in found.items() if not one.state.startswith(("RUNNING", "PENDING"))}

    def lines(
        self, attempt: CarriedAttempt, rank: int, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        name = f"{rank}.{attempt.job}.{attempt.restart}.log"
        log = _LogFile(self, attempt, name)
        if since:
            log.skip_to_newest(WINDOW)
            past = list(log.new_lines())
            new: Iterable[LogLine] = after(past, since)
            if not any(line.time == since for line in past):  # more lines than that were written since
                log = _LogFile(self, attempt, name)
                new = later(log.new_lines(), since)
            yield from new if tail is None else deque(new, maxlen=tail)
        elif tail is not None:
            log.skip_to_newest(tail)
        while True:
            over = not follow or self._is_over(attempt)  # before reading: what comes after the end is read, too
            yield from log.new_lines()
            if over:
                break
            self.rest(POLL_S * max(1.0, attempt.nnodes / 8))
        yield from log.last_line()
        if not log.size and rank == 0:  # the step never began: the batch script says why
            batch = _LogFile(self, attempt, f"batch.{attempt.job}.log")
            yield from (*batch.new_lines(), *batch.last_line())

    def read_log(self, run_id: str, name: str, offset: int) -> bytes:
        """Bytes of a log from this one on; empty where it has none, or does not exist yet."""
        words = [self.cluster.folder, run_id, name, str(offset + 1), str(CHUNK)]
        answer = b""
        with suppress(CommandFailedError):
            for chunk in self.login.stream(["sh", "-c", _READ, "sh", *words], timeout_s=ASK_S):
                answer += chunk
        return answer

    def size_before(self, run_id: str, name: str, newest: int) -> int:
        """Bytes of a log before so many newest lines; 0 where it has fewer, or does not exist yet."""
        words = [self.cluster.folder, run_id, name, str(newest)]
        answer = self.login.run(["sh", "-c", _BEFORE_NEWEST, "sh", *words], timeout_s=ASK_S)
        text = answer.stdout.strip()
        return int(text) if re.fullmatch(r"[0-9]{1,18}", text) else 0

    def _is_over(self, attempt: CarriedAttempt) -> bool:
        now = self.now(attempt)
        return now is None or now.is_over

    def now(self, attempt: CarriedAttempt) -> CarriedAttempt | None:
        """The attempt as it is now; None: it was forgotten."""
        known = self.runs(attempt.run_id)
        if known.silence:
            raise self.silent(known)
        same = [one for one in known.attempts if (one.job, one.restart) == (attempt.job, attempt.restart)]
        return same[0] if same else None

    def stop(self, attempt: CarriedAttempt, timeout_s: float) -> None:
        with self._stopping:
            first = attempt.job not in self._asked
            self._asked.setdefault(attempt.job, self._clock())
            if first and (attempt.status == "queued" or timeout_s <= 0):
                self.cancel(attempt.job)
            elif first:
                asked = ["scancel", "--signal=TERM", attempt.job]
                self.login.run(asked, timeout_s=ASK_S).check(f"asking job {attempt.job} to stop")
        if self._ends_within(attempt, self._asked[attempt.job] + timeout_s):
            return
        with self._stopping:
            self.cancel(attempt.job)
        if not self._ends_within(attempt, self._clock() + CANCEL_S):
            raise self._lasting(attempt.job)

    def _lasting(self, job: str) -> DeadlineError:
        return DeadlineError(
            f"job {job} had not ended {CANCEL_S:.0f} s after it was cancelled",
            node=self.name,
            hint=self.on_login(f"scontrol show job {job}"),
        )

    def _is_in_queue(self, job: str) -> bool:
        """Return whether Slurm has not ended the job yet."""
        answer = self.login.run(["squeue", "-h", "-j", job, "-o", "%i"], timeout_s=ASK_S)
        _unless_unknown(answer, f"asking for job {job}")
        return job in (line.strip() for line in answer.stdout.splitlines())  # a site may print lines of its own

    def _ends_within(self, attempt: CarriedAttempt, deadline: float) -> bool:
        """Return whether the job has ended, all of its lives, before the deadline."""
        while True:
            known = self.runs(attempt.run_id)
            lives = [one for one in known.attempts if one.job == attempt.job]
            if not known.silence and all(one.is_over for one in lives):
                return True
            if self._clock() >= deadline:
                return False
            self.rest(POLL_S)

    def forget(self, attempt: CarriedAttempt) -> None:
        now = self.now(attempt)
        if now and not now.is_over:
            self.cancel(attempt.job)
        words = ["sh", "-c", _FORGET, "sh", self.cluster.folder, attempt.run_id]
        self.login.run(words, timeout_s=ASK_S).check(f"forgetting run {attempt.run_id}")
        self._newest = None

    def end(self, job: str) -> None:
        """Cancel a job, and wait until Slurm has ended it. A busy scheduler is asked again."""
        deadline, cancelled = self._clock() + CANCEL_S, False
        while True:
            problem: OrchError = self._lasting(job)
            try:
                if not cancelled:
                    _unless_unknown(self.login.run(["scancel", job], timeout_s=ASK_S), f"cancelling job {job}")
                    cancelled = True
                if not self._is_in_queue(job):
                    return
            except NodeUnreachableError:
                raise
            except OrchError as error:
                problem = error
            if self._clock() >= deadline:
                raise problem
            self.rest(POLL_S / 2)

    def execute(self, attempt: CarriedAttempt, rank: int, argv: Sequence[str]) -> Completed:
        if not attempt.names or attempt.status != "running":
            raise EngineError(f"job {attempt.job} does not run", node=self.name, hint=f"orch status {attempt.run_id}")
        beside = (
            "srun", "--overlap", f"--jobid={attempt.job}", "--nodes=1", "--ntasks=1", "--mem=0", "--quiet",
            f"--nodelist={attempt.names[rank]}",
        )  # fmt: skip
        return self.login.run([*beside, *argv], timeout_s=EXECUTE_S)

    def on_login(self, command: str) -> str:
        """A line to paste that runs the command on the login node."""
        if self.cluster.login == "local":
            return command
        quoted = "'" + command.replace("'", "'\\''") + "'"
        user_host, colon, port = self.cluster.login.partition(":")
        way = ["-p", port] if colon else []
        way += ["-i", str(Path(self.cluster.identity).expanduser())] if self.cluster.identity else []
        way += ["-J", self.cluster.jump] if self.cluster.jump else []
        return f"{shlex.join(['ssh', *way, user_host])} {quoted}"

    def late(self, job: str, wait_s: float, reason: str) -> DeadlineError:
        """Error for a job that waited too long and is withdrawn."""
        why = f" ({reason})" if reason not in ("", "None") else ""
        longer, queue = max(3600, round(2 * wait_s)), self.on_login("squeue --start")
        return DeadlineError(
            f"job {job} did not start within {wait_s:.0f} s{why}; it was withdrawn",
            node=self.name,
            hint=f"{queue}   # when jobs are expected to start; wait longer: --wait {longer}",
        )

    def silent(self, known: Carried) -> EngineError:
        """Error for an answer without a queue."""
        problem = f"the scheduler does not answer: {known.silence}"
        return EngineError(problem, node=self.name, hint=self.on_login("sinfo"))

    def cancel(self, job: str) -> None:
        self.login.run(["scancel", job], timeout_s=ASK_S).check(f"cancelling job {job}")

    def _refused(self, answer: Completed) -> OrchError:
        lines = [readable(line) for line in (answer.stderr or answer.stdout).splitlines() if line.strip()]
        if answer.exit_code == 127 or any("not found" in line for line in lines[:1]):
            return PreflightError(
                "the login node has no sbatch; nothing was submitted",
                node=self.name,
                hint=self.on_login("command -v sbatch") + "   # is it on the PATH of a shell without a terminal?",
            )
        output = (
            "; ".join(line.removeprefix("sbatch: error: ") for line in lines[-3:]) or f"exit code {answer.exit_code}"
        )
        meaning, command = submit_problem(lines)
        if meaning:
            kind = PreflightError if meaning in (SILENT, UNREADABLE) else ConfigError
            return kind(f"sbatch refused the job: {meaning} ({output})", node=self.name, hint=self.on_login(command))
        return PreflightError(f"sbatch refused the job: {output}", node=self.name, hint=self.on_login("sinfo"))


def _unless_unknown(answer: Completed, what: str) -> None:
    """CommandFailedError: it failed, and not because Slurm has forgotten the job."""
    if "Invalid job id" not in answer.stderr:
        answer.check(what)


class _LogFile:
    """A log on the shared storage, read piece by piece while it grows."""

    def __init__(self, carrier: SlurmCarrier, attempt: CarriedAttempt, name: str) -> None:
        self._carrier, self._run_id, self._name = carrier, attempt.run_id, name
        self._rest, self._time = b"", attempt.bound_at
        self.size = 0

    def skip_to_newest(self, lines: int) -> None:
        """Begin with so many newest lines. If the first one is Slurm's own, it has the time of the attempt's start."""
        self.size = self._carrier.size_before(self._run_id, self._name, lines)

    def new_lines(self) -> Iterator[LogLine]:
        """The whole lines that were written since the last call."""
        while chunk := self._carrier.read_log(self._run_id, self._name, self.size):
            self.size += len(chunk)
            *whole, self._rest = (self._rest + chunk).split(b"\n")
            yield from map(self._line, whole)
            if len(chunk) < CHUNK:
                break

    def last_line(self) -> list[LogLine]:
        """A last line without its end."""
        return [self._line(self._rest)] if self._rest else []

    def _line(self, raw: bytes) -> LogLine:
        """A line with the time that the agent wrote; one of Slurm's own has the time of the line before it."""
        text = raw.decode(errors="replace").rstrip("\r")
        if match := _STAMP.fullmatch(text):
            self._time, text = match[1], match[2]
        return LogLine(time=self._time, text=text)
