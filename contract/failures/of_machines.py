"""Signatures of memory, GPUs and disks."""

from __future__ import annotations

from contract.failures.signature import configuration, infrastructure, user

MEMORY = (
    configuration(
        "memory.shm",
        r"insufficient shared memory \(shm\)",
        r"unable to (?:open|write to|allocate|resize|mmap)\b.{0,200}(?:shared memory|/torch_[0-9])",
        r"No space left on device.{0,300}(?:/dev/shm|torch_[0-9]|psm_)",
        r"(?:/dev/shm|torch_[0-9]|psm_).{0,300}No space left on device",
        r"is killed by signal: Bus error",
        r"Error while creating shared memory segment",
        r"posix_fallocate failed : No space left on device",
    ),
    infrastructure(
        "memory.worker_killed", r"DataLoader worker \(pid(?:\(s\))? [0-9, ]{1,200}\) is killed by signal: Killed"
    ),
    configuration(
        "memory.memlock",
        r"ibv_(?:reg_\w{1,40}|create_\w{1,20}|alloc_\w{1,20})\W.{0,100}Cannot allocate memory",
        r"ibv_(?:reg|create|alloc)_\w{1,40} failed.{0,100}Cannot allocate memory",
    ),
    user("memory.one_sample", r"not even one sample fits into memory"),
    user(
        "memory.host",
        r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
        r"^MemoryError|_ArrayMemoryError",
        r"std::bad_alloc",
        r"\[Errno 12\] Cannot allocate memory",
    ),
    # before Linux 5: Kill process … or sacrifice
    infrastructure("memory.limit", r"Memory cgroup out of memory: Kill(?:ed)? process"),
    infrastructure("memory.kernel", r"Out of memory: Kill(?:ed)? process [0-9]{1,9} \((?P<process>[^)]{0,80})\)"),
    infrastructure("memory.killed", exit_codes=(-9, 137)),
)

GPU = (
    infrastructure(
        "gpu.lost",
        r"Xid \([^)]{0,80}\): 79\b",
        r"fallen off the bus",
        r"Unable to determine the device handle for",
        r"GPU is lost",
    ),
    infrastructure("gpu.ecc", r"uncorrectable ECC error", r"Xid \([^)]{0,80}\): (?:48|63|64|94|95)\b"),
    configuration("gpu.driver_mismatch", r"[Dd]river/library version mismatch"),
    configuration(
        "gpu.no_cgroups",
        r"bpf_prog_query\b|cgroup subsystem devices not found",
        r"(?:failed|unable) to .{0,40}device cgroup|device filters attached",
    ),
    configuration("gpu.image_has_driver", r"file creation failed: .{0,300}lib(?:nvidia|cuda)\S{0,80}: file exists"),
    configuration("gpu.no_wsl_adapter", r"WSL environment detected but no adapters"),
    configuration("gpu.no_cdi", r"unresolvable CDI devices|CDI device injection failed|failed to inject CDI devices"),
    configuration(
        "gpu.no_driver",
        r"lib(?:nvidia-ml|cuda)\.so\.1: cannot open shared object file",
        r"nvidia-container-cli: .{0,100}(?:driver not loaded|nvml error: driver)",
        r"could not select device driver .{0,50}capabilities: \[\[gpu",
        r"unknown or invalid runtime name: nvidia|nvidia-container-runtime-?\w{0,10}\"?: executable file not found",
    ),
    infrastructure("gpu.nvml", r"Failed to initialize NVML: Unknown Error", r"[Cc]an't initialize NVML"),
    user(
        "gpu.memory",
        r"(?:CUDA|HIP|XPU) out of memory",
        r"(?:CUDA|HIP) error: out of memory",
        r"Cuda failure (?:[0-9]{1,4} )?'out of memory'",
        r"CU(?:BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED",
        r"out of memory with micro-batches of [0-9]",
    ),
    configuration(
        "gpu.driver_old",
        r"NVIDIA driver on your system is too old \(found version (?P<version>[0-9]{1,9})\)",
        r"CUDA driver version is insufficient for CUDA runtime version",
        r"unsatisfied condition: (?:cuda|driver)",
        r"the provided PTX was compiled with an unsupported toolchain",
    ),
    configuration(
        "gpu.too_new_or_old",
        r"no kernel image is available for execution on the device",
        r"is not compatible with the current PyTorch installation",
    ),
    configuration(
        "gpu.none",
        r"No (?:CUDA|HIP|XPU) GPUs are available",
        r"no CUDA-capable device is detected",
        r"Found no NVIDIA driver on your system",
        r"Torch not compiled with CUDA enabled",
        r"backend nccl, but torch sees no GPU",
        r"ProcessGroupNCCL is only supported with GPUs",
        r"invalid device ordinal",
        r"module 'torch\._C' has no attribute '_cuda_\w{1,80}'",
        r"Cannot access accelerator device when none is available",
        r"device_ids and output_device arguments only work with .{0,200}device\(type='cpu'\)",
        r"Distributed package doesn't have NCCL|no attribute 'ProcessGroupNCCL'|cannot import name 'ProcessGroupNCCL'",
        r"CUDA Setup failed|CUDA SETUP: .{0,60}(?:detection failed|not detected)",
        r"bitsandbytes.{0,80}requires? .{0,20}(?:CUDA|GPU)",
        r"CUDA is required but not available for bitsandbytes|No GPU found\. A GPU is needed for quantization",
        r"devices `available_devices = .{0,60}` are supported by the bitsandbytes",
        r"'NoneType' object has no attribute 'c(?:get_managed_ptr|de?quantize_"
        r"|quantize_|adam|gemm|igemm|prefetch)\w{0,60}'",
        r"Attempting to deserialize object on (?:a )?CUDA device",
        r"CUDA unavailable, invalid device|Invalid CUDA 'device=",
        r"mixed precision (?:training )?.{0,160}(?:requires a GPU|can only be used on CUDA|not supported on CPU)",
        r"(?:AssertionError|RuntimeError|ValueError|EnvironmentError"
        r"|OSError): .{0,80}(?:CUDA|GPU|cuda|gpu) (?:is |are )?"
        r"(?:not available|unavailable|required|not found)\b",
        r"(?:Torch|PyTorch|torch) is not able to use (?:the )?GPU",
    ),
    infrastructure("gpu.busy", r"CUDA-capable device(?:s are|\(s\) is/are) busy or unavailable"),
    user("gpu.assertion", r"device-side assert triggered", r"\.cu:[0-9]{1,6}: .{0,300}Assertion `"),
    user("gpu.illegal_access", r"an illegal memory access was encountered", r"CUDA error: misaligned address"),
    user("gpu.forked", r"Cannot re-initialize CUDA in forked subprocess", r"CUDA error: initialization error"),
    user(
        "gpu.library",
        r"CU(?:DNN|BLAS|SOLVER)_STATUS_NOT_INITIALIZED",
        r"error: CU(?:DNN|BLAS|SOLVER|SPARSE|FFT)_STATUS_(?:EXECUTION_FAILED"
        r"|INTERNAL_ERROR|NOT_SUPPORTED|INVALID_VALUE)",
        r"unable to find an engine to execute this computation",
        r"no valid convolution algorithms|no valid execution plans",
    ),
    infrastructure(
        "gpu.failed",
        r"(?:CUDA error: |Cuda failure (?:[0-9]{1,4} )?')(?P<error>unspecified launch failure|unknown error"
        r"|hardware stack error|the launch timed out and was terminated|an illegal instruction was encountered"
        r"|unspecified driver error)",
        r"(?P<error>Xid \([^)]{0,80}\): [0-9]{1,3}.{0,200})",
    ),
    configuration(
        "gpu.container_refused", r"nvidia-container-(?:cli|runtime\S{0,20}): |nvidia-ctk: ", nearer=("storage",)
    ),
)

_NOT_THERE = (
    r"(?:not found|does not exist|doesn't exist|not exist|not a (?:valid )?(?:directory|folder|file))\b"
    r"(?! (?:in|for) [^/]{0,300}$)"
)
"""Words of scripts and libraries that check a path themselves; not of a key that a table lacks."""
STORAGE = (
    configuration(
        "storage.full",
        r"[Nn]o space left on device|\[Errno 28\]",
        r"\[enforce fail at inline_container\.cc.{0,300}(?:unexpected pos|written != )",
        r"PytorchStreamWriter failed writing file",
        r"Disk quota exceeded|\[Errno 122\]",
    ),
    infrastructure("storage.read_only", r"Read-only file system(?:: '(?P<path>[^']{1,300})')?"),
    configuration(
        "storage.permission",
        r"PermissionError: .{0,100}: '(?P<path>[^']{1,300})'",
        r"(?<!\S)(?P<path>/\S{1,300}): Permission denied",
        r"Permission denied(?:: '(?P<path>[^']{1,300})')?",
    ),
    configuration("storage.too_many_files", r"Too many open files", r"received [0-9]{1,9} items of ancdata"),
    infrastructure(
        "storage.failing",
        r"\[Errno 5\]|failed with Input/output error",
        r"\[Errno 116\]|Stale file handle",
        r"Transport endpoint is not connected",
    ),
    configuration("storage.not_opened", r"File (?P<path>\S{1,300}) cannot be opened"),
    configuration(
        "storage.not_found",
        r"FileNotFoundError: .{0,100}: '(?P<path>[^']{1,300})'",
        r"FileNotFoundError: (?P<path>\S{1,300}) not found\.?$",
        r"FileNotFoundError: (?P<path>.{1,300})",
        r"\[Errno 2\] No such file or directory: '(?P<path>[^']{1,300})'",
        r"Parent directory (?P<path>\S{1,300}) does not exist",
        r"(?:Error|Exception): (?P<path>(?:[.~]{0,2}/[\w./-]{1,300}|[\w./-]{1,300}/[\w-]{1,100}\.\w{1,10}))"
        rf" (?:is |was )?{_NOT_THERE}",
        r"(?<!Key)(?<!Attribute)(?:Error|Exception): (?P<path>.{0,200}\b(?:[Dd]ataset|[Dd]irectory|[Ff]older|[Ff]ile)"
        rf"(?: \S{{1,300}})? (?:is |was )?{_NOT_THERE}.{{0,200}})",
        r"(?:Error|Exception|SystemExit): (?P<path>(?:[Ff]ound )?(?:0|[Nn]o) (?:\w{1,20} )?"
        r"(?:images?|files?|videos?|shards?) (?:\w{1,20} )?(?:in|under|at)\b.{1,200})",
        r"^assert (?P<path>(?:\S{0,100}\bpath|osp)\.(?:exists|isfile|isdir)\((?:(?!\bnot\b).){1,200}?\))(?:$|,)",
        r"^assert (?P<path>(?:(?!\bnot\b)[^,]){1,200}\.(?:exists|is_file|is_dir)\(\))(?:$|,)",
    ),
)
