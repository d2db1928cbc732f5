"""Limits of a container: the inventory's, and shares of the machine for the keys that it leaves out."""

from __future__ import annotations

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.container_limits import ContainerLimits, container_limits, limits_of
from orchestrator.specs.inventory import Limits
from tests import lan
from tests.unit.conftest import Orch


def asked(**keys: object) -> Limits:
    """Read the limits as the file has them."""
    return Limits.model_validate(keys)


def sizes(limits: ContainerLimits) -> tuple[int, int, int]:
    return limits.memory_mib, limits.memory_reservation_mib, limits.shm_mib


@pytest.mark.parametrize(("cores", "given"), [(1, 1), (2, 2), (3, 2), (4, 3), (16, 15), (128, 127)])
def test_a_core_is_left_to_the_system_where_there_are_more_than_two(cores: int, given: int) -> None:
    assert container_limits(Limits(), cpus=cores, memory_mib=8000).cpus == given


@pytest.mark.parametrize(
    ("memory", "gpus", "expected"),
    [
        (16_000, 0, (12_800, 3200, 3200)),
        (1000, 0, (800, 200, 200)),
        (256_000, 0, (204_800, 51_200, 8192)),
        (16_000, 1, (12_800, 3200, 6400)),
        (256_000, 1, (204_800, 51_200, 8192)),
        (256_000, 4, (204_800, 51_200, 32_768)),
    ],
)
def test_memory_is_shared_out_by_the_machine_and_its_cards(
    memory: int, gpus: int, expected: tuple[int, int, int]
) -> None:
    assert sizes(container_limits(Limits(), cpus=8, memory_mib=memory, gpus=gpus)) == expected


def test_what_is_not_known_of_a_machine_has_small_defaults() -> None:
    small = ContainerLimits(cpus=2.0, memory_mib=4096, memory_reservation_mib=1024, shm_mib=1024)
    assert container_limits(Limits()) == small
    assert limits_of(lan.spec("alpha"), None) == small
    assert container_limits(Limits(), cpus=1) == ContainerLimits(cpus=1.0)


def test_each_key_of_the_inventory_wins_for_itself() -> None:
    machine = {"cpus": 16, "memory_mib": 32_000}
    usual = container_limits(Limits(), **machine)
    assert container_limits(asked(cpus=2.5), **machine) == ContainerLimits(
        cpus=2.5, memory_mib=25_600, memory_reservation_mib=6400, shm_mib=6400
    )
    assert sizes(container_limits(asked(shm="1g"), **machine)) == (25_600, 6400, 1024)
    assert sizes(container_limits(asked(memory="2g"), **machine)) == (2048, 512, 512)
    assert container_limits(asked(memory="2g"), **machine).cpus == usual.cpus
    every = asked(memory="2g", shm="4g", memory_reservation="2g")
    assert sizes(container_limits(every, **machine)) == (2048, 2048, 4096)


def test_more_memory_than_the_machine_has_stays_for_the_doctor_to_find() -> None:
    assert container_limits(asked(memory="900g"), cpus=4, memory_mib=8000).memory_mib == 900 * 1024


def test_a_reservation_above_the_share_raises_the_limit() -> None:
    """The engine refuses a reservation above the limit."""
    assert sizes(container_limits(asked(memory_reservation="7g"), cpus=4, memory_mib=8000)) == (7168, 7168, 1792)


def test_no_more_cores_than_the_machine_has() -> None:
    assert container_limits(asked(cpus=8), cpus=4, memory_mib=8000).cpus == 4.0


def test_cards_count_where_they_are_used() -> None:
    facts = lan.facts("alpha", gpus=lan.gpus(2), memory_mib=64_000)
    assert limits_of(lan.spec("alpha"), facts).shm_mib == 16_384
    assert limits_of(lan.spec("alpha", device="cpu"), facts).shm_mib == 8192


@given(
    st.fixed_dictionaries(
        {},
        optional={
            "cpus": st.floats(0.01, 1024),
            "memory": st.integers(512, 10**6).map("{}m".format),
            "memory_reservation": st.integers(1, 512).map("{}m".format),
            "shm": st.integers(1, 10**6).map("{}m".format),
        },
    ),
    st.integers(0, 1024),
    st.integers(0, 10**7),
    st.integers(0, 16),
)
def test_docker_takes_the_limits_of_any_machine(keys: dict[str, object], cpus: int, memory: int, gpus: int) -> None:
    limits = container_limits(asked(**keys), cpus=cpus, memory_mib=memory, gpus=gpus)
    assert 0 < limits.cpus <= (cpus or 1024)
    assert 0 <= limits.memory_reservation_mib <= limits.memory_mib
    assert limits.memory_mib > 0


def test_a_launch_says_which_cores_it_leaves_unused(orch: Orch) -> None:
    inventory = Path("inventory.yaml")
    inventory.write_text(f"defaults: {{limits: {{cpus: 1}}}}\n{inventory.read_text()}")
    note = "note: alpha, beta, gamma: 1 of 4 cores; to use 3, remove limits.cpus (1) from the inventory"
    here = lan.lan("alpha", "beta", "gamma")
    assert note in orch("launch", "--dry-run", on=here).out
    assert note in orch("launch", "-y", "--detach", on=here).err


def test_the_doctor_looks_into_a_container_with_the_limits_of_a_run(orch: Orch) -> None:
    seen: list[ContainerSpec] = []

    def inside(container: ContainerSpec) -> tuple[int, str, str]:
        seen.append(container)
        return lan.look_inside(container)

    orch("doctor", "--nodes", "alpha", on=lan.lan("alpha", programs=inside))
    run = lan.plan(("alpha",)).nodes[0].container
    (looked,) = seen
    for one in (looked, run):
        assert (one.cpus, one.memory_mib, one.memory_reservation_mib, one.shm_mib) == (3.0, 12_800, 3200, 3200)
