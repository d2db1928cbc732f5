"""`orch export`: words of any kind arrive as they were typed, no value of a secret is written, no machine is asked."""

from __future__ import annotations

import json
import re
import shlex
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st

from contract.cost_model.memory import TransformerTraining
from contract.run_folder import AGENTS_TOKEN
from orchestrator.checks.manifest import refused_values
from orchestrator.fleet.planning.export import Machines, described, export_request
from orchestrator.plan.jobset import jobset
from orchestrator.plan.launch import plan_launch
from orchestrator.plan.pod import ClusterPlace, cluster_notes, object_name
from orchestrator.render.manifest import manifest_text
from orchestrator.specs.errors import ConfigError, PreflightError
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.specs.secret import Secret
from tests import lan
from tests.jobset_api import api_problems
from tests.json_output import json_data
from tests.unit.conftest import Orch

HOSTILE = ("$(HOME)", "$$(A)", "${A}", "$A", "`id`", "';", '"', "\\", "no", "0x10", "1e3", "~", "- a", "a: b", "# x",
           "\n", "\r\n", "\t", " ", "", "é", "\u2028", "\x85", "\u202e", "\ufeff", "😀", "{{.Node.ID}}", "&a", "*a",
           "!!python/object:os.system", "%YAML 1.1", "---", "...", "|", ">", "\x01", "\x7f")  # fmt: skip
TEXTS = st.lists(
    st.sampled_from(HOSTILE) | st.text(st.characters(exclude_categories=("Cs",), exclude_characters="\0"), max_size=8),
    max_size=4,
).map("".join)
NAMES_OF_VARIABLES = st.from_regex(r"[A-Z_][A-Z0-9_]{0,8}", fullmatch=True).map(lambda name: f"USER_{name}_X")


def plan_of(options: LaunchOptions, *, nodes: int = 2, gpus: int = 0) -> Plan:
    machines = Machines(count=nodes, cpus=2, memory_mib=4096, gpus=gpus)
    specs, facts = described(machines)
    request = export_request(options, specs, {}, project="orch", master_port=12355)
    return plan_launch(request, facts, lan.IDENTITY)


def as_kubernetes_expands(text: str, variables: Mapping[str, str]) -> str:
    """Words and values of a container, as the kubelet passes them on: `$(NAME)` is replaced, `$$` is one `$`."""
    out, place = "", 0
    while place < len(text):
        rest = text[place + 1 :]
        if text[place] != "$" or not rest:
            out, place = out + text[place], place + 1
        elif rest[0] == "$":
            out, place = out + "$", place + 2
        elif rest[0] == "(" and ")" in rest:
            name = rest[1 : rest.index(")")]
            out, place = out + variables.get(name, f"$({name})"), place + 2 + len(name) + 1
        else:
            out, place = out + "$" + rest[0], place + 2
    return out


def container(manifest: Any) -> Any:
    return manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]["containers"][0]


@given(words=st.lists(TEXTS, max_size=5), variables=st.dictionaries(NAMES_OF_VARIABLES, TEXTS, max_size=3))
@settings(deadline=None, max_examples=60)
def test_hostile_words_arrive_as_they_were_typed(words: list[str], variables: dict[str, str]) -> None:
    """Read by a parser of YAML 1.1, then expanded as Kubernetes does it."""
    plan = plan_of(LaunchOptions(command=("python", "train.py", *words), environment=variables))
    manifest = jobset(plan, ClusterPlace())
    assert (refused_values(manifest), api_problems(manifest)) == ((), [])
    text = manifest_text(manifest, [*words, "a note"])
    assert text.isascii()
    read = yaml.safe_load(text)
    assert read == manifest
    found = container(read)
    plain = {one["name"]: one["value"] for one in found["env"] if "value" in one}
    expanded = {name: as_kubernetes_expands(value, plain) for name, value in plain.items()}
    assert {name: expanded[name] for name in variables} == variables
    args = [as_kubernetes_expands(word, expanded) for word in found["args"]]
    assert args[args.index("train.py") + 1 :] == words


@pytest.mark.parametrize("text", ["\udc80", "a\0b"])
@pytest.mark.parametrize("place", ["word", "variable"])
def test_what_no_manifest_can_hold_is_refused(text: str, place: str) -> None:
    words = (text,) if place == "word" else ()
    options = LaunchOptions(
        command=("python", "train.py", *words), environment={"A": text} if place == "variable" else {}
    )
    with pytest.raises(ConfigError, match=r"no process takes|not UTF-8"):
        jobset(plan_of(options), ClusterPlace())


@given(run=st.from_regex(r"[A-Za-z0-9][A-Za-z0-9._-]{0,60}", fullmatch=True))
def test_names_of_objects(run: str) -> None:
    """Any id of a run becomes a DNS-1035 label; one that is too long is refused where its length counts."""
    name = object_name(run)
    assert name[0].isalpha()
    assert set(name) <= set("abcdefghijklmnopqrstuvwxyz0123456789-")
    assert not name.endswith("-")


def test_two_runs_have_two_names() -> None:
    """One Secret and one JobSet each."""
    assert len({object_name(run) for run in ("a.b", "a_b", "a-b", "A-b")}) == 4
    assert object_name("a-b") == "a-b"


def test_the_longest_name_fits_as_many_pods_as_can_be_asked_for(orch: Orch) -> None:
    name = "0" * 41
    ran = orch("export", "jobset", "--nodes", "1000", "--name", name, "--", "gpt2")
    assert ran.code == 0, ran.err
    peers = next(one["value"] for one in container(yaml.safe_load(ran.out))["env"] if one["name"] == "ORCH_PEERS")
    assert peers.split(",")[999] == f"run-{name}-node-0-999.run-{name}"


def test_no_value_of_a_secret_is_written(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HF_TOKEN", "hf_very_secret")
    given = ("--secret", "HF_TOKEN", "--env", "API_KEY=hush-hush", "--env", "DB=postgres://ana:pass-word@host/x")
    for form in ((), ("-o", "json")):
        ran = orch("export", "jobset", "-n", "2", *form, *given, "--", "gpt2")
        assert ran.code == 0, ran.err
        for value in ("very_secret", "hush", "pass-word"):
            assert value not in ran.out + ran.err


def test_a_secret_that_is_given_twice_is_one_file() -> None:
    manifest = jobset(plan_of(LaunchOptions(secrets=(Secret(name="KEY"), Secret(name="KEY")))), ClusterPlace())
    assert api_problems(manifest) == []


def test_the_steps_make_every_key_that_the_manifest_refers_to() -> None:
    options = LaunchOptions(
        secrets=(Secret(name="HF_TOKEN"), Secret(name="KEY", file="/a b/key")), environment={"API_KEY": "hush"}
    )
    plan, place = plan_of(options), ClusterPlace(namespace="ml")
    manifest = jobset(plan, place)
    line = next(note for note in cluster_notes(plan, place, "x.yaml") if "create secret" in note)
    pod = manifest["spec"]["replicatedJobs"][0]["template"]["spec"]["template"]["spec"]
    files = {item["key"] for one in pod["volumes"] if "secret" in one for item in one["secret"]["items"]}
    variables = {one["valueFrom"]["secretKeyRef"]["key"] for one in pod["containers"][0]["env"]
                 if "secretKeyRef" in one.get("valueFrom", {})}  # fmt: skip
    assert (files, variables) == ({"HF_TOKEN", "KEY", AGENTS_TOKEN}, {"API_KEY"})
    for key in {*files, *variables}:
        assert len(re.findall(rf"--from-file='?{re.escape(key)}=", line)) == 1
    assert "--from-file='KEY=/a b/key'" in line
    assert line.startswith("  kubectl --namespace ml create secret generic run-0102-1504-ab12 ")


def test_no_machine_is_asked_and_no_inventory_is_needed(orch: Orch) -> None:
    Path("inventory.yaml").unlink()
    first, second = (orch("export", "jobset", "-n", "2", "--name", "same", "--", "gpt2") for _ in range(2))
    assert (first.code, first.err) == (0, "")
    assert first.out == second.out
    assert first.out.startswith("# schema-checked, not run")


def test_the_inventory_names_project_and_port(orch: Orch) -> None:
    inventory = Path("inventory.yaml")
    inventory.write_text("project: faces\nmaster_port: 20000\n" + inventory.read_text())
    read = yaml.safe_load(orch("export", "jobset", "-n", "2", "--", "gpt2").out)
    found = container(read)
    assert found["image"] == "orch/faces:cpu"
    assert found["command"][found["command"].index("--port") + 1] == "20000"
    assert orch("export", "jobset", "-n", "2", "-i", "nowhere.yaml", "--", "gpt2").code == 3


def test_a_file_is_written(orch: Orch) -> None:
    ran = orch("export", "jobset", "-n", "2", "--name", "first", "--to", "made/it's.yaml", "--", "gpt2")
    assert (ran.code, ran.out) == (0, "")
    assert ran.err == "✓ made/it's.yaml: schema-checked, not run; the steps to start it are at its top\n"
    text = Path("made/it's.yaml").read_text()
    assert f"kubectl apply -f {shlex.quote(chr(39).join(('made/it', 's.yaml')))}\n" in text
    refused = orch("export", "jobset", "-n", "2", "--to", "made", "--", "gpt2")
    assert (refused.code, refused.out) == (3, "")
    assert "made cannot be written: Is a directory" in refused.err


def test_a_training_that_does_not_fit_into_the_machines_is_refused() -> None:
    specs, facts = described(Machines(count=2, cpus=2, memory_mib=600, gpus=0))
    sizes = TransformerTraining(
        parameters=98_428_416, layers=12, width=768, seq_len=1024, vocab_size=16384, micro_batch=4, passes=1,
        loss_chunk=1024, optimizer_values=196_856_832,
    )  # fmt: skip
    request = export_request(LaunchOptions(), specs, {}, project="orch", master_port=12355, sizes=sizes)
    with pytest.raises(PreflightError, match="would exceed its memory limit of 600 MiB"):
        plan_launch(request, facts, lan.IDENTITY)


def test_json(orch: Orch) -> None:
    words = ("export", "jobset", "-n", "2", "--name", "first", "--", "gpt2")
    data = json_data(orch(*words[:2], "-o", "json", *words[2:]).out)
    assert data["manifest"] == yaml.safe_load(orch(*words).out)
    assert data["run_id"] == "first"
    assert data["notes"][0].startswith("schema-checked, not run")
    assert json.dumps(data["manifest"])


@pytest.mark.parametrize(
    ("words", "code", "message"),
    [
        (("--", "gpt2"), 2, "--nodes N is missing"),
        (("-n", "0", "--", "gpt2"), 2, "--nodes"),
        (("-n", "2", "--memory", "7 apples", "--", "gpt2"), 2, "--memory 7 apples: expected a size such as 512m"),
        (("-n", "2", "--name", "A", "--", "gpt2"), 2, "--name A: small letters"),
        (("-n", "2", "--image", "a b", "--", "gpt2"), 2, "--image a b: expected the name of an image"),
        (("-n", "2", "--", "gpt9"), 2, "did you mean gpt2?"),
        (("-n", "2", "gpt2", "--cpus", "3"), 2, "orch export jobset -n 2 -- gpt2 --cpus 3"),
        (("-n", "2", "--namespace", "My", "--", "gpt2"), 3, "metadata.namespace: 'My' is no DNS label"),
        (("-n", "2", "--claim", "a_b", "--", "gpt2"), 3, "claimName: 'a_b' is no DNS name"),
        (("-n", "2", "--env", "NODE_RANK=1", "--", "gpt2"), 3, "--env NODE_RANK: the agent in the job sets it"),
        (("-n", "2", "--env", "é=1", "--", "gpt2"), 3, "name: 'é' is no name of a variable"),
        (("-n", "2", "--env", "A=" + "x" * 131072, "--", "gpt2"), 3, "value: longer than 131071 bytes"),
        (("-n", "2", "--env", "ORCH_PEERS=a", "--", "gpt2"), 3, "env: name ORCH_PEERS occurs twice"),
        (("-n", "2", "--", "python", "a.py", "x" * 131072), 3, "]: longer than 131071 bytes"),
        (("-n", "2", "--", "python", "a.py", *["x" * 131000] * 3), 3, "metadata.annotations: 393"),
    ],
)
def test_what_is_refused(orch: Orch, words: tuple[str, ...], code: int, message: str) -> None:
    ran = orch("export", "jobset", *words)
    assert (ran.code, ran.out) == (code, "")
    assert message in ran.err
