"""Words that a scheduler alone knows, left out of a container, whatever the user's words are."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from orchestrator.plan.late_binding import SET_IN_JOB, late_bound, lost_variables, parts_of
from tests import lan
from trainer.agent.place import Place

PLACE = ("--place", "kubernetes", "--port", "12355", "--attempt-base", "0")
OURS = ["--nodes", "--node-rank", "--master-addr", "--port", "--", "--rdzv-id", "7", ""]


def test_words_of_the_agent_and_of_torchrun() -> None:
    plan = lan.plan(lan.NAMES[:3], command=("gpt2", "--steps", "9"), hang_timeout_s=90)
    bound = {late_bound(part.container, *PLACE).command for part in plan.nodes}
    assert bound == {
        (
            "python", "-P", "-m", "trainer.agent", *PLACE, "--restarts", "3", "--absence", "900", "--hang", "90",
            "--", "torchrun", "--nnodes", "3", "--nproc-per-node", "1", "--rdzv-id", "0102-1504-ab12",
            "--max-restarts", "0", "-m", "trainer", "gpt2", "--steps", "9",
        )
    }  # fmt: skip


def test_no_variable_is_of_one_node() -> None:
    plan = lan.plan(lan.NAMES[:3], command=("bash", "run.sh"), own_code=True)
    bound = [late_bound(part.container, *PLACE) for part in plan.nodes]
    assert bound[0].environment == bound[1].environment == bound[2].environment
    assert bound[0].environment["PET_RDZV_ID"] == "0102-1504-ab12"
    assert bound[0].environment["PET_NNODES"] == "3"
    assert parts_of(bound[0].command)[1] == ("bash", "run.sh")
    assert not {"NODE_RANK", "MASTER_ADDR", "ORCH_NODE", "ORCH_ATTEMPT", "PET_MASTER_PORT"} & set(bound[0].environment)


def test_each_variable_that_the_agent_sets_is_named() -> None:
    """A user's value of another one is kept."""
    place = Place(
        names=("n1",), node_rank=0, attempt=0, job="42", restarts=0, address="10.0.0.1", port=20000, interface="eth0"
    )
    assert set(place.environment("run", of_script=True)) == set(SET_IN_JOB)
    assert len(lost_variables(dict.fromkeys(("MINE", *SET_IN_JOB), "1"))) == len(SET_IN_JOB)


@given(words=st.lists(st.sampled_from(OURS) | st.text(max_size=5), max_size=6))
@settings(deadline=None)
def test_words_of_the_user_stay(words: list[str]) -> None:
    plan = lan.plan(command=("python", "train.py", *words), own_code=True)
    _, started = parts_of(late_bound(plan.nodes[1].container, *PLACE).command)
    assert started[-len(words) - 1 :] == ("train.py", *words)
