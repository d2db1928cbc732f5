"""Signatures of checkpoints, of the training, of how a program starts and how it ends."""

from __future__ import annotations

from contract.failures.signature import Signature

CHECKPOINT = (
    Signature(id="checkpoint.none_sound", owner="configuration", patterns=(r"no sound checkpoint is left",)),
    Signature(id="checkpoint.of_another_run", owner="configuration", patterns=(r"does not fit this run:",)),
    Signature(
        id="checkpoint.shape",
        owner="user",
        patterns=(
            r"size mismatch for (?P<name>\S{1,200}): copying a param with shape (?P<saved>\S{1,40}\[[^\]]{0,80}\]\)?)"
            r" from checkpoint, the shape in current model is (?P<built>\S{1,40}\[[^\]]{0,80}\]\)?)",
        ),
    ),
    Signature(id="checkpoint.keys", owner="user", patterns=(r"(?:Missing|Unexpected) key\(s\) in state_dict",)),
    Signature(
        id="checkpoint.weights_only",
        owner="user",
        patterns=(
            r"Weights only load failed",
            r"Unsupported (?:global|operand)",
            r"UnpicklingError: invalid load key",
        ),
    ),
    Signature(
        id="checkpoint.damaged",
        owner="infrastructure",
        patterns=(
            r"PytorchStreamReader failed",
            r"failed finding central directory",
            r"EOFError: Ran out of input",
            r"zipfile\.BadZipFile",
            r"was written, but does not read back",
        ),
    ),
)

TRAINING = (
    Signature(
        id="training.not_a_number",
        owner="user",
        patterns=(
            r"(?P<problem>the (?:loss|gradient) is (?:nan|-?inf) at step [0-9]{1,12}[^:]{0,200})",
            r"(?P<problem>[Ll]oss (?:is|became) (?:nan|NaN|inf).{0,200})",
            r"(?P<problem>Function '\w{1,80}' returned nan values in its [0-9]{1,4}th output)",
        ),
    ),
    Signature(
        id="training.drift",
        owner="infrastructure",
        patterns=(
            r"(?P<problem>the weights of .{1,300} are no longer (?:the other ranks'|the same) after step [0-9]{1,12})",
        ),
    ),
    Signature(
        id="data.differs",
        owner="configuration",
        patterns=(r"(?P<problem>rank [0-9][0-9, ]{0,80} has other .{1,200} than rank 0)",),
    ),
    Signature(id="data.missing", owner="configuration", patterns=(r"no prepared data here",)),
    Signature(
        id="data.loader_timeout",
        owner="user",
        patterns=(r"DataLoader timed out after (?P<seconds>[0-9.]{1,12}) seconds",),
    ),
    Signature(
        id="data.worker_exited",
        owner="user",
        patterns=(r"DataLoader worker \(pid\(s\) [0-9, ]{1,200}\) exited unexpectedly",),
        nearer=("memory", "storage", "crash", "code"),
    ),
    Signature(
        id="ddp.unused_parameters",
        owner="user",
        patterns=(r"Expected to have finished reduction in the prior iteration",),
    ),
    Signature(
        id="ddp.models_differ",
        owner="user",
        patterns=(
            r"appears not to match (?:sizes|strides) of the same param in process",
            r"DDP expects same model across all ranks",
        ),
    ),
    Signature(id="ddp.no_group", owner="user", patterns=(r"Default process group has not been initialized",)),
    Signature(
        id="code.dataloader_spawn",
        owner="user",
        patterns=(r"An attempt has been made to start a new process before",),
    ),
    Signature(
        id="code.shapes",
        owner="user",
        patterns=(
            r"(?P<problem>mat1 and mat2 shapes cannot be multiplied.{0,200})",
            r"(?P<problem>The size of tensor a \([0-9]{1,20}\) must match the size of tensor b.{0,200})",
            r"(?P<problem>Expected (?:input batch_size|target size|all tensors to be on the same device).{0,200})",
            r"(?P<problem>stack expects each tensor to be equal size.{0,200})",
            r"(?P<problem>shape '[^']{0,200}' is invalid for input of size [0-9]{1,20})",
        ),
    ),
    Signature(id="code.assertion", owner="user", patterns=(r"(?P<error>AssertionError.{0,300})",)),
    Signature(id="code.interrupted", owner="user", patterns=(r"^KeyboardInterrupt",), exit_codes=(-2, 130)),
)

START = (
    Signature(id="start.architecture", owner="configuration", patterns=(r"[Ee]xec format error",)),
    Signature(
        id="start.script_missing",
        owner="configuration",
        patterns=(
            r"can't open file '(?P<path>[^']{1,300})': \[Errno 2\]",
            r"exec: \"?(?P<path>[^\":]{1,300})\"?: (?:executable file not found|stat .{0,300}no such file)",
        ),
    ),
    Signature(
        id="start.torchrun_options",
        owner="configuration",
        patterns=(r"(?:torchrun|run\.py): error: (?P<problem>.{1,300})",),
    ),
    Signature(
        id="start.options",
        owner="configuration",
        patterns=(
            r"^(?:\S{1,300}: )?error: "
            r"(?P<problem>.{0,300}(?:argument|option|choice|expected|contradict|required).{0,300})",
        ),
    ),
    Signature(
        id="start.libc",
        owner="configuration",
        patterns=(r"version `(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[0-9.]{1,20})' not found",),
    ),
    Signature(
        id="start.library",
        owner="configuration",
        patterns=(r"(?<![\w.+-])(?P<library>[\w.+-]{1,200}?\.so[\w.]{0,40}): cannot open shared object file",),
    ),
    Signature(
        id="start.compiler",
        owner="configuration",
        patterns=(
            r"Failed to find C compiler",
            r"No working C\+\+ compiler found|InvalidCxxCompiler",
            r"(?:C|C\+\+) compiler .{0,80}(?:not found|No such file)",
        ),
    ),
    Signature(
        id="start.module",
        owner="configuration",
        patterns=(
            r"ModuleNotFoundError: No module named '(?P<module>[^']{1,200})'",
            r"Error while finding module specification for '(?P<module>[^']{1,200})'",
            r"No module named (?P<module>[\w.]{1,200})$",
        ),
    ),
    Signature(id="start.import", owner="configuration", patterns=(r"ImportError: (?P<what>.{1,300})",)),
    Signature(
        id="start.syntax",
        owner="user",
        patterns=(r"(?P<problem>(?:Syntax|Indentation|Tab)Error: .{1,300})",),
    ),
    Signature(
        id="start.threads",
        owner="configuration",
        patterns=(
            r"can't start new thread",
            r"pthread_create.{0,200}failed",
            r"\[Errno 11\] Resource temporarily unavailable",
        ),
    ),
)

CODE_EXCEPTION = Signature(id="code.exception", owner="user")
"""An exception that no other signature knows."""
CODE_EXIT = Signature(id="code.exit", owner="user")
"""An exit code, and no word about the reason."""
TOLD_TO_STOP = Signature(
    id="code.killed_at_end",
    owner="infrastructure",
    patterns=(r"SignalException: Process [0-9]{1,9} got signal: (?:15|1|3)\b",),
    exit_codes=(-15, 143),
    lost_peer=True,
)
NODE_LOST = Signature(id="node.lost", owner="infrastructure")

GENERAL = (
    Signature(
        id="start.configuration",
        owner="configuration",
        patterns=(r"(?:Configuration|Usage)Error: (?P<problem>.{1,1000})",),
    ),
    CODE_EXCEPTION,
    TOLD_TO_STOP,
    Signature(
        id="node.frozen",
        owner="infrastructure",
        patterns=(r"frozen: local rank [0-9]{1,6} gave no sign of life for (?P<seconds>[0-9]{1,9}) s",),
    ),
    Signature(
        id="code.stuck",
        owner="infrastructure",
        patterns=(r"^stuck for (?P<seconds>[0-9]{1,9}) s, .{1,300}; (?P<waiting>.{1,300})$",),
    ),
    Signature(
        id="crash.illegal_instruction",
        owner="configuration",
        patterns=(r"Illegal instruction", r"trap invalid opcode"),
        exit_codes=(-4, 132),
    ),
    Signature(id="crash.bus_error", owner="configuration", exit_codes=(-7, 135)),
    Signature(
        id="crash.segfault",
        owner="infrastructure",
        patterns=(r"Segmentation fault", r"^Fatal Python error: Segmentation"),
        exit_codes=(-11, 139),
    ),
    Signature(
        id="crash.aborted",
        owner="infrastructure",
        patterns=(
            r"terminate called after throwing an instance of",
            r"Fatal Python error: ",
            r"^free\(\): |^double free|^corrupted |killed by signal: Aborted",
        ),
        exit_codes=(-6, 134),
    ),
    NODE_LOST,
    CODE_EXIT,
)
