"""A behaviour is found by its standard term: an engineer who greps the file tree for it finds the file that does it.

A file that is renamed or split changes its path here. A term changes only where it is not the standard one.
"""

from __future__ import annotations

import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
ENOUGH = 36

PYTORCH = (
    ("Worker processes load the micro-batches of a rank", r"data_?loader", "trainer/engine/dataloader.py"),
    ("The gradients of micro-batches accumulate to a step", r"accumulat|micro_?batch", "trainer/engine/loop.py"),
    ("A checkpoint is written, synced, hashed and renamed", r"checkpoint", "trainer/checkpoint_folder.py"),
    ("The learning rate warms up and decays", r"schedul|learning_rate", "trainer/engine/optimization/schedule.py"),
    ("Gradients are compressed before they are sent", r"compress|quantiz", "trainer/engine/sync/codec.py"),
    ("A node whose ranks make no progress is detected", r"hang|liveness", "contract/liveness.py"),
    ("Each rank shows regularly that it is alive", r"heartbeat", "trainer/agent/heartbeat.py"),
    ("The nodes agree on start, restart and stop", r"coordinator", "trainer/agent/coordinator.py"),
    ("Worker count and micro-batch size are measured", r"auto_?tun", "trainer/engine/autotune/tuning.py"),
    ("The precision of a training is chosen", r"precision|autocast", "trainer/engine/hardware/precision.py"),
    ("The ranks join one process group", r"process_group", "trainer/engine/process_group.py"),
    ("A model is evaluated on held-out data", r"evaluat", "trainer/engine/evaluate.py"),
    ("A run resumes from its newest usable checkpoint", r"resum", "trainer/engine/checkpoints/resume.py"),
    ("An out-of-memory error is recognized", r"oom|memory", "trainer/out_of_memory.py"),
    ("The time of a step is predicted", r"cost_model", "contract/cost_model/step_time.py"),
    ("All ranks learn the loss and times of a step", r"step_stats|metrics", "trainer/engine/step_stats.py"),
    ("A training is profiled", r"profil", "trainer/engine/reporting/profile.py"),
    ("Everything is set up before the first step", r"setup", "trainer/engine/setup.py"),
    ("The exit of a node's ranks is recorded", r"exit_record|exit_status", "trainer/agent/exit_record.py"),
    ("A Python traceback is parsed", r"traceback", "contract/failures/tracebacks.py"),
)
SRE = (
    ("The host key of a new node is accepted", r"host_?key|known_hosts|trust", "orchestrator/cli/trust.py"),
    ("The firewall of a node is checked", r"firewall", "orchestrator/checks/firewall.py"),
    ("Sleep and power saving settings are checked", r"power", "orchestrator/checks/power.py"),
    ("Free memory, disk and CPUs are checked", r"capacity|resource", "orchestrator/checks/resources.py"),
    ("Version skew between nodes is found", r"consisten|skew|version", "orchestrator/checks/consistency.py"),
    ("Orphaned containers are found", r"orphan", "orchestrator/checks/orphans.py"),
    ("An error decides the exit code of a command", r"exit_code|error", "orchestrator/specs/errors.py"),
    ("Secret values are hidden in what is printed", r"secret|redact", "orchestrator/specs/secret.py"),
    ("The first failure of a run is reported afterwards", r"post_?mortem", "orchestrator/state/postmortem.py"),
    ("A run is watched and restarted after failures", r"supervis", "orchestrator/fleet/supervise/loop.py"),
    ("The end of a run is decided", r"outcome", "orchestrator/state/run_outcome.py"),
    ("All nodes of a run are awaited at the master", r"rendezvous", "orchestrator/fleet/supervise/rendezvous.py"),
    (
        "Nodes that lack a run's code or data receive it",
        r"artifact|upload",
        "orchestrator/fleet/runs/bring_artifacts.py",
    ),
    ("Containers and folders of a run are removed", r"clean|prune", "orchestrator/fleet/runs/stop.py"),
    ("A run starts once, reports and is removed", r"one_?shot", "orchestrator/fleet/supervise/one_shot.py"),
    ("A container's log is followed across lost connections", r"log", "orchestrator/nodes/log_stream.py"),
    ("The output of nvidia-smi is parsed", r"nvidia", "orchestrator/nodes/probes/nvidia_smi.py"),
    ("Everything that happens to a run is a typed event", r"event", "orchestrator/specs/run_events.py"),
    ("A launch continues the previous attempt", r"previous", "orchestrator/cli/launching/checked_plan.py"),
    ("The options of a launch are one value", r"option", "orchestrator/specs/launch_options.py"),
)
BEHAVIOURS = (*PYTORCH, *SRE)


def test_every_behaviour_has_a_file() -> None:
    assert (len(PYTORCH), len(SRE)) == (20, 20)
    assert [path for _, _, path in BEHAVIOURS if not (ROOT / path).is_file()] == []


def test_the_standard_term_is_in_the_path() -> None:
    misses = [
        f"{behaviour}: no {term} in {path}"
        for behaviour, term, path in BEHAVIOURS
        if not re.search(term, path, re.IGNORECASE)
    ]
    assert len(BEHAVIOURS) - len(misses) >= ENOUGH, "\n".join(misses)
