"""Benchmarks on a slow, unequal LAN in a box: `python -m benchmarks.slow_lan COMMAND`, as root."""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path

from benchmarks.slow_lan import curves, peers, quality, shared_nodes, speed, transport, unequal
from benchmarks.slow_lan.rig import RunFailed, cannot_run

COMMANDS = {
    "speed": (speed, "step time, tokens/s and bytes of each sync method, by link rate and number of nodes"),
    "quality": (quality, "validation loss of each sync method at equal tokens, over seeds"),
    "unequal": (unequal, "machines of unequal speed: speed relative to the sum of their throughputs"),
    "peers": (peers, "torch's hooks, post-local SGD, torchft, hivemind and ours"),
    "shared-nodes": (
        shared_nodes,
        "several ranks on each node: bytes and seconds of an exchange, as predicted and measured",
    ),
    "curves": (curves, "GPT-2 124M on 2 to 64 nodes, simulated"),
    "transport": (transport, "link utilization of gloo, by method, bucket size, streams"),
}


def main(argv: Sequence[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m benchmarks.slow_lan", description=(__doc__ or "").strip())
    commands = parser.add_subparsers(dest="command", required=True)
    for name, (module, summary) in COMMANDS.items():
        command = commands.add_parser(name, help=summary, description=module.__doc__)
        module.add_options(command)
        command.add_argument("--quick", action="store_true", help="small and short, to test that everything runs")
        command.add_argument("--out", type=Path, metavar="FILE", help="the figures as JSON")
    given = parser.parse_args(argv)
    if given.command != "curves" and (problem := cannot_run()):
        print(f"this machine cannot run the benchmark: {problem}", file=sys.stderr)
        return 2
    try:
        text, figures = COMMANDS[given.command][0].run(given)
    except RunFailed as error:
        print(error, file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    print(text)
    if given.out:
        record = {"command": [given.command, *argv[1:]], "figures": figures}
        given.out.write_text(json.dumps(record, indent=1) + "\n", "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
