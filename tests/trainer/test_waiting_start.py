"""A start that waits for a rank which does not come (waiting_ranks.py is what the ranks run)."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tests.trainer.waiting_ranks import DEADLINE_S


def test_it_ends_by_sigterm_and_by_its_deadline_which_names_who_waits_for_whom(
    forked: Callable[..., Any], tmp_path: Path
) -> None:
    run = forked(1, str(tmp_path), module="tests.trainer.waiting_ranks").result()
    assert run.code == 0, run.err
    # Rank 1 waits in a collective, rank 0 outside; where no rank signals, rank 1 ends by the deadline. A rank that
    # is left out waits until the others have saved.
    assert json.loads(run.out.splitlines()[-1]) == {
        "signalled": [143, 143],
        "deadline": [143, 1],
        "absent": [1],
        "stopped": [0, 0],
    }
    failed = {event["node"]: event for event in run.events("failed")}
    assert set(failed) == {"deadline-1", "absent-0"}
    waited = failed["deadline-1"]
    assert f"Timed out waiting {DEADLINE_S}000ms" in waited["message"]
    where = "rank 1 of 2 (deadline-1) waited at resume, in broadcast for rank 0 (deadline-0): memory, in no collective"
    assert waited["message"].endswith(where)
    assert (waited["owner"], waited["cause"]) == ("infrastructure", "network.timeout")
    assert "group.py" in waited["frame"]
    assert failed["absent-0"]["message"].endswith("; it waited for rank 1")
