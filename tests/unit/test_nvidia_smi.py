"""nvidia-smi's answers, as real cards and drivers gave them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from orchestrator.nodes.interface import Completed
from orchestrator.nodes.probes import nvidia_smi
from orchestrator.nodes.probes.torch_probe import PROBE, parse_probe
from orchestrator.specs.facts import GpuFacts, GpuProcess, SmiFault
from orchestrator.specs.gpus import TorchDevice

RECORDED = Path(__file__).parents[1] / "fixtures" / "nvidia_smi"

XML = {
    "gtx-1660-ti__418.43": {"name": "Graphics Device", "cuda_version": "10.1", "memory_total_mib": 5912},
    "quadro-p400__418.43": {
        "name": "Quadro P400",
        "uuid": "GPU-8f750be4-dfbc-23b9-b33f-da729a536494",
        "driver_version": "418.43",
        "cuda_version": "10.1",
        "memory_total_mib": 1998,
        "memory_used_mib": 0,
        "utilization_percent": 0,
        "temperature_c": 33,
        "ecc_enabled": None,
        "ecc_uncorrected": None,
        "mig_enabled": None,
        "power_draw_w": None,
        "power_limit_w": None,
        "throttle_reasons": ("gpu_idle",),
    },
    "tesla-p100__510.47.03": {
        "name": "Tesla P100-PCIE-16GB",
        "cuda_version": "11.6",
        "ecc_enabled": True,
        "ecc_uncorrected": 0,
        "mig_enabled": None,
        "power_draw_w": 26.16,
        "power_limit_w": 250.0,
    },
    "a100-sxm4-40gb-mig__510.47.03": {
        "name": "NVIDIA A100-SXM4-40GB",
        "mig_enabled": True,
        "memory_total_mib": 40960,  # of the card, not of its first instance
        "memory_used_mib": 38,
        "utilization_percent": None,
        "ecc_enabled": True,
        "ecc_uncorrected": None,  # volatile counters read N/A, only aggregate ones are numbers
    },
    "tesla-t4__515.105.01": {
        "name": "Tesla T4",
        "cuda_version": "11.7",
        "ecc_enabled": True,
        "ecc_uncorrected": 0,
        "power_draw_w": 26.78,
        "power_limit_w": 70.0,
        "processes": (
            GpuProcess(pid=675, name="/usr/lib/xorg/Xorg", used_memory_mib=22, kind="G"),
            GpuProcess(pid=5762, name="python", used_memory_mib=1005, kind="C"),
        ),
    },
    "rtx-3060-laptop__515.65.01": {
        "name": "NVIDIA GeForce RTX 3060 Laptop GPU",
        "ecc_enabled": None,
        "mig_enabled": None,
        "power_limit_w": None,  # a laptop's limit is [N/A]
        "processes": (GpuProcess(pid=28543, name="/usr/libexec/Xorg", used_memory_mib=4, kind="G"),),
    },
    "rtx-3090__525.147.05": {
        "name": "NVIDIA GeForce RTX 3090",
        "driver_version": "525.147.05",
        "cuda_version": "12.0",
        "memory_total_mib": 24576,
        "power_draw_w": 27.23,
        "power_limit_w": 200.0,  # set by its owner; the default is 350
        "processes": (),
    },
    "a100-sxm4-80gb-mig__535.54.03": {
        "name": "NVIDIA A100-SXM4-80GB",
        "mig_enabled": True,
        "memory_total_mib": 81920,
        "ecc_uncorrected": 0,
        "power_draw_w": 67.03,
        "power_limit_w": 500.0,
        "throttle_reasons": (),
    },
    "rtx-4090__535.86.05": {
        "name": "NVIDIA GeForce RTX 4090",
        "power_draw_w": 26.84,
        "power_limit_w": 450.0,
        "throttle_reasons": ("gpu_idle",),
    },
    "rtx-3060__570.124.04": {
        "name": "NVIDIA GeForce RTX 3060",
        "cuda_version": "12.8",
        "power_draw_w": 11.6,
        "power_limit_w": 170.0,
        "throttle_reasons": ("gpu_idle",),
    },
    "rtx-3080__595.58.03": {
        "name": "NVIDIA GeForce RTX 3080",
        "cuda_version": "13.2",
        "memory_total_mib": 10240,
        "memory_used_mib": 9184,
        "utilization_percent": 65,
        "temperature_c": 27,
        "ecc_enabled": None,
        "ecc_uncorrected": None,  # <volatile> is empty since 595
        "power_draw_w": 139.62,
        "power_limit_w": 320.0,
        "throttle_reasons": (),
        "fault": "",  # `Requested functionality has been deprecated` is none
    },
}


@pytest.mark.parametrize("stem", sorted(XML))
def test_xml_of_a_real_card(stem: str) -> None:
    (gpu,) = nvidia_smi.parse_xml((RECORDED / f"{stem}.xml").read_text())

    assert {key: getattr(gpu, key) for key in XML[stem]} == XML[stem]
    assert gpu.driver_version == stem.partition("__")[2]
    assert gpu.uuid.startswith("GPU-")
    assert gpu.fault == ""


def test_every_recorded_xml_is_tested() -> None:
    assert {path.stem for path in RECORDED.glob("*.xml")} == set(XML)


CSV = {
    "h100-80gb-hbm3__590.48.01__load": {
        "name": "NVIDIA H100 80GB HBM3",
        "compute_capability": (9, 0),
        "memory_total_mib": 81559,
        "memory_used_mib": 19818,
        "utilization_percent": 100,
        "temperature_c": 59,
        "ecc_enabled": True,
        "ecc_uncorrected": 0,
        "mig_enabled": False,
        "power_draw_w": 631.95,
        "power_limit_w": 700.0,
    },
    "h100-mig__590.48.01__load": {"mig_enabled": True, "utilization_percent": None, "memory_used_mib": 11125},
    "h200__590.48.01__load": {"name": "NVIDIA H200", "memory_total_mib": 143771, "power_draw_w": 627.4},
    "h200-mig__590.48.01__idle": {"name": "NVIDIA H200", "mig_enabled": True, "utilization_percent": None},
    "rtx-3050-laptop__595.84": {
        "name": "NVIDIA GeForce RTX 3050 Laptop GPU",
        "uuid": "",
        "memory_total_mib": 4096,
        "memory_used_mib": 12,
        "utilization_percent": 0,
        "temperature_c": 44,
        "power_draw_w": 6.77,
        "power_limit_w": None,
        "ecc_enabled": None,
    },
}


@pytest.mark.parametrize("stem", sorted(CSV))
def test_csv_of_a_real_card(stem: str) -> None:
    lines = [line for line in (RECORDED / f"{stem}.csv").read_text().splitlines() if not line.startswith("#")]
    fields = [field.split()[0] for field in lines[0].split(", ")]

    (gpu,) = nvidia_smi.parse_csv("\n".join(lines[1:]), fields)

    assert {key: getattr(gpu, key) for key in CSV[stem]} == CSV[stem]


def test_every_recorded_csv_is_tested() -> None:
    assert {path.stem for path in RECORDED.glob("*.csv")} == set(CSV)


def test_csv_with_other_columns_is_refused() -> None:
    with pytest.raises(ValueError, match="2 columns instead of 12"):
        nvidia_smi.parse_csv("0, GPU-1\n")


def test_dtd_of_a_node_is_never_read() -> None:
    text = (
        '<?xml version="1.0" ?><!DOCTYPE nvidia_smi_log [<!ENTITY secret SYSTEM "file:///etc/hostname">]>'
        "<nvidia_smi_log><gpu><product_name>&secret;</product_name></gpu></nvidia_smi_log>"
    )

    with pytest.raises(ValueError, match="undefined entity"):
        nvidia_smi.parse_xml(text)


def test_dtd_inside_the_root_is_refused() -> None:
    text = '<nvidia_smi_log><!DOCTYPE x [<!ENTITY a "aaaa">]><gpu></gpu></nvidia_smi_log>'

    with pytest.raises(ValueError, match="not XML"):
        nvidia_smi.parse_xml(text)


def test_lines_before_the_xml_are_skipped() -> None:
    recorded = (RECORDED / "tesla-t4__515.105.01.xml").read_text()

    (gpu,) = nvidia_smi.parse_xml("[HAMI-core Msg]: Initializing.....\n" + recorded)

    assert gpu.name == "Tesla T4"


@pytest.mark.parametrize("message", ["GPU is lost", "[GPU is lost]", "Unknown Error", "[Unknown Error]", "ERR!"])
def test_card_that_fails_is_a_fault_not_a_number(message: str) -> None:
    recorded = (RECORDED / "rtx-4090__535.86.05.xml").read_text()
    (gpu,) = nvidia_smi.parse_xml(recorded.replace("<total>24564 MiB</total>", f"<total>{message}</total>"))

    assert (gpu.fault, gpu.memory_total_mib) == (message, None)


@pytest.mark.parametrize("text", ["N/A", "[N/A]", "[Not Supported]", "Requested functionality has been deprecated", ""])
def test_a_missing_reading_of_a_card_is_none(text: str) -> None:
    row = f"0, GPU-1, Card, 550.1, 100, {text}, {text}, {text}, {text}, {text}, {text}, {text}"

    (gpu,) = nvidia_smi.parse_csv(row)

    assert gpu == GpuFacts(index=0, uuid="GPU-1", name="Card", driver_version="550.1", memory_total_mib=100)


def _answering(**answers: tuple[int, str]) -> tuple[Any, list[tuple[str, ...]]]:
    """A command runner with answers for `xml`, `csv` and `capability`; anything else is a KeyError."""
    commands = {
        nvidia_smi.QUERY_XML: "xml",
        nvidia_smi.QUERY_CSV: "csv",
        nvidia_smi.QUERY_CAPABILITY: "capability",
    }
    calls: list[tuple[str, ...]] = []

    def run(argv: Sequence[str]) -> Completed:
        calls.append(tuple(argv))
        code, out = answers[commands[tuple(argv)]]
        return Completed(node="alpha", argv=tuple(argv), exit_code=code, stdout=out, stderr="")

    return run, calls


FAULTS = [
    (127, "bash: nvidia-smi: command not found", SmiFault.ABSENT),
    (6, "No devices were found", SmiFault.NO_DEVICE),
    (
        9,
        "NVIDIA-SMI has failed because it couldn't communicate with the NVIDIA driver. Make sure that the latest"
        " NVIDIA driver is installed and running.",
        SmiFault.NO_DRIVER,
    ),
    (18, "Failed to initialize NVML: Driver/library version mismatch", SmiFault.MISMATCH),
    (1, "Failed to initialize NVML: Driver/library version mismatch", SmiFault.MISMATCH),
    (15, "Unable to determine the device handle for GPU 0000:09:00.0: Unknown Error", SmiFault.LOST),
    (255, "Unable to determine the device handle for GPU 0000:0B:00.0: Unknown Error", SmiFault.LOST),
    (
        255,
        "Unable to determine the device handle for GPU 0000:02:00.0: GPU is lost.  Reboot the system to recover",
        SmiFault.LOST,
    ),
    (4, "Failed to initialize NVML: Insufficient Permissions", SmiFault.NO_PERMISSION),
    (255, "Failed to initialize NVML: Unknown Error", SmiFault.UNKNOWN),
]


@pytest.mark.parametrize(("code", "message", "fault"), FAULTS)
def test_fault_by_exit_code_then_by_text(code: int, message: str, fault: SmiFault) -> None:
    run, _ = _answering(xml=(code, message), csv=(code, message))

    answer = nvidia_smi.ask(run)

    assert (answer.fault, answer.gpus) == (fault, ())
    assert answer.detail == ("" if fault is SmiFault.ABSENT else message)


def test_a_corrupted_inforom_is_no_fault_of_the_driver() -> None:
    recorded = (RECORDED / "rtx-3090__525.147.05.xml").read_text()
    message = recorded + "WARNING: infoROM is corrupted at gpu 0000:1A:00.0\n"
    run, _ = _answering(xml=(14, message), capability=(14, "GPU-12345678-aaaa-bbbb-cccc-0123456789ab, 8.6\n"))

    answer = nvidia_smi.ask(run)

    assert (answer.fault, len(answer.gpus), answer.inforom_corrupted) == (None, 1, ("0000:1A:00.0",))
    assert answer.gpus[0].compute_capability == (8, 6)


def test_one_lost_card_of_several_is_named_and_the_others_stay() -> None:
    cards = (
        "<gpu><uuid>GPU-1</uuid><product_name>Card</product_name></gpu>"
        "<gpu><uuid>GPU-2</uuid><product_name>GPU is lost</product_name></gpu>"
    )
    whole = f"<?xml version='1.0' ?>\n<nvidia_smi_log>{cards}</nvidia_smi_log>"
    run, _ = _answering(xml=(15, whole), capability=(15, ""))

    answer = nvidia_smi.ask(run)

    assert (answer.fault, [gpu.fault for gpu in answer.gpus]) == (None, ["", "GPU is lost"])


def test_a_lost_card_that_no_document_names_is_a_fault_beside_the_others() -> None:
    whole = "<?xml version='1.0' ?>\n<nvidia_smi_log><gpu><uuid>GPU-1</uuid></gpu></nvidia_smi_log>"
    run, _ = _answering(xml=(15, f"{whole}\nUnable to determine the device handle for GPU1"), capability=(15, ""))

    answer = nvidia_smi.ask(run)

    assert (answer.fault, len(answer.gpus)) == (SmiFault.LOST, 1)
    assert answer.detail == "Unable to determine the device handle for GPU1"


@pytest.mark.parametrize(
    ("code", "message", "fault"),
    [
        (0, "No devices were found\n", SmiFault.NO_DEVICE),
        (0, "Failed to initialize NVML: GPU access blocked by the operating system\n", SmiFault.BLOCKED),
        (255, "Failed to initialize NVML: GPU access blocked by the operating system\n", SmiFault.BLOCKED),
    ],
)
def test_words_count_where_there_is_no_document(code: int, message: str, fault: SmiFault) -> None:
    run, _ = _answering(xml=(code, message), csv=(code, message))

    assert (nvidia_smi.ask(run).fault, nvidia_smi.ask(run).detail) == (fault, message.strip())


def test_processes_of_an_old_driver() -> None:
    process = (
        "<process_info><pid>7</pid><process_name>python</process_name><used_memory>9 MiB</used_memory></process_info>"
    )
    text = f"<nvidia_smi_log><gpu><compute_processes>{process}</compute_processes></gpu></nvidia_smi_log>"

    (gpu,) = nvidia_smi.parse_xml(text)

    assert gpu.processes == (GpuProcess(pid=7, name="python", used_memory_mib=9, kind="C"),)


DIGITS = "9" * 5000


@pytest.mark.parametrize("number", [DIGITS, "9" * 400, "²", "1e999", "-", "٣"])
def test_numbers_beyond_any_bound_are_unknown(number: str) -> None:
    memory = f"<fb_memory_usage><total>{number} MiB</total></fb_memory_usage>"
    (gpu,) = nvidia_smi.parse_xml(f"<nvidia_smi_log><gpu>{memory}</gpu></nvidia_smi_log>")
    assert gpu.memory_total_mib in (None, 1)

    recorded = (RECORDED / "rtx-3090__525.147.05.xml").read_text()
    run, _ = _answering(
        xml=(0, recorded), capability=(0, f"GPU-12345678-aaaa-bbbb-cccc-0123456789ab, {number}.{number}\n")
    )
    assert nvidia_smi.ask(run).gpus[0].compute_capability is None


def test_a_cell_that_the_csv_module_refuses() -> None:
    row = f"0, {'A' * 200_000}\n"
    run, _ = _answering(xml=(0, "hello"), csv=(0, row))
    assert nvidia_smi.ask(run).fault is SmiFault.UNREADABLE


def test_capability_is_a_question_of_its_own() -> None:
    recorded = (RECORDED / "rtx-3090__525.147.05.xml").read_text()
    run, calls = _answering(xml=(0, recorded), capability=(0, "GPU-12345678-aaaa-bbbb-cccc-0123456789ab, 8.6\n"))

    assert nvidia_smi.ask(run).gpus[0].compute_capability == (8, 6)
    assert calls == [nvidia_smi.QUERY_XML, nvidia_smi.QUERY_CAPABILITY]


def test_driver_that_does_not_know_the_capability() -> None:
    recorded = (RECORDED / "quadro-p400__418.43.xml").read_text()
    run, _ = _answering(xml=(0, recorded), capability=(2, 'Field "compute_cap" is not a valid field to query.\n'))

    answer = nvidia_smi.ask(run)

    assert (answer.fault, answer.gpus[0].compute_capability) == (None, None)


def test_csv_where_the_xml_is_broken() -> None:
    row = "0, GPU-1, NVIDIA H200, 590.48.01, 143771, 32362, 100, 52, Enabled, 0, 627.40, 700.00\n"
    run, _ = _answering(xml=(0, "<nvidia_smi_log><gpu>"), csv=(0, row), capability=(0, "GPU-1, 9.0\n"))

    (gpu,) = nvidia_smi.ask(run).gpus

    assert (gpu.name, gpu.memory_used_mib, gpu.compute_capability) == ("NVIDIA H200", 32362, (9, 0))


def test_neither_xml_nor_csv() -> None:
    run, _ = _answering(xml=(0, "hello"), csv=(0, "hello"))

    assert nvidia_smi.ask(run).fault is SmiFault.UNREADABLE


def test_xml_without_a_gpu() -> None:
    run, _ = _answering(xml=(0, "<nvidia_smi_log><attached_gpus>0</attached_gpus></nvidia_smi_log>"))

    assert nvidia_smi.ask(run).fault is SmiFault.NO_DEVICE


def _probed(stdout: str, stderr: str = "", code: int = 0) -> Completed:
    return Completed(node="alpha", argv=PROBE, exit_code=code, stdout=stdout, stderr=stderr)


def test_torch_probe() -> None:
    answer = parse_probe(
        _probed(
            "a warning of some library\n"
            '{"version": "2.10.0+cu128", "cuda": "12.8", "available": true, "architectures": ["sm_80"], "error": "",'
            ' "devices": [{"name": "NVIDIA H200", "uuid": "1-2", "capability": [9, 0]}]}\n'
        )
    )

    assert (answer.version, answer.cuda, answer.available) == ("2.10.0+cu128", "12.8", True)
    assert answer.devices == (TorchDevice(name="NVIDIA H200", uuid="GPU-1-2", compute_capability=(9, 0)),)


@pytest.mark.parametrize("stdout", ["", "[]", "{}", '{"version": "2"', '"2"', "[" * 100_000])
def test_torch_probe_that_failed_is_an_answer(stdout: str) -> None:
    answer = parse_probe(_probed(stdout, "Traceback\nModuleNotFoundError: No module named 'torch'\n", 1))

    assert (answer.available, answer.error) == (False, "ModuleNotFoundError: No module named 'torch'")
