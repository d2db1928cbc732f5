"""Causes: what keeps the program from starting."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Advice

ADVICE = (
    Advice(
        id="start.architecture",
        launch_again=True,
        what="the image is for another processor architecture than {node} has",
        todo=("orch doctor --nodes {node}; build on a machine of that architecture: orch build", "or leave {node} out"),
        page="consistency.image_architecture",
    ),
    Advice(
        id="start.script_missing",
        launch_again=True,
        what="there is no file {path} in the container on {node}",
        todo=("name the script as seen from the folder of your code: orch launch --workdir FOLDER -- python SCRIPT",),
    ),
    Advice(
        id="start.torchrun_options",
        launch_again=True,
        what="torchrun was given what it does not understand: {problem}",
        todo=("options of your script stand after it: orch launch -- python train.py --lr 1e-3",),
    ),
    Advice(
        id="start.options",
        launch_again=True,
        what="the program was given what it does not understand: {problem}",
        todo=("its options: orch launch --nodes 1 -- gpt2 --help, or your script's --help",),
    ),
    Advice(
        id="start.libc",
        launch_again=True,
        what="a library in the image was built for a newer system than the image has ({version})",
        todo=("build it in the image instead of copying it there: orch build with it in requirements",),
    ),
    Advice(
        id="start.library",
        launch_again=True,
        what="the image lacks the library {library}",
        todo=("add its package to the image, then orch build",),
    ),
    Advice(
        id="start.compiler",
        launch_again=True,
        what="torch.compile found no compiler on {node}",
        todo=(
            "orch build installs one in the image; an image of your own needs g++",
            "or train without: --no-compile",
        ),
    ),
    Advice(
        id="start.module",
        launch_again=True,
        what="the image has no Python module {module}",
        todo=(
            "a package: add it to the image's requirements, then orch build",
            "your own: it has to lie in --workdir, beside the script",
        ),
    ),
    Advice(
        id="start.import",
        launch_again=True,
        what="{what} cannot be imported: the package in the image is of another version, or a file of yours hides it",
        todo=(
            "compare versions: pip list in the image and where it worked",
            "look for a file of that name beside the script",
        ),
    ),
    Advice(
        id="start.syntax",
        launch_again=True,
        what="Python cannot read the script: {problem}",
        todo=(
            "fix it, try it on one machine (python SCRIPT), launch again; the image's Python may be older than yours",
        ),
    ),
    Advice(
        id="start.threads",
        what="the container on {node} may not have more processes and threads",
        todo=("fewer workers and threads: --workers, OMP_NUM_THREADS",),
        page="engine.limits_ignored",
    ),
)
