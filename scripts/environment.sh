# shellcheck shell=sh
# Sourced in the repository's root: create Python environments with the versions in constraints.txt.
#
# ensure_environment [EXTRAS [FOLDER]]   e.g. trainer,gnn,dev; does nothing if FOLDER (.venv) is up to date. By $PYTHON.
# newer_pythons                          prints a command for each newer CPython that is found and runs
# $NEWEST                                 minor version of the highest CPython for which code is checked

NEWEST=14

ensure_environment() {
    extras=${1:-} folder=${2:-.venv}
    python=${PYTHON:-python3}
    "$python" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null || {
        say "Python 3.11 or newer is needed; \`$python\` is $("$python" --version 2>&1)"
        return 1
    }
    "$python" -c 'import ensurepip' 2>/dev/null || ensure_packages python3-venv || return 1
    wanted=$(cat pyproject.toml constraints.txt | sha256sum)
    stamp=$folder/.installed-${extras:-orch}
    if [ "$(cat "$stamp" 2>/dev/null)" = "$wanted" ]; then return 0; fi
    [ -x "$folder/bin/python" ] || "$python" -m venv "$folder"
    "$folder/bin/python" -m pip install --quiet --disable-pip-version-check -c constraints.txt -e ".${extras:+[$extras]}" || return 1
    printf '%s' "$wanted" >"$stamp"
}

newer_pythons() {
    minor=$(.venv/bin/python -c 'import sys; print(sys.version_info.minor)')
    while [ "$minor" -lt "$NEWEST" ]; do
        minor=$((minor + 1))
        found=
        for python in "python3.$minor" "${PYENV_ROOT:-$HOME/.pyenv}/versions/3.$minor".*/bin/"python3.$minor"; do
            # A shim of pyenv may name a version that is not chosen here; Debian's Python may lack ensurepip.
            if "$python" -c 'import ensurepip, venv' 2>/dev/null; then found=$python; fi
        done
        if [ -n "$found" ]; then echo "$found"; else say "python3.$minor: not found, not tested"; fi
    done
}
