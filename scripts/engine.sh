# shellcheck shell=sh
# Sourced: ensure that a Docker Engine runs on this computer (Debian and Ubuntu, with or without systemd).
#
# ensure_engine    0: an engine answers. 1: none can run here (the reason is printed to stderr). Asks before it
#                  installs anything, unless $YES is set.

say() { printf '%s\n' "$*" >&2; }

ask() {
    [ -n "${YES:-}" ] && return 0
    [ -t 0 ] || { say "$1 There is no terminal to ask on: use --yes."; return 1; }
    printf '%s [Y/n] ' "$1" >&2
    read -r answer
    case $answer in "" | [yYsS]*) return 0 ;; *) return 1 ;; esac
}

as_root() {
    if [ "$(id -u)" = 0 ]; then "$@"; else sudo "$@"; fi
}

# Installs missing packages; asks first.
ensure_packages() {
    missing=
    for package in "$@"; do
        dpkg-query -W -f '${Status}' "$package" 2>/dev/null | grep -q 'ok installed' || missing="$missing $package"
    done
    [ -z "$missing" ] && return 0
    command -v apt-get >/dev/null || { say "missing:$missing; install them with your package manager"; return 1; }
    ask "Install$missing?" || return 1
    as_root apt-get update -qq >/dev/null
    # shellcheck disable=SC2086  # a list of words on purpose
    as_root env DEBIAN_FRONTEND=noninteractive apt-get install -qq -y --no-install-recommends $missing >/dev/null
}

engine_answers() { docker version --format '{{.Server.Version}}' >/dev/null 2>&1; }

wait_for_engine() {
    for _ in $(seq 100); do
        engine_answers && return 0
        sleep 0.2
    done
    return 1
}

ensure_engine() {
    engine_answers && return 0
    if ! command -v dockerd >/dev/null; then
        ensure_packages docker.io || return 1
    fi
    engine_answers && return 0
    if [ -d /run/systemd/system ]; then
        as_root systemctl start docker
    else
        say "starting dockerd (systemd is not running); log: /var/log/dockerd.log"
        as_root sh -c 'setsid dockerd >>/var/log/dockerd.log 2>&1 </dev/null &'
    fi
    wait_for_engine && return 0
    if as_root docker version >/dev/null 2>&1; then
        say "the engine runs, but this user has no permission to use it: sudo usermod -aG docker $(id -un), then log in again"
        say "(members of the group docker have root permissions on this computer)"
    else
        say "dockerd does not start: tail /var/log/dockerd.log"
    fi
    return 1
}
