# Sourced by the build: pip with this site's settings. All of them are optional files in this folder:
#   pip.conf (index, trusted hosts, proxy)   ca-bundle.crt (extra authorities)   wheels/ (packages to prefer)
[ ! -f /site/pip.conf ] || export PIP_CONFIG_FILE=/site/pip.conf
[ ! -f /site/ca-bundle.crt ] || export PIP_CERT=/site/ca-bundle.crt
[ ! -d /site/wheels ] || export PIP_FIND_LINKS=/site/wheels

site_pip() {
    python3 -m pip --python /opt/venv/bin/python --no-cache-dir --disable-pip-version-check "$@" \
        --root-user-action ignore --no-warn-script-location --progress-bar off
}
