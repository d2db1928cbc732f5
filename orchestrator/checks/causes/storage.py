"""Causes: disks and files."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Rule

RULES = (
    Rule(
        id="storage.full",
        kind="configuration",
        what="the disk of {node} is full: what was being written is lost, what was complete before is kept",
        todo=(
            "make room on {node}: orch clean, docker image prune, df -h",
            "then go on from the last checkpoint: orch resume {run}",
        ),
        signs=(
            r"No space left on device",
            r"\[enforce fail at inline_container\.cc.*(?:unexpected pos|written != )",
            r"PytorchStreamWriter failed writing file",
            r"Disk quota exceeded",
        ),
        page="room.disk_low",
    ),
    Rule(
        id="storage.read_only",
        kind="infrastructure",
        what="a file system on {node} cannot be written ({path}): it is mounted read-only, or its disk failed",
        todo=(
            "write below /workspace/runs: the rest of the container is read-only, and so is --data",
            "a disk that failed: journalctl -k -g 'I/O error' on {node}",
        ),
        signs=(r"Read-only file system(?:: '(?P<path>[^']+)')?",),
        page="room.workspace",
    ),
    Rule(
        id="storage.permission",
        kind="configuration",
        what="{node} does not let the run's user at {path}",
        todo=(
            "who owns it: ls -ln on {node}; containers run as the node's SSH user",
            "files of an earlier run as root: sudo chown -R USER WORKSPACE",
        ),
        signs=(
            r"PermissionError: .*: '(?P<path>[^']+)'",
            r"(?P<path>/\S+): Permission denied",
            r"Permission denied(?:: '(?P<path>[^']+)')?",
        ),
        page="room.workspace",
    ),
    Rule(
        id="storage.too_many_files",
        kind="configuration",
        what="rank {rank} on {node} has as many files and sockets open as it may",
        todo=(
            "fewer workers: --workers, num_workers",
            "or, in the script: torch.multiprocessing.set_sharing_strategy('file_system')",
        ),
        signs=(r"Too many open files", r"received \d+ items of ancdata"),
        page="room.open_files",
    ),
    Rule(
        id="storage.failing",
        kind="infrastructure",
        what="a disk or network share of {node} gives errors",
        todo=(
            "journalctl -k -g 'I/O error' on {node}, smartctl -a",
            "leave the node out: orch resume {run} --nodes …",
        ),
        signs=(
            r"\[Errno 5\] Input/output error",
            r"\[Errno 116\] Stale file handle",
            r"Transport endpoint is not connected",
        ),
    ),
    Rule(
        id="storage.not_found",
        kind="configuration",
        what="there is no {path} on {node}",
        todo=(
            "from here: --data FOLDER (there /workspace/Data); what lies on the nodes: --mount SOURCE:TARGET",
            "paths in the script are those of the container: docs/launch.md has the table",
        ),
        signs=(
            r"FileNotFoundError: .*: '(?P<path>[^']+)'",
            r"FileNotFoundError: (?P<path>.+)",
            r"\[Errno 2\] No such file or directory: '(?P<path>[^']+)'",
        ),
        page="data.missing",
    ),
)
