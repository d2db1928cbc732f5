"""Sentences after Ctrl-C: what continues and what has stopped, for each command that does not print it itself."""

from __future__ import annotations

_AGAIN = "the same command copies the rest"
_LOOKED = "it only looks: nothing was changed, and runs continue"
_FILES = f"no half file is left, runs continue, and {_AGAIN}"
_STEPS = "steps that are done stay, one that has begun may finish on its node, and the same command does the others"
_MODEL = "nothing is left on the nodes, and runs continue"

AFTER_INTERRUPT = {
    **dict.fromkeys(
        ("check-gpus", "docs", "explain", "inventory", "logs", "metrics", "monitor", "plan", "report", "runs", "search",
         "status", "version", "why", "data ls", "checkpoints ls", "checkpoints verify", "lab status"),
        _LOOKED,
    ),
    **dict.fromkeys(("sample", "predict", "evaluate", "checkpoints export"), _MODEL),
    **dict.fromkeys(("pull", "checkpoints pull", "checkpoints push", "tensorboard"), _FILES),
    **dict.fromkeys(("setup", "firewall", "init", "trust", "data repair"), _STEPS),
    **dict.fromkeys(("clean", "uninstall", "data rm", "checkpoints prune"),
                    "what is removed is gone, and the same command removes the rest"),
    "doctor": "probes end by themselves, a fix that has begun may finish on its node, and runs continue",
    "build": "the builder stops; finished steps and nodes that have the image keep it, and the same command continues",
    "prepare": "it has stopped; the same command continues if it has begun to write, otherwise nothing is left",
    **dict.fromkeys(("launch", "runs rerun"),
                    "nothing of it runs on the nodes; what was built or copied for it is used by the next launch"),
    "resume": "the run was not started again; its checkpoints stay, and the same command resumes it",
    "restart": "a run that is stopped by now is resumed by: orch resume RUN; otherwise it continues: orch status",
    "stop": "a run whose nodes have the request continues stopping: orch status; otherwise it continues",
    "supervise": "the run continues on its nodes, but is not restarted without them: orch supervise RUN",
    "adopt": "the run continues; the same command takes it over",
    "wait": "the run continues: orch status",
    "dashboard": "the page has ended, and runs continue",
    "test": "nothing is left on the nodes, and runs continue",
    "bench": "nothing is left on the nodes, and runs continue",
    "exec": "the command on the node may continue where it ignores the end of its connection; runs continue",
    "shell": "runs continue",
    "export": "no file was written, and runs continue",
    "lab": "machines that are done are as requested, the others as before: orch lab status",
    "lab up": "what it has made was removed, and a lab that was up stays: orch lab status",
    "lab down": "what is removed is gone, and the same command removes the rest",
}  # fmt: skip


def after_interrupt(command: str) -> str:
    """Return the sentence for a command such as `checkpoints ls`; empty for `orch` alone."""
    return AFTER_INTERRUPT.get(command) or AFTER_INTERRUPT.get(command.partition(" ")[0], "")
