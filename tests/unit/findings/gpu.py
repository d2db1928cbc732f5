"""The checks of the GPUs, on recorded answers of nvidia-smi; most of them are the case files of `tests/cases/gpus`."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path

from orchestrator.nodes.fake import FakeNode
from orchestrator.specs.finding import Finding
from tests import lan
from tests.cases.gpus import fleet

CASE_OF = {
    "gpu.arch_not_in_image": "card_older_than_the_image",
    "gpu.cards_differ": "cards_and_drivers_differ",
    "gpu.container_refused": "toolkit_fails",
    "gpu.driver_mismatch": "driver_mismatch",
    "gpu.driver_not_loaded": "driver_not_loaded",
    "gpu.driver_too_old": "driver_too_old",
    "gpu.drivers_differ": "cards_and_drivers_differ",
    "gpu.ecc_uncorrected": "ecc_errors",
    "gpu.engine": "engine_silent",
    "gpu.image_missing": "image_missing",
    "gpu.image_without_cuda": "image_without_cuda",
    "gpu.lost": "one_card_lost",
    "gpu.memory_held": "memory_held",
    "gpu.mig": "mig",
    "gpu.no_cdi": "no_cdi",
    "gpu.no_device": "no_devices",
    "gpu.no_toolkit": "no_container_toolkit",
    "gpu.none": "cpu_node_promised_cuda",
    "gpu.not_in_container": "gpu_not_in_container",
    "gpu.power_capped": "power_cap_is_normal",
    "gpu.smi_failed": "nvml_unknown_error",
    "gpu.throttled": "throttled_by_heat",
    "gpu.torch_blind": "torch_blind",
    "gpu.unknown_error": "sensor_fails",
    "gpu.unreachable": "node_out_of_reach",
}


def healthy() -> Iterable[Finding]:
    return of_case("all_fit")


def of_case(name: str) -> Iterable[Finding]:
    """Find what is wrong on the nodes of this case file."""
    return fleet.asked(fleet.load(fleet.CASES / f"{name}.yaml")).findings


def of_answer(code: int, text: str) -> Iterable[Finding]:
    """A node whose nvidia-smi ends so, whatever it is asked."""
    node = FakeNode("alpha", answers={("nvidia-smi", "*"): (code, text, "")})
    return fleet.check_gpus([lan.spec("alpha")], [node], fleet.CHECK).findings


_WORKING = (Path(__file__).parents[2] / "fixtures/nvidia_smi/tesla-t4__515.105.01.xml").read_text() + (
    "WARNING: infoROM is corrupted at gpu 0000:1A:00.0\n"
)
MAKERS: dict[str, Callable[[], Iterable[Finding]]] = {
    **{id: partial(of_case, name) for id, name in CASE_OF.items()},
    "gpu.blocked": partial(of_answer, 255, "Failed to initialize NVML: GPU access blocked by the operating system"),
    "gpu.inforom_corrupted": partial(of_answer, 14, _WORKING),
    "gpu.no_permission": partial(of_answer, 4, "Insufficient Permissions"),
    "gpu.unreadable": partial(of_answer, 0, "a notice of the shell"),
}
