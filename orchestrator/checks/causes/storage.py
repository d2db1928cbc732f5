"""Causes: disks and files."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Advice

ADVICE = (
    Advice(
        id="storage.full",
        what="the disk of {node} is full: what was being written is lost, what was complete before is kept",
        todo=(
            "make room on {node}: orch clean, docker image prune, df -h",
            "then continue from the last checkpoint: orch resume {run}",
        ),
        page="resources.disk_low",
    ),
    Advice(
        id="storage.read_only",
        what="a file system on {node} cannot be written ({path}): it is mounted read-only, or its disk failed",
        todo=(
            "write below /workspace/runs: the rest of the container is read-only, and so is --data",
            "a disk that failed: journalctl -k -g 'I/O error' on {node}",
        ),
        page="resources.workspace",
    ),
    Advice(
        id="storage.permission",
        what="{node} does not let the run's user at {path}",
        todo=(
            "who owns it: ls -ln on {node}; containers run as the node's SSH user",
            "files of an earlier run as root: sudo chown -R USER WORKSPACE",
        ),
        page="resources.workspace",
    ),
    Advice(
        id="storage.too_many_files",
        what="rank {rank} on {node} has as many files and sockets open as it may",
        todo=(
            "fewer workers: --workers, num_workers",
            "or, in the script: torch.multiprocessing.set_sharing_strategy('file_system')",
        ),
        page="resources.open_files",
    ),
    Advice(
        id="storage.failing",
        what="a disk or network share of {node} gives errors",
        todo=(
            "journalctl -k -g 'I/O error' on {node}, smartctl -a",
            "leave the node out: orch resume {run} --nodes …",
        ),
    ),
    Advice(
        id="storage.not_opened",
        what="{path} cannot be opened for writing on {node}: no such folder, no permission, or the disk is full",
        todo=(
            "write below /workspace/runs; the folder must exist: Path(...).mkdir(parents=True, exist_ok=True)",
            "what is free: orch doctor --nodes {node}",
        ),
        page="resources.workspace",
    ),
    Advice(
        id="storage.not_found",
        launch_again=True,
        what="there is no {path} on {node}",
        todo=(
            "from here: --data FOLDER (there /workspace/Data); what lies on the nodes: --mount SOURCE:TARGET",
            "paths in the script are those of the container: docs/launch.md has the table",
        ),
        page="data.missing",
    ),
)
