"""docs/es/de-las-guias.md: it has every command of the original guides, and its launches can be planned."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest

from orchestrator.cli import main
from tests.unit.test_lab_process import folder  # noqa: F401  # a lab of processes in a folder of the test's own

ROOT = Path(__file__).parents[2]
PAGE = (ROOT / "docs/es/de-las-guias.md").read_text("utf-8")
LAUNCHES = sorted({line for line in re.findall(r"`(orch launch [^`]*--[^`]*)`", PAGE) if "train.py" not in line})
OF_THE_GUIDES = (
    "nvidia-driver-535", "nvidia-container-toolkit", "docker compose build", "trainer nvidia-smi",
    "--epochs 1 --batch-size 2 --seq-len 128", "MASTER_ADDR", "MASTER_PORT=12355", "NNODES=5", "NODE_RANK=0",
    "GPUS_PER_NODE=1", "ddp_launch.sh", "test_ddp.py --backend auto", "monitor.py --interval 5",
    "train_gpt2_spanish.py", "./checkpoints", "./Data", "TensorBoard",
    "run_docker_training.sh", "docker stop omega21_local_trainer", "docker rm omega21_local_trainer",
    "docker logs omega21_local_trainer", "OMP_NUM_THREADS=2", "TORCH_CPU_BACKEND=onednn", "OpenBLAS", "num_workers=0",
    "dupin.py entrenar-patrones-v2", "--no-amp", "--no-compile", "--no-channels-last", "--use-gradient-checkpointing",
    "--use-amp", "--use-compile", "--num-workers 0", "--grad-accum 2", "--focal-loss", "--label-smoothing 0.1",
    "train_bert_model.py", "max_length", "gradient_accumulation_steps", "label_smoothing", "patience_limit",
    "dccuchile/bert-base-spanish-wwm-cased", "distilbert-base-multilingual-cased", "pin_memory", "persistent_workers",
    "Colab", "baseline.py --preprocessed-dir preprocessed_data --epochs 1 --batch-size 32", "shuffle_buffer_size=1000",
    "test_iterable_dataset.py", "PreprocessedGNNDataset",
)  # fmt: skip
"""Commands and options as the five guides write them."""


@pytest.mark.source
def test_every_command_and_option_of_the_guides_is_there() -> None:
    assert [words for words in OF_THE_GUIDES if words not in PAGE] == []


def test_every_launch_can_be_planned(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Five nodes are processes; data of the workload itself does not concern the command line."""
    (tmp_path / "preprocessed_data").mkdir()
    (tmp_path / "preprocessed_data/1.pt").write_bytes(b"")
    monkeypatch.chdir(tmp_path)
    assert main(["lab", "up", "--nodes", "5", "--engine", "process"]) == 0
    failed = {}
    for line in LAUNCHES:
        words = shlex.split(line)[1:]
        capsys.readouterr()
        if main(["launch", "--dry-run", *words[1:]]):
            failed[line] = capsys.readouterr().err
    assert failed == {}
    assert len(LAUNCHES) > 30
