"""The agent's view of processes and addresses."""

from __future__ import annotations

import os
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from trainer.agent import local_network, processes

CHILD = "import subprocess, sys; p = subprocess.Popen(['sleep', '60']); print(p.pid, flush=True); p.wait()"


def test_descendants_are_found_killed_and_collected() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdout=subprocess.PIPE, text=True)
    assert child.stdout
    grandchild = int(child.stdout.readline())
    (below,) = processes.children_of(child.pid)
    assert below.pid == grandchild
    found = [one for one in processes.descendants(os.getpid()) if one.pid in (child.pid, grandchild)]
    assert len(found) == 2
    assert processes.left_after(found) == found
    replace(below, started="1").kill()  # a later process with the number of an earlier one
    assert below.is_there()
    for one in found:
        one.kill()
    assert processes.left_after([one for one in found if one.pid == child.pid], 10.0) == []
    child.stdout.close()
    child.wait()


def test_an_interface_without_an_address_has_none() -> None:
    assert local_network.address_of("lo") == "127.0.0.1"
    assert local_network.address_of("nothing0") == ""


def test_the_agent_needs_no_package_of_the_image() -> None:
    """Images that orch has not built may have torch and nothing else."""
    program = (
        "import sys\n"
        "class Refused:\n"
        "    def find_spec(self, name, path=None, target=None):\n"
        "        if name.partition('.')[0] not in {*sys.stdlib_module_names, 'trainer', 'contract'}:\n"
        "            raise ImportError(name)\n"
        "sys.meta_path.insert(0, Refused())\n"
        f"sys.path.insert(0, {str(Path(__file__).parents[2])!r})\n"
        "import trainer.agent.node_agent, trainer.agent.options, trainer.agent.stacks\n"
    )
    ran = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
