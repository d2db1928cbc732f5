"""The trainer on an NVIDIA card in eight minutes: correctness, speed beside the peers, memory; the most valuable first.

    python -m benchmarks.gpu --make-data DIR              # beforehand, on any machine: at most 25 MiB
    python -m benchmarks.gpu --data DIR --out OUT         # on the card: no network, no Docker, nothing to install
    python -m benchmarks.gpu --rehearse                   # on a CPU, tiny, every peer: no figure means anything
    python -m benchmarks.gpu --levers --data DIR          # what a step could gain; not part of the eight minutes

Each result is a line of JSON on stdout and in OUT/results.jsonl the moment it exists: whatever is cut, all before it
stands. At the end, each goal with its figure. Docs: docs/benchmarks.md.
"""

from __future__ import annotations

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any, TextIO

from benchmarks import gpt2, gpu_levers, pictures, text, waves
from benchmarks.gpu_parts import PARTS, ROWS, Part, candidate_of, summary
from benchmarks.side_by_side import LAST_LINES, ROOT, Comparison, cannot_take_part, host
from benchmarks.waves import Contestant, Limits

SECONDS, LEVERS_S = 480.0, 200.0
SUMMARY_S = 5.0
"""Seconds kept for the end."""
LEAST_S = 30.0
"""Remaining seconds below which no part begins."""
TESTS_S, FACTS_S = 150.0, 60.0
PICTURES = 400
ROUNDS = 8
"""Copies of each picture: an epoch of 50 batches."""
NEEDS = {
    "trainer": ("torch", "numpy", "PIL", "psutil", "yaml", "safetensors", "tokenizers", "torchmetrics"),
    "tests": ("pytest", "xdist", "pytest_timeout", "hypothesis"),
    "figures of the card": ("pynvml",),
    "hf-trainer, text's float32 script": ("transformers", "accelerate"),
    "timm": ("timm", "torchvision"),
}
"""Packages by what goes without them."""


# ── Run ───────────────────────────────────────────────────────────────────────────────────────────


class Results:
    """Lines of JSON, each written the moment it exists; and what the goals read of them."""

    def __init__(self, out: Path) -> None:
        self._began = time.monotonic()
        self._file = (out / "results.jsonl").open("a", encoding="utf-8")
        self.found: dict[tuple[str, str], dict[str, Any]] = {}
        self._first: dict[tuple[str, str], list[float]] = {}

    def __enter__(self) -> Results:
        return self

    def __exit__(self, *_error: object) -> None:
        self._file.close()

    def report(self, line: Mapping[str, Any]) -> None:
        key = (str(line["part"]), str(line.get("name", "")))
        if "turn" in line:
            first = self._first.setdefault(key, list(line["step_ms"]))
            self.found.setdefault(key, {})["drift"] = sum(first) / sum(line["step_ms"])
        elif not {"problem", "title", "missing"} & set(line):
            self.found.setdefault(key, {}).update(line)
        written = json.dumps({"s": round(time.monotonic() - self._began, 1), **_short(line)}, ensure_ascii=False)
        self._file.write(written + "\n")
        self._file.flush()
        print(written, flush=True)  # last: what was seen is in the file


def _short(value: Any) -> Any:
    """The same with five digits: a terminal's end is all that some places keep."""
    if isinstance(value, float):
        return float(f"{value:.5g}")
    if isinstance(value, Mapping):
        return {name: _short(each) for name, each in value.items()}
    return [_short(each) for each in value] if isinstance(value, list) else value


def main(argv: Sequence[str]) -> int:
    given = _parse(argv)
    if given.facts:
        print(json.dumps(facts(rehearsed=given.rehearse)))
        return 0
    if given.make_data:
        make_data(given.make_data)
        return 0
    end = time.monotonic() + given.seconds
    given.out.mkdir(parents=True, exist_ok=True)
    with Results(given.out) as results, tempfile.TemporaryDirectory(prefix="orch-gpu-") as scratch:
        data, logs = given.data or Path(scratch, "data"), given.out / "logs"
        logs.mkdir(exist_ok=True)
        if given.rehearse:
            make_data(data, tiny=True)
        if given.levers:
            gpu_levers.run(data / "tokens", logs, end, results.report, rehearsed=given.rehearse)
            return 0
        folders = {"data": data.resolve(), "pictures": Path(scratch, "pictures")}
        pictures.repeat(data / "pictures", folders["pictures"], 1 if given.rehearse else ROUNDS)
        for missing in missing_packages():
            results.report(missing)
        for part in _wanted(given.only):
            left_s = end - SUMMARY_S - time.monotonic()
            if left_s < LEAST_S:
                results.report({"part": part if isinstance(part, str) else part.name, "problem": "no time left"})
            elif part == "facts":
                results.report(_facts_apart(rehearsed=given.rehearse))
            elif isinstance(part, str):
                run_tests(logs, min(TESTS_S, left_s), results.report)
            else:
                results.report({"part": part.name, "title": part.title, "limit_s": part.limit_s})
                limit_s = part.limit_s * (4 if given.rehearse else 1)  # all start at once, on a few cores
                limits = Limits.within(min(limit_s, left_s), len(part.names))
                able = list(_able(part, folders, results.report, rehearsed=given.rehearse))
                waves.run(able, logs, limits, results.report)
    rows = summary(results.found, rehearsed=given.rehearse)
    (given.out / "summary.md").write_text("\n".join(rows) + "\n", "utf-8")
    print("", *rows, sep="\n")
    return 0 if set(results.found) - {("facts", "")} or given.only == ["facts"] else 1


def _able(part: Part, folders: Mapping[str, Path], report: waves.Report, *, rehearsed: bool) -> Iterator[Contestant]:
    """Yield the contestants of a part whose packages are installed."""
    comparison: Comparison = import_module(f"benchmarks.{part.module}").COMPARISON
    candidates = {candidate.name: candidate for candidate in comparison.candidates}
    for one in part.contestants(folders, rehearsed=rehearsed):
        if problem := cannot_take_part(candidates[candidate_of(one.name)], "cpu" if rehearsed else "cuda"):
            report({"part": part.name, "name": one.name, "problem": problem})
        else:
            yield one


def _wanted(only: Sequence[str] | None) -> Iterator[Part | str]:
    everything: tuple[Part | str, ...] = ("facts", "tests", *PARTS)
    return (part for part in everything if not only or (part if isinstance(part, str) else part.name) in only)


def missing_packages() -> Iterator[dict[str, Any]]:
    for what, packages in NEEDS.items():
        missing = [package for package in packages if find_spec(package) is None]
        if missing:
            yield {"part": "packages", "missing": missing, "without_them": what}


# ── Facts ─────────────────────────────────────────────────────────────────────────────────────────


def _facts_apart(*, rehearsed: bool) -> dict[str, Any]:
    """`facts` of a process of its own, whose memory on the card ends with it."""
    argv = [sys.executable, "-m", "benchmarks.gpu", "--facts", *(("--rehearse",) if rehearsed else ())]
    try:
        ran = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, timeout=FACTS_S, check=True)
        found: dict[str, Any] = json.loads(ran.stdout.strip().rpartition("\n")[2])
    except subprocess.CalledProcessError as error:
        return {"part": "facts", "problem": str(error), "last_lines": error.stderr.strip().splitlines()[-LAST_LINES:]}
    except (subprocess.TimeoutExpired, ValueError) as error:
        return {"part": "facts", "problem": str(error)}
    return found


def facts(*, rehearsed: bool) -> dict[str, Any]:
    """Card, driver, software, and two ceilings: a large product in bfloat16 and a copy within the device's memory."""
    import torch

    from benchmarks.arithmetic import copy_rate, gemm_rate
    from trainer.engine.hardware.compiling import missing_requirement

    shm = os.statvfs("/dev/shm")  # noqa: S108  # where the loaders' workers leave their batches
    found: dict[str, Any] = {
        "part": "facts", **host(), "cores": len(os.sched_getaffinity(0)), "python": sys.version.split()[0],
        "torch": torch.__version__, "shm_gib": shm.f_bavail * shm.f_frsize / 2**30,
    }  # fmt: skip
    if rehearsed:
        return found
    found["compile_lacks"] = missing_requirement(torch.device("cuda"))
    with suppress(Exception):  # without NVML, or a card that does not tell: the figures count all the same
        import pynvml

        pynvml.nvmlInit()
        card = pynvml.nvmlDeviceGetHandleByIndex(0)
        found |= {
            "driver": str(pynvml.nvmlSystemGetDriverVersion()),
            "power_limit_w": pynvml.nvmlDeviceGetPowerManagementLimit(card) / 1000,
            "sm_clock_mhz": pynvml.nvmlDeviceGetMaxClockInfo(card, pynvml.NVML_CLOCK_SM),
        }
    card = torch.cuda.get_device_properties(0)
    return found | {
        "card": card.name,
        "memory_gib": card.total_memory / 2**30,
        "multiprocessors": card.multi_processor_count,
        "bf16_tflops": gemm_rate(torch.bfloat16, "cuda", 8192) / 1e12,
        "copy_gb_s": copy_rate("cuda", 2**32) / 1e9,
    }


# ── Tests ─────────────────────────────────────────────────────────────────────────────────────────


def run_tests(logs: Path, limit_s: float, report: waves.Report) -> None:
    """Run tests/gpu on many workers, then what needs the card alone. A failure is reported when it happens."""
    end = time.monotonic() + limit_s
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    workers = max(1, min(12, len(os.sched_getaffinity(0)) - 2))
    cut = False
    for marks, how in (("not alone", ("-n", str(workers), "--dist", "load")), ("alone", ("-n", "0"))):
        outcomes = logs / f"tests-{'alone' if marks == 'alone' else 'together'}.jsonl"
        outcomes.write_text("")  # not those of an earlier run into the same folder
        argv = [
            sys.executable, "-m", "pytest", "tests/gpu", "--confcutdir=tests/gpu", "-p", "no:cacheprovider", "-q",
            "-p", "benchmarks.pytest_lines", "-m", marks, *how,
        ]  # fmt: skip
        environ = os.environ | {"ORCH_TEST_LINES": str(outcomes), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        with (
            outcomes.open(encoding="utf-8") as lines,
            (logs / "tests.log").open("a", encoding="utf-8") as log,
            subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True) as process,
        ):
            try:
                for outcome in _outcomes(process, lines, end):
                    counts[outcome["outcome"]] += 1
                    if outcome["outcome"] == "failed":
                        report({"part": "tests", "name": outcome["test"], "problem": outcome["why"]})
                cut |= process.poll() is None
            finally:
                waves.kill(process.pid)
        if process.returncode not in (0, 1, 5, -signal.SIGKILL):
            last = (logs / "tests.log").read_text("utf-8").strip().splitlines()[-LAST_LINES:]
            problem = f"pytest: exit code {process.returncode}"
            report({"part": "tests", "name": marks, "problem": problem, "last_lines": last})
    report({"part": "tests", **counts, "cut": cut})


def _outcomes(process: subprocess.Popen[bytes], lines: TextIO, end: float) -> Iterator[dict[str, str]]:
    """Yield the outcome of each test as it is written, until all have ended or the time is over."""
    while True:
        ended = process.poll() is not None or time.monotonic() > end
        for line in lines:
            yield json.loads(line)
        if ended:
            return
        time.sleep(waves.LOOK_S)


# ── Data ──────────────────────────────────────────────────────────────────────────────────────────


def make_data(folder: Path, *, tiny: bool = False) -> None:
    """Prepare tokens, pictures and texts: what takes a minute of a CPU is not done on a card's time."""
    with tempfile.TemporaryDirectory(prefix="orch-gpu-text-") as scratch:
        source = Path(scratch, "sources.txt")
        text_of = gpt2.standard_library()
        source.write_text(text_of[:400_000] if tiny else text_of, "utf-8")
        gpt2.prepare(argparse.Namespace(data_dir=folder / "tokens", text=source, vocab_size=1024 if tiny else 50257))
    pictures.make(folder / "pictures", 24 if tiny else PICTURES, 32 if tiny else 224)
    text.prepare(
        argparse.Namespace(
            data_dir=folder / "texts",
            rows=72 if tiny else ROWS,
            model_name="random:tiny" if tiny else "random:base",
        )
    )
    size = sum(file.stat().st_size for file in folder.rglob("*") if file.is_file())
    print(f"{folder}: {size / 2**20:.1f} MiB", file=sys.stderr)


def _parse(argv: Sequence[str]) -> argparse.Namespace:
    names = ["facts", "tests", *(part.name for part in PARTS)]
    parser = argparse.ArgumentParser(prog="python -m benchmarks.gpu", description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--make-data", type=Path, metavar="DIR", help="prepare the data there, and end")
    parser.add_argument("--data", type=Path, metavar="DIR", help="made by --make-data")
    parser.add_argument("--out", type=Path, default=Path("gpu-benchmarks"), metavar="DIR")
    parser.add_argument("--only", nargs="+", choices=names, metavar="PART", help=f"of {', '.join(names)}")
    parser.add_argument("--seconds", type=float, metavar="N", help=f"default: {SECONDS:g}, --levers {LEVERS_S:g}")
    parser.add_argument("--rehearse", action="store_true", help="tiny, on a CPU, to test that everything runs")
    parser.add_argument("--levers", action="store_true", help="instead: try what a GPT-2 step could gain")
    parser.add_argument("--facts", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args(argv)
    if not (given.data or given.rehearse or given.make_data or given.facts):
        parser.error("--data DIR is needed: make it on any machine with --make-data DIR")
    given.out = given.out.resolve()
    given.seconds = given.seconds or (LEVERS_S if given.levers else SECONDS)
    return given


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
