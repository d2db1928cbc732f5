"""`--secret`: the value reaches the containers as a file, and stands nowhere else."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from orchestrator.cli import main
from orchestrator.cli.launching.following import spawning_by
from orchestrator.fleet.connect import connecting_by
from orchestrator.fleet.runs import secrets as handed
from orchestrator.fleet.runs.launch import _PREPARE, launch
from orchestrator.fleet.runs.secrets import place_secrets, remove_secrets
from orchestrator.nodes.fake import Answer, FakeNode
from orchestrator.nodes.local import LocalNode
from orchestrator.plan.container import secrets_folder
from orchestrator.specs.errors import CommandFailedError, ConfigError, EngineError
from orchestrator.specs.labels import LABEL_SECRETS
from orchestrator.specs.plan import NodePlan
from orchestrator.specs.plan_json import to_json
from orchestrator.specs.request import RunIdentity
from orchestrator.specs.secret import Secret, is_sensitive, veil_over
from orchestrator.specs.secret_forms import REDACTED, hide_secrets
from orchestrator.store.run_record import RunRecord
from tests import lan
from tests.json_output import json_data
from tests.lan import event
from tests.unit.conftest import THREE, Orch

VALUE = 'tok-"quoted"-Grüße-0123'
OTHER = "line-one-of-it\nline-two-of-it\n"


def keeper(here: lan.Lan) -> dict[str, dict[str, bytes]]:
    """Lets the nodes of a lan keep secrets: files by node, as the constant scripts ask for."""
    saved: dict[str, dict[str, bytes]] = {name: {} for name in here.nodes}

    def programs(name: str, argv: Sequence[str], stdin: bytes) -> Answer:
        if argv[2] == handed._PLACE:
            top, inner, file = argv[4:]
            saved[name][f"{top}/{inner}/{file}"] = stdin
        elif argv[2] == handed._REMOVE:
            folder = "/".join(argv[4:])
            for path in [path for path in saved[name] if path.startswith(f"{folder}/")]:
                del saved[name][path]
        elif argv[2] == handed._READ:
            return 0, "\n".join(value.decode() for value in saved[name].values()), ""
        return 0, "", ""

    for name, node in here.nodes.items():
        del node.answers[("sh", "-c", "*")]
        node.programs = lambda argv, stdin, _timeout_s, name=name: programs(name, argv, stdin)
    return saved


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> tuple[str, ...]:
    """Options for two secrets, one of the environment and one of a file."""
    monkeypatch.setenv("HF_TOKEN", VALUE)
    (tmp_path / "key.pem").write_text(OTHER)
    return ("--secret", "HF_TOKEN", "--secret", f"SIGNING={tmp_path / 'key.pem'}")


def everything_written(folder: Path) -> str:
    return "\n".join(path.read_bytes().decode(errors="replace") for path in folder.rglob("*") if path.is_file())


def assert_nowhere(*texts: object) -> None:
    for text in map(str, texts):
        for value in (VALUE, json.dumps(VALUE)[1:-1], repr(VALUE)[1:-1], *OTHER.split()):
            assert value not in text


def test_the_value_reaches_the_nodes_and_nothing_else(orch: Orch, asked: tuple[str, ...], state: Path) -> None:
    says = (f"[rank0]: I have {VALUE}", event("note", text=VALUE), "[rank0]: line-two-of-it", event("done", step=1))
    here = lan.lan(*THREE, says=says, ends_with=None)
    saved = keeper(here)

    ran = orch("launch", "--detach", "--json", *asked, on=here)
    run_id = json_data(ran.out)["run_id"]
    folder = f"/dev/shm/orch-1000/{run_id}/0-beta"
    assert saved["beta"] == {f"{folder}/HF_TOKEN": VALUE.encode(), f"{folder}/SIGNING": OTHER.encode()}
    ((spec, _facts),) = here.nodes["beta"].engine.made.values()
    assert [(mount.source, mount.target, mount.read_only) for mount in spec.mounts[1:]] == [
        (f"{folder}/HF_TOKEN", "/run/secrets/HF_TOKEN", True),
        (f"{folder}/SIGNING", "/run/secrets/SIGNING", True),
    ]
    assert (spec.environment["HF_TOKEN_FILE"], "HF_TOKEN" in spec.environment) == ("/run/secrets/HF_TOKEN", False)

    logs, again = orch("logs", on=here), orch("logs", "--json", on=here)
    assert logs.out.splitlines() == ["[all 3 nodes] I have ***", "[all 3 nodes] ***"]
    status, stopped = orch("status", "--json", on=here), orch("stop", on=here)
    assert stopped.code == 0
    assert saved == {name: {} for name in THREE}
    calls = [(node.calls, node.engine.calls) for node in here.nodes.values()]
    assert_nowhere(ran, logs, again, status, stopped, spec, calls, RunRecord(run_id).plan(), everything_written(state))


def test_from_a_computer_that_knows_nothing_the_lines_are_hidden_too(
    orch: Orch, asked: tuple[str, ...], state: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lan.lan(*THREE, says=(f"[rank0]: I have {VALUE}",), ends_with=None)
    keeper(here)
    orch("launch", "--detach", *asked, on=here)
    shutil.rmtree(state)
    monkeypatch.delenv("HF_TOKEN")
    assert "[1 beta ] I have ***\n" in orch("logs", "-n", "beta", on=here).out
    assert_nowhere(everything_written(state))


def test_a_run_that_is_watched_to_its_end_leaves_none(orch: Orch, asked: tuple[str, ...], state: Path) -> None:
    here = lan.lan(*THREE, says=(f"[rank0]: I have {VALUE}", event("done", step=1)))
    saved = keeper(here)
    ran = orch("launch", *asked, on=here)
    assert (ran.code, saved) == (0, {name: {} for name in THREE})
    assert "I have ***" in ran.out
    assert_nowhere(ran, everything_written(state))


def test_clean_takes_them_along(orch: Orch, asked: tuple[str, ...]) -> None:
    here = lan.lan(*THREE, says=(event("done", step=1),))
    saved = keeper(here)
    orch("launch", "--detach", *asked, on=here)
    assert all(saved.values())
    assert orch("clean", on=here).code == 0
    assert not any(saved.values())


def test_a_launch_that_is_undone_takes_them_back(orch: Orch, asked: tuple[str, ...]) -> None:
    here = lan.lan(*THREE)
    saved = keeper(here)
    here.nodes["gamma"].engine.failures["start"] = EngineError("no space left on device", node="gamma")
    ran = orch("launch", *asked, on=here)
    assert (ran.code, here.containers, any(saved.values())) == (4, {}, False)


def test_a_forecast_leaves_none(orch: Orch, asked: tuple[str, ...]) -> None:
    here = lan.lan(*THREE, says=(event("forecast", **lan.forecast()), event("done", step=0)))
    saved = keeper(here)
    assert orch("launch", "--forecast", *asked, on=here).code == 0
    assert not any(saved.values())


def test_a_resumed_run_asks_for_the_same_again(
    orch: Orch, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lan.lan(*THREE, says=(event("done", step=1),))
    saved = keeper(here)
    run_id = json_data(orch("launch", "--detach", "--json", *asked, on=here).out)["run_id"]
    orch("stop", run_id, on=here)
    again = json_data(orch("launch", "--detach", "--json", "--resume", run_id, on=here).out)
    assert again["run_id"] == run_id
    assert saved["alpha"][f"/dev/shm/orch-1000/{run_id}/1-alpha/HF_TOKEN"] == VALUE.encode()
    orch("stop", run_id, on=here)

    monkeypatch.delenv("HF_TOKEN")
    ran = orch("launch", "--resume", run_id, on=here)
    assert (ran.code, here.containers) == (3, {})
    assert ran.err == (
        "error: secrets that the run asks for are not on this computer\n"
        "  --secret HF_TOKEN: there is no variable HF_TOKEN in the environment\n"
        "  → export the variable, or say where it is: --secret NAME=FILE\n"
    )


@pytest.mark.parametrize(
    ("word", "code", "says"),
    [
        ("ABSENT", 3, "--secret ABSENT: there is no variable ABSENT in the environment"),
        ("A=nowhere/key", 3, "nowhere/key is not a file"),
        ("A=empty", 3, "empty has no content"),
        ("A=large", 3, "large has more than 512 KiB"),
        ("A=", 2, "--secret A: expected NAME or NAME=FILE"),
        ("../A", 2, "--secret ../A: expected NAME or NAME=FILE"),
        ("A B", 2, "--secret A B: expected NAME or NAME=FILE"),
        ("Ä", 2, "--secret Ä: expected NAME or NAME=FILE"),
    ],
)
def test_what_cannot_be_handed_over_is_reported_before_any_node_is_asked(
    orch: Orch, word: str, code: int, says: str
) -> None:
    Path("empty").touch()
    Path("large").write_bytes(b"x" * (512 * 1024 + 1))
    here = lan.lan(*THREE)
    ran = orch("launch", "--secret", word, on=here)
    assert (ran.code, says in ran.err) == (code, True), ran.err
    assert [call for node in here.nodes.values() for call in node.calls if call != ("close",)] == []


def test_a_dry_run_shows_names_alone(orch: Orch, asked: tuple[str, ...]) -> None:
    here = lan.lan(*THREE)
    lines = orch("launch", "--dry-run", *asked, on=here)
    assert 'printf %s "$HF_TOKEN" | ssh 10.0.0.11 ' in lines.out
    assert "--env HF_TOKEN_FILE=/run/secrets/HF_TOKEN" in lines.out
    plan = orch("launch", "--dry-run", "--json", *asked, on=here)
    assert [secret["name"] for secret in json_data(plan.out)["secrets"]] == ["HF_TOKEN", "SIGNING"]
    assert_nowhere(lines, plan)


def test_without_secrets_a_plan_says_nothing_of_any(orch: Orch) -> None:
    plan = json_data(orch("launch", "--dry-run", "--json", on=lan.lan(*THREE)).out)
    assert "secrets" not in plan
    assert LABEL_SECRETS not in plan["nodes"][0]["container"]["labels"]


# ── variables whose name says that they are secret ──


OPAQUE = "q7Zt1LmX0vB4"


@pytest.mark.parametrize(
    "name",
    [
        "WANDB_API_KEY", "HF_TOKEN", "hf_token", "AWS_SECRET_ACCESS_KEY", "PGPASSWORD", "DB_PASSWORD", "MY_SECRETS",
        "MYSQL_PWD", "WANDB_APIKEY", "GITHUB_PAT", "SSH_PASSPHRASE", "REDIS_PASS", "PRIVATE_KEY_PEM", "SENTRY_DSN",
        "GOOGLE_APPLICATION_CREDENTIALS", "ROOT_PASSWD", "SSH_PRIVATEKEY", "AWS_ACCESS_KEY_ID", "SLACK_WEBHOOK",
        "SLACK_WEBHOOK_URL", "CONNECTION_STRING", "AZURE_STORAGE_CONN_STR", "JWT", "COOKIE", "SESSION_COOKIE", "AUTH",
        "HTTP_AUTH", "BEARER", "BEARER_TOKEN", "CREDS", "AWS_CREDS", "KEY", "MY_KEY", "API_TOKENS", "my-api-key",
    ],
)  # fmt: skip
def test_names_of_secrets(name: str) -> None:
    assert is_sensitive(name, OPAQUE)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        *((name, OPAQUE) for name in (
            "TOKENIZERS_PARALLELISM", "TOKENIZER", "HF_TOKEN_FILE", "KEYBOARD", "MONKEY", "LANG", "GREETING", "PWD",
            "OLDPWD", "PATH", "COMPASS", "BYPASS_CACHE", "N_PASSES", "PATCH_SIZE", "DATABASE_URL", "XAUTHORITY",
            "SSH_AUTH_SOCK", "AUTHOR", "KEYS_TO_LOG", "COOKIECUTTER_REPO", "WEBHOOK_PORT",
        )),
        *((name, "512") for name in ("MAX_TOKENS", "MAX_NEW_TOKENS", "NUM_TOKENS", "TOKENS_PER_BATCH", "N_TOKENS",
                                     "PAD_TOKEN_ID", "TOKEN_COUNT", "TOKENS", "IMAGE_TOKENS")),
        *((name, "loss") for name in ("SORT_KEY", "ORDER_KEY", "GROUP_KEY", "KEY", "LABEL_KEY", "PRIMARY_KEY")),
        ("PAD_TOKEN", "<pad>"), ("EOS_TOKEN", "</s>"), ("AUTH", "basic"), ("USE_AUTH", "1"), ("ACCEPT_COOKIES", "true"),
    ],
)  # fmt: skip
def test_names_of_other_things(name: str, value: str) -> None:
    assert not is_sensitive(name, value)


RANDOM = "Zk3vQ9xT1mB7nR5wJ2cL8dF4hG6sP0aYuEiO"


@pytest.mark.parametrize(
    "secret",
    [
        f"ghp_{RANDOM}", f"gho_{RANDOM}", f"github_pat_11ABC_{RANDOM}", f"glpat-{RANDOM[:20]}", f"hf_{RANDOM[:34]}",
        f"sk-{RANDOM}", f"sk-proj-{RANDOM}", f"sk-ant-api03-{RANDOM}", "AKIAIOSFODNN7EXAMPLE", "ASIAIOSFODNN7EXAMPLE",
        "xoxb-1234567890-abcdefghij", f"AIza{RANDOM[:35]}", f"npm_{RANDOM}", f"pypi-AgE{RANDOM}", f"dckr_pat_{RANDOM}",
        f"eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0In0.{RANDOM}",
        f"-----BEGIN PRIVATE KEY-----\n{RANDOM}\n-----END PRIVATE KEY-----",
        f"-----BEGIN OPENSSH PRIVATE KEY-----\n{RANDOM}\n-----END OPENSSH PRIVATE KEY-----",
    ],
)  # fmt: skip
def test_a_value_with_the_form_of_a_secret(orch: Orch, state: Path, secret: str) -> None:
    """The name of its variable does not matter: no plan, no line of `--dry-run`, no debug file and no log holds it."""
    assert is_sensitive("PLACE", secret)
    assert is_sensitive("PLACE", f"Authorization: Bearer {secret}")
    assert hide_secrets(f"a '{secret}', b") == "a '***', b"
    plan = orch("launch", "--dry-run", "--json", "--env", f"PLACE=x {secret}", on=lan.lan(*THREE))
    lines = orch("--debug", "launch", "--dry-run", "--env", f"PLACE=x {secret}", on=lan.lan(*THREE))
    assert (plan.code, lines.code, json_data(plan.out)["environment"]["PLACE"]) == (0, 0, REDACTED)
    assert "values not shown, and taken from your shell by these lines: PLACE" in lines.out
    shown = plan.out + plan.err + lines.out + lines.err + everything_written(state)
    assert secret.splitlines()[-1] not in shown
    assert RANDOM[:20] not in shown


@pytest.mark.parametrize(
    "value",
    [
        "sk-learn", "sk-learn-pipeline-of-the-third-trial", "hf_transfer", "hf_hub_download", "ghp_", "AKIA",
        "task-" + "a" * 30, "MAKIAIOSFODNN7EXAMPLEX", "xoxo-", "eyJhbGciOiJIUzI1NiJ9", "step-00000080", "0" * 40,
        "a" * 100_000, "-----BEGIN CERTIFICATE-----", "-----BEGIN PUBLIC KEY-----", "gpt2", "runs/1124-0102-cc87",
        "eyJ-" * 20_000, "https://host/x?sort=key&page=2", "10.0.0.11:12355", "/home/ana/sk-/data",
        "git@github.com:ana/mine.git",
    ],
)  # fmt: skip
def test_a_value_of_another_form(value: str) -> None:
    assert not is_sensitive("PLACE", value)
    assert hide_secrets(value) == value


def test_a_secret_in_the_command_is_noted(orch: Orch) -> None:
    ran = orch("launch", "--dry-run", "--", "gpt2", "--prompt", f"ghp_{RANDOM}", on=lan.lan(*THREE))
    assert "note: the command holds a secret, which the plan keeps and everyone on a node can read\n" in ran.err
    assert "the command holds" not in orch("launch", "--dry-run", "--", "gpt2", on=lan.lan(*THREE)).err


@pytest.mark.parametrize(
    ("value", "hidden"),
    [
        ("postgres://u:pw-of-the-database@db:5432/x", True),
        ("redis://:only-a-password@cache", True),
        ("amqp+tls://user:p%40ss@queue/", True),
        ("https://example.org/a:b@c", False),
        ("ssh://git@example.org/repository", False),
        ("--index-url https://u:pw@example.org/simple", True),
        ("https://account.blob.example.org/data?sv=1&sig=q7Zt1LmX0vB4", True),
        ("https://example.org/data?sort_key=name&design=2", False),
        ("10.0.0.11:12355", False),
        ("x" * 100_000 + "://:@", False),
    ],
)
def test_an_address_with_a_password_is_hidden_whatever_its_variable_is_called(value: str, hidden: bool) -> None:
    assert is_sensitive("PLACE", value) is hidden
    plan = json.loads(to_json(lan.plan(environment={"PLACE": value})))
    assert (plan["environment"]["PLACE"] == REDACTED) is hidden
    assert (plan["nodes"][0]["container"]["environment"]["PLACE"] == REDACTED) is hidden


def test_a_password_of_an_address_is_hidden_alone_too(orch: Orch, state: Path) -> None:
    here = lan.lan(*THREE, says=("[rank0]: connecting with pw-of-the-database", event("done", step=1)))
    ran = orch("launch", "--env", "DATABASE_URL=postgres://u:pw-of-the-database@db/x", on=here)
    assert ran.code == 0
    assert "] connecting with ***\n" in ran.out
    assert "pw-of-the-database" not in ran.err + everything_written(state)
    again = orch("resume", next((state / "runs").iterdir()).name, "--detach", on=here)
    assert (again.code, "had DATABASE_URL, and no plan holds the value" in again.err) == (3, True)


def test_a_sensitive_variable_reaches_the_container_and_is_hidden_elsewhere(orch: Orch, state: Path) -> None:
    here = lan.lan(*THREE, says=(f"[rank0]: I have {VALUE}", event("done", step=1)))
    option = ("--env", f"HF_TOKEN={VALUE}", "--env", "GREETING=hello")
    stdins: list[bytes] = []

    def take(_argv: Sequence[str], stdin: bytes, _timeout_s: float) -> tuple[int, str, str]:
        stdins.append(stdin)
        return 0, "", ""

    for node in here.nodes.values():
        del node.answers[("sh", "-c", "*")]
        node.programs = take

    lines, plan = orch("launch", "--dry-run", *option, on=here), orch("launch", "--dry-run", "--json", *option, on=here)
    assert "--env HF_TOKEN --env GREETING=hello" in lines.out
    assert "# values not shown, and taken from your shell by these lines: HF_TOKEN\n" in lines.out
    assert json_data(plan.out)["environment"] == {**json_data(plan.out)["environment"], "HF_TOKEN": REDACTED}

    ran = orch("launch", *option, on=here)
    ((spec, _),) = here.nodes["alpha"].engine.made.values()
    assert spec.environment["HF_TOKEN"] == VALUE
    assert ran.err.startswith("note: whoever may use Docker on a node can read HF_TOKEN, by docker inspect\n")
    assert "  → --secret HF_TOKEN\n" in ran.err
    assert "] I have ***\n" in ran.out  # of one node, or of those that wrote it at the same time
    assert_nowhere(lines, plan, ran, b"".join(stdins).decode(), everything_written(state))


def test_its_value_is_asked_for_again_by_a_resumed_run(orch: Orch, monkeypatch: pytest.MonkeyPatch) -> None:
    here = lan.lan(*THREE, says=(event("done", step=1),))
    ran = orch("launch", "--json", "--env", f"HF_TOKEN={VALUE}", "--env", "GREETING=hello", on=here)
    resume = ("launch", "--detach", "--json", "--resume", json_data(ran.out)["run_id"])

    refused = orch(*resume, on=here)
    assert refused.code == 3
    assert refused.err == (
        "error: the earlier attempt had HF_TOKEN, and no plan holds the value\n"
        "  → export HF_TOKEN, or say it again: --env HF_TOKEN=…\n"
    )
    monkeypatch.setenv("HF_TOKEN", "of-the-environment")
    for option, value in [((), "of-the-environment"), (("--env", "HF_TOKEN=said-again"), "said-again")]:
        assert orch(*resume, *option, on=here).code == 0
        spec, _ = list(here.nodes["alpha"].engine.made.values())[-1]
        assert (spec.environment["HF_TOKEN"], spec.environment["GREETING"]) == (value, "hello")


def test_a_supervisor_in_the_background_has_what_no_record_holds(orch: Orch) -> None:
    """A supervisor may have to launch the run again, with fewer nodes."""
    here = lan.lan(*THREE, ends_with=None)
    started: list[tuple[tuple[str, ...], dict[str, str]]] = []
    noting = spawning_by(lambda argv, _log, variables: started.append((tuple(argv), dict(variables))))
    with noting, connecting_by(here.connect):
        assert main(("launch", "--yes", "--detach", "--env", f"HF_TOKEN={VALUE}", "--env", "GREETING=hello")) == 0
    ((argv, variables),) = started
    assert variables == {"HF_TOKEN": VALUE}
    assert_nowhere(argv)


def test_without_a_value_a_run_can_be_watched_but_not_launched_again(
    orch: Orch, asked: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    here = lan.lan(*THREE, says=(f"[rank0]: I have {VALUE}", event("done", step=1)))
    saved = keeper(here)
    run_id = json_data(orch("launch", "--detach", "--json", *asked, "--env", f"MY_KEY={OTHER}", on=here).out)["run_id"]
    monkeypatch.delenv("HF_TOKEN")
    watched = orch("supervise", run_id, on=here)
    assert watched.code == 0, watched.err
    assert not any(saved.values())
    assert_nowhere(watched)
    plan = RunRecord(run_id).plan()
    assert plan is not None
    orch("clean", on=here)
    for missing, says in (
        (plan, "secrets that the run asks for"),
        (replace(plan, secrets=()), "had MY_KEY, and no plan holds the value"),
    ):
        with pytest.raises(ConfigError, match=says):
            launch(here.nodes, missing)
    assert here.containers == {}


def test_a_word_that_is_no_assignment_is_not_repeated_whole(orch: Orch) -> None:
    ran = orch("launch", "--env", f"HF-TOKEN={VALUE}", on=lan.lan(*THREE))
    assert ran.code == 2
    assert_nowhere(ran)


def test_values_are_hidden_as_they_are_and_as_json_writes_them() -> None:
    veil = veil_over([VALUE, OTHER, "short"])
    assert veil.hide(f"a {VALUE} b line-one-of-it") == "a *** b ***"
    assert json.loads(veil.hide(json.dumps({"text": VALUE}))) == {"text": "***"}
    assert json.loads(veil.hide(json.dumps({"text": VALUE}, ensure_ascii=False))) == {"text": "***"}
    assert veil.hide("step 128 is short") == "step 128 is short"


def test_the_longer_of_two_values_is_hidden_whole() -> None:
    assert veil_over(["password", "password-and-more"]).hide("password-and-more") == "***"


# ── the scripts, run by a real shell ──


@pytest.fixture
def part() -> Iterator[NodePlan]:
    """A part of a run whose secrets lie in this computer's memory."""
    identity = RunIdentity(run_id=f"test-{os.getpid()}", user="ana", started_at="")
    plan = lan.plan(("alpha",), identity, secrets=(Secret(name="HF_TOKEN"),))
    folder = secrets_folder(os.getuid(), identity, "alpha")
    container = plan.nodes[0].container
    labels = {**container.labels, LABEL_SECRETS: folder}
    yield replace(plan.nodes[0], container=replace(container, labels=labels))
    shutil.rmtree(Path(folder).parent, ignore_errors=True)


@pytest.fixture
def machine() -> LocalNode:
    return LocalNode("alpha")


def test_files_are_for_their_user_alone_and_go_without_a_trace(part: NodePlan, machine: LocalNode) -> None:
    folder = Path(part.container.labels[LABEL_SECRETS])
    for value in (b"first", VALUE.encode() + b"\0\n"):  # a second attempt to place it replaces the file
        place_secrets(machine, part, {"HF_TOKEN": value})
        assert (folder / "HF_TOKEN").read_bytes() == value
    assert [path.name for path in folder.iterdir()] == ["HF_TOKEN"]
    modes = [path.stat().st_mode & 0o777 for path in (folder / "HF_TOKEN", folder, folder.parents[1])]
    assert modes == [0o400, 0o700, 0o700]
    for _ in range(2):
        remove_secrets(machine, str(folder))
        assert not folder.parent.exists()


def test_a_folder_that_somebody_else_made_first_is_refused(part: NodePlan, machine: LocalNode, tmp_path: Path) -> None:
    top = Path("/dev/shm") / "orch-99999999"  # of no user
    top.symlink_to(tmp_path)
    labels = {**part.container.labels, LABEL_SECRETS: f"{top}/run/0-alpha"}
    try:
        with pytest.raises(CommandFailedError, match="handing over the secret HF_TOKEN failed") as caught:
            place_secrets(
                machine, replace(part, container=replace(part.container, labels=labels)), {"HF_TOKEN": VALUE.encode()}
            )
    finally:
        top.unlink()
    assert_nowhere(caught.value, everything_written(tmp_path))


@pytest.mark.parametrize(
    "folder", ["/home/ana", "/dev/shm/orch-1/../../etc", "/dev/shm/orch-1/run/..", "/dev/shm/orch-1/a"]
)
def test_a_label_of_a_stranger_removes_nothing(folder: str) -> None:
    node = FakeNode("alpha")
    with pytest.raises(ConfigError, match="names no folder of secrets"):
        remove_secrets(node, folder)
    assert node.calls == []


def test_the_plan_on_a_node_is_for_its_user_alone(machine: LocalNode, tmp_path: Path) -> None:
    """The same holds where an older version left one that others can read."""
    plan = tmp_path / "runs" / "r-1" / "plan.json"
    plan.parent.mkdir(parents=True)
    plan.write_text("older")
    plan.chmod(0o644)
    words = [str(tmp_path), "r-1", "", ""]
    assert machine.run(["sh", "-c", _PREPARE, "sh", *words], stdin=b"{}").exit_code == 0
    assert (plan.read_text(), plan.stat().st_mode & 0o777) == ("{}", 0o600)
    assert sorted(path.name for path in plan.parent.iterdir()) == ["code", "plan.json"]
