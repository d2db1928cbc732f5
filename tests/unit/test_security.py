"""What the controller and the nodes never do, held against every source; and inventories that mean harm."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import fields, replace
from pathlib import Path

import docker
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from orchestrator.cli import main
from orchestrator.fleet.runs.recall import recall
from orchestrator.fleet.runs.records import RunRecord, runs_folder
from orchestrator.nodes.docker_hardening import host_config
from orchestrator.nodes.fake import FakeNode
from orchestrator.plan.lines import plan_lines
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.plan import ContainerSpec
from orchestrator.specs.plan_json import from_json, to_json
from orchestrator.specs.request import RunIdentity
from orchestrator.specs.secret import Secret
from tests import lan
from tests.unit.conftest import THREE, Orch

ROOT = Path(__file__).parents[2]
SOURCES = sorted([*ROOT.glob("orchestrator/**/*.py"), *ROOT.glob("trainer/**/*.py")])

LISTENS = {
    "orchestrator/nodes/probes/reach_program.py": "the pair probe: on the node's own address, ends by itself, answers "
    "nobody who does not know its word",
    "trainer/survive/door.py": "the agents of one attempt, as long as it lasts; no answer without a proof of its token",
}
"""Whoever opens a port, and why it is no daemon."""


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def calls(*rooms: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call of the sources, or of these rooms alone, with its place."""
    for path in SOURCES:
        if not rooms or place(path).startswith(rooms):
            for node in ast.walk(ast.parse(path.read_text("utf-8"))):
                if isinstance(node, ast.Call):
                    yield f"{place(path)}:{node.lineno}", node


# ── SSH ──


def test_every_connection_is_held_to_known_keys() -> None:
    """Fabric accepts any key, a changed one too, unless told otherwise on the very object that connects."""
    makers = 0
    for path in SOURCES:
        for function in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(function, ast.FunctionDef):
                called = [ast.unparse(node.func) for node in ast.walk(function) if isinstance(node, ast.Call)]
                made = called.count("fabric.Connection")
                assert made == called.count("hold_to_known_keys"), f"{place(path)}: {function.name}"
                makers += made
    assert makers == 2  # a node, and the machine on the way to it
    for where, call in calls():
        assert ast.unparse(call.func) not in ("paramiko.SSHClient", "fabric.Group"), where


def test_the_linter_refuses_a_policy_that_adds_keys() -> None:
    for policy in ("AutoAddPolicy", "WarningPolicy"):
        code = (
            f"import paramiko\n\nclient = paramiko.SSHClient()\nclient.set_missing_host_key_policy(paramiko.{policy})\n"
        )
        words = (sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--stdin-filename")
        ran = subprocess.run(
            (*words, "orchestrator/nodes/ssh.py", "-"),
            input=code,
            cwd=ROOT,
            capture_output=True,
            text=True,
            check=False,
        )
        assert " S507 " in ran.stdout, ran.stdout + ran.stderr
    assert [
        place(path) for path in SOURCES if re.search(r"AutoAddPolicy|WarningPolicy|noqa: S507", path.read_text())
    ] == []


def test_words_become_one_line_of_a_shell_in_one_place_alone() -> None:
    """Quoted there; Fabric's own `run` sends the values of `env=` unquoted, so nobody calls it."""
    lines = [(where, ast.unparse(call)) for where, call in calls() if ast.unparse(call.func).endswith("exec_command")]
    assert [text for _, text in lines] == ["channel.exec_command(shlex.join(argv))"]
    for where, call in calls("orchestrator/nodes/ssh"):
        assert not {word.arg for word in call.keywords} & {"env", "inline_ssh_env"}, where


def test_scripts_for_a_nodes_shell_are_constants() -> None:
    """What a user or an inventory says comes in as `$1`, never as text of the script."""
    found = 0
    for where, call in calls("orchestrator/"):
        for argument in call.args:
            words = argument.elts if isinstance(argument, ast.List | ast.Tuple) else []
            texts = [word.value if isinstance(word, ast.Constant) else None for word in words[:2]]
            if len(words) > 2 and texts[0] in ("sh", "bash", "/bin/sh") and texts[1] == "-c":
                found += 1
                script = words[2]
                constant = isinstance(script, ast.Constant) or (
                    isinstance(script, ast.Name | ast.Attribute) and ast.unparse(script).split(".")[-1].isupper()
                )
                assert constant, f"{where}: {ast.unparse(script)}"
    assert found > 8


def test_no_engine_is_asked_over_an_open_port() -> None:
    texts = {place(path): path.read_text("utf-8") for path in SOURCES}
    assert [name for name, text in texts.items() if re.search(r"\b237[56]\b", text)] == []
    assert [name for name, text in texts.items() if "tcp://" in text] == ["orchestrator/nodes/ssh_engine.py"]
    assert 'base_url="tcp://node:1"' in texts["orchestrator/nodes/ssh_engine.py"]  # looked up by nobody


# ── nobody listens ──


OPENS = {
    "create_server", "start_server", "start_unix_server", "create_unix_server", "HTTPServer", "ThreadingHTTPServer",
    "TCPServer", "UDPServer", "ThreadingTCPServer", "bind_all", "uvicorn",
}  # fmt: skip
OPENS_A_SOCKET = {"bind", "listen"}
"""Names of other things, too, where no socket is imported."""


def opens_a_port(source: str) -> bool:
    """Whether it calls anything of such a name, however it is written."""
    tree = ast.parse(source)
    called = {ast.unparse(node.func).rpartition(".")[2] for node in ast.walk(tree) if isinstance(node, ast.Call)}
    imports = [node for node in ast.walk(tree) if isinstance(node, ast.Import | ast.ImportFrom)]
    knows_sockets = any("socket" in ast.unparse(node) for node in imports)
    return bool(called & OPENS) or (knows_sockets and bool(called & OPENS_A_SOCKET))


def test_nobody_listens_but_who_must() -> None:
    found = {place(path) for path in SOURCES if opens_a_port(path.read_text("utf-8"))}
    assert found == set(LISTENS)
    assert opens_a_port("import socket\ndoor = socket.socket()\ndoor.bind(where)\ndoor.listen(backlog)")
    assert opens_a_port("asyncio.start_server(answer, '0.0.0.0', port)")


def test_what_compose_shows_is_shown_to_this_computer_alone() -> None:
    services = YAML(typ="safe", pure=True).load(ROOT / "compose" / "compose.yaml")["services"]
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


# ── containers ──


def asked_of_the_engine(spec: ContainerSpec) -> dict[str, object]:
    return host_config(docker.APIClient(version="1.41"), spec)  # type: ignore[no-any-return]  # it connects to nobody


def test_a_container_has_no_more_rights_than_training_takes() -> None:
    container = lan.plan().nodes[0].container
    asked = asked_of_the_engine(container)
    assert (asked["CapDrop"], asked["SecurityOpt"], asked["ReadonlyRootfs"]) == (
        ["ALL"],
        ["no-new-privileges:true"],
        True,
    )
    assert (asked["Init"], asked["PidsLimit"]) == (True, 4096)
    for right in (
        "Privileged",
        "CapAdd",
        "PidMode",
        "IpcMode",
        "UsernsMode",
        "Devices",
        "UTSMode",
        "Binds",
        "PublishAllPorts",
    ):
        assert not asked.get(right), right
    assert container.user == "1000:1000"
    assert not {field.name for field in fields(ContainerSpec)} & {"privileged", "cap_add", "devices", "ports", "ipc"}


def test_data_and_secrets_are_mounted_for_reading() -> None:
    mounts = lan.plan(data_digest="0123456789abcdef", secrets=(Secret(name="A"),)).nodes[0].container.mounts
    assert {mount.target: mount.read_only for mount in mounts} == {
        "/workspace": False, "/workspace/Data": True, "/run/secrets/A": True,
    }  # fmt: skip


def test_ranks_meet_without_unpickling() -> None:
    """c10d's state is a pickle that whoever reaches the port may write; static rendezvous exchanges JSON."""
    for part in lan.plan(lan.NAMES).nodes:
        words = part.container.command
        assert "--node-rank" in words
        assert not [word for word in words if "c10d" in word or "--rdzv-backend" in word or "--standalone" in word]


# ── inventories ──

HARM = ("; rm -rf /", "$(id)", "`id`", "| nc", "&& id", "\n", "\r", "\0", "\x1b[2J", ">x", "' or '", '" "', "${IFS}")
PLAIN = {
    "address": "10.0.0.1", "user": "ana", "identity": "~/.ssh/id", "jump": "ana@gate:22", "interface": "eth0",
    "workspace": "/srv/orch",
}  # fmt: skip


def refused(**values: object) -> str:
    with pytest.raises(ConfigError) as caught:
        parse_inventory(json.dumps({"nodes": {"alpha": {**PLAIN, **values}}}).encode(), filename="inventory.yaml")
    assert caught.value.exit_code == 3
    return "\n".join(caught.value.problems)


@pytest.mark.parametrize("key", PLAIN)
@pytest.mark.parametrize("harm", HARM, ids=ascii)
def test_what_a_shell_or_terminal_would_read_is_refused_in_every_field(key: str, harm: str) -> None:
    told = refused(**{key: PLAIN[key] + harm})
    assert re.match(r"inventory\.yaml:\d+: ", told)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", told)  # nor is it shown as it is


@pytest.mark.parametrize("key", ["address", "user", "jump", "interface", "workspace", "identity"])
@pytest.mark.parametrize("option", ["-oProxyCommand=id", "--privileged", "-"])
def test_no_value_is_an_option_of_some_command(key: str, option: str) -> None:
    refused(**{key: option})


@pytest.mark.parametrize("name", ["../../etc", "/etc", "-rf", "a b", "a;b", "a$b", "Alpha\n", ".", ".."])
def test_no_name_is_a_path_or_an_option(name: str) -> None:
    for text in ({"nodes": {name: PLAIN}}, {"project": name, "nodes": {"alpha": PLAIN}}):
        with pytest.raises(ConfigError):
            parse_inventory(json.dumps(text).encode(), filename="inventory.yaml")


near_plain = st.one_of(
    *(
        st.sampled_from(sorted(PLAIN.values())).flatmap(
            lambda plain: st.text(max_size=6).map(lambda more: plain + more)
        ),
    ),
    st.text(alphabet=st.sampled_from("ab0.-_/~@: $;|&`'\"\\\n\t()<>*?#{}[]é\x00\x1b"), max_size=12),
)


@given(st.dictionaries(st.sampled_from(sorted(PLAIN)), near_plain))
def test_whatever_is_accepted_reaches_a_shell_as_the_word_it_is(values: dict[str, str]) -> None:
    """The lines of a dry run, which a person pastes: as many words as for a plain inventory, each as it was meant."""
    text = json.dumps({"nodes": {"alpha": {**PLAIN, **values}}}).encode()
    try:
        (node,) = parse_inventory(text, filename="inventory.yaml").nodes
    except ConfigError:
        return
    plan = replace_address(node.address)
    lines = [line for line in plan_lines(plan, {"alpha": node}) if not line.startswith("#")]
    assert len(lines) == 2
    reach = shlex.split(lines[0])
    assert reach[0] == "ssh"
    assert f"{node.user}@{plan.nodes[0].address}" in reach
    assert not [word for word in reach if word.startswith("-") and word not in ("-p", "-i", "-J")]


def replace_address(address: str):  # type: ignore[no-untyped-def]  # a plan; its node has this address
    plan = lan.plan(("alpha",))
    return replace(plan, nodes=(replace(plan.nodes[0], address=address),))


LAUGHS = "a0: &a0 [x, x, x, x, x, x, x, x, x, x]\n" + "".join(
    f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 10)}]\n" for n in range(1, 12)
)


@pytest.mark.parametrize(
    "content",
    [
        LAUGHS.encode(),
        b"nodes: " + b"[" * 500_000,
        b"nodes: " + b"{a: " * 250_000,
        b"nodes:\n" + b"".join(b" " * n + b"a:\n" for n in range(1400)),
        b"nodes: {a: {address: " + b"9" * 900_000 + b"}}",
        b"nodes: {a: {address: 10.0.0.1, port: " + b"9" * 9_000 + b"}}",
        b"nodes: {a: {address: 10.0.0.1, port: 1e999}}",
        b"nodes: {a: {address: !!python/object/apply:os.system [id]}}",
        b"nodes: &n {a: *n}",
        b"nodes: {a: {address: 10.0.0.1}}\0",
        b"\xff\xfe" + "nodes: {a: {address: 10.0.0.1}}".encode("utf-16-le"),
        b"nodes: {'\\x1b[2J': {address: 10.0.0.1}}",
        b"x" * (2 << 20),
    ],
    ids=[
        "laughs",
        "brackets",
        "braces",
        "indents",
        "digits",
        "port",
        "infinite",
        "tag",
        "itself",
        "nul",
        "utf16",
        "escape",
        "size",
    ],
)
def test_a_bomb_goes_off_in_nobodys_hands(content: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Refused with exit code 3, in a moment, in little memory, in words that a terminal can show."""
    file = tmp_path / "inventory.yaml"
    file.write_bytes(content)
    before = time.process_time()
    assert main(["inventory", "validate", "-i", str(file)]) == 3
    assert time.process_time() - before < 10  # a bomb would take for ever
    told = capsys.readouterr()
    assert told.err.startswith("error: ")
    assert len(told.err) < 10_000
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", told.err + told.out)


# ── what other machines say ──


@pytest.mark.parametrize("run_id", ["../../elsewhere", "/tmp/x", "a/b", "..", ".hidden", "", "a\nb", "a" * 200])
def test_a_run_whose_id_is_a_path_is_kept_nowhere(run_id: str) -> None:
    with pytest.raises(ConfigError, match="is no id of a run"):
        RunRecord(run_id)
    plan = replace(lan.plan(), run_id=run_id)
    with pytest.raises(ConfigError, match="is not a plan of this version"):
        from_json(to_json(plan), where="plan.json on alpha")
    node = FakeNode("alpha", programs=lambda *_: (0, to_json(plan), ""))
    with pytest.raises(ConfigError, match="is not a plan of this version"):
        recall([node], {"alpha": lan.spec("alpha")}, "orch", "a")


def test_a_label_that_is_a_path_writes_nothing_outside_of_the_records(orch: Orch, state: Path) -> None:
    here = lan.lan(*THREE)
    container = lan.plan().nodes[0].container
    spec = replace(container, labels={**container.labels, "orch.run_id": "../../../elsewhere"})
    engine = here.nodes["beta"].engine
    engine.start(engine.create(spec))
    ran = orch("clean", on=here)
    assert ran.code == 0
    assert "note: beta: container orch-run is not understood and left out: label orch.run_id is '../" in ran.err
    assert [path for path in state.rglob("*") if path.is_file() and runs_folder() not in path.parents] == []
    assert not (state.parent.parent / "elsewhere").exists()


def test_a_run_is_given_ids_that_are_names() -> None:
    identity = RunIdentity(run_id="0102-1504-ab12", user="ana", started_at="")
    assert RunRecord(identity.run_id).folder.parent == runs_folder()
