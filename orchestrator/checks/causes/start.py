"""Causes: what keeps the program from starting."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Rule

RULES = (
    Rule(
        id="start.architecture",
        kind="configuration",
        what="the image is for another processor architecture than {node} has",
        todo=("orch doctor --node {node}; build on a machine of that architecture: orch build", "or leave {node} out"),
        signs=(r"[Ee]xec format error",),
        page="sameness.image_architecture",
    ),
    Rule(
        id="start.script_missing",
        kind="configuration",
        what="there is no {path} in the container on {node}",
        todo=("bring your code along: orch launch --workdir FOLDER -- python SCRIPT, SCRIPT as seen from FOLDER",),
        signs=(
            r"can't open file '(?P<path>[^']+)': \[Errno 2\]",
            r"exec: \"?(?P<path>[^\":]+)\"?: (?:executable file not found|stat .*no such file)",
        ),
    ),
    Rule(
        id="start.torchrun_options",
        kind="configuration",
        what="torchrun was given what it does not understand: {problem}",
        todo=("options of your script stand after it: orch launch -- python train.py --lr 1e-3",),
        signs=(r"(?:torchrun|run\.py): error: (?P<problem>.+)",),
    ),
    Rule(
        id="start.options",
        kind="configuration",
        what="the program was given what it does not understand: {problem}",
        todo=("its options: orch launch --nodes 1 -- gpt2 --help, or your script's --help",),
        signs=(r"^(?:\S+: )?error: (?P<problem>.*(?:argument|option|choice|expected|contradict|required).*)",),
    ),
    Rule(
        id="start.libc",
        kind="configuration",
        what="a library in the image was built for a newer system than the image has ({version})",
        todo=("build it in the image instead of copying it there: orch build with it in requirements",),
        signs=(r"version `(?P<version>(?:GLIBC|GLIBCXX|CXXABI)_[\d.]+)' not found",),
    ),
    Rule(
        id="start.library",
        kind="configuration",
        what="the image lacks the library {library}",
        todo=("add its package to the image, then orch build",),
        signs=(r"(?P<library>[\w.+-]+\.so[\w.]*): cannot open shared object file",),
    ),
    Rule(
        id="start.module",
        kind="configuration",
        what="the image has no Python module {module}",
        todo=(
            "a package: add it to the image's requirements, then orch build",
            "your own: it has to lie in --workdir, beside the script",
        ),
        signs=(
            r"ModuleNotFoundError: No module named '(?P<module>[^']+)'",
            r"Error while finding module specification for '(?P<module>[^']+)'",
            r"No module named (?P<module>[\w.]+)$",
        ),
    ),
    Rule(
        id="start.import",
        kind="configuration",
        what="{what} cannot be imported: the package in the image is of another version, or a file of yours hides it",
        todo=(
            "compare versions: pip list in the image and where it worked",
            "look for a file of that name beside the script",
        ),
        signs=(r"ImportError: (?P<what>.+)",),
    ),
    Rule(
        id="start.syntax",
        kind="user",
        what="Python cannot read the script: {problem}",
        todo=(
            "mend it, try it on one machine (python SCRIPT), launch again; the image's Python may be older than yours",
        ),
        signs=(r"(?P<problem>(?:Syntax|Indentation|Tab)Error: .+)",),
    ),
    Rule(
        id="start.threads",
        kind="configuration",
        what="the container on {node} may not have more processes and threads",
        todo=("fewer workers and threads: --workers, OMP_NUM_THREADS",),
        signs=(r"can't start new thread", r"pthread_create.*failed", r"\[Errno 11\] Resource temporarily unavailable"),
        page="engine.limits_ignored",
    ),
)
