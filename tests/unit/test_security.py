"""Rules for what the controller and the nodes never do, checked in every source; and inventories that mean harm."""

from __future__ import annotations

import ast
import json
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import fields, replace
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from orchestrator.cli import main
from orchestrator.fleet.runs.load_plan import recall
from orchestrator.nodes.fake import FakeNode
from orchestrator.plan.lines import plan_lines
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.inventory_files.inventory_file import parse_inventory
from orchestrator.specs.plan_json import from_json, to_json
from orchestrator.specs.request import RunIdentity
from orchestrator.specs.secret import Secret
from orchestrator.store.run_record import RunRecord, runs_folder
from tests import lan
from tests.unit.conftest import THREE, Orch

ROOT = Path(__file__).parents[2]
SOURCES = sorted(
    [path for room in ("contract", "orch_hooks", "orchestrator", "trainer") for path in ROOT.glob(f"{room}/**/*.py")]
)

LISTENS = {
    "orchestrator/watch/server/address.py": "the page of `orch dashboard`, while the command runs: on loopback or with "
    "TLS; no answer without its token or the cookie that replaces it, nor to another host or origin",
    "orchestrator/cli/metrics.py": "figures for Prometheus, while the command runs: on loopback unless --expose is "
    "given, reads requests and changes nothing",
    "orchestrator/watch/server/serving.py": "answers on the socket of the page",
    "orchestrator/nodes/probes/reach_program.py": "the pair probe: on the node's own address, ends by itself, answers "
    "no program that does not know its word",
    "orchestrator/nodes/relay_program.py": "a copy to many nodes: on the node's own address, ends with its "
    "reader, takes nothing without a proof of its token",
    "trainer/agent/listener.py": "the agents of one attempt, while it lasts; no answer without a proof of its token",
    "trainer/agent/rendezvous_port.py": "reserves the port on which ranks meet",
    "trainer/agent/store_proxy.py": "the port on which ranks meet, in front of torch's store: it passes on connections "
    "of the run's own processes alone",
}
"""Modules that open a port, and why each is no daemon."""


def place(path: Path) -> str:
    return str(path.relative_to(ROOT))


def calls(*rooms: str) -> Iterator[tuple[str, ast.Call]]:
    """Every call of the sources, or of these rooms alone, with its place."""
    for path in SOURCES:
        if not rooms or place(path).startswith(rooms):
            for node in ast.walk(parsed(path.read_text("utf-8"))):
                if isinstance(node, ast.Call):
                    yield f"{place(path)}:{node.lineno}", node


@cache
def parsed(source: str) -> ast.Module:
    return ast.parse(source)


def last_name(node: ast.expr) -> str:
    """The name after the last point, without the time that `ast.unparse` takes."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


# ── SSH ──


USES_A_CONNECTION = {"open", "run", "sudo", "shell", "put", "get", "transport", "open_gateway", "forward_local"}
MADE = ("Connection", "Transport")
LOGS_IN = re.compile(r"^(auth_|open_session$|open_channel$|connect$)")


def unheld_connections(source: str) -> list[str]:
    """List what a source does with SSH without a known key; empty where all is held to them."""
    wrong: list[str] = []
    if not re.search("SSHClient|Group|Connection|Transport", source):
        return wrong
    tree = parsed(source)
    for node in ast.walk(tree):
        name = ast.unparse(node.func) if isinstance(node, ast.Call) else ""
        if re.fullmatch(r"(.*\.)?SSHClient|fabric\..*Group|(Serial|Threading)Group", name):
            wrong.append(f"{name} is made")
    for function in [node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)]:
        called = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
        made = [node for node in called if ast.unparse(node.func) in ("fabric.Connection", "Connection")]
        held = [_where(node) for node in called if ast.unparse(node.func) == "hold_to_known_keys"]
        used = [_where(node) for node in called if made and _attribute(node) in USES_A_CONNECTION]
        if len(made) != len(held):
            wrong.append(f"{function.name}: {len(made)} connections, {len(held)} held to known keys")
        if used and held and min(used) < max(held):
            wrong.append(f"{function.name}: a connection is used before it is held to known keys")
        transports = [node for node in called if ast.unparse(node.func).rpartition(".")[2] == "Transport"]
        if transports and any(LOGS_IN.match(_attribute(node)) for node in called):
            wrong.append(f"{function.name}: logs in over a transport of its own")
        if transports and function.name != "offered_key":
            wrong.append(f"{function.name}: makes a transport of its own")
    return wrong


def _where(node: ast.expr) -> tuple[int, int]:
    return node.lineno, node.col_offset


def _attribute(call: ast.Call) -> str:
    return call.func.attr if isinstance(call.func, ast.Attribute) else ""


@pytest.mark.source
def test_every_connection_is_held_to_known_keys() -> None:
    """Fabric accepts any key, a changed one too, unless told otherwise on the very object that connects; a transport of
    paramiko's own checks none, so it is made by who only looks at a key."""
    assert {place(path): wrong for path in SOURCES if (wrong := unheld_connections(path.read_text("utf-8")))} == {}
    made = [(where, ast.unparse(call.func)) for where, call in calls() if last_name(call.func) in MADE]
    makers = [where for where, name in made if name in ("fabric.Connection", "paramiko.Transport")]
    assert len(makers) == 2, makers  # a node or a machine on the way to it, and the look at a key


@pytest.mark.parametrize(
    "body",
    [
        "c = fabric.Connection('a'); c.open()",
        "c = fabric.Connection('a'); c.open(); hold_to_known_keys(c.client, 'a')",
        "c = fabric.Connection('a')\n    c.open()\n    hold_to_known_keys(c.client, 'a')",
        "c = paramiko.SSHClient()",
        "t = paramiko.Transport(s); t.start_client(); t.auth_password('a', 'b')",
        "t = Transport(s)",
    ],
)
def test_a_connection_that_is_not_held_is_seen(body: str) -> None:
    assert unheld_connections(f"def f():\n    {body}\n") != []


@pytest.mark.source
def test_the_linter_refuses_a_policy_that_adds_keys() -> None:
    for policy in ("AutoAddPolicy", "WarningPolicy"):
        code = (
            f"import paramiko\n\nclient = paramiko.SSHClient()\nclient.set_missing_host_key_policy(paramiko.{policy})\n"
        )
        words = (sys.executable, "-m", "ruff", "check", "--output-format", "concise", "--stdin-filename")
        ran = subprocess.run(
            (*words, "orchestrator/nodes/ssh_connection.py", "-"),
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
    """Calls that quote, for `sh` alone; Fabric's own `run` sends the values of `env=` unquoted: it is not called."""
    lines = [ast.unparse(call) for _, call in calls() if last_name(call.func).endswith("exec_command")]
    assert lines == ["channel.exec_command(START)"] * 2
    for where, call in calls("orchestrator/nodes/ssh"):
        assert not {word.arg for word in call.keywords} & {"env", "inline_ssh_env"}, where


SHELLS = {"sh", "bash", "dash", "/bin/sh", "/bin/bash"}
SHOWN_TO_A_PERSON = {"orchestrator/plan/lines.py"}
"""Modules where `sh -c` begins a line that is printed, to be pasted, its words quoted one by one."""
OF_THE_USER = {"orchestrator/fleet/supervise/hooks.py"}
"""Modules where a command of the user runs on this computer, for no node: see tests/unit/test_hooks.py."""


def scripts_that_vary(source: str, constants: set[str] = frozenset()) -> tuple[int, list[str]]:
    """Count the lists of words that give a shell a script, wherever they are written; and the scripts that are not
    constants of their module or of `constants`, which others have."""
    tree = parsed(source)
    known = constants | _constants(tree)
    found, varying = 0, []
    for node in ast.walk(tree):
        if not isinstance(node, ast.List | ast.Tuple):
            continue
        words = [word.value if isinstance(word, ast.Constant) else None for word in node.elts]
        for at in range(len(words) - 1):
            if words[at] in SHELLS and str(words[at + 1]).startswith("-") and str(words[at + 1]).endswith("c"):
                found += 1
                script = node.elts[at + 2] if len(words) > at + 2 else None
                if script is None or not _is_constant(script, known):
                    varying.append(f"{node.lineno}: {ast.unparse(script) if script else 'somebody else adds it'}")
    return found, varying


def _constants(tree: ast.Module) -> set[str]:
    """Names in capitals that the module gives text written in it, and that nothing in it gives anything else."""
    known: set[str] = set()
    for statement in tree.body:
        if isinstance(statement, ast.Assign) and isinstance(statement.targets[0], ast.Name):
            known |= {statement.targets[0].id} if _is_constant(statement.value, known) else set()
    stored = [node.id for node in ast.walk(tree) if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)]
    return {name for name in known if name.isupper() and stored.count(name) == 1}


def _is_constant(script: ast.expr, known: set[str]) -> bool:
    if isinstance(script, ast.Constant):
        return isinstance(script.value, str)
    if isinstance(script, ast.BinOp) and isinstance(script.op, ast.Add):
        return _is_constant(script.left, known) and _is_constant(script.right, known)
    if isinstance(script, ast.JoinedStr):
        parts = [part.value for part in script.values if isinstance(part, ast.FormattedValue)]
        return all(_is_constant(part, known) for part in parts)
    return isinstance(script, ast.Name) and script.id in known


def test_scripts_for_a_nodes_shell_are_constants() -> None:
    """Values of a user or an inventory come in as `$1`, never as text of the script."""
    found = 0
    for path in SOURCES:
        if place(path).startswith("orchestrator/") and place(path) not in SHOWN_TO_A_PERSON | OF_THE_USER:
            count, varying = scripts_that_vary(path.read_text("utf-8"))
            assert varying == [], place(path)
            found += count
    assert found > 20


@pytest.mark.parametrize(
    "line",
    [
        'node.run(["sh", "-c", SCRIPT + f"; echo {project}", "sh"])',
        'argv = ["sh", "-c", SCRIPT + "echo " + project, "sh"]; node.run(argv)',
        'argv = ("bash", "-c", f"echo {project}")',
        'argv = ["env", "A=b", "sh", "-ec", text]',
        'argv = ["sh", "-c"]; argv.append(project)',
        'argv = ["sh", "-c", *words]',
        'argv = ["sh", "-c", SCRIPT.replace("x", project)]',
        'SCRIPT = project; argv = ["sh", "-c", SCRIPT]',
    ],
)
def test_a_script_that_varies_is_seen_wherever_it_is_built(line: str) -> None:
    _, varying = scripts_that_vary(f'SCRIPT = "echo"\n\n\ndef ask(project):\n    {line}\n')
    assert len(varying) == 1
    assert scripts_that_vary('A = "a"\nB = A + "b"\nargv = ["sh", "-c", B, "sh", project]\n') == (1, [])


def test_no_engine_is_asked_over_an_open_port() -> None:
    texts = {place(path): path.read_text("utf-8") for path in SOURCES}
    assert [name for name, text in texts.items() if re.search(r"\b237[56]\b", text)] == []
    assert [name for name, text in texts.items() if "tcp://" in text] == ["orchestrator/nodes/docker_over_ssh.py"]
    assert 'base_url="tcp://node:1"' in texts["orchestrator/nodes/docker_over_ssh.py"]  # never looked up


# ── nothing listens ──


OPENS = {
    "bind", "listen", "create_server", "start_server", "start_unix_server", "create_unix_server",
    "create_datagram_endpoint", "HTTPServer", "ThreadingHTTPServer", "TCPServer", "UDPServer", "ThreadingTCPServer",
    "ThreadingUDPServer",
    "UnixStreamServer", "UnixDatagramServer", "SimpleXMLRPCServer", "Listener", "bind_all", "uvicorn", "serve_forever",
}  # fmt: skip
NO_SOCKET = {
    "orchestrator/fleet/readiness/pair_probe.py": ["one.listen"],
    "orchestrator/cli/dashboard.py": ["bind"],
    "orchestrator/fleet/supervise/attempt.py": ["following.listen", "self._following.listen"],
    "orchestrator/fleet/supervise/follow.py": ["following.listen"],
    "trainer/workloads/custom.py": ["inspect.signature(build).bind"],
}
"""Others that are called so: asked to listen to a container or to have a node listen, and a function's arguments."""


LOOK_UP = {"getattr", "attrgetter", "methodcaller"}


def opening(source: str) -> list[str]:
    """List what a source names that opens a port: called, passed on, imported by another name or looked up."""
    found = set()
    for node in ast.walk(parsed(source)):
        if isinstance(node, ast.Attribute | ast.Name):
            if last_name(node) in OPENS and not isinstance(node.ctx, ast.Store):
                found.add(ast.unparse(node))
        elif isinstance(node, ast.ImportFrom):
            found |= {alias.name for alias in node.names if alias.name in OPENS}
        elif isinstance(node, ast.Call) and last_name(node.func) in LOOK_UP:
            found |= {str(word.value) for word in node.args if isinstance(word, ast.Constant) and word.value in OPENS}
    return sorted(found)


def test_no_module_listens_but_those_that_must() -> None:
    found = {place(path): opening(path.read_text("utf-8")) for path in SOURCES}
    named = {name: words for name, words in found.items() if words and words != NO_SOCKET.get(name)}
    assert set(named) == set(LISTENS), named


@pytest.mark.parametrize(
    "lines",
    [
        "door.bind(where); door.listen(backlog)",
        "self._made.bind(('0.0.0.0', 1))",
        "asyncio.start_server(answer, '0.0.0.0', port)",
        "from socket import create_server as ask\nask(('', 1))",
        "from multiprocessing.connection import Listener",
        "getattr(door, 'listen')(1)",
        "call(door.bind, where)",
        "socketserver.ThreadingTCPServer(('', 1), Answer)",
    ],
)
def test_a_port_is_seen_however_it_is_opened(lines: str) -> None:
    assert opening(lines) != []


def test_what_compose_shows_is_shown_to_this_computer_alone() -> None:
    services = YAML(typ="safe", pure=True).load(ROOT / "compose" / "compose.yaml")["services"]
    published = [port for service in services.values() for port in service.get("ports", ())]
    assert published
    assert [port for port in published if not port.startswith("127.0.0.1:")] == []


# ── containers ──


def test_a_container_has_no_more_rights_than_training_takes() -> None:
    container = lan.plan().nodes[0].container
    asked = container.create_arguments()["HostConfig"]
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
    mounts = lan.plan(data=lan.data(), secrets=(Secret(name="A"),)).nodes[0].container.mounts
    assert {mount.target: mount.read_only for mount in mounts} == {
        "/workspace": False, f"/workspace/data/{lan.DIGEST}": True, "/run/secrets/A": True,
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
    reported = refused(**{key: PLAIN[key] + harm})
    assert re.match(r"inventory\.yaml:\d+: ", reported)
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", reported)  # nor is it shown as it is


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
def test_a_bomb_does_no_harm(content: bytes, capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    """Refused with exit code 3, in a moment, in little memory, in words that a terminal can show."""
    file = tmp_path / "inventory.yaml"
    file.write_bytes(content)
    assert main(["inventory", "validate", "-i", str(file)]) == 3  # a bomb would take for ever
    output = capsys.readouterr()
    assert output.err.startswith("error: ")
    assert len(output.err) < 10_000
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f]", output.err + output.out)


# ── what other machines say ──


@pytest.mark.parametrize("run_id", ["../../elsewhere", "/tmp/x", "a/b", "..", ".hidden", "", "a\nb", "a" * 200])
def test_a_run_whose_id_is_a_path_is_saved_nowhere(run_id: str) -> None:
    with pytest.raises(ConfigError, match="is not a run id"):
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
