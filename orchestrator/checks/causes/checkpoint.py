"""Causes: a checkpoint that cannot be resumed from."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Advice

ADVICE = (
    Advice(
        id="checkpoint.none_sound",
        what="every checkpoint of the run on {node} is damaged; the files were left as they are",
        todo=(
            "another copy: orch logs {run} names what is wrong with each; bring back a sound one",
            "or start from the beginning, the damaged ones set aside: orch resume {run} -- … --from-scratch",
        ),
    ),
    Advice(
        id="checkpoint.of_another_run",
        what="the checkpoint on {node} was written by a run with other options or data",
        todo=("give the options it was trained with, another --name, or --from-scratch",),
    ),
    Advice(
        id="checkpoint.shape",
        what="the checkpoint's {name} has another shape ({saved}) than the model's ({built})",
        todo=("build the model with the options that the checkpoint was made with, or start over: --from-scratch",),
    ),
    Advice(
        id="checkpoint.keys",
        what="the checkpoint is of another model: it lacks weights, or has some that this model does not know",
        todo=(
            "a `module.` before every name: it was saved from DistributedDataParallel; save model.module.state_dict()",
            "else build the same model, or load with strict=False",
        ),
    ),
    Advice(
        id="checkpoint.weights_only",
        what="the checkpoint holds more than tensors and plain values: torch.load refuses it, as it could run code",
        todo=(
            "if you made the file: torch.load(path, weights_only=False), then save state_dict() alone",
            "or name the class: torch.serialization.add_safe_globals([Class])",
        ),
    ),
    Advice(
        id="checkpoint.damaged",
        what="a checkpoint on {node} is cut short or damaged",
        todo=(
            "take the one before it; docker run … python -m trainer verify RUN/checkpoints says which are sound",
            "write to another name first and rename: a machine that loses power leaves half a file",
        ),
    ),
)
