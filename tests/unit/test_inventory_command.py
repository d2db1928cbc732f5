"""`orch inventory …` as it is called: output, errors and exit codes."""

from __future__ import annotations

import io
import json
from pathlib import Path

import pytest

from orchestrator.cli import main
from tests.json_output import json_data

TEXT = """\
nodes:
  alpha: {address: 192.168.1.50, user: ana, port: 2222, jump: gate, labels: {room: lab}, limits: {memory: 1536m}}
  beta: {address: 127.0.0.1, connection: local}
"""


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Folder of its own, without a lab or an environment of the user."""
    (tmp_path / "work").mkdir()
    monkeypatch.chdir(tmp_path / "work")
    monkeypatch.delenv("ORCH_INVENTORY", raising=False)
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    monkeypatch.setenv("HOME", str(tmp_path))
    monkeypatch.setenv("COLUMNS", "120")
    return tmp_path / "work"


def write(path: Path, text: str = TEXT) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    return path


def test_list_shows_one_line_a_node(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "inventory.yaml")
    assert main(["inventory", "list"]) == 0
    rows = [line.split() for line in capsys.readouterr().out.splitlines() if line.strip()]
    assert rows[0] == ["#", "node", "reached", "at", "device", "ranks", "cpus", "memory", "labels"]
    assert rows[1:] == [
        ["0", "alpha", "ana@192.168.1.50:2222", "via", "gate", "auto", "auto", "auto", "1536m", "room=lab"],
        ["1", "beta", "127.0.0.1", "(this", "computer)", "auto", "auto", "auto", "auto"],
    ]


def test_list_as_json_has_units_in_its_names(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "inventory.yaml")
    assert main(["inventory", "list", "--json", "-n", "room=lab"]) == 0
    (alpha,) = json_data(capsys.readouterr().out)
    assert (alpha["name"], alpha["limits"]["memory_mib"]) == ("alpha", 1536)


def test_show_has_every_key_with_its_default(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "inventory.yaml")
    assert main(["inventory", "show", "alpha"]) == 0
    shown = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert shown["workspace"].strip() == "~/orch"
    assert shown["limits.memory"].strip() == "1536m"
    assert shown["limits.shm"].strip() == "auto"
    assert shown["identity"].strip() == "-"
    assert main(["inventory", "show", "--json", "beta"]) == 0
    assert json_data(capsys.readouterr().out)["connection"] == "local"


def test_validate_says_that_all_is_well_or_every_problem(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "inventory.yaml")
    assert main(["inventory", "validate"]) == 0
    assert capsys.readouterr().out == "inventory.yaml: 2 nodes, no problems\n"
    write(folder / "inventory.yaml", TEXT.replace("user", "usr").replace("local", "locl"))
    assert main(["inventory", "validate"]) == 3
    assert capsys.readouterr().err.splitlines() == [
        "error: inventory.yaml has 2 problems",
        "  inventory.yaml:2: unknown key 'usr' in node alpha (did you mean 'user'?)",
        "  inventory.yaml:3: connection in node beta is 'locl'; expected ssh or local",
    ]


def test_the_inventory_meant_is_the_nearest_named(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    def meant(*options: str) -> str:
        assert main(["inventory", "validate", *options]) == 0
        return capsys.readouterr().out.partition(":")[0]

    lab = write(folder.parent / "state" / "orch" / "lab" / "inventory.yaml")
    assert main(["inventory", "validate"]) == 0
    shown = capsys.readouterr()
    assert (shown.out.startswith(f"{lab}: 2 nodes"), shown.err) == (True, "nodes: those of the lab\n")
    write(folder / "inventory.yaml")
    assert main(["inventory", "validate"]) == 0
    shown = capsys.readouterr()
    assert shown.out.startswith("inventory.yaml: 2 nodes")
    assert shown.err == f"nodes: those of inventory.yaml; the lab's: -i {lab}\n"
    monkeypatch.setenv("ORCH_INVENTORY", str(write(folder / "env.yaml")))
    assert meant().endswith("env.yaml")
    write(folder / "named.yaml")
    assert meant("-i", "named.yaml") == "named.yaml"


@pytest.mark.parametrize(
    ("variable", "options", "message"),
    [
        ("", [], "error: no inventory.yaml in this folder"),
        ("", ["-i", "x.yaml"], "error: no x.yaml (given by -i)"),
        ("y.yaml", [], "error: no y.yaml (given by $ORCH_INVENTORY)"),
        ("", ["-i", "."], "error: cannot read .: Is a directory"),
    ],
)
def test_a_missing_inventory_says_how_to_get_one(
    variable: str,
    options: list[str],
    message: str,
    folder: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setenv("ORCH_INVENTORY", variable)
    assert main(["inventory", "list", *options]) == 3
    assert capsys.readouterr().err.splitlines() == [
        message,
        "  → orch init ADDRESS...   # write one for your machines; or begin with simulated ones: orch lab up",
    ]


def test_import_writes_a_file_once(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    command = ["inventory", "import", "node[01-02]", "--user", "ana", "--output", "inventory.yaml"]
    assert main(command) == 0
    assert capsys.readouterr().err == "wrote inventory.yaml; next: orch inventory list -i inventory.yaml\n"
    before = (folder / "inventory.yaml").read_text()
    assert main([*command[:2], "other", "--output", "inventory.yaml"]) == 2
    assert "is there already; nothing was written" in capsys.readouterr().err
    assert (folder / "inventory.yaml").read_text() == before
    assert main([*command[:2], "other", "--output", "inventory.yaml", "--force"]) == 0
    assert "  other:\n" in (folder / "inventory.yaml").read_text()
    assert main([*command[:-1], "nowhere/inventory.yaml"]) == 3


def test_import_reads_files_of_every_kind(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(folder / "config", "Host alpha\n  HostName 10.0.0.1\n  Include x\n")
    write(folder / "hosts.yml", "all:\n  hosts:\n    alpha: {ansible_host: 10.0.0.1}\n")
    write(folder / "hostfile", "alpha slots=2\n")
    for source in ("config", "hosts.yml", "hostfile", "alpha"):
        assert main(["inventory", "import", source]) == 0
        assert "\n  alpha:\n" in capsys.readouterr().out
    assert main(["inventory", "import", "config", "--from", "ssh-config"]) == 0
    assert capsys.readouterr().err == "note: not followed: Include x\n"


def test_import_reads_stdin(folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.TextIOWrapper(io.BytesIO(b"alpha slots=2\n")))
    assert main(["inventory", "import", "-"]) == 0
    assert "nproc_per_node: 2" in capsys.readouterr().out


def test_import_says_what_it_cannot_read(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (folder / "latin").write_bytes(b"caf\xe9\n")
    assert main(["inventory", "import", "latin"]) == 3
    assert main(["inventory", "import", "no/such/file"]) == 3
    assert main(["inventory", "import", "alpha", "--user", "-x"]) == 2
    assert main(["inventory", "import", "gone", "--from", "ansible"]) == 3
    output = capsys.readouterr().err
    assert "latin is not UTF-8 text" in output
    assert "no file no/such/file" in output
    assert "--user '-x'" in output
    assert "cannot read gone: No such file" in output


def test_schema_is_json_on_stdout(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["inventory", "schema"]) == 0
    assert json.loads(capsys.readouterr().out)["anyOf"] == [{"required": ["nodes"]}, {"required": ["clusters"]}]


def test_a_pipe_gets_whole_lines(
    folder: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.delenv("COLUMNS", raising=False)
    labels = ", ".join(f"label{number}: value{number}" for number in range(20))
    (folder / "inventory.yaml").write_text(f"nodes:\n  alpha: {{address: 10.0.0.1, labels: {{{labels}}}}}\n")
    assert main(["inventory", "list"]) == 0
    assert labels.replace(": ", "=").replace(",", "") in capsys.readouterr().out
