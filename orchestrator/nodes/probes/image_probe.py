"""Contents of an image that orch has not built, from one short program in a container of it.

It imports torch: that a package is recorded does not say that its libraries load.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from orchestrator.nodes.interface import Completed
from orchestrator.specs.facts import ImageContents

# For any Python: an old one is to say its version. Arguments: names of modules.
_PROGRAM = r"""
import json, sys
answer = {"python": "%d.%d.%d" % sys.version_info[:3], "torch": "", "torch_error": "", "cuda": "", "torchrun": False,
          "backends": [], "modules": []}
try:
    from importlib.util import find_spec
    sys.path = [path for path in sys.path if path and path.rstrip("/") != "/opt/orch"]
    for name in sys.argv[1:]:
        try:
            if find_spec(name):
                answer["modules"].append(name)
        except Exception:
            pass
    import torch
    answer["torch"], answer["cuda"] = str(torch.__version__), torch.version.cuda or ""
    answer["torchrun"] = find_spec("torch.distributed.run") is not None
    dist = torch.distributed
    if dist.is_available():
        answer["backends"] = [name for name in ("gloo", "nccl") if getattr(dist, "is_%s_available" % name)()]
except BaseException as error:
    answer["torch_error"] = ("%s: %s" % (type(error).__name__, error)).strip().split("\n")[0][:300]
print(json.dumps(answer))
"""


def command(modules: Sequence[str]) -> tuple[str, ...]:
    return ("python3", "-c", _PROGRAM, *modules)


def parse(completed: Completed, *, reference: str, device: str) -> ImageContents:
    """The program's answer, its last line. An image without Python is an answer too."""
    lines = completed.stdout.strip().splitlines()
    try:
        answer = json.loads(lines[-1]) if lines else {}
        return ImageContents(
            reference=reference,
            device=device,
            python=str(answer["python"]),
            torch=str(answer["torch"]),
            torch_error=str(answer["torch_error"]),
            cuda=str(answer["cuda"]),
            torchrun=answer["torchrun"] is True,
            backends=tuple(str(name) for name in answer["backends"]),
            modules=tuple(str(name) for name in answer["modules"]),
        )
    except (ValueError, KeyError, TypeError, RecursionError):
        errors = completed.stderr.strip().splitlines()
        error = errors[-1][:300] if errors else f"python3 ended with {completed.exit_code} and no answer"
        return ImageContents(reference=reference, device=device, error=error)
