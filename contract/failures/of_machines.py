"""Signatures of memory, GPUs and disks."""

from __future__ import annotations

from contract.failures.signature import Signature

MEMORY = (
    Signature(
        id="memory.shm",
        owner="configuration",
        patterns=(
            r"insufficient shared memory \(shm\)",
            r"unable to (?:open|write to|allocate|resize|mmap)\b.{0,200}(?:shared memory|/torch_[0-9])",
            r"No space left on device.{0,300}(?:/dev/shm|torch_[0-9]|psm_)",
            r"(?:/dev/shm|torch_[0-9]|psm_).{0,300}No space left on device",
            r"is killed by signal: Bus error",
            r"Error while creating shared memory segment",
            r"posix_fallocate failed : No space left on device",
        ),
    ),
    Signature(
        id="memory.worker_killed",
        owner="infrastructure",
        patterns=(r"DataLoader worker \(pid(?:\(s\))? [0-9, ]{1,200}\) is killed by signal: Killed",),
    ),
    Signature(id="memory.one_sample", owner="user", patterns=(r"not even one sample fits into memory",)),
    Signature(
        id="memory.host",
        owner="user",
        patterns=(
            r"DefaultCPUAllocator: (?:can't allocate memory|not enough memory)",
            r"^MemoryError|_ArrayMemoryError",
            r"std::bad_alloc",
            r"\[Errno 12\] Cannot allocate memory",
        ),
    ),
    Signature(
        id="memory.limit",
        owner="infrastructure",
        patterns=(r"Memory cgroup out of memory: Kill(?:ed)? process",),  # before Linux 5: Kill process … or sacrifice
    ),
    Signature(
        id="memory.kernel",
        owner="infrastructure",
        patterns=(r"Out of memory: Kill(?:ed)? process [0-9]{1,9} \((?P<process>[^)]{0,80})\)",),
    ),
    Signature(id="memory.killed", owner="infrastructure", exit_codes=(-9, 137)),
)

GPU = (
    Signature(
        id="gpu.lost",
        owner="infrastructure",
        patterns=(
            r"Xid \([^)]{0,80}\): 79\b",
            r"fallen off the bus",
            r"Unable to determine the device handle for",
            r"GPU is lost",
        ),
    ),
    Signature(
        id="gpu.ecc",
        owner="infrastructure",
        patterns=(r"uncorrectable ECC error", r"Xid \([^)]{0,80}\): (?:48|63|64|94|95)\b"),
    ),
    Signature(
        id="gpu.no_driver",
        owner="configuration",
        patterns=(
            r"lib(?:nvidia-ml|cuda)\.so\.1: cannot open shared object file",
            r"nvidia-container-cli: .{0,100}driver not loaded",
            r"could not select device driver .{0,50}capabilities: \[\[gpu",
        ),
    ),
    Signature(
        id="gpu.nvml",
        owner="infrastructure",
        patterns=(r"Failed to initialize NVML: Unknown Error", r"[Cc]an't initialize NVML"),
    ),
    Signature(
        id="gpu.memory",
        owner="user",
        patterns=(
            r"(?:CUDA|HIP|XPU) out of memory",
            r"(?:CUDA|HIP) error: out of memory",
            r"Cuda failure (?:[0-9]{1,4} )?'out of memory'",
            r"CU(?:BLAS|DNN|SOLVER)_STATUS_ALLOC_FAILED",
            r"out of memory with micro-batches of [0-9]",
        ),
    ),
    Signature(
        id="gpu.driver_old",
        owner="configuration",
        patterns=(
            r"NVIDIA driver on your system is too old \(found version (?P<version>[0-9]{1,9})\)",
            r"CUDA driver version is insufficient for CUDA runtime version",
        ),
    ),
    Signature(
        id="gpu.too_new_or_old",
        owner="configuration",
        patterns=(
            r"no kernel image is available for execution on the device",
            r"is not compatible with the current PyTorch installation",
        ),
    ),
    Signature(
        id="gpu.none",
        owner="configuration",
        patterns=(
            r"No CUDA GPUs are available",
            r"no CUDA-capable device is detected",
            r"Found no NVIDIA driver on your system",
            r"Torch not compiled with CUDA enabled",
            r"backend nccl, but torch sees no GPU",
            r"ProcessGroupNCCL is only supported with GPUs",
            r"invalid device ordinal",
        ),
    ),
    Signature(
        id="gpu.busy",
        owner="infrastructure",
        patterns=(r"CUDA-capable device(?:s are|\(s\) is/are) busy or unavailable",),
    ),
    Signature(
        id="gpu.assertion",
        owner="user",
        patterns=(r"device-side assert triggered", r"\.cu:[0-9]{1,6}: .{0,300}Assertion `"),
    ),
    Signature(
        id="gpu.illegal_access",
        owner="user",
        patterns=(r"an illegal memory access was encountered", r"CUDA error: misaligned address"),
    ),
    Signature(
        id="gpu.forked",
        owner="user",
        patterns=(r"Cannot re-initialize CUDA in forked subprocess", r"CUDA error: initialization error"),
    ),
    Signature(
        id="gpu.library",
        owner="user",
        patterns=(r"(?P<library>CU(?:DNN|BLAS|SOLVER))_STATUS_NOT_INITIALIZED",),
    ),
    Signature(
        id="gpu.failed",
        owner="infrastructure",
        patterns=(
            r"(?:CUDA error: |Cuda failure (?:[0-9]{1,4} )?')(?P<error>unspecified launch failure|unknown error"
            r"|hardware stack error|the launch timed out and was terminated|an illegal instruction was encountered"
            r"|unspecified driver error)",
            r"(?P<error>Xid \([^)]{0,80}\): [0-9]{1,3}.{0,200})",
        ),
    ),
)

STORAGE = (
    Signature(
        id="storage.full",
        owner="configuration",
        patterns=(
            r"No space left on device|\[Errno 28\]",
            r"\[enforce fail at inline_container\.cc.{0,300}(?:unexpected pos|written != )",
            r"PytorchStreamWriter failed writing file",
            r"Disk quota exceeded|\[Errno 122\]",
        ),
    ),
    Signature(
        id="storage.read_only",
        owner="infrastructure",
        patterns=(r"Read-only file system(?:: '(?P<path>[^']{1,300})')?",),
    ),
    Signature(
        id="storage.permission",
        owner="configuration",
        patterns=(
            r"PermissionError: .{0,100}: '(?P<path>[^']{1,300})'",
            r"(?<!\S)(?P<path>/\S{1,300}): Permission denied",
            r"Permission denied(?:: '(?P<path>[^']{1,300})')?",
        ),
    ),
    Signature(
        id="storage.too_many_files",
        owner="configuration",
        patterns=(r"Too many open files", r"received [0-9]{1,9} items of ancdata"),
    ),
    Signature(
        id="storage.failing",
        owner="infrastructure",
        patterns=(
            r"\[Errno 5\]|failed with Input/output error",
            r"\[Errno 116\]|Stale file handle",
            r"Transport endpoint is not connected",
        ),
    ),
    Signature(
        id="storage.not_opened",
        owner="configuration",
        patterns=(r"File (?P<path>\S{1,300}) cannot be opened",),
    ),
    Signature(
        id="storage.not_found",
        owner="configuration",
        patterns=(
            r"FileNotFoundError: .{0,100}: '(?P<path>[^']{1,300})'",
            r"FileNotFoundError: (?P<path>.{1,300})",
            r"\[Errno 2\] No such file or directory: '(?P<path>[^']{1,300})'",
            r"Parent directory (?P<path>\S{1,300}) does not exist",
        ),
    ),
)
