"""A run as one batch job of Slurm. Pure: the text that is submitted is the text that `--dry-run` prints.

The script is the same for every run but for its `#SBATCH` lines and the quoted words after `set --`. No value of a user
is ever read by the shell, and ranks, names and addresses are bound by the agent (`plan/late_binding.py`).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator
from dataclasses import replace

from orchestrator.plan.command import CONTAINER_WORKSPACE
from orchestrator.plan.container import IMAGE_ENVIRONMENT, start_of_agent
from orchestrator.plan.late_binding import late_bound, lost_variables
from orchestrator.plan.lines import job_words
from orchestrator.specs import labels
from orchestrator.specs.cluster import JOB_PREFIX, ClusterSpec
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import ConfigError
from orchestrator.specs.host_paths import on_host
from orchestrator.specs.plan import Plan
from orchestrator.specs.secret import is_sensitive

WARNING_S = 90
"""Seconds before the time limit at which ranks are asked to stop: 60 for the last checkpoint, 15 for the agents."""
EARLY_S = 60
"""Slurm may send that signal so many seconds earlier (sbatch(1), --signal)."""
SHORTEST_S = WARNING_S + EARLY_S + 30
"""Shortest time limit: below it, a job ends before its first step."""
HELD_S = 900
"""Longest time for which checks hold nodes."""
VARIABLES = (
    "SLURM_JOB_ID", "SLURM_JOB_NODELIST", "SLURM_JOB_NUM_NODES", "SLURM_NODEID", "SLURM_RESTART_COUNT",
    "SLURMD_NODENAME",
)  # fmt: skip
"""Variables of a job's step that the agent reads."""
NODE_LABELS = (
    labels.LABEL_NODE, labels.LABEL_NODE_RANK, labels.LABEL_FIRST_RANK, labels.LABEL_MASTER, labels.LABEL_ATTEMPT,
)  # fmt: skip
"""Labels that differ between the nodes or the attempts of a job."""
_OF_IMAGES = frozenset(IMAGE_ENVIRONMENT) - {"PYTHONUNBUFFERED", "PYTHONDONTWRITEBYTECODE", "OMP_WAIT_POLICY"}
TASK_FILE = ".orch-task-"
"""Start of the name of the program that a job keeps in the workspace, where no container can write; the name of the
containers' program follows."""

# A constant. Slurm's own policy restarts nodes, the agents restart ranks: srun ends no task because of another.
# A trap ends `wait`, not the step, which is therefore waited for again: also if it has ended while the trap ran, since
# the code of the first `wait` is that of the signal then. The second one may know it no more: 127, or -1 in bash 5.2.
# srun ends with 0 although Slurm has lost its tasks, where their slurmstepd was killed: the agent's own word counts.
# To queue a job again ends this script and its `sleep` by SIGTERM: the secrets are for the next life. So they are where
# Slurm queues it again itself, for another job or after a lost node: it counts that before it ends this script.
# A container is no child of its program, and Slurm knows nothing of it: the task lives as long as the container, by a
# shell that outlives the program, and Slurm's own process of the task waits a few seconds (srun(1), --task-epilog)
# where the shell was killed. The input of a container ends when any of these three is gone, and its agent stops then.
# Docker does not know which cards Slurm has given the step: the task names them, by their numbers on the machine.
_BODY = r"""
run=$1
shift
case $1 in --task-epilog=*)
  task=${1#*=}
  new=$task.$SLURM_JOB_ID
  (umask 077; cat >"$new") <<'END' && chmod 700 "$new" && mv -f "$new" "$task"
#!/bin/bash
# With words: start a container and end after it. Without any: what Slurm runs after such a task.
program=${0##*-}
name=orch-$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
runs() { [ "$("$program" container inspect --format '{{.State.Running}}' "$name" 2>/dev/null)" = true ]; }
leave() {
  SECONDS=0
  while [ "$SECONDS" -lt "$1" ] && runs; do sleep 0.2; done
  "$program" rm --force "$name" >/dev/null 2>&1
}
if [ $# = 0 ]; then leave 3; exit 0; fi
if [ "$1" = --cards-of-step ]; then
  shift
  case $SLURM_STEP_GPUS in '' | *[!0-9,]*)
    echo "orch: Slurm names no cards for this step (SLURM_STEP_GPUS: '$SLURM_STEP_GPUS'): gres.conf needs File=" >&2
    exit 1 ;;
  esac
  if [ "$program" = podman ]; then
    for card in ${SLURM_STEP_GPUS//,/ }; do set -- --device "nvidia.com/gpu=$card" "$@"; done
  else
    set -- --gpus "\"device=$SLURM_STEP_GPUS\"" "$@"
  fi
fi
exec 3< <(trap '' TERM; while [ -d "/proc/$$" ] && [ -d "/proc/$PPID" ]; do sleep 1 >/dev/null; done)
input=$!
"$program" run --name "$name" "$@" <&3 3<&- &
client=$!
exec 3<&-
trap 'kill -TERM "$client" 2>/dev/null' TERM
while wait "$client"; code=$?; kill -0 "$client" 2>/dev/null; do :; done
wait "$client" 2>/dev/null; again=$?
case $again in 127 | -*) ;; *) code=$again ;; esac
trap '' TERM
kill -KILL "$input"
leave 30
exit "$code"
END
esac
attempt=$SLURM_JOB_ID.${SLURM_RESTART_COUNT:-0}
export SRUN_CPUS_PER_TASK=$SLURM_CPUS_PER_TASK
limit=
trap 'limit=1; scancel --signal=TERM "$SLURM_JOB_ID"' USR1
trap : TERM
srun --kill-on-bad-exit=0 --wait=0 --output="$run/logs/%n.$attempt.log" --open-mode=append "$@" &
step=$!
while wait "$step"; code=$?; kill -0 "$step" 2>/dev/null; do :; done
wait "$step" 2>/dev/null; again=$?
case $again in 127 | -*) ;; *) code=$again ;; esac
if [ "$code" = 0 ]; then
  read -r life code <"$run/left" 2>/dev/null
  [ "$life" = "$attempt" ] || { echo "orch: srun ended with 0, and the agent of rank 0 noted no end" >&2; code=1; }
fi
printf '%s\n' "$code" >"$run/.ended.$attempt" && mv -f "$run/.ended.$attempt" "$run/ended.$attempt"
if [ -n "$limit" ] && [ "$code" = 143 ]; then
  if [ "$(cat "$run/progressed" 2>/dev/null)" = "$attempt" ]; then
    (trap '' TERM; exec scontrol requeue "$SLURM_JOB_ID") && { sleep 600; exit "$code"; }
  else
    echo "orch: time limit, and no new checkpoint: not queued again" >&2
  fi
fi
restarts=$(scontrol show job "$SLURM_JOB_ID" 2>/dev/null | sed -n 's/.* Restarts=\([0-9]*\) .*/\1/p')
[ "${restarts:-0}" -gt "${SLURM_RESTART_COUNT:-0}" ] || rm -rf -- "$run/secrets"
exit "$code"
"""


def batch_script(plan: Plan, cluster: ClusterSpec) -> str:
    """The text to submit. ConfigError: a value that cannot be part of it."""
    _require_possible(plan, cluster)
    words = (run_folder(plan), *_task_words(plan, cluster))
    return "\n".join(("#!/bin/bash", *_lines(_directives(plan, cluster)), f"set -- {shlex.join(words)}")) + _BODY


def holding_script(cluster: ClusterSpec, nnodes: int, name: str) -> str:
    """A job that holds nodes for checks, with the resources of a run, until it is cancelled; it ends by itself after
    `HELD_S` seconds, so that nodes are released also when this computer was lost: short jobs start earlier, too."""
    if not cluster.time or time_limit_s(cluster.time) > HELD_S:
        cluster = cluster.model_copy(update={"time": str(HELD_S // 60)})
    options = (
        *_resources(cluster, nnodes),
        ("output", "/dev/null"),
        ("no-requeue", ""),
        *sorted(cluster.options.items()),
    )
    return "\n".join(("#!/bin/bash", *_lines((("job-name", name), *options)), f"exec sleep {HELD_S}", ""))


def _lines(options: Iterable[tuple[str, str]]) -> Iterator[str]:
    """Yield the line of each option of sbatch."""
    for name, value in options:
        yield f"#SBATCH --{name}={value}" if value else f"#SBATCH --{name}"


def run_folder(plan: Plan) -> str:
    """The run's folder on the shared storage."""
    return f"{plan.nodes[0].folder}/runs/{plan.run_id}"


def _directives(plan: Plan, cluster: ClusterSpec) -> Iterator[tuple[str, str]]:
    """Options of sbatch. Each value is an id, a number, or was checked by the inventory."""
    yield "job-name", f"{JOB_PREFIX}{plan.run_id}"
    yield from _resources(cluster, plan.nnodes)
    yield "output", f"{run_folder(plan)}/logs/batch.%j.log"
    yield "open-mode", "append"
    yield "requeue", ""
    yield "signal", f"B:USR1@{WARNING_S}"
    yield from sorted(cluster.options.items())


def _resources(cluster: ClusterSpec, nnodes: int) -> Iterator[tuple[str, str]]:
    """Options of sbatch that say where a job runs and on how much of each node."""
    for name in ("partition", "account", "time"):
        if value := getattr(cluster, name):
            yield name, value
    yield "nodes", str(nnodes)
    yield "ntasks-per-node", "1"
    yield "cpus-per-task", str(cluster.cpus)
    if cluster.memory_mib:
        yield "mem", f"{cluster.memory_mib}M"
    if cluster.gpus:
        yield "gpus-per-node", str(cluster.gpus)


def _task_words(plan: Plan, cluster: ClusterSpec) -> tuple[str, ...]:
    """The words of one task: further options of srun, then the command of a node."""
    inside = f"{CONTAINER_WORKSPACE}/runs/{plan.run_id}"
    contained = cluster.container != "none"
    options = ["--place", "slurm", "--port", str(plan.master_port), "--attempt-base", str(plan.attempt)]
    options += ["--place-folder", inside, "--stamp-lines"]
    options += ["--interface", cluster.interface] if cluster.interface else []
    options += ["--end-with-stdin"] if cluster.container in ("docker", "podman") else []
    options += ["--end-with-parent"] if not contained else []
    spec = late_bound(plan.nodes[0].container, *options)
    spec = replace(
        spec,
        labels={name: value for name, value in spec.labels.items() if name not in NODE_LABELS},
        restart_on_failure=0,
        auto_remove=True,
    )
    if not contained:
        return _process_words(plan, cluster, spec)
    if cluster.container == "pyxis":
        return _pyxis_words(spec)
    task = f"{plan.nodes[0].folder.rpartition('/')[0]}/{TASK_FILE}{cluster.container}"
    cards = ("--cards-of-step",) if spec.gpus else ()
    return (f"--task-epilog={task}", "bash", task, *cards, *job_words(replace(spec, gpus=False), VARIABLES))


def _process_words(plan: Plan, cluster: ClusterSpec, spec: ContainerSpec) -> tuple[str, ...]:
    """`env` with the variables and the folder, then the agent of the shared storage."""
    agent = start_of_agent(f"{plan.nodes[0].folder}/agent/{plan.agent_digest}")
    host = on_host(replace(spec, command=spec.command[3:]))  # without the start of the agent in an image
    variables = (f"{name}={value}" for name, value in host.environment.items() if name not in _OF_IMAGES)
    return ("env", "-C", host.working_dir, *variables, cluster.python, "-c", agent, *host.command)


def _pyxis_words(spec: ContainerSpec) -> tuple[str, ...]:
    """Options of NVIDIA's plug-in for srun; it passes the variables of the step on."""
    variables = (f"{name}={value}" for name, value in spec.environment.items())
    return (
        f"--container-image={spec.image}",
        f"--container-mounts={','.join(one.typed for one in spec.mounts)}",
        f"--container-workdir={spec.working_dir}",
        "--no-container-mount-home",
        "env",
        *variables,
        *spec.command,
    )


def _require_possible(plan: Plan, cluster: ClusterSpec) -> None:
    """ConfigError: the job could not run so, or its text would hold a secret."""
    problems = lost_variables(plan.environment, interface=f"set `interface:` of cluster {cluster.name} instead")
    problems += [
        f"--env {name}: its name or value is that of a secret, and a batch script is a file: --secret {name}"
        for name, value in plan.environment.items()
        if is_sensitive(name, value)
    ]
    if cluster.time and (seconds := time_limit_s(cluster.time)) < SHORTEST_S:
        problems.append(
            f"time: {cluster.time} of cluster {cluster.name} is {seconds} s; ranks are asked to stop {WARNING_S} s"
            f" before the limit, and Slurm may do so {EARLY_S} s earlier: at least {SHORTEST_S} s"
        )
    if cluster.container != "none" and not plan.nodes[0].container.image:
        what = f"container: {cluster.container} of cluster {cluster.name}"
        problems.append(f"{what} needs an image: --image REF, or `image:` in the inventory")
    if cluster.container == "pyxis":
        problems += [
            f"--mount {one.source}:{one.target}: pyxis separates mounts by commas and their parts by colons"
            for one in plan.mounts
            if re.search(r"[,:]", one.source + one.target)
        ]
    if problems:
        raise ConfigError(f"run {plan.run_id} cannot be a job of cluster {cluster.name}", problems=problems)


def time_limit_s(text: str) -> int:
    """Seconds of a time limit as sbatch(1) reads it: minutes, M:S, H:M:S, D-H, D-H:M or D-H:M:S."""
    days, dash, rest = text.rpartition("-")
    numbers = [int(part) for part in rest.split(":")]
    if dash:
        hours, minutes, seconds = (*numbers, 0, 0)[:3]
        return ((int(days) * 24 + hours) * 60 + minutes) * 60 + seconds
    if len(numbers) < 3:
        minutes, seconds = (*numbers, 0)[:2]
        return minutes * 60 + seconds
    return (numbers[0] * 60 + numbers[1]) * 60 + numbers[2]
