"""Turns a case file into fake nodes that answer with recorded output, and asks them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML

from orchestrator.fleet.readiness.check_gpus import GpuCheck, check_gpus
from orchestrator.nodes.fake import Answer, FakeEngine, FakeNode
from orchestrator.nodes.probes import nvidia_smi
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import EngineError, NodeUnreachableError
from orchestrator.specs.facts import EngineFacts, ImageFacts
from orchestrator.specs.gpus import GpuReport
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.labels import LABEL_CUDA

RECORDED = Path(__file__).parents[2] / "fixtures" / "nvidia_smi"
CASES = Path(__file__).parent / "cases"
IMAGE = "orch/orch:cuda"
CHECK = GpuCheck(project="orch", image=IMAGE, suffix="t0k3n")

NO_PROGRAM: Answer = (127, "", "nvidia-smi: command not found")


def load(path: Path) -> dict[str, Any]:
    """The case file."""
    case: dict[str, Any] = YAML(typ="safe", pure=True).load(path)
    return case


def asked(case: Mapping[str, Any], check: GpuCheck = CHECK) -> GpuReport:
    """Run `check_gpus` on the nodes of this case."""
    words = case["nodes"]
    specs = [NodeSpec(name=name, address="10.0.0.1", device=node.get("device", "auto")) for name, node in words.items()]
    return check_gpus(specs, [fake_node(name, node) for name, node in words.items()], check)


def fake_node(name: str, words: Mapping[str, Any]) -> FakeNode:
    """A node that answers as the case says: `host` and `smi` name a recording, or give an exit code and a text."""
    if words.get("unreachable"):
        error = NodeUnreachableError(words["unreachable"], node=name, hint=words.get("hint", ""))
        return FakeNode(name, answers={("nvidia-smi", "*"): error})
    host = _smi(words.get("host"), words.get("change", {}))
    gpus = nvidia_smi.parse_xml(host[1]) if host[0] == 0 else ()
    capability = words.get("capability", "")
    row = "".join(f"{gpu.uuid}, {capability}\n" for gpu in gpus)
    node = FakeNode(
        name,
        answers={
            nvidia_smi.QUERY_XML: host,
            nvidia_smi.QUERY_CAPABILITY: (0, row, "") if capability else (2, 'Field "compute_cap" is not valid', ""),
            nvidia_smi.QUERY_CSV: host,
        },
    )
    node.engine = _engine(name, words, host)
    return node


def _engine(name: str, words: Mapping[str, Any], host: Answer) -> FakeEngine:
    smi = _smi(words["smi"], words.get("change", {})) if "smi" in words else host
    torch = _torch(words.get("torch", {}), words.get("capability", ""), host)
    engine = FakeEngine(
        name,
        programs=lambda spec: _program(spec, torch, smi),
        description=EngineFacts(
            kind="docker",
            version="28",
            id=name,
            architecture="x86_64",
            runtimes=tuple(words.get("runtimes", ["nvidia"])),
        ),
    )
    if words.get("image", True):
        labels = {LABEL_CUDA: words["label"]} if "label" in words else {}
        engine.held["sha256:1"] = ImageFacts(id="sha256:1", tags=(IMAGE,), labels=labels)
    for method in ("refused", "engine"):
        if method in words:
            engine.failures["run_once" if method == "refused" else "facts"] = EngineError(words[method], node=name)
    return engine


def _program(spec: ContainerSpec, torch: str, smi: Answer) -> Answer:
    assert spec.gpus
    assert spec.image == "sha256:1"
    return (0, torch, "") if spec.command[0] == "python" else smi


def _torch(words: Mapping[str, Any], capability: str, host: Answer) -> str:
    """Build, by default, a torch that sees all that the host has."""
    gpus = nvidia_smi.parse_xml(host[1]) if host[0] == 0 else ()
    available = words.get("available", True)
    pair = [int(part) for part in str(words.get("capability", capability or "8.6")).split(".")]
    devices = [{"name": gpu.name, "uuid": gpu.uuid.removeprefix("GPU-"), "capability": pair} for gpu in gpus]
    cuda = words.get("cuda", "12.8")
    answer = {
        "version": words.get("version", f"2.10.0+cu{cuda.replace('.', '')}" if cuda else "2.10.0+cpu"),
        "cuda": cuda,
        "available": available,
        "devices": devices if available else [],
        "architectures": words.get("architectures", ["sm_75", "sm_80", "sm_86", "sm_90", "compute_90"])
        if available
        else [],
        "error": words.get("error", ""),
    }
    return json.dumps(answer)


def _smi(words: Any, change: Mapping[str, str]) -> Answer:
    if words is None:
        return NO_PROGRAM
    if isinstance(words, str):
        text = (RECORDED / words).read_text()
        for old, new in change.items():
            assert old in text, f"{old!r} is not in {words}"
            text = text.replace(old, new)
        return 0, text, ""
    return words["exit"], words.get("says", ""), ""
