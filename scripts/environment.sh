# shellcheck shell=sh
# Sourced in the repository's root: create the Python environment .venv with the versions in constraints.txt.
#
# ensure_environment [EXTRAS]   e.g. trainer,gnn,dev; does nothing if .venv is up to date.

ensure_environment() {
    extras=${1:-}
    python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
        say "Python 3.11 or newer is needed; \`$python\` is $("$python" --version 2>&1)"
        return 1
    }
    "$python" -c 'import ensurepip' 2>/dev/null || ensure_packages python3-venv || return 1
    wanted=$(cat pyproject.toml constraints.txt | sha256sum)
    stamp=.venv/.installed-${extras:-orch}
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return 0; fi
    [ -x .venv/bin/python ] || "$python" -m venv .venv
    .venv/bin/python -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".${extras:+[$extras]}" || return 1
    printf '%s' "$wanted" >"$stamp"
}
