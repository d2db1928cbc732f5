"""Places that are bound in a job: what a scheduler's environment may say, and what each agent makes of it."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from contract.events import CheckpointWritten, TrainingResumed
from tests.trainer.conftest import ROOT
from tests.trainer.test_agent import free_port
from trainer.agent.local_network import LocalNetwork
from trainer.agent.options import read
from trainer.agent.place import Place, PlaceFiles, PlaceRequest, find_place, slurm_seat
from trainer.errors import ConfigurationError

SLURM = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n[1-3]", "SLURM_NODEID": "1", "SLURMD_NODENAME": "n2"}
PODS = {"ORCH_PEERS": "run-w-0-0.run,run-w-0-1.run", "JOB_COMPLETION_INDEX": "1"}
REQUEST = PlaceRequest(kind="slurm", port=20000)


@dataclass
class FakeNetwork(LocalNetwork):
    """A network of names and interfaces, in which waiting takes no time."""

    names: dict[str, list[str]] = field(default_factory=lambda: {f"n{one}": [f"10.0.0.{one}"] for one in (1, 2, 3)})
    own: dict[str, str] = field(default_factory=lambda: {"lo": "127.0.0.1", "eth0": "10.0.0.2"})
    time_s: float = 0.0
    late: dict[float, dict[str, list[str]]] = field(default_factory=dict)
    """Names that appear at these times."""

    def hostname(self) -> str:
        return "here"

    def now(self) -> float:
        return self.time_s

    def sleep(self, seconds: float) -> None:
        self.time_s += seconds

    def addresses_of(self, name: str) -> list[str]:
        for at_s, names in self.late.items():
            if self.time_s >= at_s:
                self.names.update(names)
        return self.names.get(name, [])

    def interfaces(self) -> list[str]:
        return list(self.own)

    def address_of(self, interface: str) -> str:
        return self.own.get(interface, "")

    def is_in_network(self, address: str, interface: str) -> bool:
        return address.rpartition(".")[0] == self.own[interface].rpartition(".")[0]

    def address_towards(self, address: str) -> str:
        return next((own for own in self.own.values() if own.rpartition(".")[0] == address.rpartition(".")[0]), "")


def test_slurm_gives_names_rank_and_attempt() -> None:
    place = find_place(
        PlaceRequest(kind="slurm", port=20000, attempt_base=4), {**SLURM, "SLURM_RESTART_COUNT": "2"}, FakeNetwork()
    )
    assert place == Place(
        names=("n1", "n2", "n3"), node_rank=1, attempt=6, job="42", restarts=2, address="10.0.0.1", port=20000,
        interface="eth0",
    )  # fmt: skip


def test_kubernetes_gives_peers_and_index_and_their_names_may_come_late() -> None:
    network = FakeNetwork(names={}, late={30.0: {"run-w-0-0.run": ["10.0.0.9"]}})
    place = find_place(PlaceRequest(kind="kubernetes", port=12355), {**PODS, "ORCH_RESTART_COUNT": "1"}, network)
    assert (place.address, place.node_rank, place.attempt, place.port) == ("10.0.0.9", 1, 1, 12355)
    assert network.time_s >= 30


def test_a_name_without_an_address_is_named_after_patience(capsys: pytest.CaptureFixture[str]) -> None:
    network = FakeNetwork(names={"n1": ["127.0.1.1"]})
    with pytest.raises(
        ConfigurationError, match=r"the node n1 has no IPv4 address but 127.0.1.1, after 120 s; try .*getent"
    ):
        find_place(REQUEST, SLURM, network)
    assert network.time_s == 120
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 11
    assert lines[0] == ("on here the node n1 has no IPv4 address but 127.0.1.1, after 10 s; waiting up to 120 s")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"SLURM_JOB_NODELIST": None}, "SLURM_JOB_NODELIST is not set"),
        ({"SLURM_JOB_NODELIST": "n[1-"}, "SLURM_JOB_NODELIST: .* is no list of names"),
        ({"SLURM_JOB_NODELIST": "n[1-99999999]"}, "SLURM_JOB_NODELIST: .* stands for more than 1024 names"),
        ({"SLURM_JOB_NODELIST": "n1," * 30000}, "SLURM_JOB_NODELIST has 90000 characters"),
        ({"SLURM_JOB_NODELIST": "n1,$(reboot)"}, r"SLURM_JOB_NODELIST: '\$\(reboot\)' is not the name of a host"),
        ({"SLURM_JOB_NODELIST": "n1,n2,n2"}, "SLURM_JOB_NODELIST names a host twice"),
        ({"SLURM_NODEID": None}, "SLURM_NODEID is not set"),
        ({"SLURM_NODEID": "3"}, "SLURM_NODEID='3' is not a number from 0 to 2"),
        ({"SLURM_NODEID": "-1"}, "SLURM_NODEID='-1' is not a number"),
        ({"SLURM_NODEID": "١"}, "SLURM_NODEID='١' is not a number"),
        ({"SLURM_NODEID": "2"}, "SLURM_NODEID=2 is n3 in SLURM_JOB_NODELIST, and SLURMD_NODENAME='n2'"),
        ({"SLURM_JOB_ID": None}, "SLURM_JOB_ID is not set"),
        ({"SLURM_JOB_ID": "9" * 11}, "SLURM_JOB_ID='99999999999' is not a number"),
        ({"SLURM_RESTART_COUNT": "x"}, "SLURM_RESTART_COUNT='x' is not a number"),
        ({"SLURM_STEP_NUM_NODES": "2"}, "this job step has 2 of the 3 nodes of job 42: start it by `srun"),
        ({"SLURM_LOCALID": "1"}, "this is task 1 of its node, and one agent serves all ranks"),
    ],
)
def test_a_variable_of_slurm_that_does_not_fit_is_named(changes: dict[str, str | None], message: str) -> None:
    environ = {name: value for name, value in {**SLURM, **changes}.items() if value is not None}
    with pytest.raises(ConfigurationError, match=message) as refused:
        find_place(REQUEST, environ, FakeNetwork())
    assert refused.value.exit_code == 3
    assert len(str(refused.value)) < 600


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"ORCH_PEERS": ""}, "ORCH_PEERS is not set"),
        ({"ORCH_PEERS": "a,,b"}, "ORCH_PEERS: '' is not the name of a host"),
        ({"ORCH_PEERS": ",".join(f"p{one}" for one in range(1025))}, "ORCH_PEERS has 1025 names"),
        ({"JOB_COMPLETION_INDEX": "2"}, "JOB_COMPLETION_INDEX='2' is not a number from 0 to 1"),
        ({"ORCH_RESTART_COUNT": "-"}, "ORCH_RESTART_COUNT='-' is not a number"),
    ],
)
def test_a_variable_of_kubernetes_that_does_not_fit_is_named(changes: dict[str, str], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        find_place(PlaceRequest(kind="kubernetes", port=12355), {**PODS, **changes}, FakeNetwork())


@given(
    st.dictionaries(
        st.sampled_from([*SLURM, "SLURM_RESTART_COUNT", "SLURM_LOCALID", "SLURM_STEP_NUM_NODES"]), st.text()
    )
)
def test_whatever_the_environment_says_it_is_a_seat_or_a_configuration_error(changes: dict[str, str]) -> None:
    try:
        seat = slurm_seat({**SLURM, **changes})
    except ConfigurationError:
        return
    assert 0 <= seat.node_rank < len(seat.names) <= 1024


@pytest.mark.parametrize("port", [80, 65535])
def test_a_port_without_room_for_the_agents_is_refused(port: int) -> None:
    with pytest.raises(ConfigurationError, match=f"--port {port} is not from 1024 to 65534"):
        find_place(PlaceRequest(kind="slurm", port=port), SLURM, FakeNetwork())


# ── Addresses ─────────────────────────────────────────────────────────────────────────────────────────────────────────


def test_one_node_meets_itself() -> None:
    alone = {**SLURM, "SLURM_JOB_NODELIST": "n2", "SLURM_NODEID": "0"}
    place = find_place(REQUEST, alone, FakeNetwork(names={}))
    assert (place.address, place.interface) == ("127.0.0.1", "lo")


def test_of_several_addresses_all_nodes_take_the_one_in_the_interfaces_network() -> None:
    names = {"n1": ["192.168.7.1", "10.0.0.1"], "n2": ["10.0.0.2"]}
    own = {"eth0": "10.0.0.2", "ib0": "192.168.7.2"}
    by_ib = find_place(
        PlaceRequest(kind="slurm", port=20000, interface="ib0"), SLURM, FakeNetwork(names=names, own=own)
    )
    assert (by_ib.address, by_ib.interface) == ("192.168.7.1", "ib0")
    by_route = find_place(REQUEST, SLURM, FakeNetwork(names=names, own=own))
    assert (by_route.address, by_route.interface) == ("10.0.0.1", "eth0")


def test_where_names_lead_to_another_network_the_interface_still_carries_gloo() -> None:
    own = {"eth0": "10.0.0.2", "ib0": "192.168.7.2"}
    place = find_place(PlaceRequest(kind="slurm", port=20000, interface="ib0"), SLURM, FakeNetwork(own=own))
    assert place.address == "10.0.0.1"
    assert place.environment("run", of_script=False)["GLOO_SOCKET_IFNAME"] == "ib0"


def test_rank_0_whose_own_name_is_loopback_takes_its_address_towards_the_others() -> None:
    first = {**SLURM, "SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}
    network = FakeNetwork(own={"lo": "127.0.0.1", "eth0": "10.0.0.1"})
    network.names["n1"] = ["127.0.1.1"]
    place = find_place(REQUEST, first, network)
    assert (place.address, place.interface) == ("10.0.0.1", "eth0")


def test_rank_0_without_an_address_for_the_others_says_so() -> None:
    network = FakeNetwork(own={"lo": "127.0.0.1"})
    network.names["n1"] = ["127.0.1.1"]
    with pytest.raises(ConfigurationError, match=r"no route to n2; try there: ip route get 10\.0\.0\.2"):
        find_place(REQUEST, {**SLURM, "SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}, network)


def test_an_interface_that_is_not_there_is_named_with_those_that_are() -> None:
    with pytest.raises(
        ConfigurationError, match="n2 has no IPv4 address on the network interface 'ib0'; it has lo, eth0"
    ):
        find_place(PlaceRequest(kind="slurm", port=20000, interface="ib0"), SLURM, FakeNetwork())


def test_this_machines_own_network() -> None:
    network = LocalNetwork()
    assert "127.0.0.1" in network.addresses_of("localhost")
    assert network.addresses_of("no.such.name.invalid") == []
    assert network.addresses_of("x" * 300) == []
    assert network.interface_with("127.0.0.1") == "lo"
    assert network.interface_with("") == ""
    assert network.address_towards("127.0.0.1") == "127.0.0.1"
    assert network.is_in_network("127.9.9.9", "lo")
    assert not network.is_in_network("10.0.0.1", "nothing0")


# ── What agent and ranks get ──────────────────────────────────────────────────────────────────────────────────────────

TORCHRUN = (
    "torchrun",
    "--nnodes",
    "1",
    "--nproc-per-node",
    "2",
    "--rdzv-id",
    "r",
    "--max-restarts",
    "0",
    "-m",
    "trainer",
)
ALONE = {"SLURM_JOB_ID": "42", "SLURM_JOB_NODELIST": "n1", "SLURM_NODEID": "0", "ORCH_RUN_ID": "r"}


def test_torchrun_and_ranks_get_the_place() -> None:
    words = ("--place", "slurm", "--port", "20000", "--attempt-base", "3", "--place-folder", "/shared")
    options = read((*words, "--", *TORCHRUN, "gpt2", "--node-rank", "kept"), ALONE)
    assert options.command == (
        "torchrun", "--node-rank", "0", "--master-addr", "127.0.0.1", "--master-port", "20000",
        "--nnodes", "1", "--nproc-per-node", "2", "--rdzv-id", "r.3", "--max-restarts", "0",
        "-m", "trainer", "gpt2", "--node-rank", "kept",
    )  # fmt: skip
    assert (options.run, options.names, options.port, options.interface) == ("r.3", ("n1",), 20001, "lo")
    assert options.place_folder == Path("/shared")
    assert options.environment == {
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": "20000", "NNODES": "1", "NODE_RANK": "0", "GLOO_SOCKET_IFNAME": "lo",
        "NCCL_SOCKET_IFNAME": "lo", "ORCH_ATTEMPT": "3", "ORCH_NODE": "n1", "ORCH_NODE_RANK": "0",
    }  # fmt: skip


def test_the_first_rank_follows_from_the_ranks_of_a_node() -> None:
    place = find_place(REQUEST, {**SLURM, "SLURM_NODEID": "2", "SLURMD_NODENAME": "n3"}, FakeNetwork())
    assert place.command(("torchrun", "--nproc-per-node", "4", "train.py"))[:9] == (
        "torchrun", "--node-rank", "2", "--master-addr", "10.0.0.1", "--master-port", "20000", "--nnodes", "3",
    )  # fmt: skip


def test_a_script_gets_the_place_as_variables() -> None:
    options = read(("--place", "slurm", "--port", "20000", "--script-ranks", "2", "--", "bash", "run.sh"), ALONE)
    assert options.command == ("bash", "run.sh")
    reported = {name: value for name, value in options.environment.items() if name.startswith("PET_")}
    assert reported == {
        "PET_NODE_RANK": "0", "PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": "20000", "PET_RDZV_ID": "r.0",
    }  # fmt: skip


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--node-rank", "1"), "torchrun has --node-rank, which --place decides on"),
        (("--master_addr=10.0.0.1",), "torchrun has --master-addr"),
        (("--nnodes", "4"), "torchrun has --nnodes 4, and the scheduler gave 1 nodes"),
    ],
)
def test_words_of_torchrun_that_contradict_the_job_are_refused(words: tuple[str, ...], message: str) -> None:
    with pytest.raises(ConfigurationError, match=message):
        read(("--place", "slurm", "--port", "20000", "--", "torchrun", *words, "train.py"), ALONE)


def test_without_a_scheduler_the_words_say_the_place(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as refused:
        read(("--port", "12356", "--", "torchrun"), {})
    assert refused.value.code == 2
    assert "the following arguments are required: --nodes, --node-rank, --address" in capsys.readouterr().err


# ── Files ─────────────────────────────────────────────────────────────────────────────────────────────────────────────


def place_files(folder: Path) -> PlaceFiles:
    place = find_place(REQUEST, {**SLURM, "SLURM_NODEID": "0", "SLURMD_NODENAME": "n1"}, FakeNetwork())
    return PlaceFiles(place, folder, FakeNetwork(names={"n2": ["10.0.0.2"]}))


def test_who_took_part_stays_readable(tmp_path: Path) -> None:
    place_files(tmp_path).begin()
    deadline = time.monotonic() + 10
    while True:
        (line,) = (tmp_path / "place-0.json").read_text().splitlines()
        data = json.loads(line)
        if data["addresses"][1] or time.monotonic() > deadline:
            break
        time.sleep(0.01)
    assert data.pop("at") > 0
    assert data == {
        "attempt": 0, "job": "42", "restart": 0, "names": ["n1", "n2", "n3"],
        "addresses": ["10.0.0.1", "10.0.0.2", ""], "port": 20000,
    }  # fmt: skip


def test_only_a_checkpoint_beyond_the_first_is_progress(tmp_path: Path) -> None:
    """A job that is queued again after each life without one would loop for ever."""
    (tmp_path / "progressed").write_text("41.0\n")
    files = place_files(tmp_path)
    files.seen(None)
    files.seen(TrainingResumed(step=30))
    files.seen(CheckpointWritten(step=30))
    assert (tmp_path / "progressed").read_text() == "41.0\n"
    files.seen(CheckpointWritten(step=31))
    assert (tmp_path / "progressed").read_text() == "42.0\n"
    assert [path.name for path in tmp_path.iterdir()] == ["progressed"]


def test_the_end_of_an_agent_is_noted(tmp_path: Path) -> None:
    place_files(tmp_path).end(143)
    assert (tmp_path / "left").read_text() == "42.0 143\n"


def test_a_folder_that_cannot_be_written_ends_nothing(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    files = place_files(tmp_path / "missing")
    files.seen(CheckpointWritten(step=1))
    assert "missing/progressed could not be written: " in capfd.readouterr().err


# ── A whole agent ─────────────────────────────────────────────────────────────────────────────────────────────────────

SCRIPT = """
echo "$NODE_RANK $MASTER_ADDR $PET_RDZV_ID $ORCH_ATTEMPT $GLOO_SOCKET_IFNAME"
echo '@orch {"event": "checkpoint", "t": 1, "step": 5}'
"""


def run_agent(folder: Path, **environ: str) -> subprocess.CompletedProcess[str]:
    (folder / "run.sh").write_text(SCRIPT)
    words = ("--attempt-base", "2", "--stamp-lines", "--restarts", "0")
    return subprocess.run(
        agent_command(*words),
        cwd=folder,
        env=agent_environment(folder, **environ),
        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=60, check=False,
    )  # fmt: skip


def agent_command(*words: str) -> tuple[str, ...]:
    place = ("--place", "slurm", "--port", str(free_port()), *words)
    return (sys.executable, "-m", "trainer.agent", *place, "--script-ranks", "1", "--", "sh", "run.sh")


def agent_environment(folder: Path, **environ: str) -> dict[str, str]:
    own = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM", "ORCH", "PET_"))}
    return {**own, "PYTHONPATH": str(ROOT), "ORCH_RUN_DIR": str(folder), **ALONE, **environ}


def test_an_agent_in_a_job_binds_itself_and_says_so(tmp_path: Path) -> None:
    ended = run_agent(tmp_path, SLURM_RESTART_COUNT="1")
    assert ended.returncode == 0, ended.stdout
    lines = [line.partition("Z ") for line in ended.stdout.splitlines()]
    assert all(len(time) == 29 for time, _, _ in lines), ended.stdout
    reported = [text for _, _, text in lines]
    assert "0 127.0.0.1 r.3.1 3 lo" in reported
    finished = next(json.loads(text[6:]) for text in reported if '"finished"' in text)
    assert (finished["node"], finished["outcome"]) == ("n1", "done")
    assert (tmp_path / "progressed").read_text() == "42.1\n"
    assert json.loads((tmp_path / "place-3.json").read_text())["names"] == ["n1"]


def test_an_environment_that_does_not_fit_ends_an_agent_with_code_3(tmp_path: Path) -> None:
    ended = run_agent(tmp_path, SLURM_NODEID="seven")
    assert ended.returncode == 3
    assert "Z error: SLURM_NODEID='seven' is not a number from 0 to 0" in ended.stdout
    assert [path.name for path in tmp_path.iterdir()] == ["run.sh"]


@pytest.mark.parametrize("how", ["signal", "stdin"])
def test_an_agent_that_waits_for_a_name_ends_when_it_is_asked_to(tmp_path: Path, how: str) -> None:
    """A container's first process gets no signal that it has no handler for."""
    waiting = {"SLURM_JOB_NODELIST": "no.such.name.invalid,n2", "SLURM_NODEID": "1"}
    with subprocess.Popen(
        agent_command("--end-with-stdin"),
        cwd=tmp_path,
        env=agent_environment(tmp_path, **waiting),
        stdin=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
    ) as agent:
        try:
            if how == "signal":
                deadline = time.monotonic() + 30
                while not handles(agent.pid, signal.SIGTERM):
                    assert time.monotonic() < deadline, "SIGTERM has no handler"
                    time.sleep(0.02)
                agent.terminate()
            else:
                assert agent.stdin
                agent.stdin.close()
            assert agent.wait(30) == 143
        finally:
            agent.kill()


def test_an_agent_ends_when_the_process_that_started_it_was_killed(tmp_path: Path) -> None:
    """Example: slurmstepd, after which Slurm gives the node to others."""
    waiting = {"SLURM_JOB_NODELIST": "no.such.name.invalid,n2", "SLURM_NODEID": "1"}
    with subprocess.Popen(
        ("sh", "-c", '"$@" & echo $! >agent; wait', "sh", *agent_command("--end-with-parent")),
        cwd=tmp_path, env=agent_environment(tmp_path, **waiting), stdout=subprocess.DEVNULL,
    ) as parent:  # fmt: skip
        deadline = time.monotonic() + 30
        while not (file := tmp_path / "agent").exists() or not file.read_text().endswith("\n"):
            time.sleep(0.02)
        agent = int(file.read_text())
        while len(list(Path(f"/proc/{agent}/task").iterdir())) < 2:
            assert time.monotonic() < deadline, "no thread looks at the parent"
            time.sleep(0.02)
        parent.kill()
    while is_alive(agent):
        assert time.monotonic() < deadline, "the agent outlives its parent"
        time.sleep(0.1)


def is_alive(process: int) -> bool:
    try:
        return Path(f"/proc/{process}/stat").read_text().rpartition(")")[2].split()[0] != "Z"
    except OSError:
        return False


def handles(process: int, number: int) -> bool:
    """Return whether a process has a handler for a signal (proc_pid_status(5), SigCgt)."""
    caught = Path(f"/proc/{process}/status").read_text().partition("SigCgt:")[2].split()[0]
    return bool(int(caught, 16) >> (number - 1) & 1)
