"""Properties of every plan, whatever the machines."""

from __future__ import annotations

import csv
import shlex
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from orchestrator.plan.launch import plan_launch
from orchestrator.plan.lines import plan_lines, run_words
from orchestrator.specs.container import MIB, ContainerSpec, Mount
from orchestrator.specs.inventory import Limits, NodeSpec
from orchestrator.specs.plan import Plan
from orchestrator.specs.plan_json import from_json, to_json
from orchestrator.specs.request import LaunchRequest
from tests import lan

# What a user may write into a command, a variable or a label: shells read most of it as more than text.
TEXT = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=12)
PATHS = st.from_regex(r"~?/[a-zA-Z0-9 ,.=@%+_-]{1,12}", fullmatch=True)


@st.composite
def nodes(draw: st.DrawFn) -> NodeSpec:
    return lan.spec(
        draw(st.sampled_from(lan.NAMES)),
        user=draw(st.sampled_from([None, "ana"])),
        port=draw(st.integers(1, 65535)),
        identity=draw(st.none() | PATHS),
        connection=draw(st.sampled_from(["ssh", "local"])),
        device=draw(st.sampled_from(["auto", "cpu"])),
        nproc_per_node=draw(st.sampled_from(["auto", 1, 2, 5])),
        workspace=draw(PATHS),
    )


def _numbers_of_gpus(node: NodeSpec) -> list[int]:
    """Those with which a plan is not refused."""
    asked = node.nproc_per_node
    return [number for number in range(6) if not number or asked == "auto" or node.device == "cpu" or asked <= number]


@st.composite
def plans(draw: st.DrawFn) -> tuple[Plan, dict[str, NodeSpec]]:
    chosen = draw(st.lists(nodes(), min_size=1, max_size=5, unique_by=lambda node: node.name))
    request = LaunchRequest(
        project="orch",
        nodes=tuple(chosen),
        command=("gpt2", *draw(st.lists(TEXT, max_size=3))),
        environment=draw(st.dictionaries(st.from_regex(r"USER_[A-Z]{1,5}", fullmatch=True), TEXT, max_size=3)),
        mounts=tuple(Mount(source=path, target="/inside") for path in draw(st.lists(PATHS, max_size=1))),
        master=draw(st.sampled_from(["", chosen[-1].name])),
        data=draw(st.sampled_from([(), lan.data(places=("Data", "/mnt/sets"))])),
        own_code=draw(st.booleans()),
        max_restarts=draw(st.integers(0, 3)),
    )
    facts = {
        node.name: lan.facts(
            node.name,
            gpus=lan.gpus(draw(st.sampled_from(_numbers_of_gpus(node)))),
            cpus=draw(st.integers(0, 64)),
            newest_checkpoint=draw(st.none() | st.integers(0, 99)),
            assumed=draw(st.booleans()),
        )
        for node in chosen
    }
    return plan_launch(request, facts, lan.IDENTITY), {node.name: node for node in chosen}


@given(plans())
def test_every_rank_is_there_once(drawn: tuple[Plan, dict[str, NodeSpec]]) -> None:
    plan, specs = drawn
    ranks = [part.first_rank + local for part in plan.nodes for local in range(part.nproc_per_node)]
    assert ranks == list(range(plan.world_size))
    assert [part.node_rank for part in plan.nodes] == list(range(plan.nnodes))
    assert sorted(part.node for part in plan.nodes) == sorted(specs)
    assert (plan.nodes[0].node, plan.nodes[0].address) == (plan.master, plan.master_addr)
    assert (plan.backend == "nccl") == all(part.device == "cuda" for part in plan.nodes)


@given(plans())
def test_a_plan_survives_its_json(drawn: tuple[Plan, dict[str, NodeSpec]]) -> None:
    plan, _ = drawn
    assert from_json(to_json(plan), where="plan.json") == plan


@given(plans())
def test_lines_hold_every_value_whole(drawn: tuple[Plan, dict[str, NodeSpec]]) -> None:
    """A shell gets from each line the words that are meant, and nothing more."""
    plan, specs = drawn
    lines = [line for line in plan_lines(plan, specs) if not line.startswith("#")]
    tokens = [line for line in lines if line.startswith(("token=", 'printf %s "$token"'))]
    assert len(tokens) == (1 + plan.nnodes if plan.nnodes > 1 else 0)
    commands = [line for line in lines if line not in tokens]
    assert len(commands) == 2 * plan.nnodes
    for part, folders, run, token in zip(plan.nodes, commands[::2], commands[1::2], tokens[1:] or [""], strict=True):
        file = f"cat > {shlex.quote(f'{part.folder}/runs/{plan.run_id}/agents.token')}"
        assert not token or shlex.split(token)[-1] == f"umask 077 && {file}"
        words = shlex.split(run)
        start = words.index("run")
        assert tuple(words[start:]) == run_words(part.container)
        words = shlex.split(folders)
        on_the_node = shlex.split(words[-1]) if words[0] == "ssh" else words
        assert on_the_node[:2] == ["mkdir", "-p"]
        assert on_the_node[2:] == [f"{part.folder}/{it}" for it in ("data", f"runs/{plan.run_id}/code")]


def test_words_hold_the_whole_container() -> None:
    """Each field of the spec, changed, changes what is printed: `--dry-run` leaves nothing out."""
    plain = lan.plan().nodes[0].container
    changes: dict[str, object] = {
        "name": "other", "image": "sha256:ee", "command": ("true",), "environment": {"A": "b"}, "labels": {"l": "m"},
        "mounts": (Mount(source="/a", target="/b"),), "working_dir": "/w", "user": "7:8", "gpus": True,
        "network": "none", "cpus": 7.5, "memory_mib": 77, "memory_reservation_mib": 7, "shm_mib": 70,
        "pids_limit": 700, "ulimits": {"stack": 70}, "restart_on_failure": 7, "stop_timeout_s": 700,
        "log_max_size": "7m", "log_max_files": 7, "auto_remove": True,
    }  # fmt: skip
    assert set(changes) == set(ContainerSpec.__dataclass_fields__)
    for name, value in changes.items():
        assert run_words(replace(plain, **{name: value})) != run_words(plain), name


@st.composite
def containers(draw: st.DrawFn) -> ContainerSpec:
    names = st.from_regex(r"[A-Z][A-Z_]{0,8}", fullmatch=True)
    paths = st.text(st.characters(exclude_categories=("Cs", "Cc")), max_size=8).map(lambda text: f"/{text}")
    return ContainerSpec(
        name="orch-run",
        image="sha256:aa",
        command=("python", *draw(st.lists(TEXT, max_size=3))),
        environment=draw(st.dictionaries(names, TEXT, max_size=4)),
        labels=draw(st.dictionaries(names, TEXT, max_size=2)),
        mounts=tuple(draw(st.lists(st.builds(Mount, source=paths, target=paths, read_only=st.booleans()), max_size=3))),
        gpus=draw(st.booleans()),
        cpus=draw(st.integers(1, 10**12)) / 1e9,
        memory_mib=draw(st.integers(0, 2**30)),
        memory_reservation_mib=draw(st.integers(0, 2**30)),
        shm_mib=draw(st.integers(0, 2**30)),
        pids_limit=draw(st.integers(1, 2**22)),
        ulimits=draw(st.dictionaries(st.sampled_from(["memlock", "stack"]), st.integers(-1, 2**40), max_size=2)),
        restart_on_failure=draw(st.integers(0, 9)),
        auto_remove=draw(st.booleans()),
    )


def as_docker_reads(words: Sequence[str], shell: Mapping[str, str]) -> tuple[str, dict[str, Any]]:
    """Name and body of `POST /containers/create` that Docker's command line makes of `docker run …`."""
    rest, given, switches = iter(words[1:]), defaultdict[str, list[str]](list), set[str]()
    image = ""
    for word in rest:
        if not word.startswith("--"):
            image = word
            break
        if word in ("--detach", "--init", "--read-only", "--rm"):
            switches.add(word)
        else:
            given[word].append(next(rest))
    one = {option: values[0] for option, values in given.items()}

    def pairs(option: str, sign: str = "=") -> dict[str, str]:
        return dict(text.split(sign, 1) for text in given[option])

    mounts = [dict(part.partition("=")[::2] for part in next(csv.reader([text]))) for text in given["--mount"]]
    policy, _, tries = one.get("--restart", "no:0").partition(":")
    limits = [(name, *limit.split(":")) for name, limit in pairs("--ulimit").items()]
    return one["--name"], {
        "Image": image,
        "Entrypoint": given["--entrypoint"],
        "Cmd": list(rest),
        "Env": [text if "=" in text else f"{text}={shell[text]}" for text in given["--env"]],
        "Labels": pairs("--label"),
        "User": one["--user"],
        "WorkingDir": one["--workdir"],
        "StopTimeout": int(one["--stop-timeout"]),
        "HostConfig": {
            "NetworkMode": one["--network"],
            "Init": "--init" in switches,
            "ReadonlyRootfs": "--read-only" in switches,
            "Tmpfs": pairs("--tmpfs", ":"),
            "CapDrop": given["--cap-drop"],
            "SecurityOpt": given["--security-opt"],
            "Mounts": [
                {"Type": it["type"], "Source": it["source"], "Target": it["target"], "ReadOnly": "readonly" in it}
                for it in mounts
            ],
            "NanoCpus": int(Decimal(one["--cpus"]) * 10**9),
            "Memory": int(one["--memory"].removesuffix("m")) * MIB,
            "MemoryReservation": int(one["--memory-reservation"].removesuffix("m")) * MIB,
            "ShmSize": int(one["--shm-size"].removesuffix("m")) * MIB,
            "PidsLimit": int(one["--pids-limit"]),
            "Ulimits": [{"Name": name, "Soft": int(soft), "Hard": int(hard)} for name, soft, hard in limits],
            "RestartPolicy": {"Name": policy, "MaximumRetryCount": int(tries)},
            "AutoRemove": "--rm" in switches,
            "LogConfig": {"Type": one["--log-driver"], "Config": pairs("--log-opt")},
            "DeviceRequests": [{"Count": -1, "Capabilities": [["gpu"]]} for _ in given["--gpus"]],
        },
    }


@given(containers())
def test_the_printed_line_asks_the_engine_for_what_a_launch_asks(spec: ContainerSpec) -> None:
    assert as_docker_reads(run_words(spec), spec.environment) == (spec.name, spec.create_arguments())


def test_same_input_same_plan() -> None:
    assert to_json(lan.plan(lan.NAMES)) == to_json(lan.plan(lan.NAMES))


def test_agents_of_two_attempts_planned_at_once_do_not_share_a_port() -> None:
    """Neither listens when the other one is planned. Torchrun's port is reserved by the agent of rank 0's node."""
    specs = tuple(lan.spec(name) for name in ("alpha", "beta"))
    request, facts = LaunchRequest(project="orch", nodes=specs), {spec.name: lan.facts(spec.name) for spec in specs}
    identities = [replace(lan.IDENTITY, run_id=f"run-{number}") for number in range(20)]
    plans = [plan_launch(request, facts, identity) for identity in [*identities, replace(identities[0], attempt=1)]]
    assert len({plan.supervisor_port for plan in plans}) == len(plans)
    assert {plan.master_port for plan in plans} == {12355}


@pytest.mark.parametrize(
    ("boots", "one"), [(("a", "a"), True), (("a", "b"), False), (("", ""), False), (("a",), False)]
)
def test_nodes_that_share_a_kernel_are_one_computer(boots: tuple[str, ...], one: bool) -> None:
    facts = {name: lan.facts(name, boot_id=boot) for name, boot in zip(lan.NAMES, boots, strict=False)}
    request = LaunchRequest(project="orch", nodes=tuple(lan.spec(name) for name in facts))
    assert plan_launch(request, facts, lan.IDENTITY).one_computer is one


def test_containers_have_the_least_privilege() -> None:
    words = " ".join(run_words(lan.plan().nodes[0].container))
    for held in (
        "--read-only",
        "--cap-drop ALL",
        "--security-opt no-new-privileges:true",
        "--init",
        "--user 1000:1000",
    ):
        assert held in words
    assert "--privileged" not in words


def test_a_rank_has_time_for_its_last_checkpoint() -> None:
    container = lan.plan().nodes[0].container
    assert container.stop_timeout_s > int(container.environment["TORCH_ELASTIC_SHUTDOWN_TIMEOUT"])


def test_names_of_the_seed_are_in_the_environment() -> None:
    for part in lan.plan(lan.NAMES).nodes:
        own = part.container.environment
        assert own["NODE_RANK"] == str(part.node_rank)
        assert (own["MASTER_ADDR"], own["MASTER_PORT"]) == ("10.0.0.11", "12355")
        assert (own["NNODES"], own["GPUS_PER_NODE"]) == ("5", "1")


def test_what_the_user_sets_wins() -> None:
    plan = lan.plan(environment={"OMP_NUM_THREADS": "9", "NCCL_DEBUG": "INFO"})
    for part in plan.nodes:
        assert part.container.environment["OMP_NUM_THREADS"] == "9"
        assert part.container.environment["NCCL_DEBUG"] == "INFO"


@pytest.mark.parametrize(
    ("limit", "cpus", "nproc", "threads", "quota"),
    [
        (2.0, 4, 1, "2", 2.0),
        (8.0, 2, 1, "2", 2.0),
        (8.0, 16, 4, "2", 8.0),
        (2.0, 4, 4, "1", 2.0),
        (0.5, 4, 1, "1", 0.5),
    ],
)
def test_no_more_threads_than_cores(limit: float, cpus: int, nproc: int, threads: str, quota: float) -> None:
    node = lan.spec("alpha", limits=Limits(cpus=limit), nproc_per_node=nproc)
    facts = {"alpha": lan.facts("alpha", cpus=cpus)}
    container = plan_launch(LaunchRequest(project="orch", nodes=(node,)), facts, lan.IDENTITY).nodes[0].container
    assert (container.environment["OMP_NUM_THREADS"], container.cpus) == (threads, quota)


def test_labels_tell_the_whole_run() -> None:
    held = lan.plan(lan.NAMES, command=("gpt2", "--prompt", "érase una vez")).nodes[3].container.labels
    assert held == {
        "orch.run_id": "0102-1504-ab12", "orch.project": "orch", "orch.attempt": "0", "orch.user": "ana",
        "orch.started_at": "2026-01-02T15:04:05+00:00", "orch.command": "gpt2 --prompt 'érase una vez'",
        "orch.node": "delta", "orch.node_rank": "3", "orch.first_rank": "3", "orch.nproc_per_node": "1",
        "orch.nnodes": "5", "orch.backend": "gloo", "orch.master": "alpha",
    }  # fmt: skip
