"""CUDA as torch sees it inside an image: one line of JSON from a short Python program."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from orchestrator.nodes.interface import Completed
from orchestrator.specs.gpus import TorchAnswer, TorchDevice

_PROGRAM = """
import json, torch
devices, error = [], ""
try:
    if torch.version.cuda:
        torch.cuda.init()
    for index in range(torch.cuda.device_count() if torch.cuda.is_available() else 0):
        card = torch.cuda.get_device_properties(index)
        uuid = str(getattr(card, "uuid", ""))
        devices.append({"name": card.name, "uuid": uuid, "capability": [card.major, card.minor]})
except Exception as raised:
    error = str(raised)
print(json.dumps({
    "version": torch.__version__, "cuda": torch.version.cuda or "", "available": torch.cuda.is_available(),
    "devices": devices, "architectures": torch.cuda.get_arch_list(), "error": error,
}))
"""
PROBE = ("python", "-c", _PROGRAM)
"""`torch.cuda.init()` says why CUDA cannot be used, where `is_available()` only says that it cannot."""


def parse_probe(completed: Completed) -> TorchAnswer:
    """Its answer, which is the last line: warnings of libraries may come before. A failed probe is an answer too."""
    lines = completed.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
        return TorchAnswer(
            version=str(answer["version"]),
            cuda=str(answer["cuda"]),
            available=bool(answer["available"]),
            devices=tuple(_device(device) for device in answer["devices"]),
            architectures=tuple(str(name) for name in answer["architectures"]),
            error=_first_line(str(answer["error"])),
        )
    except (ValueError, KeyError, TypeError, OverflowError, RecursionError):
        errors = completed.stderr.strip().splitlines()
        return TorchAnswer(error=errors[-1] if errors else f"the probe ended with {completed.exit_code} and no answer")


def _device(answer: Mapping[str, Any]) -> TorchDevice:
    major, minor = answer["capability"]
    uuid = str(answer["uuid"])
    return TorchDevice(
        name=str(answer["name"]),
        uuid=f"GPU-{uuid}" if uuid and not uuid.startswith(("GPU-", "MIG-")) else uuid,
        compute_capability=(int(major), int(minor)),
    )


def _first_line(text: str) -> str:
    return text.strip().splitlines()[0] if text.strip() else ""
