"""Each recipe of examples/ on process nodes: trained, its result pulled, and loaded by its library's own function.

Here on two nodes, for recipes whose packages this Python has. `scripts/test --recipes` gives each recipe an environment
with the packages of its own requirements.txt, and three nodes; there a rank is killed on the way, too.
"""

from __future__ import annotations

import importlib.util
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import pytest

from benchmarks import recipes

ROOT = Path(__file__).parents[2]
EXAMPLES = ROOT / "examples"
WITH_KILL = "RECIPE" in os.environ
"""The name of a recipe: `scripts/test --recipes` sets it."""
NODES = 3 if WITH_KILL else 2


@dataclass(frozen=True, kw_only=True)
class Trial:
    """Trial of a recipe: its run, and the loading of its result."""

    folder: str
    words: tuple[str, ...]
    longer: tuple[str, ...]
    """Words for a run that is killed on the way."""
    checkpoint: str
    """Pattern of what the run continues from."""
    load: str
    """Python that loads the result in the folder `out`."""


ADAPTER = """
from peft import PeftModel
from transformers import AutoModelForCausalLM, AutoTokenizer
base = AutoModelForCausalLM.from_pretrained("out/base")
model = PeftModel.from_pretrained(base, "out/adapter")
tokenizer = AutoTokenizer.from_pretrained("out/adapter")
chat = [{"role": "user", "content": "What is 2 plus 3?"}]
tokens = tokenizer.apply_chat_template(chat, add_generation_prompt=True, return_tensors="pt", return_dict=True)
answer = model.generate(**tokens, max_new_tokens=3, do_sample=False)[0, tokens["input_ids"].shape[1]:]
assert tokenizer.decode(answer).startswith("It is"), tokenizer.decode(answer)
"""
TRIALS = {
    "ddp": Trial(
        folder="ddp", words=(), longer=("epochs=60",), checkpoint="out/last.pt",
        load="import torch; assert torch.load('out/last.pt', weights_only=True)['epoch'] >= 3",
    ),
    "trainer": Trial(
        folder="trainer", words=(), longer=("--epochs", "20", "--save-steps", "10"),
        checkpoint="out/checkpoint-*/trainer_state.json",
        load="""
from transformers import pipeline
answer = pipeline("text-classification", "out/final")("smoke at pump 7 stop it")
assert answer[0]["label"] == "alarm", answer
""",
    ),
    "lightning": Trial(
        folder="lightning", words=("--epochs", "4"), longer=("--epochs", "40", "--save-steps", "10"),
        checkpoint="out/last.ckpt",
        load="""
import torch, train
model = train.CharacterModel.load_from_checkpoint("out/final.ckpt", map_location="cpu")
assert model(torch.zeros(1, 8, dtype=torch.long)).shape[:2] == (1, 8)
""",
    ),
    "lora": Trial(
        folder="lora", words=(), longer=("--epochs", "4", "--save-steps", "10"),
        checkpoint="out/checkpoint-*/trainer_state.json", load=ADAPTER,
    ),
    "lora-4": Trial(
        folder="lora", words=("--bits", "4"), longer=("--epochs", "4", "--save-steps", "10"),
        checkpoint="out/checkpoint-*/trainer_state.json", load=ADAPTER,
    ),
}  # fmt: skip


# ── What the recipes say ──────────────────────────────────────────────────────────────────────────────────────────────


@pytest.mark.source
def test_they_are_short_scripts_without_an_import_of_ours() -> None:
    scripts = list(EXAMPLES.glob("*/train.py"))
    assert len(scripts) == 4
    for script in scripts:
        text = script.read_text("utf-8")
        assert len(text.splitlines()) <= 120, script
        assert not re.search(r"orch_hooks|orchestrator|contract|ORCH_|import trainer", text), script
        assert (script.parent / "requirements.txt").is_file()


@pytest.mark.source
def test_readmes_have_the_figures_of_the_cost_model_and_the_forecast() -> None:
    missing = [
        (recipe.folder, recipes.row(recipe))
        for recipe in recipes.RECIPES
        if recipes.row(recipe) not in (EXAMPLES / recipe.folder / "README.md").read_text("utf-8")
    ]
    assert not missing, "python -m benchmarks.recipes prints the lines"


def test_a_step_of_ddp_sends_each_value_to_all_others_in_a_ring() -> None:
    count, seconds = recipes.sent(10**6, rate=12.5e6, nodes=5)
    assert count == pytest.approx(2 * 4 / 5 * 4e6)
    assert seconds == pytest.approx(count / 12.5e6)


# ── On nodes ──────────────────────────────────────────────────────────────────────────────────────────────────────────


def missing(trial: Trial) -> list[str]:
    """Return the packages of its requirements.txt that this Python does not have."""
    lines = (EXAMPLES / trial.folder / "requirements.txt").read_text("utf-8").split()
    names = [re.split(r"[<>=]", line)[0] for line in lines]
    return [name for name in names if not importlib.util.find_spec({"pyyaml": "yaml"}.get(name, name))]


@pytest.fixture
def environment(tmp_path: Path) -> Iterator[Mapping[str, str]]:
    """A lab of processes in folders of the test's own."""
    own = {f"XDG_{kind}_HOME": str(tmp_path / kind.lower()) for kind in ("STATE", "CONFIG", "CACHE")}
    variables = {**os.environ, **own, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT)}
    orch(variables, "lab", "up", "--engine", "process", "--nodes", str(NODES))
    yield variables
    orch(variables, "lab", "down")


def command(*words: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "orchestrator", *words)


def orch(variables: Mapping[str, str], *words: str) -> str:
    done = subprocess.run(command(*words), env=variables, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


@pytest.mark.slow
@pytest.mark.timeout(600)
@pytest.mark.parametrize("name", TRIALS)
def test_a_recipe_trains_on_nodes_and_its_result_is_loaded(
    name: str, environment: Mapping[str, str], tmp_path: Path
) -> None:
    trial = TRIALS[name]
    if absent := missing(trial):
        pytest.skip(f"needs {', '.join(absent)}: scripts/test --recipes installs what a recipe names")
    words = (*trial.words, *(trial.longer if WITH_KILL else ()))
    launch = command(
        "launch", "--yes", "--name", name, "--workdir", str(EXAMPLES / trial.folder), "--env", "OMP_NUM_THREADS=1"
    )
    with subprocess.Popen(
        (*launch, "--", "python", "train.py", "--tiny", *words), env=environment, cwd=tmp_path,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
    ) as run:  # fmt: skip
        if WITH_KILL:
            kill_a_rank_after(tmp_path, trial.checkpoint, run)
        try:
            out = run.communicate(timeout=500)[0]
        except subprocess.TimeoutExpired as late:
            run.kill()
            pytest.fail(f"the run does not end: {(late.output or b'').decode()}")
    assert run.returncode == 0, out
    assert not WITH_KILL or ("restarted" in out and "resumed" in out), out
    orch(environment, "pull", name, "out", "--to", str(tmp_path))
    [pulled] = tmp_path.glob("runs/*/code/out")
    check = (sys.executable, "-c", trial.load)
    own = {**os.environ, "PYTHONPATH": str(EXAMPLES / trial.folder), "HF_HUB_OFFLINE": "1"}
    loaded = subprocess.run(check, cwd=pulled.parent, env=own, capture_output=True, text=True, check=False)
    assert loaded.returncode == 0, loaded.stderr


def kill_a_rank_after(folder: Path, checkpoint: str, run: subprocess.Popen[str]) -> None:
    """Kill rank 1 as the kernel does when memory runs out, once a checkpoint is there."""
    until = time.monotonic() + 300
    while not list(folder.glob(f"state/orch/lab/nodes/alpha/lab/runs/*/code/{checkpoint}")):
        assert run.poll() is None, run.communicate()[0]
        assert time.monotonic() < until
        time.sleep(0.1)
    [rank] = [int(process.name) for process in Path("/proc").glob("[0-9]*") if is_rank_1(process, folder)]
    os.kill(rank, signal.SIGKILL)


def is_rank_1(process: Path, folder: Path) -> bool:
    try:
        variables = (process / "environ").read_bytes().split(b"\0")
        words = (process / "cmdline").read_bytes().split(b"\0")
        inside = (process / "cwd").readlink().is_relative_to(folder)
    except OSError:
        return False
    return inside and b"RANK=1" in variables and b"train.py" in words
