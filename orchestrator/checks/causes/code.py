"""Causes: the training itself: its numbers, its script, and how DDP is used."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Advice

ADVICE = (
    Advice(
        id="training.not_a_number",
        what="{problem}",
        todo=(
            "a smaller --lr or --clip, --no-amp, or --on-nan skip",
            "one bad sample can do it: look at the data of that step",
        ),
    ),
    Advice(
        id="training.drift",
        what="{problem}",
        todo=(
            "the run restarts from its last checkpoint, which was written before they differed",
            "if it comes again, look at the memory and the GPU of that node: orch doctor, orch check-gpus",
            "a custom model whose weights change outside of its gradients must change alike on all ranks",
        ),
    ),
    Advice(
        id="data.differs",
        launch_again=True,
        what="{problem}",
        todo=(
            "the same data and options on all nodes: --data brings them from here, by content",
            "orch doctor --only places compares what lies there",
        ),
        page="data.differs",
    ),
    Advice(
        id="data.missing",
        launch_again=True,
        what="there is no prepared data on {node}",
        todo=("orch prepare --text FOLDER, or orch launch --data FOLDER with what was prepared before",),
        page="data.missing",
    ),
    Advice(
        id="data.loader_timeout",
        what="the DataLoader of rank {rank} on {node} gave no batch within {seconds} s",
        todo=(
            "what its workers do: the same with num_workers=0 on one machine; a lock in a forked worker, a slow share?",
            "a longer timeout= of the DataLoader, where a batch may take that long",
        ),
    ),
    Advice(
        id="data.worker_exited",
        what="a DataLoader worker of rank {rank} on {node} ended without giving a reason",
        todo=(
            "num_workers=0 (--workers 0) shows the error of the data set's own code",
            "was it memory? journalctl -k -g 'Out of memory' on {node}",
        ),
    ),
    Advice(
        id="ddp.unused_parameters",
        what="some weights took no part in the loss, and DistributedDataParallel waits for their gradients",
        todo=(
            "DistributedDataParallel(model, find_unused_parameters=True), or take them out of the model",
            "which ones: orch launch --env TORCH_DISTRIBUTED_DEBUG=DETAIL",
        ),
    ),
    Advice(
        id="ddp.models_differ",
        what="the ranks built different models: a weight's shape or number differs between them",
        todo=("the same options on all ranks; nothing in the model may depend on the rank, its data or its device",),
    ),
    Advice(
        id="ddp.no_group",
        what="the script uses torch.distributed before it joined the others",
        todo=("torch.distributed.init_process_group() first; backend and addresses come from the environment",),
    ),
    Advice(
        id="code.dataloader_spawn",
        what="the script starts processes while it is being imported by one of them",
        todo=("put what runs below `if __name__ == '__main__':`",),
    ),
    Advice(
        id="code.shapes",
        what="tensors that do not fit each other: {problem}",
        todo=("print their shapes at the place named; try one batch on one machine",),
    ),
    Advice(
        id="code.assertion",
        what="a check in the code failed: {error}",
        todo=("the place is named: what it asserts does not hold for this rank's data",),
    ),
    Advice(
        id="code.interrupted",
        what="rank {rank} on {node} was interrupted (Ctrl-C, or SIGINT from elsewhere)",
        todo=("orch resume {run}; to end a run in order: orch stop {run}",),
    ),
    Advice(
        id="start.configuration",
        launch_again=True,
        what="the trainer refused: {problem}",
        todo=("change what it names, then launch again",),
    ),
    Advice(
        id="code.exception",
        what="the code that rank {rank} ran on {node} raised an exception that was not caught",
        todo=(
            "the place is named; on one machine alone: orch launch --nodes {node} -- …",
            "then continue from the last checkpoint: orch resume {run}",
        ),
    ),
    Advice(
        id="code.killed_at_end",
        what="rank {rank} on {node} was stopped (SIGTERM) from outside orch",
        todo=(
            "a shutdown of {node}, or docker stop by hand? journalctl -b -u docker on {node}",
            "orch resume {run}",
        ),
    ),
    Advice(
        id="node.frozen",
        what="a rank on {node} gave no sign of life for {seconds} s, and was killed so that the others need not wait",
        todo=(
            "a suspended machine, a disk or network share that does not answer? journalctl -b on {node}",
            "a step that takes longer than that: see what the rank did last, orch logs {run} --nodes {node}",
        ),
    ),
    Advice(
        id="code.stuck",
        what="rank {rank} on {node} made no progress for {seconds} s or more; {waiting}",
        todo=(
            "the place is named: a lock, a download, a share that does not answer, a loop without an end?",
            "what one rank alone does for long belongs before the ranks meet, or where all wait for it",
        ),
    ),
    Advice(
        id="crash.illegal_instruction",
        what="the processor of {node} does not know an instruction that the program was built with (SIGILL)",
        todo=(
            "orch doctor --nodes {node}: what its processor lacks",
            "packages built for it: build the image on {node}; or leave it out",
        ),
        page="consistency.no_avx2",
    ),
    Advice(
        id="crash.bus_error",
        what="rank {rank} on {node} met memory with nothing behind it (SIGBUS): full /dev/shm, or a file cut short",
        todo=(
            "more shared memory: limits: {{shm: 4g}} in inventory.yaml",
            "data that changed while it was read: orch prepare again",
        ),
        page="resources.shm",
    ),
    Advice(
        id="crash.segfault",
        what="rank {rank} on {node} crashed inside a library (SIGSEGV)",
        todo=(
            "where: orch launch --env PYTHONFAULTHANDLER=1 writes the Python line it came from",
            "on one node alone, time and again: its memory; memtester, or leave it out",
        ),
    ),
    Advice(
        id="crash.aborted",
        what="a library ended rank {rank} on {node} (SIGABRT), as it found its own state broken",
        todo=("the last lines before say why: orch logs {run} --nodes {node} --tail 50",),
    ),
    Advice(
        id="node.lost",
        what="{node} does not answer any more: without power, asleep, or cut off",
        todo=(
            "is it on, is its cable in? orch doctor --nodes {node} --only reach",
            "continue without it: orch resume {run} --nodes …",
        ),
        page="reach.no_answer",
    ),
    Advice(
        id="code.exit",
        what="the program of rank {rank} on {node} ended itself with an exit code of its own, without an exception",
        todo=("what it said before: orch logs {run} --nodes {node} --tail 50",),
    ),
)
