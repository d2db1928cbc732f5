"""Words of Docker, kubectl, Ansible, Slurm and git: each is answered with the line of orch that does it, to be pasted.

Nothing runs under such a word: what it means elsewhere, and what it would remove there, is not the same here.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from orchestrator.cli.completion import workload_names
from orchestrator.specs.errors import UsageError

_COMMANDS = """
kill cancel scancel qdel terminate abort halt down delete rm | to end the run | stop {run}
rm rmi remove delete prune | to remove the containers of ended runs | clean {run}
ps squeue sacct jobs list ls history queue log | to list the runs | runs
ps show scontrol info | to see the ranks of one | status {run}
watch | to see the state of a run again and again | status {run} --watch
top stats htop | to watch the nodes and their run | monitor
cp copy scp download fetch | to copy what a run wrote to this computer | pull {copy}
run train start submit sbatch srun qsub up apply create deploy | to start a run | launch {command}
start continue requeue unpause | to resume a run that ended | resume {name}
up | for simulated machines to try it on | lab up --nodes 5
attach tail follow | to follow the output of a run | logs {run} -f
nodes node hosts machines sinfo | to list the machines | inventory list
config edit show | to see every key of a machine | inventory show
describe inspect diagnose | for the cause of a failure, or what a run waits for | why {run}
ssh login connect | to log in to a node | shell {node}
ping check | to ask every node, and find what would break a run | doctor
install bootstrap provision | to install what a run needs on the nodes | setup
add join | to write the machines into inventory.yaml | init ADDRESS
ansible command | to run a command on nodes | exec -n {node} -- {rest}
playbook ansible-playbook | to install what a run needs on the nodes | setup
diff | for what differs between two runs | runs diff {pair}
images image push | to build the image and copy it to every node | build
clone checkout commit | for your code, which every launch copies as it is | launch --workdir . {command}
scale | to start it on another number of nodes | launch {count} {command}
rollout | to restart a run from its last checkpoint | restart {run}
drain cordon | to leave a node out of a launch | launch -n !{node} {command}
port-forward proxy ui web | to see nodes and runs in a browser | dashboard
serve infer | to use the model of a run | predict {name} FILE
generate | to let the model of a run write text | sample {name} --prompt TEXT
gpu gpus nvidia-smi | to see the GPUs on every node and in its container | check-gpus
lab-stop lab-destroy lab-rm lab-delete | to end the lab | lab down
lab-ps lab-ls lab-list | to list its machines | lab status
inventory-ls inventory-ps inventory-get | to list the machines | inventory list
inventory-check inventory-lint | to check the file | inventory validate
checkpoints-list checkpoints-get | to list the checkpoints | checkpoints ls
checkpoints-rm checkpoints-delete | to remove all but the newest ones | checkpoints prune {name} --keep 3
checkpoints-cp checkpoints-download | to copy the newest one to this computer | checkpoints pull {run}
"""
"""Words, their purpose, and the line of orch. All rows with a word are shown; `lab-stop` is `stop` after `lab`."""
_OPTIONS = """
launch | --replicas --num-nodes --nnodes --num_machines --hosts --limit -N | = | --nodes {}
launch | --gpus --gpus-per-node --gres --nproc-per-node --nproc_per_node --ntasks --num_processes -np | = |
launch | --volume -v | = | --mount {}
launch | -e | = | --env {}
launch | -w --working-dir --chdir -C | = | --workdir {}
launch | -p --partition --qos --time --publish --cpus --memory -m --shm-size --cpus-per-task --mem -c | = |
launch | --network --net --ipc --user -u --entrypoint --platform --restart --node-rank --node_rank | = |
launch | --master_addr --master-addr --rdzv-endpoint --rdzv_endpoint --rdzv_backend --rdzv-backend | = |
launch | --master_port | = | --master-port {}
launch | --rm --privileged --follow | |
launch | -f --filename | = | -i {}
launch | --check | | --dry-run
status | --follow -w -f | | --watch
stop | --force -9 -f | | --timeout 0
stop | --signal -s | = |
* | -it -ti --tty --interactive --stdin | |
* | --limit --hosts | = | --nodes {}
* | --selector | = | --label {}
* | --all --all-namespaces -a -A | |
* | --namespace | = |
exec | -m --module-name -a --args | = |
* | --become --ask-become-pass -b -K | |
"""
"""Commands (`*`: any), options of other tools, `=` where a value follows, and ours instead; none: it is left out."""
_REASONS = {
    "--gpus": "each GPU has a rank; nproc_per_node in inventory.yaml changes that",
    "-p": "such limits stand in inventory.yaml: orch docs inventory",
    "--network": "orch sets that for every container",
    "--master_addr": "orch sets that on every node",
    "--rm": "a launch follows its run, and an ended container stays for `orch logs`: orch clean removes it",
    "-it": "a container has no terminal; a node has: orch shell NODE",
    "--all": "all is shown",
    "--become": "a password for sudo is asked for where one is needed",
}
"""Why an option is left out, by the first name of its row."""
_READ_AS_OTHERS = {"-it": "exec shell launch", "-ti": "exec shell launch", "-np": "launch", "-v": "launch"}
"""Options that would be read as others, `-it` as an inventory named t: they are looked for before a line is parsed."""
_KINDS = ("pod", "pods", "job", "jobs", "container", "deployment", "restart", "undo")
"""Words before the name of a run in lines of other tools."""
_PREFIXES = ("docker", "kubectl", "compose", "container", "system", "git")
_PROGRAM = re.compile(r"(.*/)?(python[0-9.]*|bash|sh|torchrun|accelerate|deepspeed)|.*\.(py|sh)")
_IMAGE = re.compile(r"[a-z0-9][\w.-]*(/[\w.-]+)*:[\w.-]+")
_SCRIPT = "-- python train.py"


@dataclass(frozen=True, kw_only=True)
class _Option:
    command: str
    names: tuple[str, ...]
    valued: bool
    ours: str


def _rows(text: str) -> Iterator[list[str]]:
    for line in text.strip().splitlines():
        yield [cell.strip() for cell in line.split("|")]


def _option_rows() -> Iterator[_Option]:
    for command, names, value, ours in _rows(_OPTIONS):
        yield _Option(command=command, names=tuple(names.split()), valued=value == "=", ours=ours)


@dataclass
class _Typed:
    """The words after a command: options in orch's spelling, why some are left out, and the words that follow."""

    options: list[str] = field(default_factory=list)
    reasons: list[str] = field(default_factory=list)
    words: list[str] = field(default_factory=list)
    foreign: list[str] = field(default_factory=list)
    """Options of other tools among them, as typed."""


Options = Callable[[str], Mapping[str, bool]]
"""Options of a command of orch, each with whether a value follows."""


def answer_to(typed: Sequence[str], place: int, commands: Collection[str], options: Options) -> UsageError | None:
    """Return the answer to the command at `place` of the words that were typed; None: no other tool has it.

    `commands`: those of orch, after which another word may be one; `options`: those of a command.
    """
    while typed[place] in _PREFIXES and place + 1 < len(typed) and not typed[place + 1].startswith("-"):
        place += 1
    word, after = typed[place], list(typed[place + 1 :])
    named = word
    if word == "get":
        word = "nodes" if after[:1] in (["node"], ["nodes"]) else "ls"
    if word in commands and after:
        word, after, named = f"{word}-{after[0]}", after[1:], f"{word} {after[0]}"
    rows = [(purpose, line) for words, purpose, line in _rows(_COMMANDS) if word in words.split()]
    if not rows:
        return None
    lines = [f"{purpose}: {_filled(line, after, options)}" for purpose, line in rows]
    return UsageError(f"orch has no command {named}", hint="\n  → ".join(lines))


def _filled(line: str, after: Sequence[str], options: Options) -> str:
    """The line of a row with the run, node, files or program that were typed."""
    command, _, rest = line.partition(" ")
    typed = _translated(command, after, options(command), _PROGRAM.fullmatch)
    given = [word for place, word in enumerate(typed.words) if word != "--" and not (place == 0 and word in _KINDS)]
    run = shlex.quote(given[0]) if given else ""
    fields = {
        "run": run,
        "name": run or "RUN",
        "node": "'*'" if run == "all" else run or "NODE",
        "pair": shlex.join([*given[:2], *("RUN", "OTHER")[len(given[:2]) :]]),
        "copy": _copy(given),
        "command": _program(typed),
        "count": "" if "--nodes" in typed.options else "--nodes 3",
        "rest": shlex.join(given[1:]) or "COMMAND",
    }
    filled = re.sub(r"!(\S+)", r"'!\1'", rest).format(**fields)
    kept = shlex.join(typed.options) if command == "launch" else ""
    return " ".join(" ".join(("orch", command, kept, filled)).split())


def _program(typed: _Typed) -> str:
    """The program that was to run, after `--`, with the image that stands before it."""
    starts = (place for place, word in enumerate(typed.words) if _PROGRAM.fullmatch(word) or word in workload_names())
    if (place := next(starts, None)) is None:
        return _SCRIPT
    program = [word for word in typed.words[place:] if word != "--" or "--" not in typed.words[:place]]
    interpreter = {".py": ["python"], ".sh": ["bash"]}.get(program[0][-3:], [])
    image = next((word for word in typed.words[:place] if _IMAGE.fullmatch(word)), "")
    before = ["--image", image] if image else []
    return shlex.join([*before, "--", *interpreter, *program])


def _copy(words: Sequence[str]) -> str:
    """`RUN:FILE DIR` as `RUN FILE --to DIR`."""
    if not words:
        return ""
    run, _, path = words[0].partition(":")
    to = ["--to", words[1]] if len(words) > 1 and words[1] != "." else []
    return shlex.join([run, *([path] if path else []), *to])


def option_answer(typed: Sequence[str], place: int, option: str, options: Options) -> UsageError | None:
    """Return the answer to an option of the command at `place`, whose options are given; None: no tool's of the table.

    The line to paste is the one that was typed, with all such options in orch's spelling.
    """
    command, after = typed[place], list(typed[place + 1 :])
    if _row(command, option) is None:
        return None
    found = _translated(command, after, options(command))
    words = found.words
    if command == "launch" and words and "--" not in words:
        words = ["--", *words]
    line = shlex.join(["orch", *typed[:place], command, *found.options, *words]).replace("'--'", "--")
    names, why = ", ".join(found.foreign) or option, "; ".join(dict.fromkeys(found.reasons))
    return UsageError(f"orch {command} has no option {names}" + (f": {why}" if why else ""), hint=line)


def misread_option(typed: Sequence[str], place: int, options: Options) -> UsageError | None:
    """Return the answer to an option that would be read as several short ones, before it is."""
    command = typed[place]
    before_words = typed[place + 1 : typed.index("--") if "--" in typed[place:] else None]
    for option, commands in _READ_AS_OTHERS.items():
        if option in before_words and command in commands.split() and _is_foreign(option, before_words):
            return option_answer(typed, place, option, options)
    return None


def _is_foreign(option: str, words: Sequence[str]) -> bool:
    """Return whether it is another tool's: `-v` is orch's own, unless two folders follow it."""
    after = words[words.index(option) + 1 :][:1]
    return option != "-v" or bool(after and re.match(r"[./~].*:", after[0]))


def _row(command: str, option: str) -> _Option | None:
    rows = [row for row in _option_rows() if option in row.names and row.command in (command, "*")]
    return rows[0] if rows else None


def _translated(
    command: str, words: Sequence[str], own: Mapping[str, bool], ends: Callable[[str], object] = bool
) -> _Typed:
    """Sort the words after a command. Options that neither orch nor the table knows are left out.

    `ends`: whether a word after `launch` begins the program, whose options are its own.
    """
    typed, place = _Typed(), 0
    while place < len(words):
        word = words[place]
        if word == "--" or (command == "launch" and not word.startswith("-") and ends(word)):
            typed.words += words[place:]
            break
        place += 1
        if not word.startswith("-") or word == "-":
            typed.words.append(word)
            continue
        name, equals, value = word.partition("=")
        others = name in _READ_AS_OTHERS and _is_foreign(name, words[place - 1 :])
        row = _row(command, name) if others or name not in own else None
        valued = row.valued if row else own.get(name, False)
        if valued and not equals and place < len(words):
            value, place = words[place], place + 1
        if row:
            typed.foreign.append(name)
            typed.options += [part.format(value) for part in row.ours.split()]
            if reason := _REASONS.get(row.names[0], ""):
                typed.reasons.append(reason)
        elif name in own:
            typed.options += [name, value] if valued else [word]
    return typed
