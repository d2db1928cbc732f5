"""The trainer on an NVIDIA card in eight minutes: correctness, speed beside the peers, memory; the most valuable first.

    python -m benchmarks.gpu --make-data DIR              # beforehand, on any machine: at most 25 MiB
    python -m benchmarks.gpu --data DIR --out OUT         # on the card: no network, no Docker, nothing to install
    python -m benchmarks.gpu --rehearse                   # on a CPU, tiny, every peer: no figure means anything
    python -m benchmarks.gpu --levers --data DIR          # what a step could gain; not part of the eight minutes

Each result is a line of JSON on stdout and in OUT/results.jsonl the moment it exists: whatever is cut, all before it
stands. At the end, each goal with its figure. Docs: docs/gpu.md.
"""

from __future__ import annotations

import argparse
import json
import math
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from benchmarks import gpt2, gpu_levers, pictures, text, waves
from benchmarks.side_by_side import ROOT, Comparison, cannot_take_part, host
from benchmarks.waves import Contestant, Limits

SECONDS, LEVERS_S = 480.0, 200.0
SUMMARY_S = 5.0
"""Seconds kept for the end."""
LEAST_S = 30.0
"""With less time left, no part begins."""
TESTS_S, FACTS_S = 150.0, 60.0
PICTURES, ROWS = 400, 1024
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


@dataclass(frozen=True, kw_only=True)
class Part:
    """Contestants that start together and are measured in turn."""

    name: str
    title: str
    module: str
    options: tuple[str, ...]
    """Options of all contestants, on a card. `{data}`: the prepared data; `{pictures}`: its pictures, repeated."""
    names: tuple[str, ...]
    """Candidates; `@` begins a remark that tells two contestants of one candidate apart."""
    twice: tuple[str, ...] = ()
    """Those that are measured first and again last, to show the drift of the card."""
    more: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    """Further options of a contestant."""
    rehearsal: tuple[str, ...] = ()
    """Options in place of `options`, on a CPU."""
    limit_s: float = 150.0

    def contestants(self, folders: Mapping[str, Path], *, rehearsed: bool) -> tuple[Contestant, ...]:
        """In a rehearsal only one compiles: on a CPU that takes a minute, and shows nothing about a card."""
        words = self.rehearsal if rehearsed else (*self.options, "--device", "cuda")
        words = tuple(word.format(**folders) for word in words)
        more = {} if rehearsed else self.more
        return tuple(
            Contestant(
                part=self.name,
                name=name,
                argv=(f"benchmarks.{self.module}", *words, *more.get(name, ()), "--measure", _candidate(name)),
                turns=2 if name in self.twice else 1,
                environ={"TORCH_COMPILE_DISABLE": "1"} if rehearsed and name not in self.twice else {},
            )
            for name in self.names
        )


def _candidate(name: str) -> str:
    return name.partition("@")[0]


THREE = ("--windows", "3", "--settle-steps", "5")
SHORT = ("--windows", "1", "--steps", "10", "--settle-steps", "2", "--warmup", "5")
TOKENS = ("--data-dir", "{data}/tokens")
TINY = ("--quick", "--device", "cpu", "--threads", "1", "--windows", "2", "--settle-steps", "1")
TINY_TOKENS = (*TINY, *TOKENS)
PARTS = (
    Part(
        name="gpt2",
        title="GPT-2 124M, 16 × 1024 tokens, bfloat16",
        module="gpt2",
        options=(*TOKENS, "--batch-size", "16", "--warmup", "10", "--steps", "20", *THREE),
        names=("ours-compiled", "nanogpt-like", "hf-trainer-tuned", "ours-amp"),
        twice=("ours-compiled",),
        rehearsal=TINY_TOKENS,
        limit_s=170,
    ),
    Part(
        name="shipped",
        title="GPT-2 124M, 16 × 1024 tokens, as HF Trainer is shipped: float32, alone on the card",
        module="gpt2",
        options=(*TOKENS, "--batch-size", "16", "--warmup", "3", "--steps", "5"),
        names=("hf-trainer",),
        rehearsal=TINY_TOKENS,
        limit_s=60,
    ),
    Part(
        name="vision",
        title="ResNet-50 at 224, batches of 64, every picture decoded in every epoch",
        module="vision",
        # Loaders have up to two batches per worker ready when their turn comes: these are not timed.
        options=(
            "--images", "{pictures}", "--warmup", "6", "--steps", "20", "--windows", "3", "--settle-steps", "30",
        ),
        names=("ours-compiled-uncached", "timm", "naive"),
        more={"naive": ("--steps", "5", "--settle-steps", "1")},
        rehearsal=(*TINY, "--images", "{pictures}"),
        limit_s=140,
    ),
    Part(
        name="text",
        title="BERT-base with three heads, batches of 16; a window is an epoch",
        module="text",
        options=(
            "--data-dir", "{data}/texts", "--rows", str(ROWS), "--warmup", "20", "--windows", "3",
            "--settle-steps", "37",
        ),
        names=("+cache", "+freeze-graphs", "ours-graphs", "ours", "plain"),
        rehearsal=(*TINY, "--data-dir", "{data}/texts"),
        limit_s=100,
    ),
    Part(
        name="memory",
        title="GPT-2 124M, compiled: memory, at 16 × 1024 tokens unless another batch is named",
        module="gpt2",
        options=(*TOKENS, *SHORT, "--batch-size", "16"),
        names=(
            "ours-most-frugal", "ours-frugal", "ours-chunks",
            "ours-compiled@8", "ours-compiled-fp32@8", "ours-compiled@64",
        ),
        more={
            "ours-compiled@8": ("--batch-size", "8"),
            "ours-compiled-fp32@8": ("--batch-size", "8"),
            "ours-compiled@64": ("--batch-size", "64"),
        },
        rehearsal=TINY_TOKENS,
        limit_s=110,
    ),
)  # fmt: skip
"""The most valuable first: a card may be lent for less time than all of them take."""


# ── Goals ─────────────────────────────────────────────────────────────────────────────────────────

Found = Mapping[tuple[str, str], Mapping[str, Any]]
"""Results by part and contestant."""


@dataclass(frozen=True, kw_only=True)
class Goal:
    text: str
    figure: Callable[[Found], float]
    """KeyError: a result or a figure that it needs is missing."""
    at_least: float = -math.inf
    at_most: float = math.inf


def of(part: str, name: str, figure: str = "units_per_s") -> Callable[[Found], float]:
    return lambda found: float(found[part, name][figure])


def ratio(mine: Callable[[Found], float], other: Callable[[Found], float]) -> Callable[[Found], float]:
    return lambda found: mine(found) / other(found)


def _drift(found: Found) -> float:
    one = found["gpt2", "ours-compiled"]
    return float(one["drift"])


def _frozen_texts(found: Found) -> float:
    """Return the speed of the faster of the two ways to train with frozen layers."""
    speeds = [found.get(("text", name), {}).get("units_per_s", 0.0) for name in ("+cache", "+freeze-graphs")]
    if not any(speeds):
        raise KeyError("neither was measured")
    return float(max(speeds))


OURS = of("gpt2", "ours-compiled")
GOALS = (
    Goal(text="tests of tests/gpu that fail", figure=of("tests", "", "failed"), at_most=0),
    Goal(text="tests of tests/gpu that passed", figure=of("tests", "", "passed"), at_least=1),
    Goal(text="GPT-2: MFU", figure=of("gpt2", "ours-compiled", "MFU"), at_least=0.42),
    Goal(text="GPT-2: speed, to a nanoGPT-like loop", figure=ratio(OURS, of("gpt2", "nanogpt-like")), at_least=1.0),
    Goal(text="GPT-2: speed, to HF Trainer tuned", figure=ratio(OURS, of("gpt2", "hf-trainer-tuned")), at_least=1.05),
    Goal(text="GPT-2: speed, to HF Trainer as shipped", figure=ratio(OURS, of("shipped", "hf-trainer")), at_least=4),
    Goal(text="GPT-2: last turn to first turn (drift)", figure=_drift, at_least=0.97, at_most=1.03),
    Goal(
        text="pictures: speed, to the simple script",
        figure=ratio(of("vision", "ours-compiled-uncached"), of("vision", "naive")),
        at_least=5,
    ),
    Goal(
        text="pictures: speed, to timm",
        figure=ratio(of("vision", "ours-compiled-uncached"), of("vision", "timm")),
        at_least=1.0,
    ),
    Goal(
        text="texts: speed, frozen in bfloat16, to the simple script in float32",
        figure=ratio(_frozen_texts, of("text", "plain")),
        at_least=8,
    ),
    Goal(
        text="memory: bfloat16, to float32 (8 × 1024)",
        figure=ratio(of("memory", "ours-compiled@8", "peak_mib"), of("memory", "ours-compiled-fp32@8", "peak_mib")),
        at_most=0.6,
    ),
    Goal(
        text="memory: blocks checkpointed and chunks, to neither, not compiled",
        figure=ratio(of("memory", "ours-most-frugal", "peak_mib"), of("gpt2", "ours-amp", "peak_mib")),
        at_most=0.4,
    ),
    Goal(
        text="memory: the same, to neither, compiled",
        figure=ratio(of("memory", "ours-most-frugal", "peak_mib"), of("gpt2", "ours-compiled", "peak_mib")),
        at_most=0.5,
    ),
    Goal(text="speed of that, to compiled", figure=ratio(of("memory", "ours-most-frugal"), OURS), at_least=0.7),
)


def summary(found: Found, *, rehearsed: bool) -> list[str]:
    rows = ["| goal | wanted | found | |", "|---|---|---|---|"]
    for goal in GOALS:
        bounds = (("at least", goal.at_least), ("at most", goal.at_most))
        wanted = " and ".join(f"{word} {bound:g}" for word, bound in bounds if math.isfinite(bound))
        try:
            figure = goal.figure(found)
        except KeyError:
            rows.append(f"| {goal.text} | {wanted} | | not measured |")
            continue
        met = "met" if goal.at_least <= figure <= goal.at_most else "missed"
        rows.append(f"| {goal.text} | {wanted} | {figure:.3g} | {'rehearsed' if rehearsed else met} |")
    return rows


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

    def say(self, line: Mapping[str, Any]) -> None:
        key = (str(line["part"]), str(line.get("name", "")))
        if "turn" in line:
            first = self._first.setdefault(key, list(line["step_ms"]))
            self.found.setdefault(key, {})["drift"] = sum(first) / sum(line["step_ms"])
        elif "problem" not in line:
            self.found.setdefault(key, {}).update(line)
        written = json.dumps({"s": round(time.monotonic() - self._began, 1), **_short(line)}, ensure_ascii=False)
        print(written, flush=True)
        self._file.write(written + "\n")
        self._file.flush()


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
            gpu_levers.run(data / "tokens", logs, end, results.say, rehearsed=given.rehearse)
            return 0
        folders = {"data": data.resolve(), "pictures": Path(scratch, "pictures")}
        pictures.repeat(data / "pictures", folders["pictures"], 1 if given.rehearse else ROUNDS)
        for missing in missing_packages():
            results.say(missing)
        for part in _wanted(given.only):
            left_s = end - SUMMARY_S - time.monotonic()
            if left_s < LEAST_S:
                results.say({"part": part if isinstance(part, str) else part.name, "problem": "no time left"})
            elif part == "facts":
                results.say(_facts_apart(rehearsed=given.rehearse))
            elif isinstance(part, str):
                run_tests(logs, min(TESTS_S, left_s), results.say)
            else:
                limits = Limits.within(min(part.limit_s, left_s), len(part.names))
                able = list(_able(part, folders, results.say, rehearsed=given.rehearse))
                waves.run(able, logs, limits, results.say)
    rows = summary(results.found, rehearsed=given.rehearse)
    (given.out / "summary.md").write_text("\n".join(rows) + "\n", "utf-8")
    print("", *rows, sep="\n")
    return 0 if results.found else 1


def _able(part: Part, folders: Mapping[str, Path], say: waves.Say, *, rehearsed: bool) -> Iterator[Contestant]:
    """Yield the contestants of a part whose packages are installed."""
    comparison: Comparison = import_module(f"benchmarks.{part.module}").COMPARISON
    candidates = {candidate.name: candidate for candidate in comparison.candidates}
    for one in part.contestants(folders, rehearsed=rehearsed):
        if problem := cannot_take_part(candidates[_candidate(one.name)], "cpu" if rehearsed else "cuda"):
            say({"part": part.name, "name": one.name, "problem": problem})
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
        return {"part": "facts", "problem": str(error), "last_lines": error.stderr.strip().splitlines()[-6:]}
    except (subprocess.TimeoutExpired, ValueError) as error:
        return {"part": "facts", "problem": str(error)}
    return found


def facts(*, rehearsed: bool) -> dict[str, Any]:
    """Card, driver, software, and two ceilings: a large product in bfloat16 and a copy within the device's memory."""
    import torch

    from benchmarks.arithmetic import copy_rate, gemm_rate
    from trainer.engine.hardware.compiling import what_lacks

    shm = os.statvfs("/dev/shm")  # noqa: S108  # where the loaders' workers leave their batches
    found: dict[str, Any] = {
        "part": "facts", **host(), "cores": len(os.sched_getaffinity(0)), "python": sys.version.split()[0],
        "torch": torch.__version__, "shm_gib": shm.f_bavail * shm.f_frsize / 2**30,
    }  # fmt: skip
    if rehearsed:
        return found
    found["compile_lacks"] = what_lacks(torch.device("cuda"))
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


def run_tests(logs: Path, limit_s: float, say: waves.Say) -> None:
    """Run tests/gpu on many workers, then what needs the card alone. A failure is said when it happens."""
    end = time.monotonic() + limit_s
    counts = {"passed": 0, "failed": 0, "skipped": 0}
    workers = max(1, min(12, len(os.sched_getaffinity(0)) - 2))
    cut = False
    for marks, how in (("not alone", ("-n", str(workers), "--dist", "load")), ("alone", ("-n", "0"))):
        lines = logs / f"tests-{'alone' if marks == 'alone' else 'together'}.jsonl"
        argv = [
            sys.executable, "-m", "pytest", "tests/gpu", "--confcutdir=tests/gpu", "-p", "no:cacheprovider", "-q",
            "-p", "benchmarks.pytest_lines", "-m", marks, *how,
        ]  # fmt: skip
        lines.unlink(missing_ok=True)  # of an earlier run into the same folder
        environ = os.environ | {"ORCH_TEST_LINES": str(lines), "TORCHINDUCTOR_COMPILE_THREADS": "1"}
        with (logs / "tests.log").open("a", encoding="utf-8") as log:
            process = subprocess.Popen(argv, cwd=ROOT, env=environ, stdout=log, stderr=log, start_new_session=True)
            try:
                code = process.wait(max(1.0, end - time.monotonic()))
            except subprocess.TimeoutExpired:
                cut, code = True, 0
            finally:
                waves.kill(process.pid)
                process.wait()
        for line in lines.read_text("utf-8").splitlines() if lines.exists() else ():
            outcome = json.loads(line)
            counts[outcome["outcome"]] += 1
            if outcome["outcome"] == "failed":
                say({"part": "tests", "name": outcome["test"], "problem": outcome["why"]})
        if code not in (0, 1, 5):
            said = (logs / "tests.log").read_text("utf-8").strip().splitlines()
            say({"part": "tests", "name": marks, "problem": f"pytest: exit code {code}", "last_lines": said[-6:]})
    say({"part": "tests", **counts, "cut": cut})


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
