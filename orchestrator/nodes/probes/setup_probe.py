"""Ask a machine what `orch setup` must know: one command, one round trip, nothing changed."""

from __future__ import annotations

import json
import re

from orchestrator.nodes.interface import Node
from orchestrator.nodes.sudo import root_prefix
from orchestrator.specs.errors import CommandFailedError
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.numbers import whole
from orchestrator.specs.setup import Rights, SetupFacts

PACKAGES = (
    *("docker.io", "docker-cli", "docker-ce", "docker-ce-cli", "podman-docker", "iproute2", "apparmor"),
    *("ca-certificates", "curl", "gpg", "nvidia-container-toolkit"),
)
PROGRAMS = ("apt-get", "docker", "dockerd", "ip", "curl", "gpg", "nvidia-ctk", "service")

# A constant; $1 names the packages, $2 the programs, each as one word with spaces. With $3 it runs as root, through
# sudo, and describes the user who ran sudo: an engine that refuses this user answers root.
SCRIPT = r"""
packages=$1; programs=$2
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin
say() { printf '%s=%s\n' "$1" "$2"; }
user=${3:+$SUDO_USER}
user=${user:-$(id -un)}
say user "$user"
say groups "$(id -nG "$user")"
if [ -n "$3" ]; then say rights password; as_root=
elif [ "$(id -u)" = 0 ]; then say rights root; as_root=
elif ! command -v sudo >/dev/null; then say rights none; as_root=false
elif sudo -n true 2>/dev/null; then say rights free; as_root='sudo -n'
else say rights password; as_root=false; fi
[ -r /etc/os-release ] && (
  . /etc/os-release
  say system "$PRETTY_NAME"; say distribution "$ID"; say like "$ID_LIKE"; say version "$VERSION_ID"
)
[ -d /run/systemd/system ] && say systemd yes && systemctl is-enabled docker >/dev/null 2>&1 && say enabled yes
[ -r /sys/module/apparmor/parameters/enabled ] && say apparmor "$(cat /sys/module/apparmor/parameters/enabled)"
for name in $packages; do
  [ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] && say package "$name"
done
for name in $programs; do command -v "$name" >/dev/null && say program "$name"; done
[ -r /proc/driver/nvidia/version ] && read -r line </proc/driver/nvidia/version && say nvidia_driver "$line"
say source "$(cat /etc/apt/sources.list.d/nvidia-container-toolkit.list 2>/dev/null | tr '\n' ' ')"
ring=/usr/share/keyrings/nvidia-container-toolkit-keyring.gpg
command -v gpg >/dev/null && [ -r "$ring" ] && place=$(mktemp -d) && {
  gpg --homedir "$place" --batch --show-keys --with-colons "$ring" 2>/dev/null | while read -r line; do
    say key "$line"
  done
  rm -rf "$place"
}
for name in http_proxy https_proxy no_proxy HTTP_PROXY HTTPS_PROXY NO_PROXY; do
  printenv "$name" >/dev/null && say proxy "$name"
done
command -v docker >/dev/null || exit 0
case $(docker --version 2>/dev/null) in *[Pp]odman*) say podman yes; exit 0;; esac
docker info >/dev/null 2>&1 && as_root=
if $as_root docker info >/dev/null 2>&1; then say daemon yes
elif [ "$as_root" = false ]; then  # no permission to ask it: look for a process of that name
  for pid in /proc/[0-9]*/comm; do
    read -r line <"$pid" && [ "$line" = dockerd ] && say daemon yes && break
  done 2>/dev/null
fi
say runtimes "$($as_root docker info --format '{{json .Runtimes}}' 2>/dev/null)"
say containers "$($as_root docker ps --quiet 2>/dev/null | wc -l)"
say runs "$($as_root docker ps --filter label=orch.run_id --format '{{.Label "orch.run_id"}}' 2>/dev/null |
  tr '\n' ' ')"
exit 0
"""

_DRIVER = re.compile(r"Kernel Module\D*?(?P<version>\d+(?:\.\d+)+)")
_SEVERAL = ("package", "program", "proxy", "key")


def ask(node: Node, spec: NodeSpec) -> SetupFacts:
    """The facts of one machine."""
    prefix = root_prefix(node)
    words = (*prefix, "sh", "-c", SCRIPT, "sh", " ".join(PACKAGES), " ".join(PROGRAMS), *prefix)
    answer = node.run(words, timeout_s=30)
    text = answer.check("asking what is installed", hint="it needs a POSIX shell")
    return parse(text, name=node.name, wants_gpus=spec.device != "cpu")


def parse(text: str, *, name: str, wants_gpus: bool = True) -> SetupFacts:
    """The script's lines into facts."""
    values: dict[str, str] = {}
    several: dict[str, list[str]] = {key: [] for key in _SEVERAL}
    for line in text.splitlines():
        key, _, value = line.partition("=")
        if key in several:
            several[key].append(value)
        else:
            values[key] = value.strip()
    driver = _DRIVER.search(values.get("nvidia_driver", ""))
    try:
        return SetupFacts(
            name=name,
            user=values["user"],
            rights=Rights(values["rights"]),
            system=values.get("system", ""),
            distribution=values.get("distribution", ""),
            like=tuple(values.get("like", "").split()),
            version=values.get("version", ""),
            systemd="systemd" in values,
            apparmor=values.get("apparmor") == "Y",
            packages=frozenset(several["package"]),
            programs=frozenset(several["program"]),
            podman="podman" in values,
            daemon="daemon" in values,
            enabled="enabled" in values,
            in_group="docker" in values["groups"].split(),
            runtimes=tuple(sorted(json.loads(values.get("runtimes") or "{}") or {})),
            runs=tuple(sorted(set(values.get("runs", "").split()))),
            containers=whole(values.get("containers", "")) or 0,
            nvidia_driver=driver["version"] if driver else "",
            source=values.get("source", ""),
            source_keys=primary_keys("\n".join(several["key"])),
            proxies=tuple(several["proxy"]),
            wants_gpus=wants_gpus,
        )
    except (KeyError, ValueError, TypeError, RecursionError) as error:
        why = f"has no line {error.args[0]}=" if isinstance(error, KeyError) else f"is not understood: {error}"
        raise CommandFailedError(
            f"its answer about what is installed {why}", node=name, hint="is its shell POSIX?"
        ) from error


def primary_keys(listing: str) -> tuple[str, ...]:
    """Fingerprints of the primary keys in what `gpg --show-keys --with-colons` writes.

    The `fpr` line after a `pub` line is the primary key's, the one after `sub` a subkey's (GnuPG, doc/DETAILS).
    """
    found: list[str] = []
    kind = ""
    for line in listing.splitlines():
        words = line.split(":")
        if words[0] in ("pub", "sub"):
            kind = words[0]
        elif words[0] == "fpr" and kind == "pub" and len(words) > 9:
            found.append(words[9])
            kind = ""
    return tuple(found)
