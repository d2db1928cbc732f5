"""Ask a machine what it is: one command, one round trip, no program needed on it but a POSIX shell and iproute2."""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Sequence

from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes.nvidia_smi import read_quick
from orchestrator.specs.errors import CommandFailedError
from orchestrator.specs.facts import NodeFacts, Route
from orchestrator.specs.numbers import real, whole

# A constant: what varies ($1 workspace, $2 project, $3 run to resume, then the peers) comes in as arguments. The shell
# itself reads what it can: a launch waits for this, and starting sed, cut and tr thirty times took most of it.
SCRIPT = r"""
workspace=$1; project=$2; run=$3; shift 3
unset OMP_NUM_THREADS OMP_THREAD_LIMIT  # nproc would answer with them
case $workspace in "~"*) workspace=$HOME${workspace#"~"};; esac
say() { printf '%s=%s\n' "$1" "$2"; }
say clock "$(date +%s.%N)"
say system "$(uname -nrm)"
say identity "$(id)"
say home "$HOME"
say cpus "$(nproc)"
[ -r /etc/machine-id ] && read -r machine_id </etc/machine-id; say machine_id "$machine_id"
[ -r /proc/sys/kernel/random/boot_id ] && read -r boot_id </proc/sys/kernel/random/boot_id; say boot_id "$boot_id"
while read -r key kib _; do [ "$key" = MemTotal: ] && say memory_kib "$kib" && break; done </proc/meminfo
place=$workspace; until [ -d "$place" ] || [ -z "$place" ]; do place=${place%/*}; done
say disk "$(df -Pk "${place:-/}" 2>/dev/null | { read -r _; read -r line; printf %s "$line"; })"
listening=
for table in /proc/net/tcp /proc/net/tcp6; do
  [ -r "$table" ] && while read -r _ here _ state _; do
    [ "$state" = 0A ] && listening="$listening ${here##*:}"
  done <"$table"
done
say listening "$listening"
each() { for peer in "$@"; do case $peer in ""|*[!0-9.]*) ;; *) printf "$ask\n" "$peer";; esac; done; }
ask='route get %s'; ways=$(each "$@" | ip -4 -o -force -batch - 2>/dev/null)  # one process for all peers
[ -n "$ways" ] || { ask=%s; ways=$(each "$@" | while read -r peer; do ip -4 -o route get "$peer" 2>/dev/null; done); }
before=; led=; flush() { [ -n "$led" ] && say route "$before|$led"; }
while read -r kind peer way; do
  case $kind in [0-9]*) way="$peer $way"; peer=$kind;; *) way="$kind $way";; esac
  [ "$way" = "$before" ] && led="$led $peer" || { flush; before=$way; led=$peer; }
done <<ANSWERS
$ways
ANSWERS
flush
[ -r /proc/driver/nvidia/version ] && read -r driver </proc/driver/nvidia/version && say nvidia_driver "$driver"
if command -v nvidia-smi >/dev/null; then
  gpus=$(nvidia-smi --query-gpu=index,uuid,name,driver_version --format=csv,noheader 2>&1)
  failed=$?; [ $failed = 0 ] || say smi_exit $failed
  printf '%s\n' "$gpus" | while read -r gpu; do say gpu "$gpu"; done
fi
data=no; for path in "$workspace/$project/Data"/*; do [ -e "$path" ] && data=yes && break; done; say data $data
[ -n "$run" ] && for path in "$workspace/$project/runs/$run/checkpoints"/step-*/; do
  path=${path%/}; [ -f "$path/manifest.json" ] && say checkpoint "${path##*/}"  # without one it is none
done
exit 0
"""

_IDENTITY = re.compile(r"^uid=(?P<uid>[0-9]{1,10})(?:\((?P<user>[^)]*)\))? gid=(?P<gid>[0-9]{1,10})\b")
_DRIVER = re.compile(r"Kernel Module\D*?(?P<version>\d+(?:\.\d+)+)")
_ROUTE = re.compile(r"\bdev (?P<interface>\S+)(?:.*?\bsrc (?P<source>\S+))?")
_NO_WAY = re.compile(r"\s*(unreachable|prohibit|blackhole|throw)\b")
"""Routes that refuse; they name `lo` as their interface."""
_PROGRAMS = "on it: uname -nrm; id; nproc; cat /proc/meminfo   # what the script calls"
_STEP = re.compile(r"step-([0-9]{1,12})\b")


def ask(
    node: Node,
    *,
    workspace: str,
    project: str,
    peers: Sequence[str] = (),
    resume: str = "",
    clock: Callable[[], float] = time.time,
) -> NodeFacts:
    """The host's facts, without those of its engine. `resume` names a run whose checkpoints are looked for."""
    before = clock()
    answer = node.run(["sh", "-c", SCRIPT, "sh", workspace, project, resume, *peers], timeout_s=20)
    text = answer.check("asking for facts", hint="it needs a POSIX shell and iproute2")
    return parse(text, name=node.name, address=node.address, now=(before + clock()) / 2, peers=peers)


def parse(text: str, *, name: str, address: str, now: float, peers: Sequence[str] = ()) -> NodeFacts:
    """The script's lines into facts; `now` is the controller's clock in the middle of the round trip. Where one way
    leads to all `peers`, in their order, the facts of all nodes share these addresses."""
    values: dict[str, str] = {}
    several: dict[str, list[str]] = {"route": [], "gpu": [], "checkpoint": []}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in several:
            several[key].append(value)
        else:
            values[key] = value
    try:
        hostname, kernel, architecture = values["system"].split()
        if (identity := _IDENTITY.match(values["identity"])) is None:
            raise ValueError(values["identity"])
        disk = values["disk"].split()
        smi = read_quick(int(values.get("smi_exit", 0)), several["gpu"])
        return NodeFacts(
            name=name,
            address=address,
            hostname=hostname,
            machine_id=values["machine_id"],
            boot_id=values.get("boot_id", ""),
            user=identity["user"] or "",
            uid=int(identity["uid"]),
            gid=int(identity["gid"]),
            home=values["home"],
            kernel=kernel,
            architecture=architecture,
            cpus=int(values["cpus"]),
            memory_mib=int(values["memory_kib"]) // 1024,
            disk_free_mib=int(disk[3]) // 1024 if len(disk) > 3 else None,
            clock_offset_s=_seconds(values["clock"], now) - now,
            ports_in_use=frozenset(int(port, 16) for port in values["listening"].split()),
            routes=_routes(several["route"], list(peers)),
            nvidia_driver=next(iter(_DRIVER.findall(values.get("nvidia_driver", ""))), ""),
            gpus=smi.gpus,
            gpu_fault=smi.fault,
            gpu_detail=smi.detail,
            has_data={"yes": True, "no": False}.get(values.get("data", "")),
            newest_checkpoint=max(map(int, _STEP.findall(" ".join(several["checkpoint"]))), default=None),
        )
    except (KeyError, ValueError) as error:
        why = f"has no line {error.args[0]}=" if isinstance(error, KeyError) else f"is not understood: {error}"
        raise CommandFailedError(f"its answer to the facts script {why}", node=name, hint=_PROGRAMS) from error


def _seconds(text: str, now: float) -> float:
    """BusyBox's date knows no %N: whole seconds then, half of one added."""
    exact, seconds = real(text), whole(text.split(".")[0])
    if exact is not None:
        return exact
    return now if seconds is None else seconds + 0.5


def _routes(texts: Sequence[str], peers: list[str]) -> dict[str, Route]:
    """Routes by peer, from lines `WAY|PEER PEER …`."""
    routes: dict[str, Route] = {}
    for text in texts:
        way, _, led = text.partition("|")
        if match := None if _NO_WAY.match(way) else _ROUTE.search(way):
            words = led.split()
            route = Route(interface=match["interface"], source=match["source"] or "")
            routes |= dict.fromkeys(peers if words == peers else words, route)
    return routes


def has_reached(node: Node, address: str, port: int) -> bool:
    """Return whether this node holds a TCP connection to the master's port, or listens on it: its torchrun has
    arrived."""
    table = node.run(["cat", "/proc/net/tcp", "/proc/net/tcp6"], timeout_s=5).stdout
    remote = f"{_little_endian(address)}:{port:04X}"
    for line in table.splitlines():
        words = line.split()
        if len(words) < 4:
            continue
        here, there, state = words[1], words[2], words[3]
        if (state == _ESTABLISHED and there.endswith(remote)) or (state == _LISTEN and here.endswith(f":{port:04X}")):
            return True
    return False


_ESTABLISHED, _LISTEN = "01", "0A"


def _little_endian(address: str) -> str:
    """An IPv4 address as the kernel's tables write it."""
    return "".join(f"{int(part):02X}" for part in reversed(address.split(".")))
