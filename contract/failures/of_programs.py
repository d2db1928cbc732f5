"""Signatures of checkpoints, of the training, of how a program starts and how it ends."""

from __future__ import annotations

from contract.failures.signature import configuration, infrastructure, user
from contract.import_names import BUILT_WITH_TORCH, OWN_MODULES


def _missing(modules: frozenset[str]) -> str:
    """Pattern of the message that one of these modules, or a module in it, is not found."""
    return rf"ModuleNotFoundError: No module named '(?P<module>(?:{'|'.join(sorted(modules))})(?:\.[^']{{1,150}})?)'"


DATA_READ_ONLY = user("data.read_only")
"""Found by the agent, which sees where the path leads that a rank could not write to."""
DATA_NOT_BROUGHT = configuration("data.not_brought")
"""Found by the controller, which has the file that a rank did not find."""
NOT_BUILT = configuration("start.not_built")
"""Found by the controller, which has a requirements.txt beside the script that did not find a module."""
NOT_ON_PATH = configuration("start.not_on_path")
"""Found by the controller, whose copied folder has the module in another place than Python looks at."""
CHECKPOINT = (
    configuration("checkpoint.none_sound", r"no sound checkpoint is left"),
    configuration("checkpoint.of_another_run", r"does not fit this run:"),
    user(
        "checkpoint.shape",
        r"size mismatch for (?P<name>\S{1,200}): copying a param with shape (?P<saved>\S{1,40}\[[^\]]{0,80}\]\)?)"
        r" from checkpoint, the shape in current model is (?P<built>\S{1,40}\[[^\]]{0,80}\]\)?)",
    ),
    user("checkpoint.keys", r"(?:Missing|Unexpected) key\(s\) in state_dict"),
    user(
        "checkpoint.weights_only",
        r"Weights only load failed",
        r"Unsupported (?:global|operand)",
        r"UnpicklingError: invalid load key",
    ),
    infrastructure(
        "checkpoint.damaged",
        r"PytorchStreamReader failed",
        r"failed finding central directory",
        r"EOFError: Ran out of input",
        r"zipfile\.BadZipFile",
        r"was written, but does not read back",
    ),
)

TRAINING = (
    user(
        "training.not_a_number",
        r"(?P<problem>the (?:loss|gradient) is (?:nan|-?inf) at step [0-9]{1,12}[^:]{0,200})",
        r"(?P<problem>[Ll]oss (?:is|became) (?:nan|NaN|inf).{0,200})",
        r"(?P<problem>Function '\w{1,80}' returned nan values in its [0-9]{1,4}th output)",
    ),
    infrastructure(
        "training.drift",
        r"(?P<problem>the weights of .{1,300} are no longer (?:the other ranks'|the same) after step [0-9]{1,12})",
    ),
    configuration("data.differs", r"(?P<problem>rank [0-9][0-9, ]{0,80} has other .{1,200} than rank 0)"),
    configuration("data.missing", r"no prepared data here"),
    DATA_READ_ONLY,
    DATA_NOT_BROUGHT,
    user("data.loader_timeout", r"DataLoader timed out after (?P<seconds>[0-9.]{1,12}) seconds"),
    user(
        "data.worker_exited",
        r"DataLoader worker \(pid\(s\) [0-9, ]{1,200}\) exited unexpectedly",
        nearer=("memory", "storage", "crash", "code"),
    ),
    user("ddp.unused_parameters", r"Expected to have finished reduction in the prior iteration"),
    user(
        "ddp.models_differ",
        r"appears not to match (?:sizes|strides) of the same param in process",
        r"DDP expects same model across all ranks",
    ),
    user(
        "ddp.launcher",
        r"ValueError: .{0,90}(?P<missing>(?:rank|world size) parameter missing|environment variable \w{1,20} expected)",
        r"KeyError: '(?P<missing>(?:SLURM|OMPI_COMM|PMI|MV2_COMM)_\w{1,40})'",
    ),
    user("ddp.no_group", r"Default process group has not been initialized"),
    user("code.dataloader_spawn", r"An attempt has been made to start a new process before"),
    user(
        "code.shapes",
        r"(?P<problem>mat1 and mat2 shapes cannot be multiplied.{0,200})",
        r"(?P<problem>The size of tensor a \([0-9]{1,20}\) must match the size of tensor b.{0,200})",
        r"(?P<problem>Expected (?:input batch_size|target size|all tensors to be on the same device).{0,200})",
        r"(?P<problem>stack expects each tensor to be equal size.{0,200})",
        r"(?P<problem>shape '[^']{0,200}' is invalid for input of size [0-9]{1,20})",
    ),
    user("code.assertion", r"(?P<error>AssertionError.{0,300})"),
    user("code.interrupted", r"^KeyboardInterrupt", exit_codes=(-2, 130)),
)

START = (
    configuration("start.architecture", r"[Ee]xec format error"),
    configuration(
        "start.script_missing",
        r"can't open file '(?P<path>[^']{1,300})': \[Errno 2\]",
        r"exec: \"?(?P<path>[^\":]{1,300})\"?: (?:executable file not found|stat .{0,300}no such file)",
    ),
    configuration("start.torchrun_options", r"(?:torchrun|run\.py): error: (?P<problem>.{1,300})"),
    configuration(
        "start.options",
        r"^(?:\S{1,300}: )?error: "
        r"(?P<problem>.{0,300}(?:argument|option|choice|expected|contradict|required).{0,300})",
    ),
    configuration(
        "start.versions",
        r"operator \w{1,60}::\w{1,60} does not exist|Couldn't load custom C\+\+ ops",
        r"Could not run '(?:torchvision|torchaudio)::\w{1,60}' with arguments from the",
        r"(?:ImportError|OSError): .{0,300}undefined symbol: \S{0,300}(?:c10|torch|2at|caffe2|THP|nccl|cudnn|cublas)",
        r"were compiled with different CUDA|was built with CUDA .{0,60}while|CUDA .{0,60}mismatches the version",
        r"numpy\.(?:core|_core)\.multiarray failed to import",
        r"numpy\.dtype size changed|module compiled against (?:ABI|API) version",
        r"ImportError: \S{1,80}[<>=~!]{1,2}\S{1,60} is required for .{0,200}but found",
        r"(?:DistributionNotFound|VersionConflict|ContextualVersionConflict): ",
    ),
    configuration(
        "start.cuda_home",
        r"CUDA_HOME (?:environment variable is not set|does not exist)",
        r"nvcc(?:['\"]?: | was )(?:not found|No such file)",
        r"MissingCUDAException|No such file or directory: '\S{0,200}/nvcc'",
    ),
    configuration("start.mkl", r"MKL_THREADING_LAYER=\w{1,20} is incompatible with"),
    configuration(
        "start.login",
        r"api_key not configured|[Nn]o API[ -][Kk]ey (?:configured|found|provided)",
        r"wandb: ERROR .{0,60}(?:api_key|API key)",
        r"wandb\.errors\.\S{0,40}AuthenticationError: ",
        r"Could not find kaggle\.json|(?:NoCredentials|PartialCredentials)Error",
        r"(?:comet_ml|neptune)\S{0,60}(?:Missing|Invalid)Api",
    ),
    configuration("start.libc", r"version `(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[0-9.]{1,20})' not found"),
    configuration(
        "start.library", r"(?<![\w.+-])(?P<library>[\w.+-]{1,200}?\.so[\w.]{0,40}): cannot open shared object file"
    ),
    configuration(
        "start.compiler",
        r"Failed to find C compiler",
        r"No working C\+\+ compiler found|InvalidCxxCompiler",
        r"(?:C|C\+\+) compiler .{0,80}(?:not found|No such file)",
    ),
    configuration("start.own_module", _missing(OWN_MODULES)),
    configuration("start.built_module", _missing(BUILT_WITH_TORCH)),
    configuration(
        "start.module",
        r"ModuleNotFoundError: No module named '(?P<module>[^']{1,200})'",
        r"Error while finding module specification for '(?P<module>[^']{1,200})'",
        r"No module named (?P<module>[\w.]{1,200})$",
    ),
    NOT_BUILT,
    NOT_ON_PATH,
    configuration("start.import", r"ImportError: (?P<what>.{1,300})"),
    infrastructure("start.files_differ", r"^different files: (?P<path>.{1,300}) is not the same on all nodes"),
    user("start.syntax", r"(?P<problem>(?:Syntax|Indentation|Tab)Error: .{1,300})"),
    configuration(
        "start.threads",
        r"can't start new thread",
        r"pthread_create.{0,200}failed",
        r"\[Errno 11\] Resource temporarily unavailable",
    ),
)

TERMINAL = user(
    "code.terminal",
    r"\b(?:popen|check_output|run|getoutput)\(.{0,20}(?:stty|tput) ",
    r"\[Errno 25\] Inappropriate ioctl for device|termios\.error: \(25, ",
)
VERSION_CHECK = configuration(
    "start.version_check",
    r"^assert (?P<package>\w{1,60})\.__version__ ?== ?['\"](?P<version>[\w.+-]{1,40})['\"]",
)
OF_CODE = (TERMINAL, VERSION_CHECK)
"""Searched in the line of code at which an exception was raised, too, where its message says nothing."""
CODE_EXCEPTION = user("code.exception")
"""An exception that no other signature knows."""
CODE_EXIT = user("code.exit")
"""Failure with an exit code and without a message."""
ASKED_TO_STOP = infrastructure(
    "code.killed_at_end",
    r"SignalException: Process [0-9]{1,9} got signal: (?:15|1|3)\b",
    exit_codes=(-15, 143),
    lost_peer=True,
)
NODE_LOST = infrastructure("node.lost")

GENERAL = (
    configuration(
        "start.configuration",
        r"(?<![\w.])(?:trainer\.errors\.)?(?:Configuration|Usage)Error: (?P<problem>.{1,1000})",
        r"^(?:trainer\.errors\.)?OptionError: (?P<problem>.{1,1000})",
    ),
    TERMINAL,
    VERSION_CHECK,
    CODE_EXCEPTION,
    ASKED_TO_STOP,
    infrastructure(
        "node.frozen",  # the second wording: agents of images built before 0.1.0
        r"frozen: local rank [0-9]{1,6} (?:sent no heartbeat|gave no sign of life) for (?P<seconds>[0-9]{1,9}) s",
    ),
    infrastructure("code.hung", r"^hung: no rank made progress for (?P<seconds>[0-9]{1,9}) s"),
    infrastructure("code.stuck", r"^stuck for (?P<seconds>[0-9]{1,9}) s, .{1,300}; (?P<waiting>.{1,300})$"),
    configuration("crash.illegal_instruction", r"Illegal instruction", r"trap invalid opcode", exit_codes=(-4, 132)),
    configuration("crash.bus_error", exit_codes=(-7, 135)),
    infrastructure(
        "crash.segfault",
        r"Segmentation fault",
        r"^Fatal Python error: Segmentation",
        exit_codes=(-11, 139),
    ),
    infrastructure(
        "crash.aborted",
        r"terminate called (after throwing an instance of|without an active exception)",
        r"Fatal Python error: ",
        r"^free\(\): |^double free|^corrupted |killed by signal: Aborted",
        exit_codes=(-6, 134),
    ),
    NODE_LOST,
    CODE_EXIT,
)
