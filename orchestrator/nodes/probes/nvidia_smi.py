"""nvidia-smi: how it is asked, and what its answers mean across drivers 340 to 610.

Its XML is the one call that tells everything but the compute capability. Spellings changed on the way: `power_readings`
became `gpu_power_readings`, `clocks_throttle_reasons` became `clocks_event_reasons`, double-bit errors became
uncorrectable ones. Whatever a card does not have reads `N/A`, `[N/A]`, `[Not Supported]` or `Requested functionality
has been deprecated`: None here, never an error.
"""

from __future__ import annotations

import csv
import re
from collections.abc import Callable, Sequence
from dataclasses import replace
from xml.etree import ElementTree

from orchestrator.nodes.interface import Completed
from orchestrator.specs.facts import GpuFacts, GpuProcess, SmiFault
from orchestrator.specs.gpus import SmiAnswer
from orchestrator.specs.numbers import real

QUERY_XML = ("nvidia-smi", "-q", "-x")
QUERY_FIELDS = (
    "index",
    "uuid",
    "name",
    "driver_version",
    "memory.total",
    "memory.used",
    "utilization.gpu",
    "temperature.gpu",
    "ecc.mode.current",
    "ecc.errors.uncorrected.volatile.total",
    "power.draw",
    "power.limit",
)
"""Known to every driver since 418: one unknown field fails the whole query, and `mig.mode.current` came with 450."""
QUERY_CSV = ("nvidia-smi", f"--query-gpu={','.join(QUERY_FIELDS)}", "--format=csv,noheader,nounits")
QUERY_CAPABILITY = ("nvidia-smi", "--query-gpu=uuid,compute_cap", "--format=csv,noheader")
"""Query of what is not part of the XML; drivers before 510 refuse the field (huggingface/candle#733)."""

QUICK_FIELDS = ("index", "uuid", "name", "driver_version")
"""Columns that the facts script of a launch asks for: quick, and known to every driver."""

Run = Callable[[Sequence[str]], Completed]

# The return values that nvidia-smi(1) names; 18 is NVML's own number for a library and driver that differ.
_FAULT_BY_EXIT_CODE = {
    4: SmiFault.NO_PERMISSION,
    6: SmiFault.NO_DEVICE,
    9: SmiFault.NO_DRIVER,
    12: SmiFault.NO_DRIVER,
    15: SmiFault.LOST,
    18: SmiFault.MISMATCH,
    126: SmiFault.NO_PERMISSION,
    127: SmiFault.ABSENT,
}
INFOROM_CORRUPTED = 14
"""A warning: the card works and everything about it is written all the same."""
# Older drivers end with 1 or 255 whatever the fault was: there, and only there, the text has to do.
_FAULT_BY_TEXT = (
    ("version mismatch", SmiFault.MISMATCH),
    ("is lost", SmiFault.LOST),
    ("unable to determine the device handle", SmiFault.LOST),
    ("couldn't communicate", SmiFault.NO_DRIVER),
    ("no devices were found", SmiFault.NO_DEVICE),
    ("insufficient permissions", SmiFault.NO_PERMISSION),
    ("gpu access blocked by the operating system", SmiFault.BLOCKED),
)
_NOTHING = re.compile(r"^\[?(N/A|Not Supported|Not Available|Unknown|None|-)\]?$|deprecated|^$", re.IGNORECASE)
_BROKEN = re.compile(r"^\[?(GPU is lost|GPU requires reset|Unknown Error|ERR!)\]?$", re.IGNORECASE)
_NUMBER = re.compile(r"-?[0-9]+(?:\.[0-9]+)?")
_ROW = re.compile(r"\s*[0-9]{1,4}\s*,")
_CAPABILITY = re.compile(r"([0-9]{1,3})\.([0-9]{1,3})")
_CORRUPTED = re.compile(r"infoROM is corrupted at gpu (?P<bus>[0-9A-Fa-f:.]{1,32})")
_CARDS = 256
"""No machine has more GPUs or instances; what an answer has beyond is left out."""
_THROTTLE = re.compile(r"^clocks_(?:throttle|event)_reason_")


def ask(run: Run, *, capability: bool = True) -> SmiAnswer:
    """Ask nvidia-smi through `run`: the XML, else the CSV; then the compute capability, which the XML lacks."""
    completed = run(QUERY_XML)
    answer = _from_xml(completed)
    if answer.fault in (SmiFault.UNREADABLE, SmiFault.UNKNOWN):
        answer = _from_csv(run(QUERY_CSV)) or answer
    if capability and answer.gpus:
        answer = replace(answer, gpus=_with_capability(answer.gpus, run(QUERY_CAPABILITY)))
    return answer


def parse_xml(text: str) -> tuple[GpuFacts, ...]:
    """GPUs of `nvidia-smi -q -x`; ValueError where it is something else.

    Only the root element is given to the XML parser. nvidia-smi names a DTD before it, and a DTD is where entities are
    declared: without a prolog no answer of a node can expand one or make us read a file.
    """
    start, end = text.find("<nvidia_smi_log>"), text.rfind("</nvidia_smi_log>")
    if start < 0 or end < start:
        raise ValueError("no <nvidia_smi_log> in it")
    try:
        root = ElementTree.fromstring(text[start : end + len("</nvidia_smi_log>")])  # noqa: S314  # no DTD, see above
    except ElementTree.ParseError as error:
        raise ValueError(f"not XML: {error}") from error
    driver, cuda = _text(root, "driver_version"), _text(root, "cuda_version")
    return tuple(_gpu(element, index, driver, cuda) for index, element in enumerate(root.findall("gpu")[:_CARDS]))


def parse_csv(text: str, fields: Sequence[str] = QUERY_FIELDS) -> tuple[GpuFacts, ...]:
    """GPUs of `--query-gpu`, with or without units; ValueError where a row has other columns than `fields`."""
    gpus: list[GpuFacts] = []
    for row in _rows(text.strip()):
        if len(row) != len(fields):
            raise ValueError(f"{len(row)} columns instead of {len(fields)}")
        gpus.append(_gpu_of_row(dict(zip(fields, row, strict=True)), len(gpus)))
    return tuple(gpus[:_CARDS])


def read_quick(exit_code: int, lines: Sequence[str]) -> SmiAnswer:
    """The answer to a query for `QUICK_FIELDS`, in which error messages may stand among the rows.

    Where some cards answer and others do not, the answer has both the cards and the fault.
    """
    gpus: list[GpuFacts] = []
    messages: list[str] = []
    for line in lines:
        try:
            if not _ROW.match(line):
                raise ValueError("no index")
            gpus += parse_csv(line, QUICK_FIELDS)
        except ValueError:
            messages.append(line)
    if exit_code == 0 or (exit_code == INFOROM_CORRUPTED and gpus):
        return SmiAnswer(gpus=tuple(gpus))
    return replace(_fault_of(exit_code, "\n".join(messages)), gpus=tuple(gpus))


def _rows(text: str) -> list[list[str]]:
    """Cells of each line; ValueError where the csv module refuses one, such as a cell of more than 128 KiB."""
    try:
        return [[cell.strip() for cell in row] for row in csv.reader(text.splitlines(), skipinitialspace=True)]
    except csv.Error as error:
        raise ValueError(f"not CSV: {error}") from error


def _from_xml(completed: Completed) -> SmiAnswer:
    """The document counts where there is one, whatever the exit code: it names the card that a fault belongs to."""
    output = f"{completed.stdout}\n{completed.stderr}"
    try:
        gpus = parse_xml(completed.stdout)
    except ValueError as error:
        if completed.exit_code != 0:
            return _fault(completed)
        known = next((fault for words, fault in _FAULT_BY_TEXT if words in output.lower()), None)
        return SmiAnswer(fault=known or SmiFault.UNREADABLE, detail=_first_words(output) if known else str(error))
    if not gpus:
        return SmiAnswer(fault=SmiFault.NO_DEVICE)
    corrupted = tuple(dict.fromkeys(match["bus"] for match in _CORRUPTED.finditer(output)))
    if completed.exit_code in (0, INFOROM_CORRUPTED) or any(gpu.fault for gpu in gpus):
        return SmiAnswer(gpus=gpus, inforom_corrupted=corrupted)
    fault = _fault(completed)
    return SmiAnswer(gpus=gpus, fault=fault.fault, detail=fault.detail, inforom_corrupted=corrupted)


def _from_csv(completed: Completed) -> SmiAnswer | None:
    """None where it tells no more than the XML did."""
    if completed.exit_code != 0:
        return None
    try:
        gpus = parse_csv(completed.stdout)
    except ValueError:
        return None
    return SmiAnswer(gpus=gpus) if gpus else None


def _fault(completed: Completed) -> SmiAnswer:
    return _fault_of(completed.exit_code, completed.stdout.strip() or completed.stderr.strip())


def _fault_of(exit_code: int, output: str) -> SmiAnswer:
    """Fault of a failing nvidia-smi, from its exit code, otherwise from its output."""
    fault = _FAULT_BY_EXIT_CODE.get(exit_code)
    if fault is None:
        lower = output.lower()
        fault = next((fault for words, fault in _FAULT_BY_TEXT if words in lower), SmiFault.UNKNOWN)
    detail = _first_words(output) or f"exit code {exit_code}"
    return SmiAnswer(fault=fault, detail="" if fault is SmiFault.ABSENT else detail)


def _first_words(output: str) -> str:
    """The first line that is not XML."""
    lines = (line.strip() for line in output.splitlines())
    return next((line for line in lines if line and not line.startswith("<")), "")[:500]


def _gpu(element: ElementTree.Element, index: int, driver: str, cuda: str) -> GpuFacts:
    power = element.find("gpu_power_readings")
    power = element.find("power_readings") if power is None else power
    readings = [text.strip() for text in element.itertext()]
    return GpuFacts(
        index=index,
        uuid=_text(element, "uuid"),
        name=_text(element, "product_name"),
        driver_version=driver,
        cuda_version=cuda,
        memory_total_mib=_whole(_text(element, "fb_memory_usage/total")),
        memory_used_mib=_whole(_text(element, "fb_memory_usage/used")),
        utilization_percent=_whole(_text(element, "utilization/gpu_util")),
        temperature_c=_whole(_text(element, "temperature/gpu_temp")),
        ecc_enabled=_switch(_text(element, "ecc_mode/current_ecc")),
        ecc_uncorrected=_uncorrected(element.find("ecc_errors/volatile")),
        mig_enabled=_switch(_text(element, "mig_mode/current_mig")),
        power_draw_w=_first_number(power, "power_draw", "average_power_draw", "instant_power_draw"),
        power_limit_w=_first_number(power, "current_power_limit", "power_limit", "enforced_power_limit"),
        power_default_w=_first_number(power, "default_power_limit"),
        persistence=_switch(_text(element, "persistence_mode")),
        throttle_reasons=_throttle_reasons(element),
        processes=tuple(
            [_process(info) for info in element.iterfind("processes/process_info")]
            + [_process(info, kind="C") for info in element.iterfind("compute_processes/process_info")]  # driver 340
        ),
        fault=next((text for text in readings if _BROKEN.search(text)), ""),
    )


def _gpu_of_row(row: dict[str, str], index: int) -> GpuFacts:
    def number(field: str) -> float | None:
        return _number(row.get(field, ""))

    def whole(field: str) -> int | None:
        return _whole(row.get(field, ""))

    position = whole("index")
    return GpuFacts(
        index=index if position is None else position,
        uuid=known(row.get("uuid", "")),
        name=known(row.get("name", "")),
        driver_version=known(row.get("driver_version", "")),
        compute_capability=_capability(row.get("compute_cap", "")),
        memory_total_mib=whole("memory.total"),
        memory_used_mib=whole("memory.used"),
        utilization_percent=whole("utilization.gpu"),
        temperature_c=whole("temperature.gpu"),
        ecc_enabled=_switch(row.get("ecc.mode.current", "")),
        ecc_uncorrected=whole("ecc.errors.uncorrected.volatile.total"),
        mig_enabled=_switch(row.get("mig.mode.current", "")),
        power_draw_w=number("power.draw"),
        power_limit_w=number("power.limit"),
        fault=next((cell for cell in row.values() if _BROKEN.search(cell)), ""),
    )


def _with_capability(gpus: tuple[GpuFacts, ...], completed: Completed) -> tuple[GpuFacts, ...]:
    if completed.exit_code not in (0, INFOROM_CORRUPTED):
        return gpus
    try:
        by_uuid = {row[0]: _capability(row[1]) for row in _rows(completed.stdout) if len(row) == 2}
    except ValueError:
        return gpus
    return tuple(replace(gpu, compute_capability=by_uuid.get(gpu.uuid)) for gpu in gpus)


def _throttle_reasons(gpu: ElementTree.Element) -> tuple[str, ...]:
    for block in ("clocks_event_reasons", "clocks_throttle_reasons"):
        reasons = gpu.find(block)
        if reasons is not None:
            return tuple(_THROTTLE.sub("", reason.tag) for reason in reasons if _text(reason) == "Active")
    return ()


def _uncorrected(volatile: ElementTree.Element | None) -> int | None:
    """Count errors since the driver was loaded. Old drivers count `double_bit/total`, new ones several
    `…_uncorrectable…`."""
    if volatile is None:
        return None
    counters = [element for element in volatile if "uncorrectable" in element.tag]
    total = volatile.find("double_bit/total")
    if total is not None:
        counters.append(total)
    counts = [count for count in (_whole(_text(counter)) for counter in counters) if count is not None]
    return sum(counts) if counts else None


def _process(info: ElementTree.Element, kind: str = "") -> GpuProcess:
    return GpuProcess(
        pid=_whole(_text(info, "pid")) or 0,
        name=_text(info, "process_name"),
        used_memory_mib=_whole(_text(info, "used_memory")),
        kind=_text(info, "type") or kind,
    )


def _text(element: ElementTree.Element, path: str = ".") -> str:
    """The text at this path; empty where it is missing or says that there is nothing."""
    return known((element.findtext(path) if path != "." else element.text) or "")


def known(text: str) -> str:
    """The text of a cell; empty where it says that there is nothing."""
    text = text.strip()
    return "" if _NOTHING.search(text) or _BROKEN.search(text) else text


def _number(text: str) -> float | None:
    match = _NUMBER.match(text.strip())
    return real(match.group()) if match else None


def _whole(text: str) -> int | None:
    number = _number(text)
    return None if number is None else int(number)


def _first_number(element: ElementTree.Element | None, *tags: str) -> float | None:
    numbers = (None if element is None else _number(_text(element, tag)) for tag in tags)
    return next((number for number in numbers if number is not None), None)


def _switch(text: str) -> bool | None:
    return {"enabled": True, "disabled": False}.get(text.strip().lower())


def _capability(text: str) -> tuple[int, int] | None:
    match = _CAPABILITY.fullmatch(text.strip())
    return (int(match[1]), int(match[2])) if match else None
