"""Ask a machine what only `orch doctor` wants to know: one more shell script, one more round trip."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

from orchestrator.nodes.interface import Node
from orchestrator.specs.host import HostFacts, PortHolder
from orchestrator.specs.numbers import whole

TIMEOUT_S = 20.0

# A constant: $1 workspace, $2 project, $3 the port of a run. What asks a service of the machine has three seconds: a
# message bus that hangs is no reason to learn nothing of the rest.
SCRIPT = r"""
workspace=$1; project=$2; port=$3
case $workspace in "~"*) workspace=$HOME${workspace#"~"};; esac
say() { printf '%s=%s\n' "$1" "$2"; }
have() { command -v "$1" >/dev/null 2>&1; }
brief() { timeout 3 "$@" 2>/dev/null; }
there() { place=$1; until [ -d "$place" ] || [ -z "$place" ]; do place=${place%/*}; done; place=${place:-/}; }
while read -r key kib _; do
  case $key in
    MemAvailable:) say available_kib "$kib";;
    SwapTotal:) swap=$kib;;
    SwapFree:) say swap_kib $((swap - kib));;
  esac
done </proc/meminfo
there "$workspace"; [ -w "$place" ] && say writable yes || say writable no
say open_files "$(ulimit -n)"
while IFS=: read -r key value; do
  case $key in flags*|Features*) say flags "$value"; break;; esac
done </proc/cpuinfo

have docker && say docker_program yes || say docker_program no
if have docker; then case $(brief docker --version) in *[Pp]odman*) say podman yes;; esac
elif have podman; then say podman yes; fi
case ${DOCKER_HOST:-unix:///var/run/docker.sock} in
  unix://*) socket=${DOCKER_HOST:-unix:///var/run/docker.sock}; socket=${socket#unix://}
    if [ ! -S "$socket" ]; then say docker_socket absent
    elif [ -w "$socket" ]; then say docker_socket open
    else say docker_socket closed; fi;;
  *) say docker_socket elsewhere;;
esac
root=$(sed -n 's/.*"data-root" *: *"\([^"]*\)".*/\1/p' /etc/docker/daemon.json 2>/dev/null)
there "${root:-/var/lib/docker}"
say docker_disk "$(df -Pk "$place" 2>/dev/null | { read -r _; read -r line; printf %s "$line"; })"

read -r release </proc/sys/kernel/osrelease
case $release in *[Mm]icrosoft*)
  say wsl "$release"; have wslinfo && say wsl_networking "$(brief wslinfo --networking-mode)";;
esac

if [ -d /run/systemd/system ]; then
  say systemd yes
  say ntp "$(brief timedatectl show -p NTPSynchronized --value)"
  for target in sleep suspend hibernate hybrid-sleep; do
    state=$(brief systemctl show -p LoadState --value "$target.target")
    [ "$state" = loaded ] && say sleeps "$target"
  done
  brief systemctl is-active --quiet display-manager.service && say desktop yes
  login() {
    brief busctl get-property org.freedesktop.login1 /org/freedesktop/login1 org.freedesktop.login1.Manager "$1"
  }
  say idle_action "$(login IdleAction)"
  for lid in /proc/acpi/button/lid/*; do [ -d "$lid" ] && say lid_action "$(login HandleLidSwitch)" && break; done
fi
for supply in /sys/class/power_supply/*; do
  [ -r "$supply/type" ] && read -r type <"$supply/type" || continue
  [ "$type" = Battery ] && [ -r "$supply/status" ] || continue
  [ -r "$supply/scope" ] && read -r scope <"$supply/scope" && [ "$scope" = Device ] && continue  # a mouse's
  read -r status <"$supply/status"; say battery "$status"
done
if [ -e /run/reboot-required ] || [ -e /var/run/reboot-required ]; then say reboot yes
elif [ -d /etc/apt ]; then say reboot no; fi
for count in /sys/devices/system/cpu/cpu*/thermal_throttle/core_throttle_count; do
  [ -r "$count" ] && read -r number <"$count" && say throttled "$number"
done
have ss && ss -Hltnp "sport = :$port" 2>/dev/null | while read -r line; do say holder "$line"; done
if [ -r /proc/driver/nvidia/version ]; then
  xid=$(brief journalctl -k -b -q --no-pager -o cat -g 'NVRM: Xid')
  [ -n "$xid" ] || xid=$(brief dmesg | grep 'NVRM: Xid')
  printf '%s\n' "$xid" | tail -n 5 | while read -r line; do say xid "$line"; done
fi
cd "$workspace/$project" 2>/dev/null && for file in Data/manifest.json Data/*/manifest.json; do
  [ -r "$file" ] && say manifest "$(sha256sum "$file")"
done
exit 0
"""

_HOLDER = re.compile(r'\("(?P<program>[^"]*)",pid=(?P<pid>\d+)')
_PROPERTY = re.compile(r's "(?P<word>[^"]*)"')
_MANIFEST = re.compile(r"(?P<digest>[0-9a-f]{64})\s+(?P<folder>.+)/manifest\.json")


def ask(node: Node, *, workspace: str, project: str, port: int) -> tuple[HostFacts, Mapping[str, str]]:
    """The host's further facts, and the SHA-256 of each manifest of data there, by its folder."""
    argv = ["sh", "-c", SCRIPT, "sh", workspace, project, str(port)]
    text = node.run(argv, timeout_s=TIMEOUT_S).check("asking what the doctor wants to know")
    return parse(text, port=port)


def parse(text: str, *, port: int) -> tuple[HostFacts, Mapping[str, str]]:
    """The script's lines; what a machine does not say, or says in another way, stays unknown."""
    answers: dict[str, list[str]] = {}
    for line in text.splitlines():
        key, equals, value = line.partition("=")
        if equals:
            answers.setdefault(key, []).append(value.strip())

    def one(key: str) -> str:
        return answers.get(key, [""])[0]

    disk = one("docker_disk").split()
    charging = answers.get("battery", [])
    facts = HostFacts(
        memory_available_mib=_mib(one("available_kib")),
        swap_used_mib=_mib(one("swap_kib")),
        workspace_writable=_yes(one("writable")),
        systemd=one("systemd") == "yes",
        docker_program=_yes(one("docker_program")),
        podman=one("podman") == "yes",
        docker_socket=one("docker_socket"),
        docker_free_mib=_mib(disk[3]) if len(disk) > 3 else None,
        open_files=whole(one("open_files")),
        cpu_flags=frozenset(one("flags").split()),
        wsl=one("wsl"),
        wsl_networking=one("wsl_networking").lower(),
        ntp=one("ntp"),
        sleeps=tuple(answers.get("sleeps", ())),
        desktop=one("desktop") == "yes",
        idle_action=_property(one("idle_action")),
        lid_action=_property(one("lid_action")),
        on_battery="Discharging" in charging if charging else None,
        reboot_required=_yes(one("reboot")),
        throttle_events=sum(whole(count) or 0 for count in answers["throttled"]) if "throttled" in answers else None,
        holders=_holders(answers.get("holder", ()), port),
        xid=tuple(line for line in answers.get("xid", ()) if line),
    )
    manifests = filter(None, map(_MANIFEST.fullmatch, answers.get("manifest", ())))
    return facts, {match["folder"]: match["digest"] for match in manifests}


def holders(node: Node, port: int) -> tuple[PortHolder, ...]:
    """Processes that listen on this port; empty where the machine cannot tell."""
    lines = node.run(["ss", "-Hltnp", f"sport = :{port}"], timeout_s=TIMEOUT_S).stdout.splitlines()
    return _holders(lines, port)


def _holders(lines: Sequence[str], port: int) -> tuple[PortHolder, ...]:
    """Each listener once; ss names the program only to its owner."""
    found = dict.fromkeys(
        PortHolder(port=port, pid=int(match["pid"]), program=match["program"])
        if (match := _HOLDER.search(line))
        else PortHolder(port=port)
        for line in lines
    )
    return tuple(found)


def _property(text: str) -> str:
    match = _PROPERTY.fullmatch(text)
    return match["word"] if match else ""


def _yes(text: str) -> bool | None:
    return {"yes": True, "no": False}.get(text)


def _mib(kib: str) -> int | None:
    number = whole(kib)
    return None if number is None else number // 1024
