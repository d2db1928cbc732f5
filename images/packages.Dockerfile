# A project's own packages, in layers above orch's image: `orch build --requirements FILE --apt FILE`.
# The last stage takes only what pip has changed, so the layer is as small as the packages, and neither it nor the
# history contains private settings (images/site/).
ARG BASE
FROM ${BASE} AS system
USER root
ARG APT=""
# unquoted: several names, each checked by orch
RUN [ -z "$APT" ] || { apt-get update \
 && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $APT \
 && apt-get clean \
 && rm -rf /var/lib/apt/lists/* /var/cache/debconf/*-old /var/log/apt /var/log/dpkg.log; }

FROM ${BASE} AS pip
USER root
# Debian's Python has the pip; it installs into the environment in /opt/venv, which has none.
ENV PATH=/usr/sbin:/usr/bin:/sbin:/bin
ARG TOOLS=python3-pip
RUN apt-get update && DEBIAN_FRONTEND=noninteractive apt-get install -y --no-install-recommends $TOOLS

FROM pip AS packages
COPY images/site/ /site/
COPY packages/ /packages/
ARG TORCH_CPU_INDEX=""
# Changed files have a later ctime than the list of those before; a package of another version leaves files to remove.
RUN set -eu; . /site/pip.sh; \
    /opt/venv/bin/python -c "import torch; print(f'torch=={torch.__version__}')" > /tmp/torch.txt; \
    cd /; find opt/venv ! -type d | LC_ALL=C sort > /tmp/before; sleep 0.1; touch /tmp/before; \
    site_pip install -c /tmp/torch.txt -c /packages/constraints.txt \
        ${TORCH_CPU_INDEX:+--extra-index-url "$TORCH_CPU_INDEX"} -r /packages/requirements.txt; \
    mkdir -p /new/opt/venv; \
    find opt/venv ! -type d -cnewer /tmp/before | tar -c -T - | tar -x -C /new; \
    find opt/venv ! -type d | LC_ALL=C sort | LC_ALL=C comm -23 /tmp/before - > /new/opt/venv/removed

FROM system
COPY --from=packages /new/ /
RUN cd / && xargs -r -d '\n' rm -f < opt/venv/removed && rm opt/venv/removed \
 && find opt/venv -depth -type d -empty -delete
USER 1000:1000
