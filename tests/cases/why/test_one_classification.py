"""Container, controller and screen give one answer to the same lines: recorded by the project, and reported by others.

`reported.yaml` holds error lines that users of PyTorch wrote into public threads, a few of each, with the cause that
was found there. Rows with `generic: true` are those whose lines do not tell the cause: nothing wrong may be said.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

import pytest
from ruamel.yaml import YAML

from contract.failures.classify import SIGNATURES, FailedRank, classify
from contract.log_lines import split_rank
from orchestrator.checks.failure import EndedBadly, is_consequence, root_cause
from orchestrator.render.consequences import Consequences
from orchestrator.specs.run_events import RunLine
from tests.cases.why.reading import LOGS, read_case
from trainer.agent.rank_exit import read_rank_exit
from trainer.agent.rank_exit import root_cause as first_of

RECORDED = Path(__file__).parents[2] / "fixtures" / "torchrun"
SUMMARY = """\
Root Cause (first observed failure):
[0]:
  time      : 2026-01-02_15:04:05
  host      : alpha
  rank      : 0 (local_rank: 0)
  exitcode  : {code} (pid: 77)
"""


@dataclass(frozen=True, kw_only=True)
class Reported:
    """One row."""

    id: str
    owner: str
    source: str
    own: tuple[str, ...]
    agent: tuple[str, ...]
    exit_code: int
    kernel: tuple[str, ...]
    generic: bool

    @property
    def lines(self) -> list[str]:
        """Lines as in the container's log."""
        own = [f"[rank0]: {line}" for line in self.own]
        return [*own, *self.agent, *SUMMARY.format(code=self.exit_code).splitlines()]


def reported() -> list[Reported]:
    rows = YAML(typ="safe").load(Path(__file__).with_name("reported.yaml"))
    return [
        Reported(
            id=row["id"],
            owner=row["owner"],
            source=row["source"],
            own=tuple(row.get("own", "").splitlines()),
            agent=tuple(row.get("agent", "").splitlines()),
            kernel=tuple(row.get("kernel", "").splitlines()),
            exit_code=row.get("exit_code", 1),
            generic=row.get("generic", False),
        )
        for row in rows
    ]


ROWS = reported()


def ended(lines: list[str], kernel: tuple[str, ...] = (), node: str = "alpha", code: int = 1) -> EndedBadly:
    return EndedBadly(
        node=node,
        node_rank=0,
        first_rank=0,
        exit_code=code,
        oom_killed=False,
        lines=tuple(map(split_rank, lines)),
        kernel=kernel,
    )


def folded(lines: list[str]) -> bool:
    """Return whether the screen replaces the last traceback of rank 0 by a line."""
    fold = Consequences({})
    given = [RunLine(time="", node="alpha", node_rank=0, rank=rank, text=text) for rank, text in map(split_rank, lines)]
    shown = [line for one in given for line in fold.hear(one)] + list(fold.rest())
    return not any("Traceback (most recent call last)" in line.text for line in shown)


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.id}-{row.source.partition('github.com/')[2]}")
def test_a_failure_that_others_reported(row: Reported) -> None:
    failure = root_cause([ended(row.lines, row.kernel)])
    assert failure is not None
    assert failure.cause is not None
    assert (failure.cause.id, failure.cause.owner) == (row.id, row.owner)
    assert "?" not in failure.cause.explanation
    if not row.kernel:
        container = read_rank_exit("alpha", 1, row.lines, first_rank=0)
        assert (container.cause, container.outcome) == (row.id, row.owner)
        assert container.because_of_others == is_consequence(ended(row.lines))


def test_the_reported_cases_are_many_and_nine_in_ten_are_distinguished() -> None:
    assert len(ROWS) >= 71
    split_by_labels = [row for row in ROWS if not row.generic]
    assert len(split_by_labels) >= 0.9 * len(ROWS)
    assert {row.id for row in ROWS if row.generic} <= {"code.exception", "code.exit", "data.worker_exited"}
    assert not {row.id for row in split_by_labels} & {"code.exception", "code.exit"}
    assert all(re.match(r"https://\S+$", row.source) for row in ROWS)


@pytest.mark.parametrize("path", sorted(LOGS.glob("*.log")), ids=lambda path: path.stem)
def test_a_recorded_log_is_read_alike_everywhere(path: Path) -> None:
    """Each node's part of a log is classified."""
    _, *parts = path.read_text().split("--- ")
    signatures = {signature.id: signature for signature in SIGNATURES}
    for part in (part for part in parts if not part.startswith("kernel ")):
        title, *lines = part.splitlines()
        seat, code = int(title.split()[1]), int(title.split()[2].removeprefix("exit="))
        if code == 0:
            continue
        container = read_rank_exit("alpha", code, lines, first_rank=seat)
        node = EndedBadly(
            node="alpha", node_rank=seat, first_rank=seat, exit_code=code, oom_killed=False,
            lines=tuple(map(split_rank, lines)),
        )  # fmt: skip
        failure = root_cause([node])
        assert failure is not None
        assert failure.cause is not None
        assert (container.cause, container.outcome) == (failure.cause.id, failure.cause.owner)
        assert container.outcome == signatures[container.cause].owner
        assert container.because_of_others == is_consequence(node)


@pytest.mark.parametrize("path", sorted(RECORDED.glob("*.log")), ids=lambda path: path.stem)
def test_what_torchrun_wrote_is_read_alike_everywhere(path: Path) -> None:
    lines = path.read_text().splitlines()
    container, failure = read_rank_exit("alpha", 1, lines, first_rank=0), root_cause([ended(lines)])
    assert failure is not None
    assert failure.cause is not None
    assert (container.cause, container.outcome) == (failure.cause.id, failure.cause.owner)
    assert container.because_of_others == is_consequence(ended(lines))


WATCHDOG = next(row for row in ROWS if row.id == "nccl.timeout" and row.exit_code == -6)
"""Its survivors abort (SIGABRT), and may end before the rank that they waited for."""
LOSE_A_PEER = {one.id for one in SIGNATURES if one.lost_peer}
OWN = [row for row in ROWS if row.own and not row.kernel and row.id not in LOSE_A_PEER]


@pytest.mark.parametrize("row", OWN, ids=lambda row: f"{row.id}-{row.source.partition('github.com/')[2]}")
def test_a_survivor_that_ends_first_is_not_the_cause(row: Reported) -> None:
    own = ended(row.lines)
    survivor = ended(WATCHDOG.lines, node="beta")
    for order in ((own, survivor), (survivor, own)):
        failure = root_cause(order)
        assert failure is not None
        assert failure.cause is not None
        assert (failure.node, failure.cause.id) == ("alpha", row.id)
    both = (("beta", WATCHDOG.lines), ("alpha", row.lines))
    rank_exits = [read_rank_exit(name, 1, lines, first_rank=0) for name, lines in both]
    assert first_of(rank_exits).node == first_of(rank_exits[::-1]).node == "alpha"


TRACEBACK = ("Traceback (most recent call last):", '  File "/workspace/code/train.py", line 9, in main')


@pytest.mark.parametrize(
    "row", [row for row in ROWS if row.own and not row.kernel], ids=lambda row: f"{row.id}-{row.source[-12:]}"
)
def test_the_screen_folds_what_only_lost_a_peer_and_nothing_else(row: Reported) -> None:
    error = row.own[-1] if "Error" in row.own[-1] else f"RuntimeError: {row.own[-1]}"
    lines = [f"[rank0]: {line}" for line in (*TRACEBACK, error)]
    found = classify(FailedRank(own=(*TRACEBACK, error), exit_code=1))
    assert found is not None
    assert folded(lines) == found.lost_peer


WELL = (
    "Using the latest cached version of the dataset since glue couldn't be found on the Hugging Face Hub",
    'Downloading: "https://download.pytorch.org/models/resnet18-f37072fd.pth" to /cache/resnet18-f37072fd.pth',
    "'(ReadTimeoutError(\"HTTPSConnectionPool(host='huggingface.co', port=443): Read timed out.\"), '(Request ID: 1)')'"
    " thrown while requesting HEAD https://huggingface.co/gpt2/resolve/main/config.json",
    "WARNING: Retrying (Retry(4)) after connection broken by 'ReadTimeoutError(\"HTTPSConnectionPool(host='x'\")'",
    "HTTP Error 429 thrown while requesting GET https://huggingface.co/api/models/gpt2",
    "Retrying in 1s [Retry 1/5].",
    "[nltk_data] Error loading punkt: <urlopen error [Errno -3] Temporary",
    "Failed to download image https://img.example/7.jpg: 404, skipped",
    "Warning: You are sending unauthenticated requests to the HF Hub. Please set a HF_TOKEN",
    "UserWarning: User provided device_type of 'cuda', but CUDA is not available. Disabling",
    "using CPU, this will be slow",
    "The installed version of bitsandbytes was compiled without GPU support. 8-bit optimizers are unavailable.",
    "UserWarning: Plan failed with a cudnnException: cudnn_status: CUDNN_STATUS_NOT_SUPPORTED (Triggered internally)",
    "UserWarning: Failed to load image Python extension: '/x/image.so: undefined symbol: _ZN3c1017Register'",
    "A module that was compiled using NumPy 1.x cannot be run in NumPy 2.0.1 as it may crash.",
    "UserWarning: Failed to initialize NumPy: _ARRAY_API not found",
    "wandb: Currently logged in as: me. Use `wandb login --relogin` to force relogin",
    "n1:10:10 [0] NCCL INFO NET/IB : No device found.",
    "n1:1:2 [1] NCCL INFO Call to connect returned Connection refused, retrying",
    "n1:1:2 [1] NCCL INFO socketStartConnect: Connect to 10.0.0.2<4> returned Connection refused, retrying",
    "stty: 'standard input': Inappropriate ioctl for device",
    "Failed to initialize process group: Error initializing torch.distributed using env:// rendezvous: environment"
    " variable RANK expected, but not set, falling back to single GPU",
    "step 429: loss 5.03, 503 samples/s",
    "checkpoint downloaded from the hub in 3.1 s; access to the dataset took 0.2 s",
)
"""Lines that runs write which end well."""


@pytest.mark.parametrize("line", WELL)
@pytest.mark.parametrize("code", [1, -9])
def test_a_line_of_a_run_that_is_well_is_no_cause(line: str, code: int) -> None:
    found = classify(FailedRank(own=("epoch 1", line, "epoch 2"), exit_code=code))
    assert found is not None
    assert found.id == {1: "code.exit", -9: "memory.killed"}[code]


@pytest.mark.parametrize(
    ("address", "id"),
    [("192.168.1.9", "code.exception"), ("localhost", "code.exception"), ("x.org", "network.download")],
)
def test_a_service_of_the_local_network_is_no_download(address: str, id: str) -> None:
    error = (
        f"requests.exceptions.ConnectionError: HTTPConnectionPool(host='{address}', port=5000): Max retries exceeded"
    )
    found = classify(FailedRank(own=(*TRACEBACK, f"{error} (Connection refused)"), exit_code=1))
    assert found is not None
    assert found.id == id


def test_every_signature_is_covered() -> None:
    recorded = {read_case(path).cause for path in LOGS.glob("*.log")}
    assert {one.id for one in SIGNATURES} - recorded - {row.id for row in ROWS} == {
        "node.lost",
        "node.frozen",
        "code.hung",
        "start.files_differ",
        "data.read_only",
        "data.not_brought",
        "start.not_built",
        "start.not_on_path",
    }


@pytest.mark.parametrize(
    "kind", ["ConfigurationError", "OptionError", "trainer.errors.OptionError", "trainer.errors.UsageError"]
)
def test_a_refusal_of_the_trainer_is_of_the_configuration(kind: str) -> None:
    found = classify(FailedRank(own=(*TRACEBACK, f"{kind}: --no-amp contradicts --precision"), exit_code=1))
    assert found is not None
    assert (found.id, found.values) == ("start.configuration", {"problem": "--no-amp contradicts --precision"})
