"""Answers of a login node about runs and jobs, as data: bounded, and nothing in them is trusted."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, datetime
from typing import Any

from contract.failures.owners import EXIT_CODES
from orchestrator.nodes.carrier import Carried, CarriedAttempt
from orchestrator.specs import labels as names_of
from orchestrator.specs.labels import LONGEST_NAME, MOST_ATTEMPTS, MOST_NODES
from orchestrator.specs.numbers import whole
from orchestrator.specs.run import RUN_ID

MOST_RUNS = 100
"""Newest runs that are looked at."""
LONGEST_FILE = 128 * 1024
"""Bytes of a file in a run's folder: names and addresses of 4096 nodes."""
MOST_RANKS = 1024
"""Ranks of a node, as an inventory may ask for them."""
STOPPED = 143
NO_OUTPUT_FILE = "0:53"
"""Exit code of Slurm for a job that never began: no signal, although it looks like one."""
KILLED = 137

_FILE = re.compile(rf"(?P<run>{RUN_ID})/(?P<kind>submitted-|place-|ended\.|over-)(?P<rest>[0-9.]{{1,40}})(?:\.json)?")
_JOB = re.compile(r"[0-9]{1,12}")
_HOST = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,252}")
_ADDRESS = re.compile(r"(?:[0-9]{1,3}\.){3}[0-9]{1,3}|")
_CODE = re.compile(r"\s*([0-9]{1,3})\s*")
_RUNS_NOW = ("RUNNING", "COMPLETING", "CONFIGURING", "SUSPENDED", "STOPPED", "SIGNALING", "STAGE_OUT", "RESIZING")
_WAITS = ("PENDING", "REQUEUED", "REQUEUE_HOLD", "REQUEUE_FED", "SPECIAL_EXIT", "RESV_DEL_HOLD")


@dataclass(frozen=True, kw_only=True)
class QueuedJob:
    """A job as squeue shows it."""

    state: str
    reason: str

    @property
    def waits(self) -> bool:
        return self.state in _WAITS

    @property
    def runs(self) -> bool:
        return self.state in _RUNS_NOW


@dataclass(frozen=True, kw_only=True)
class EndedJob:
    """A job as sacct shows it: the last of its lives."""

    state: str
    exit_code: int


@dataclass(frozen=True, kw_only=True)
class _Submission:
    job: str
    attempt: int
    nnodes: int
    labels: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class _Placed:
    job: str
    restart: int
    names: tuple[str, ...]
    addresses: tuple[str, ...]
    bound_at: str


@dataclass
class RunFiles:
    """The contents of a run's folder."""

    submissions: dict[int, _Submission] = field(default_factory=dict)
    places: dict[int, _Placed] = field(default_factory=dict)
    ended: dict[tuple[str, int], int] = field(default_factory=dict)
    """Exit codes by job and restart."""
    over: dict[str, int] = field(default_factory=dict)
    """Exit codes that agents recorded, by run and attempt."""


@dataclass
class Looked:
    """The answer to `_LOOK` in nodes/slurm.py."""

    files: dict[str, RunFiles] = field(default_factory=dict)
    queue: dict[str, QueuedJob] = field(default_factory=dict)
    silence: str = ""
    strange: list[str] = field(default_factory=list)

    def unexplained(self) -> list[str]:
        """Jobs that are not in the queue and left no exit code: only the accounting may know how they ended."""
        if self.silence:
            return []
        return sorted(
            one.job
            for files in self.files.values()
            for one in files.submissions.values()
            if one.job not in self.queue and not any(job == one.job for job, _ in files.ended)
        )


def read_look(text: str) -> Looked:
    """Files and queue; what no run of orch has written so is named in `strange`."""
    found = Looked()
    head, mark, tail = text.rpartition("squeue\t") if "\nsqueue\t" in f"\n{text}" else (text, "", "")
    for line in head.splitlines():
        kind, _, rest = line.partition("\t")
        name, _, content = rest.partition("\t")
        match = _FILE.fullmatch(name)
        if kind != "file" or not match:
            continue
        try:
            _add_file(found.files.setdefault(match["run"], RunFiles()), match, content)
        except (ValueError, LookupError, TypeError, AttributeError, ArithmeticError, RecursionError):
            found.strange.append(f"{name} is not understood and left out")
    code, _, queue = tail.partition("\n")
    if not mark or code.strip() != "0":
        found.silence = (queue.strip().rsplit("\n", 1)[-1] or "squeue gave no answer")[:LONGEST_NAME]
        return found
    for line in queue.splitlines():
        job, state, _, reason = (*line.split("|", 3), "", "", "", "")[:4]
        if _JOB.fullmatch(job):
            found.queue[job] = QueuedJob(state=state[:40], reason=reason[:LONGEST_NAME])
    return found


def _add_file(files: RunFiles, match: re.Match[str], content: str) -> None:
    kind, rest = match["kind"], match["rest"].rstrip(".")
    if kind == "ended.":
        job, _, restart = rest.partition(".")
        code = _CODE.fullmatch(content)
        if not code:
            raise ValueError(content)
        files.ended[_job(job), _number(restart, MOST_ATTEMPTS)] = int(code[1])
        return
    values = json.loads(content)
    if kind == "submitted-":
        one = _submission(values)
        files.submissions[one.attempt] = one
    elif kind == "place-":
        files.places[_number(values["attempt"], MOST_ATTEMPTS)] = _placed(values)
    else:
        files.over.setdefault(str(values["run"])[:LONGEST_NAME], EXIT_CODES[values["rank_exit"]["outcome"]])


def _submission(values: Any) -> _Submission:
    found = {str(name): str(text) for name, text in values["labels"].items()}
    _number(found.get(names_of.LABEL_NPROC, 1), MOST_RANKS)
    return _Submission(
        job=_job(values["job"]),
        attempt=_number(values["attempt"], MOST_ATTEMPTS),
        nnodes=_number(values["nnodes"], MOST_NODES),
        labels=found,
    )


def _placed(values: Any) -> _Placed:
    hosts, addresses = tuple(map(str, values["names"])), tuple(map(str, values.get("addresses") or ()))
    if not 0 < len(hosts) <= MOST_NODES or len(set(hosts)) != len(hosts) or not all(map(_HOST.fullmatch, hosts)):
        raise ValueError("names")
    if not all(map(_ADDRESS.fullmatch, addresses)):
        raise ValueError("addresses")
    at = float(values.get("at") or 0)
    return _Placed(
        job=_job(values["job"]),
        restart=_number(values.get("restart", 0), MOST_ATTEMPTS),
        names=hosts,
        addresses=addresses if len(addresses) == len(hosts) else (*addresses, *("",) * len(hosts))[: len(hosts)],
        bound_at=datetime.fromtimestamp(at, UTC).isoformat(timespec="milliseconds") if 0 < at < 1e11 else "",
    )


def _job(value: object) -> str:
    if not _JOB.fullmatch(str(value)):
        raise ValueError(value)
    return str(value)


def _number(value: object, most: int) -> int:
    text = str(value)
    if not re.fullmatch(r"[0-9]{1,9}", text) or int(text) > most:
        raise ValueError(value)
    return int(text)


def read_sacct(text: str) -> dict[str, EndedJob]:
    """Jobs by id from `sacct -P -n -D -X -o JobIDRaw,State,ExitCode`: the last row of each is its last life."""
    found = {}
    for line in text.splitlines():
        job, state, code = (*line.split("|"), "", "", "")[:3]
        status, _, signal = code.partition(":")
        code_of_job = whole(status, most=999)
        if _JOB.fullmatch(job) and code_of_job is not None:
            number = 128 + by if (by := whole(signal, most=64) or 0) > 0 else code_of_job
            found[job] = EndedJob(state=state[:80], exit_code=number)
            if code == NO_OUTPUT_FILE:
                found[job] = EndedJob(state=f"{state[:20]} (a node cannot write the job's output file)", exit_code=1)
    return found


def carried(found: Looked, ended: Mapping[str, EndedJob], project: str) -> Carried:
    """All attempts, each with its state by the files first, then by the queue, then by the accounting."""
    attempts: list[CarriedAttempt] = []
    for run_id, files in sorted(found.files.items()):
        for one in sorted(files.submissions.values(), key=lambda one: one.attempt):
            if one.labels.get(names_of.LABEL_RUN) == run_id and one.labels.get(names_of.LABEL_PROJECT) == project:
                attempts += _lives(run_id, one, files, found, ended.get(one.job))
    return Carried(attempts=tuple(attempts), silence=found.silence, strange=tuple(found.strange))


def _lives(
    run_id: str, submission: _Submission, files: RunFiles, found: Looked, known: EndedJob | None
) -> Iterator[CarriedAttempt]:
    """The attempts of one job, by restart: those that have begun, and one that waits."""
    job, queued = submission.job, found.queue.get(submission.job)
    begun = {placed.restart: placed for placed in files.places.values() if placed.job == job}
    restarts = sorted({*begun, *(restart for one, restart in files.ended if one == job)})
    newest = restarts[-1] if restarts else 0
    if queued and queued.waits and restarts:
        restarts.append(newest + 1)
    elif queued and queued.runs and (job, newest) in files.ended and queued.state == "RUNNING" and restarts:
        restarts.append(newest + 1)  # it has begun again, and its agents have not written their place yet
    for restart in restarts or [0]:
        placed = begun.get(restart)
        one = CarriedAttempt(
            run_id=run_id,
            attempt=submission.attempt + restart,
            job=job,
            restart=restart,
            labels=submission.labels,
            nnodes=submission.nnodes,
            names=placed.names if placed and len(placed.names) == submission.nnodes else (),
            addresses=placed.addresses if placed else (),
            bound_at=placed.bound_at if placed else "",
            status="dead",
        )
        is_last = restart == (restarts or [0])[-1]
        code = files.ended.get((job, restart), files.over.get(f"{run_id}.{one.attempt}"))
        # A job that is queued again is COMPLETING until its nodes are free: another one beside it would be too early.
        may_wait = queued and ((queued.waits and not placed) or (queued.state == "COMPLETING" and code == STOPPED))
        if code is not None and not (is_last and may_wait):
            yield replace(one, status="stopped" if code == STOPPED else "exited", exit_code=code)
        elif not is_last:
            yield replace(one, reason="the scheduler ended this attempt and queued the job again")
        elif queued and queued.waits:
            yield replace(one, status="queued", reason=queued.reason)
        elif queued and queued.runs:
            yield replace(one, status="running")
        elif not found.silence:
            yield _by_accounting(one, known, queued)


def _by_accounting(one: CarriedAttempt, known: EndedJob | None, queued: QueuedJob | None) -> CarriedAttempt:
    """An attempt that left no exit code."""
    word = known.state if known else queued.state if queued else ""
    state = word.partition(" ")[0]
    if not word:
        return replace(one, reason=f"the scheduler does not know job {one.job} any more, and it left no exit code")
    if state == "COMPLETED":
        return replace(one, status="exited", exit_code=0)
    if state == "CANCELLED":
        return replace(one, status="stopped", exit_code=STOPPED, reason=word)
    if state == "OUT_OF_MEMORY":
        return replace(one, status="exited", exit_code=KILLED, oom_killed=True, reason=word)
    if state == "FAILED" and known and known.exit_code:
        return replace(one, status="exited", exit_code=known.exit_code, reason=word)
    return replace(one, reason=word)


QUEUE_REASONS: tuple[tuple[str, str, str], ...] = (
    (r"None|Priority|BeginTime|Resources|Prolog|Cleaning|Reboot|NodesBusy|OverSubscribe|SystemCapacity", "", ""),
    (r"Dependency|JobArrayTaskLimit|BurstBuffer(Stag\w+|Resources|Operation)|WaitingForFiles|Federation", "", ""),
    (r"PartitionTimeLimit|TimeLimit|DeadLine", "its time limit is above the partition's", "sinfo -o '%P %l'"),
    (r"Partition(NodeLimit|Config)", "it asks for more nodes than the partition gives a job", "sinfo -o '%P %s %D'"),
    (r"Partition(Down|Inactive)|SchedDown|SchedulerDown", "the partition takes no jobs now", "sinfo"),
    (r"ReqNodeNotAvail.*|Nodes[_ ]required.*|NodeDown|NodeNotAvail.*|FrontEndDown",
     "nodes that it needs are down, drained or reserved", "sinfo -R"),
    (r"BadConstraints|ConstraintsNotSatisfied|.*[Cc]onfiguration.*not available.*",
     "no node has what it asks for", "sinfo -o '%N %c %m %G %f'"),
    (r"InvalidAccount|InvalidQOS|AccountNotAllowed|QOSNotAllowed|AssocNotAllowed|UserNotAllowed",
     "the account or QOS does not exist, or may not use the partition",
     "sacctmgr show assoc user=$USER format=account,partition,qos"),
    (r"JobHeldAdmin", "an administrator holds it, and can say why", "scontrol show job JOB"),
    (r"JobHeldUser|.*held.*", "it is held", "scontrol release JOB"),
    (r"JobHoldMaxRequeue", "it was queued again too often and is held", "scontrol release JOB; scontrol show job JOB"),
    (r"DependencyNeverSatisfied", "a job that it waits for failed: it will not start",
     "scontrol show job JOB; scancel JOB"),
    (r"(Assoc|QOS|MaxSubmit|MaxJobs|AssociationJob|Association\w*Limit|Grp|Max\w+Per(Account|User|Job|Node)"
     r"|AccountingPolicy|JobLimit|ResourceLimit).*",
     "a limit of the account or the user is reached",
     "sacctmgr show assoc user=$USER format=account,qos,grptres,maxjobs,maxtres"),
    (r"Licenses", "it waits for a licence", "scontrol show lic"),
    (r"Reservation", "its reservation has not begun", "scontrol show res"),
    (r"ReservationDeleted|InvalidReservation", "its reservation is gone: it will not start",
     "scontrol show res; scancel JOB"),
    (r"InactiveLimit|NonZeroExitCode|RaisedSignal.*|OutOfMemory|SystemFailure|.*failed.*|JobLaunchFailure|\w+Failure",
     "a node could not start it, or ended it", "scontrol show job JOB; sinfo -R"),
)  # fmt: skip
"""Reasons of squeue(1): a pattern, what it means, and a command for the login node. No meaning: it will start."""


def queue_reason(reason: str) -> tuple[str, str]:
    """The meaning of a reason to wait and a command for the login node; both empty for one that passes by itself."""
    for pattern, meaning, command in QUEUE_REASONS:
        if re.fullmatch(pattern, reason.strip().removeprefix("(").removesuffix(")")):
            return meaning, command
    return "", ""


SILENT = "the controller of Slurm gives no answer, or no good one: try again later"
UNREADABLE = "a file of the job cannot be read or written there"
SUBMIT_PROBLEMS: tuple[tuple[str, str, str], ...] = (
    (r"DOS line breaks", "a file of the job has line ends of Windows", "dos2unix FILE"),
    (r"[Uu]nable to contact|connect failure|Zero Bytes were transmitted|Socket timed out|standby mode"
     r"|Rate limit exceeded|[Cc]an't find an address|[Cc]onnection (refused|timed out)|Unexpected message received"
     r"|authentication|[Mm]unge|internal error",
     SILENT, "scontrol ping"),
    (r"[Uu]nable to open file|I/O error writing|No space left", UNREADABLE, "df -h; ls -l"),
    (r"specify(ing)? an? (\w{1,40} )?[Aa]ccount|[Nn]o account|must (specify|provide|use) an? (valid )?account",
     "an account is needed: `options: [--account=NAME]` of the cluster in the inventory",
     "sacctmgr show assoc user=$USER format=account,partition,qos"),
    (r"(specify|request|need|require)\w* (a |an |the )?(GPU|gpu|gres)|requires? .{0,20}GPU|GPU (type|partition)",
     "the cluster wants another partition or type of GPU: `partition:`, `options: [--gres=gpu:TYPE:N]`",
     "sinfo -o '%P %D %G'"),
    (r"[Rr]equired partition not available|[Pp]artition in DOWN|submissions disabled|presently disabled"
     r"|partition configuration not available", "the partition takes no jobs now", "sinfo"),
    (r"invalid partition|[Nn]o partition specified|[Nn]odes? not in this partition"
     r"|specify a(nother)? (valid )?partition",
     "there is no such partition, or none is given", "sinfo -o '%P %a %l %D'"),
    (r"not permitted to use this partition|[Aa]ccess/permission denied|[Pp]ermission denied",
     "your account or group may not do this here", "sacctmgr show assoc user=$USER format=account,partition,qos"),
    (r"[Ii]nvalid account|account/partition", "the account does not exist, or may not use the partition",
     "sacctmgr show assoc user=$USER format=account,partition,qos"),
    (r"[Ii]nvalid qos|QOS.{0,40}not (permitted|allowed)", "the QOS does not exist, or you may not use it",
     "sacctmgr show assoc user=$USER format=account,qos"),
    (r"accounting/QOS policy|QOS.*Limit|Assoc.*Limit|job submit limit|QOS usage threshold|MaxSubmit",
     "a limit of the account or the user is reached",
     "sacctmgr show assoc user=$USER format=account,qos,maxjobs,maxsubmit,maxtres; squeue --me"),
    (r"[Tt]ime limit|time-min|[Ii]nvalid --time", "the time limit is not valid here", "sinfo -o '%P %l'"),
    (r"[Rr]eservation", "the reservation does not exist, or is not yours now", "scontrol show res"),
    (r"[Ll]icenses?", "the licences are not known or not free", "scontrol show lic"),
    (r"[Dd]ependency", "the job that it depends on is not known", "squeue --me"),
    (r"node configuration is not available|[Mm]emory (specification|required)|processors|[Nn]ode count|gres|GRES"
     r"|feature|CPU count|node name|Required node|nodes are busy|TRES|cores|--cpus-per|--mem|--constraint",
     "no node of the partition has what it asks for", "sinfo -o '%P %D %c %m %G'"),
    (r"unrecognized option|invalid option|[Uu]nknown option|[Ii]nvalid .{0,40}(specification|argument|value)",
     "sbatch does not take an option: `options:` of the cluster in the inventory", "sbatch --help"),
    (r"Unspecified error", "a rule of this cluster refuses it, which the lines before may name", "sinfo"),
)  # fmt: skip
"""Refusals of sbatch, for people: a pattern, what it means, and a command for the login node."""


def submit_problem(lines: Iterable[str]) -> tuple[str, str]:
    """The meaning of a refusal and a command for the login node; empty for one that is not known."""
    text = "\n".join(lines)
    for pattern, meaning, command in SUBMIT_PROBLEMS:
        if re.search(pattern, text):
            return meaning, command
    return "", ""
