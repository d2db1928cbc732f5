"""The first hour of a person with machines that have sshd and a sudo that asks: an own script and own data, until the
model is here. Every answer is typed, and no machine is logged in to."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import pytest
import torch

from orchestrator.specs.inventory_files.inventory_file import read_inventory
from tests.conftest import Figure
from tests.lab.bare_machines import BareLab, on_terminal, own_environment
from tests.lab.conftest import LAB as TRAINING_LAB
from tests.lab.conftest import Orch, link_images

pytestmark = [pytest.mark.lab, pytest.mark.timeout(900)]

LAB = BareLab("orchfirst")
NODES = ("alpha", "beta")
SECRET = "tr0ub4dor & 3"  # noqa: S105  # of a machine of the test
PERSONS = ("ana", "bea")
ACCOUNTS = """
for name in ana bea; do useradd --create-home --shell /bin/bash --groups sudo $name; done
sed -i -e 's/^AllowUsers.*/AllowUsers ana bea/' -e 's/^PasswordAuthentication.*/PasswordAuthentication yes/' \
    /etc/ssh/sshd_config.d/lab.conf
kill -HUP $(pgrep -o sshd)
"""
SCRIPT = """\
import csv

import torch
import torch.distributed as dist
from torch.nn.parallel import DistributedDataParallel

dist.init_process_group()
rows = [(float(row["x"]), float(row["y"])) for row in csv.DictReader(open("data/points.csv"))]
own = torch.tensor(rows[dist.get_rank() :: dist.get_world_size()])
model = DistributedDataParallel(torch.nn.Linear(1, 1))
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
for step in range(200):
    loss = torch.nn.functional.mse_loss(model(own[:, :1]), own[:, 1:])
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    if step % 50 == 0 and dist.get_rank() == 0:
        print(f"step {step}: loss {loss.item():.4f}", flush=True)
if dist.get_rank() == 0:
    torch.save(model.module.state_dict(), "model.pt")
dist.destroy_process_group()
"""


@pytest.fixture(scope="module")
def addresses(orch: Orch, tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[str]]:
    """Machines that let two persons in by password; what the lab's own folder knows of them is not used.

    They have the layers of the image, under no name: the image is built and copied, and few bytes of it.
    """
    folder = tmp_path_factory.mktemp("machines")
    with LAB.up(folder, NODES, ACCOUNTS):
        for name in NODES:
            LAB.passwords(SECRET, *PERSONS, on=name)
        link_images(f"orch-{TRAINING_LAB}-{NODES[0]}", NODES, LAB.name)
        yield [spec.address for spec in read_inventory(folder / "state/orch/lab/inventory.yaml").nodes]


@pytest.fixture
def person(tmp_path: Path) -> Orch:
    """A home without an SSH key, and a folder with a script and its data alone."""
    folder, home = tmp_path / "project", tmp_path / "home"
    (folder / "data").mkdir(parents=True)
    home.mkdir()
    (folder / "train.py").write_text(SCRIPT)
    lines = (f"{x / 10},{3 * x / 10 + 1}" for x in range(-10, 10))
    (folder / "data/points.csv").write_text("\n".join(["x,y", *lines, ""]))
    return Orch(folder, {**own_environment(tmp_path), "HOME": str(home)})


@pytest.mark.parametrize("known_by", ["addresses", "an Ansible inventory"])
def test_from_a_script_and_its_data_to_the_model(
    person: Orch, addresses: list[str], figure: Figure, known_by: str
) -> None:
    """Four commands, and no login on a machine. Each question is answered once for all machines."""
    given: list[str] = []
    words = [f"ana@{address}" for address in addresses]
    if known_by != "addresses":
        given = ["-i", "hosts.ini"]
        hosts = (
            f"{name} ansible_host={address} ansible_user=bea" for name, address in zip(NODES, addresses, strict=True)
        )
        (person.folder / "hosts.ini").write_text("\n".join(["[train]", *hosts, ""]))

    def typed(words: Sequence[str], *answers: tuple[str, str]) -> str:
        code, shown = on_terminal(person, words, answers)
        assert code == 0, shown
        assert SECRET not in shown
        return shown

    began = time.monotonic()
    typed(
        ["init", *(given or words)],
        ("Are these their keys?", "y\n"),
        ("Make ~/.ssh/id_ed25519", "y\n"),
        ("Password of ", f"{SECRET}\n"),
    )
    shown = typed(["setup", *given], ("sudo password for 2 machines", f"{SECRET}\n"), ("run these commands on", "y\n"))
    assert "Docker Engine" in shown
    launch = ["launch", *given, "--nodes", "2", "--data", "./data", "--", "python", "train.py"]
    shown = typed(launch, ("? [Y/n]: ", "y\n"))
    assert "step 150: loss 0.0" in shown
    assert " exchange only scalars" not in shown, "the model has two parameters"
    figure(f"from {known_by} to the end of the first run: {time.monotonic() - began:.0f} s")
    typed(["pull", *given])
    (model,) = person.folder.glob("runs/*/code/model.pt")
    assert torch.load(model, weights_only=True)["weight"].item() == pytest.approx(3, abs=0.1)
