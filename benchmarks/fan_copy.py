"""Time to copy data and an image to all nodes of a lab, relative to one node, and the bytes that the controller sends.

Needs a running lab and root: the links of the nodes are shaped by `orch lab link`, the controller's own by `tc` on the
bridge of the lab. Candidates are interleaved; the ratio is the median of the rounds.

    python -m benchmarks.fan_copy [--rates 1gbit 100mbit] [--megabytes 200] [--image orch/lab:cpu] [--rounds 3]
    python -m benchmarks.fan_copy --sparse 200G

`--sparse` needs no lab: it measures what the controller alone does with a sparse file of that size, reading it once
for its SHA-256 and once to send it. Nothing is sent or written, and holes are read from memory, not from a disk.
"""

from __future__ import annotations

import argparse
import ipaddress
import json
import os
import resource
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

from orchestrator.cli.context import load_inventory
from orchestrator.fleet.connect import connected
from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.images.distribute_image import distribute_image
from orchestrator.fleet.relay import Delivered, Destination, FolderToSend, send_folder
from orchestrator.fleet.runs.known_sums import SumsReader, file_sums, names_in
from orchestrator.fleet.runs.send_data import folder_to_send
from orchestrator.fleet.runs.upload import upload_data
from orchestrator.lab.network import shape_command
from orchestrator.nodes.interface import Node
from orchestrator.nodes.local import LocalNode

PLACE = "/home/orch/fan-copy"
UNITS = {"M": 10**6, "G": 10**9}

Copy = Callable[[], None]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rates", nargs="+", default=["1gbit", "100mbit"])
    parser.add_argument("--megabytes", type=int, default=200)
    parser.add_argument("--image", default="", help="reference of an image that this computer has")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--sparse", default="", help="size, such as 200G")
    asked = parser.parse_args()
    if asked.sparse:
        return sparse(int(float(asked.sparse[:-1]) * UNITS[asked.sparse[-1]]))
    inventory = load_inventory(None).inventory
    bridge = bridge_of(inventory.nodes[0].address)
    with TemporaryDirectory() as folder, connected(inventory.nodes) as nodes:
        data = Path(folder)
        for number in range(4):
            (data / f"{number}.bin").write_bytes(os.urandom(asked.megabytes * 250_000))
        candidates = data_candidates(data, nodes) | (image_candidates(asked.image, nodes) if asked.image else {})
        print("| link | copy | seconds: median (min to max) | relative to one node | sent by the controller |")
        print("|---|---|---|---|---|")
        for rate in asked.rates:
            with shaped(rate, bridge):
                measure(rate, candidates, bridge, asked.rounds)
    return 0


def measure(rate: str, candidates: dict[str, tuple[Copy, Copy]], bridge: str, rounds: int) -> None:
    seconds: dict[str, list[float]] = {name: [] for name in candidates}
    sent: dict[str, list[int]] = {name: [] for name in candidates}
    for _ in range(rounds):
        for name, (clear, copy) in candidates.items():
            clear()
            before, began = sent_by(bridge), time.monotonic()
            copy()
            seconds[name].append(time.monotonic() - began)
            sent[name].append(sent_by(bridge) - before)
            clear()
    for name, values in seconds.items():
        one = seconds[f"{name.split(',')[0]}, one node"]
        ratio = statistics.median(here / alone for here, alone in zip(values, one, strict=True))
        spread = f"{statistics.median(values):.1f} ({min(values):.1f} to {max(values):.1f})"
        print(
            f"| {rate} | {name} | {spread} | {ratio:.2f} | {statistics.median(sent[name]) / 1e6:.0f} MB |", flush=True
        )


def data_candidates(data: Path, nodes: Sequence[Node]) -> dict[str, tuple[Copy, Copy]]:
    """Copies by name: what to do before, and the copy itself. `from the controller to each` is how it was before."""
    content = folder_to_send(data, file_sums(data, names_in(data)))

    def clear() -> None:
        for outcome in fan_out(nodes, lambda node: node.run(["rm", "-rf", PLACE, f"{PLACE}.partial"])):
            outcome.value().check("removing the last copy")

    def star() -> None:
        for outcome in fan_out(nodes, lambda node: upload_data(node, data, PLACE, run_id="copy"), timeout_s=3600):
            outcome.value()

    return {
        "data, one node": (clear, lambda: chain(content, nodes[:1])),
        f"data, {len(nodes)} nodes": (clear, lambda: chain(content, nodes)),
        f"data, {len(nodes)} nodes, from the controller to each": (clear, star),
    }


def chain(content: FolderToSend, nodes: Sequence[Node]) -> None:
    targets = [Destination(node=node, folder=PLACE) for node in nodes]
    for outcome in send_folder(content, targets, lambda _node, _progress: None, otherwise=refuse):
        outcome.value()


def refuse(target: Destination) -> Delivered:
    raise SystemExit(f"{target.node.name} has no Python: what is measured is the chain")


def image_candidates(reference: str, nodes: Sequence[Node]) -> dict[str, tuple[Copy, Copy]]:
    here = LocalNode()
    image = here.engine.image(reference)
    if image is None:
        raise SystemExit(f"this computer has no image {reference}")

    def clear() -> None:
        for outcome in fan_out(nodes, lambda node: node.engine.remove_image(reference)):
            outcome.value()

    def copy(chosen: Sequence[Node]) -> None:
        for outcome in distribute_image(
            image,
            [reference],
            here.engine,
            chosen,
            dict.fromkeys((node.name for node in nodes), PLACE),
            lambda _node, _progress: None,
        ):
            outcome.value()

    return {
        "image, one node": (clear, lambda: copy(nodes[:1])),
        f"image, {len(nodes)} nodes": (clear, lambda: copy(nodes)),
    }


@contextmanager
def shaped(rate: str, bridge: str) -> Iterator[None]:
    """Links of all nodes and of the controller at this rate. Packets between nodes do not pass the bridge's queue."""
    command = [bridge if word == "eth0" else word for word in shape_command(rate)]
    lab = (sys.executable, "-m", "orchestrator", "lab", "link")
    subprocess.run([*lab, rate], check=True, capture_output=True)
    subprocess.run(command, check=True)
    try:
        yield
    finally:
        subprocess.run(["tc", "qdisc", "delete", "dev", bridge, "root"], check=True)
        subprocess.run([*lab, "off"], check=True, capture_output=True)


def bridge_of(address: str) -> str:
    """The interface of this computer in the network of a node."""
    found = json.loads(subprocess.run(["ip", "-json", "-4", "address"], check=True, capture_output=True).stdout)
    for interface in found:
        for one in interface["addr_info"]:
            network = ipaddress.ip_network(f"{one['local']}/{one['prefixlen']}", strict=False)
            if ipaddress.ip_address(address) in network:
                return str(interface["ifname"])
    raise SystemExit(f"no interface of this computer is in the network of {address}")


def sent_by(interface: str) -> int:
    return int(Path(f"/sys/class/net/{interface}/statistics/tx_bytes").read_text())


def sparse(size: int) -> int:
    with TemporaryDirectory() as folder:
        file = Path(folder) / "data.bin"
        with file.open("wb") as content:
            content.truncate(size)
        began = time.monotonic()
        sums = SumsReader().sums(file.parent, ["data.bin"])
        hashed = time.monotonic()
        whole = folder_to_send(file.parent, sums)
        read = sum(len(chunk) for one in whole.files for chunk in whole.read(one, 0))
        ended = time.monotonic()
    if read != size:
        raise SystemExit(f"{read} of {size} bytes were read")
    print(f"{size / 1e9:.0f} GB, sparse: SHA-256 {hashed - began:.0f} s, reading to send {ended - hashed:.0f} s")
    print(f"peak memory: {resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024:.0f} MiB")
    return 0


if __name__ == "__main__":
    sys.exit(main())
