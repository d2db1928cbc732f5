"""Classification of what a failed rank left behind as a known failure."""

from __future__ import annotations

import signal
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from contract.failures import of_downloads, of_machines, of_networks, of_programs
from contract.failures.of_programs import ASKED_TO_STOP, CODE_EXCEPTION, CODE_EXIT, NODE_LOST, OF_CODE
from contract.failures.owners import FINAL, Outcome, Owner
from contract.failures.signature import Signature
from contract.failures.torchrun import without_summary
from contract.failures.tracebacks import UncaughtException, uncaught_exception
from contract.log_lines import readable

_KNOWN: tuple[Signature, ...] = (
    *of_machines.MEMORY,
    *of_machines.GPU,
    *of_networks.NCCL,
    *of_programs.CHECKPOINT,
    *of_programs.TRAINING,
    *of_downloads.DOWNLOADS,
    *of_programs.START,
    *of_machines.STORAGE,
    *of_networks.NETWORK,
)
SIGNATURES: tuple[Signature, ...] = (
    *(signature for signature in _KNOWN if not signature.nearer),
    *(signature for signature in _KNOWN if signature.nearer),
    *of_programs.GENERAL,
)
"""Signatures from the particular to the general: of several that are found, the first counts."""
_BY_ID: Mapping[str, Signature] = {signature.id: signature for signature in SIGNATURES}
_MEMORY_LIMIT = _BY_ID["memory.limit"]
_NOT_FOUND = _BY_ID["storage.not_found"]
_ASSERTION = "code.assertion"
_UNSPECIFIC = (CODE_EXCEPTION.id, CODE_EXIT.id)
TAIL = 40
"""Lines before a rank's end that are searched; what it wrote earlier did not end it."""
MAX_EVIDENCE = 8
_CPP_FRAMES = ("frame #", "Exception raised from ", "<omitting python frames>")
_FROM_OUTSIDE = (-9, 137, -15, 143)
"""SIGKILL and SIGTERM: what the rank wrote of a lost peer did not end it."""


@dataclass(frozen=True, kw_only=True)
class FailedRank:
    """Evidence of a failed rank. Lines are the oldest first."""

    own: Sequence[str] = ()
    """The lines that it wrote."""
    agent: Sequence[str] = ()
    """Those of its torchrun, or of the container's runtime."""
    exit_code: int | None = None
    """The rank's own (negative: a signal), otherwise its container's; None: not known."""
    oom_killed: bool = False
    """True if the container's engine says that the kernel killed in it, as it was out of memory."""
    reported: str = ""
    """`Error: message`, as the rank itself reported it."""
    reported_earlier: Sequence[str] = ()
    """The same of the exceptions that it came from."""
    reported_frame: str = ""
    reported_id: str = ""
    """The signature that whoever saw the exception itself has found; it knows its types and what it came from."""
    kernel: Sequence[str] = ()
    """Lines of the node's kernel since the run began."""


@dataclass(frozen=True, kw_only=True)
class Classified:
    """A failure by its signature."""

    signature: Signature
    values: Mapping[str, str] = field(default_factory=dict)
    """The named groups of the pattern."""
    commands: Mapping[str, str] = field(default_factory=dict)
    """Further values, which are commands to paste."""
    evidence: tuple[str, ...] = ()
    """The lines that say so."""
    frame: str = ""
    """`FILE:LINE in FUNCTION`, the innermost in the user's own code."""
    final: bool = False
    """True if its lines say that another try ends in the same way, as `Signature.final` has it."""

    @property
    def id(self) -> str:
        return self.signature.id

    @property
    def owner(self) -> Owner:
        return "configuration" if self.final else self.signature.owner

    @property
    def lost_peer(self) -> bool:
        return self.signature.lost_peer


def classify(failed: FailedRank) -> Classified | None:
    """None where nothing says anything.

    In this order: the engine's word, the kernel's, torchrun's report that it was asked to stop, what the rank found out
    itself, the exception that ended it, its last lines, its exit code, and the other lines of torchrun.
    """
    own = tuple(map(readable, failed.own))
    agent = tuple(without_summary([readable(line) for line in failed.agent]))
    exception = uncaught_exception(own or agent)
    frame = (exception.frame if exception else "") or failed.reported_frame
    texts = (*map(readable, failed.reported.splitlines()), *(exception.message if exception else ()))
    source = (exception.source,) if exception else ()
    tail = tuple(line for line in own or agent if not is_stack_of_cpp(line))[-TAIL:]
    if failed.oom_killed:
        return Classified(signature=_MEMORY_LIMIT, evidence=("the engine's flag OOMKilled", *texts[-1:]), frame=frame)
    if failed.exit_code is None and not failed.reported:
        return Classified(signature=NODE_LOST, evidence=own[-2:], frame=frame)
    found = (
        _search(tuple(map(readable, failed.kernel)), SIGNATURES, frame)
        or _search(agent, (ASKED_TO_STOP,), frame)
        or _as_reported(failed, (*texts, *source, *tail), frame)
        or _in_exception(failed, exception, texts, tail, frame)
        or _by_its_end(failed, own, agent, tail, frame)
    )
    earlier = (*map(readable, failed.reported_earlier), *(exception.earlier if exception else ()))
    is_final = found is not None and found.signature.is_final((*texts, *earlier, *tail))
    return replace(found, final=True) if found and is_final else found


def _as_reported(failed: FailedRank, lines: Sequence[str], frame: str) -> Classified | None:
    known = _BY_ID.get(failed.reported_id)
    if known is None or known.nearer or known.id in _UNSPECIFIC:
        return None
    texts = tuple(map(readable, failed.reported.splitlines()))
    return _search(lines, (known,), frame) or Classified(signature=known, evidence=_once(texts), frame=frame)


def _in_exception(
    failed: FailedRank, exception: UncaughtException | None, texts: Sequence[str], tail: Sequence[str], frame: str
) -> Classified | None:
    """The exception itself, unless one that it came from, or the lines before it, say more."""
    earlier = (*map(readable, failed.reported_earlier), *(exception.earlier if exception else ()))
    found = _search(texts, SIGNATURES, frame)
    if found is None or found.lost_peer or found.signature.nearer:
        cause = _search(earlier, SIGNATURES, frame)
        found = cause if cause and (found is None or not (cause.lost_peer or cause.signature.nearer)) else found
    if found and found.signature.nearer:
        more = SIGNATURES[: SIGNATURES.index(found.signature)]
        nearer = [one for one in more if one.area in found.signature.nearer]
        return _search(tail, nearer, frame) or found
    if exception and (found is None or found.id == _ASSERTION):
        found = _search((*texts, exception.source), (_NOT_FOUND, *OF_CODE), frame) or found
    if found is None and texts and (exception or (failed.exit_code or 0) >= 0):
        return Classified(signature=CODE_EXCEPTION, evidence=_once(texts), frame=frame)
    return found


def _by_its_end(
    failed: FailedRank, own: Sequence[str], agent: Sequence[str], tail: Sequence[str], frame: str
) -> Classified | None:
    """Classify a rank that was not ended by an exception."""
    from_outside = failed.exit_code in _FROM_OUTSIDE
    by_signal = from_outside or (failed.exit_code or 0) < 0  # it had continued without what it did not find
    usable = [one for one in SIGNATURES if one is not _NOT_FOUND and not (from_outside and one.lost_peer)]
    code = next((one for one in SIGNATURES if failed.exit_code in one.exit_codes), None)
    ended = (f"exit code {failed.exit_code}", *(f"its last line: {line.strip()}" for line in own[-1:]))
    return (
        _search(tail, usable, frame)
        or (None if by_signal else _search(tail, (_NOT_FOUND,), frame))
        or (Classified(signature=code, evidence=ended, frame=frame) if code else None)
        or _search(agent, SIGNATURES, frame)
        or (Classified(signature=CODE_EXIT, evidence=ended, frame=frame) if failed.exit_code else None)
    )


def _search(lines: Sequence[str], signatures: Iterable[Signature], frame: str) -> Classified | None:
    """The first signature that is found in these lines."""
    for signature in signatures:
        hits = [(line, match) for line in lines if (match := signature.search(line))]
        if hits:
            values = {name: text for name, text in hits[0][1].groupdict().items() if text}
            evidence = _once(line for line, _ in hits)
            return Classified(signature=signature, values=values, evidence=evidence, frame=frame)
    return None


def _once(lines: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(line.strip() for line in lines))[:MAX_EVIDENCE]


def matches(line: str, *ids: str) -> bool:
    """Return whether one of these signatures is in the line."""
    return any(_BY_ID[id].search(readable(line)) for id in ids)


def is_stack_of_cpp(line: str) -> bool:
    """Return whether it is a line of the C++ stack below a message of torch, or an empty one."""
    return not line.strip() or line.startswith(_CPP_FRAMES)


def distance_from_cause(outcome: Outcome, *, lost_peer: bool, cause: str) -> int:
    """Key that sorts the ends of several nodes, each with the id of its signature: the others follow from the lowest.

    What a person has to change comes first, then what broke by itself, then an exit without a reason, then what only
    lost another rank, and last a good end.
    """
    if outcome in ("done", "stopped"):
        return 5
    if lost_peer:
        return 3 + (outcome not in FINAL)
    return 2 if cause == CODE_EXIT.id else int(outcome not in FINAL)


def how_it_ended(exit_code: int | None) -> str:
    """`exit code 3`, `ended by SIGKILL`."""
    if exit_code is None:
        return "its node does not answer"
    if exit_code >= 0:
        return f"exit code {exit_code}"
    try:
        return f"ended by {signal.Signals(-exit_code).name}"
    except ValueError:
        return f"ended by signal {-exit_code}"


def reason_of(failed: FailedRank, found: Classified | None) -> str:
    """A failure in one line: the exception, otherwise how the rank ended."""
    if failed.oom_killed:
        return "out of memory: the container reached its limit"
    plain = how_it_ended(failed.exit_code)
    if failed.reported and failed.reported != plain:
        return failed.reported
    if failed.exit_code is not None and failed.exit_code < 0:
        return plain
    own = tuple(map(readable, failed.own))
    if exception := uncaught_exception(own or tuple(without_summary([readable(line) for line in failed.agent]))):
        return exception.message[0] if exception.message else "an exception without a message"
    if found and found.values and found.evidence:
        return found.evidence[0]
    return plain
