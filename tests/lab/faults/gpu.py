"""An nvidia-smi on the PATH of the node's user that ends as real ones were recorded to end."""

from __future__ import annotations

from contextlib import AbstractContextManager

from tests.lab.faults.lan import Lan, shim

NO_DEVICE = (6, "No devices were found")
NO_DRIVER = (
    9,
    "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver."
    " Make sure that the latest NVIDIA driver is installed and running.",
)
MISMATCH = (18, "Failed to initialize NVML: Driver/library version mismatch")
LOST = (15, "Unable to determine the device handle for GPU 0000:01:00.0: GPU is lost. Reboot the system to recover")
UNKNOWN = (255, "Failed to initialize NVML: Unknown Error")


def nvidia_smi(lan: Lan, node: str, ending: tuple[int, str]) -> AbstractContextManager[None]:
    """Replace nvidia-smi by a program with one answer to all options."""
    code, text = ending
    return shim(lan, node, "nvidia-smi", f'echo "{text}"\nexit {code}')
