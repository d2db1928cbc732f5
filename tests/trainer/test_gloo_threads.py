"""The end of a process group whose model outlives it, as in a `main()` that ends with `destroy_process_group()`."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from trainer.agent import gloo_threads
from trainer.agent.rank_status import FOLDER

ROOT = Path(__file__).parents[2]
AT_START = ROOT / "trainer" / "agent" / "at_start"
ENDS = """
import faulthandler, os, sys, torch, torch.distributed as dist
if sys.argv[2] == "warm":
    from trainer.agent import gloo_threads, rank_status
    rank_status.begin(os.environ)
def main(number):
    dist.init_process_group("gloo", init_method=f"file://{sys.argv[1]}/{number}", rank=0, world_size=1)
    model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(4, 4))
    model(torch.ones(2, 4)).sum().backward()
    dist.all_gather([torch.zeros(1)], torch.ones(1))
    dist.destroy_process_group()
for number in range(200):
    faulthandler.dump_traceback_later(60, exit=True)
    main(number)
faulthandler.cancel_dump_traceback_later()
assert not dist.is_initialized()
print("ended")
if sys.argv[2] == "warm":
    gloo_threads._one_runs = lambda: print("look")
"""
"""Program of 200 process groups. Without the wait, torch 2.13 hung at the 7th, 15th, 16th, 24th, 29th or 114th."""


@pytest.mark.slow
@pytest.mark.parametrize("start", ["cold", "warm"])
def test_a_group_ends_before_its_model_and_python_after_a_wait(tmp_path: Path, start: str) -> None:
    paths = (str(AT_START), str(ROOT)) if start == "cold" else (str(ROOT),)
    environment = {**os.environ, FOLDER: str(tmp_path), "PYTHONPATH": os.pathsep.join(paths), "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        (sys.executable, "-c", ENDS, str(tmp_path), start), env=environment, capture_output=True, text=True,
        timeout=280, check=False,
    )  # fmt: skip
    assert (done.returncode, done.stdout) == (0, "ended\n" + "look\n" * 3 * (start == "warm")), done.stderr


def test_the_wait_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    looks = iter([True, False, False, True, False, False, False])
    monkeypatch.setattr(gloo_threads, "_one_runs", lambda: next(looks))
    gloo_threads.wait_until_idle(60.0)
    assert next(looks, None) is None
    monkeypatch.setattr(gloo_threads, "_one_runs", lambda: True)
    gloo_threads.wait_until_idle(0.01)
