"""Causes: the training itself: its numbers, its script, and how DDP is used."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Rule

RULES = (
    Rule(
        id="training.not_a_number",
        kind="user",
        what="{problem}",
        todo=(
            "a smaller --lr or --clip, --no-amp, or --on-nan skip",
            "one bad sample can do it: look at the data of that step",
        ),
        signs=(
            r"(?P<problem>the (?:loss|gradient) is (?:nan|-?inf) at step \d+[^:]*)",
            r"(?P<problem>[Ll]oss (?:is|became) (?:nan|NaN|inf).*)",
            r"(?P<problem>Function '\w+' returned nan values in its \d+th output)",
        ),
    ),
    Rule(
        id="data.differs",
        kind="configuration",
        what="{problem}",
        todo=(
            "the same data and options on all nodes: --data brings them from here, by content",
            "orch doctor --only places compares what lies there",
        ),
        signs=(r"(?P<problem>rank [\d, ]+ has other .+ than rank 0)",),
        page="data.differs",
    ),
    Rule(
        id="data.missing",
        kind="configuration",
        what="there is no prepared data on {node}",
        todo=("orch prepare --text FOLDER, or orch launch --data FOLDER with what was prepared before",),
        signs=(r"no prepared data here",),
        page="data.missing",
    ),
    Rule(
        id="ddp.unused_parameters",
        kind="user",
        what="some weights took no part in the loss, and DistributedDataParallel waits for their gradients",
        todo=(
            "DistributedDataParallel(model, find_unused_parameters=True), or take them out of the model",
            "which ones: orch launch --env TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
        signs=(r"Expected to have finished reduction in the prior iteration",),
    ),
    Rule(
        id="ddp.models_differ",
        kind="user",
        what="the ranks built different models: a weight's shape or number differs between them",
        todo=("the same options on all ranks; nothing in the model may depend on the rank, its data or its device",),
        signs=(
            r"appears not to match (?:sizes|strides) of the same param in process",
            r"DDP expects same model across all ranks",
        ),
    ),
    Rule(
        id="ddp.no_group",
        kind="user",
        what="the script uses torch.distributed before it joined the others",
        todo=("torch.distributed.init_process_group() first; backend and addresses come from the environment",),
        signs=(r"Default process group has not been initialized",),
    ),
    Rule(
        id="code.dataloader_spawn",
        kind="user",
        what="the script starts processes while it is being imported by one of them",
        todo=("put what runs below `if __name__ == '__main__':`",),
        signs=(r"An attempt has been made to start a new process before",),
    ),
    Rule(
        id="code.shapes",
        kind="user",
        what="tensors that do not fit each other: {problem}",
        todo=("print their shapes at the place named; try one batch on one machine",),
        signs=(
            r"(?P<problem>mat1 and mat2 shapes cannot be multiplied.*)",
            r"(?P<problem>The size of tensor a \(\d+\) must match the size of tensor b.*)",
            r"(?P<problem>Expected (?:input batch_size|target size|all tensors to be on the same device).*)",
            r"(?P<problem>stack expects each tensor to be equal size.*)",
            r"(?P<problem>shape '.*' is invalid for input of size \d+)",
        ),
    ),
    Rule(
        id="code.assertion",
        kind="user",
        what="a check in the code failed: {error}",
        todo=("the place is named: what it asserts does not hold for this rank's data",),
        signs=(r"(?P<error>AssertionError.*)",),
    ),
    Rule(
        id="code.interrupted",
        kind="user",
        what="rank {rank} on {node} was interrupted (Ctrl-C, or SIGINT from elsewhere)",
        todo=("orch resume {run}; to end a run in order: orch stop {run}",),
        signs=(r"^KeyboardInterrupt",),
        exit_codes=(-2, 130),
    ),
)

GENERAL = (
    Rule(
        id="start.configuration",
        kind="configuration",
        what="the trainer refused: {problem}",
        todo=("change what it names, then launch again: orch resume {run}",),
        signs=(r"(?:Configuration|Usage)Error: (?P<problem>.+)",),
    ),
    Rule(
        id="code.exception",
        kind="user",
        what="the code that rank {rank} ran on {node} raised an exception that nobody caught",
        todo=(
            "the place is named; on one machine alone: orch launch --nodes {node} -- …",
            "then go on from the last checkpoint: orch resume {run}",
        ),
    ),
    Rule(
        id="code.killed_at_end",
        kind="infrastructure",
        what="rank {rank} on {node} was told to stop (SIGTERM) from outside orch",
        todo=(
            "a shutdown of {node}, or docker stop by hand? journalctl -b -u docker on {node}",
            "orch resume {run}",
        ),
        exit_codes=(-15, 143),
    ),
    Rule(
        id="node.frozen",
        kind="infrastructure",
        what="a rank on {node} gave no sign of life for {seconds} s, and was killed so that the others need not wait",
        todo=(
            "a suspended machine, a disk or network share that does not answer? journalctl -b on {node}",
            "a step that takes longer than that: see what the rank did last, orch logs {run} --node {node}",
        ),
        signs=(r"frozen: local rank \d+ gave no sign of life for (?P<seconds>\d+) s",),
    ),
    Rule(
        id="code.stuck",
        kind="infrastructure",
        what="rank {rank} on {node} made no progress for {seconds} s or more; {waiting}",
        todo=(
            "the place is named: a lock, a download, a share that does not answer, a loop without an end?",
            "what one rank alone does for long belongs before the ranks meet, or where all wait for it",
        ),
        signs=(r"^stuck for (?P<seconds>\d+) s, .+; (?P<waiting>.+)$",),
    ),
    Rule(
        id="crash.illegal_instruction",
        kind="configuration",
        what="the processor of {node} does not know an instruction that the program was built with (SIGILL)",
        todo=(
            "orch doctor --node {node}: what its processor lacks",
            "packages built for it: build the image on {node}; or leave it out",
        ),
        exit_codes=(-4, 132),
        signs=(r"Illegal instruction", r"trap invalid opcode"),
        page="sameness.no_avx2",
    ),
    Rule(
        id="crash.bus_error",
        kind="configuration",
        what="rank {rank} on {node} met memory with nothing behind it (SIGBUS): full /dev/shm, or a file cut short",
        todo=(
            "more shared memory: limits: {{shm: 4g}} in inventory.yaml",
            "data that changed while it was read: orch prepare again",
        ),
        exit_codes=(-7, 135),
        page="room.shm",
    ),
    Rule(
        id="crash.segfault",
        kind="infrastructure",
        what="rank {rank} on {node} crashed inside a library (SIGSEGV)",
        todo=(
            "where: orch launch --env PYTHONFAULTHANDLER=1 writes the Python line it came from",
            "on one node alone, time and again: its memory; memtester, or leave it out",
        ),
        signs=(r"Segmentation fault", r"^Fatal Python error: Segmentation"),
        exit_codes=(-11, 139),
    ),
    Rule(
        id="crash.aborted",
        kind="infrastructure",
        what="a library ended rank {rank} on {node} (SIGABRT), as it found its own state broken",
        todo=("the last lines before say why: orch logs {run} --node {node} --tail 50",),
        signs=(
            r"terminate called after throwing an instance of",
            r"Fatal Python error: ",
            r"^free\(\): |^double free|^corrupted ",
        ),
        exit_codes=(-6, 134),
    ),
    Rule(
        id="node.lost",
        kind="infrastructure",
        what="{node} does not answer any more: without power, asleep, or cut off",
        todo=(
            "is it on, is its cable in? orch doctor --node {node} --only reach",
            "go on without it: orch resume {run} --nodes …",
        ),
        page="reach.no_answer",
    ),
    Rule(
        id="code.exit",
        kind="user",
        what="the program of rank {rank} on {node} ended itself with an exit code of its own, without an exception",
        todo=("what it said before: orch logs {run} --node {node} --tail 50",),
    ),
)
