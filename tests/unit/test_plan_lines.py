"""The lines of a dry run, given to a shell as a person would paste them."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

from orchestrator.fleet.gather import assumed_facts
from orchestrator.plan.launch import plan_launch
from orchestrator.plan.lines import plan_lines
from orchestrator.specs.request import LaunchRequest
from tests import lan

# `ssh` runs the words of the remote side as a machine where home is another folder; `docker` tells what it was given.
SSH = '#!/bin/sh\nfor last; do :; done\nHOME="$REMOTE" exec sh -c "$last"\n'
DOCKER = '#!/bin/sh\nfor word; do case $before in --mount) echo "$word";; esac; before=$word; done\n'


def test_lines_for_nodes_that_were_not_asked_mount_the_folders_in_their_homes(tmp_path: Path) -> None:
    for name, text in {"ssh": SSH, "docker": DOCKER}.items():
        (tmp_path / name).write_text(text)
        (tmp_path / name).chmod(0o755)
    here, there = tmp_path / "here home", tmp_path / "it's there"
    here.mkdir()
    there.mkdir()
    specs = {"alpha": lan.spec("alpha", connection="local"), "beta": lan.spec("beta", workspace="~/my work")}
    plan = plan_launch(
        LaunchRequest(project="orch", nodes=tuple(specs.values())),
        {name: assumed_facts(node) for name, node in specs.items()},
        lan.IDENTITY,
    )
    pasted = subprocess.run(
        ["sh", "-e"], input="\n".join(plan_lines(plan, specs)), capture_output=True, text=True, check=True,
        env={"PATH": f"{tmp_path}:{os.environ['PATH']}", "HOME": str(here), "REMOTE": str(there)},
    )  # fmt: skip
    assert pasted.stdout.splitlines() == [
        f"type=bind,source={home},target=/workspace" for home in (here / "orch/orch", there / "my work/orch")
    ]
    assert (there / "my work/orch/runs" / lan.IDENTITY.run_id / "code").is_dir()
    assert pasted.stderr == ""
