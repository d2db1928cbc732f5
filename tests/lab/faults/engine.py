"""Engines that do not serve, and images that are not what they should be."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from tests.lab.faults.lan import IMAGE, USER, Lan, broken, mounted

_STOP = "kill $(cat /var/run/docker.pid); while docker info >/dev/null 2>&1; do sleep 0.1; done"
_OLD = "kept:before"


@contextmanager
def dockerd_stopped(lan: Lan, node: str) -> Iterator[None]:
    lan.root(node, _STOP)
    try:
        yield
    finally:
        _start(lan, node)


@contextmanager
def few_open_files(lan: Lan, node: str) -> Iterator[None]:
    """The engine gives its containers 1024 file descriptors, as the init scripts of some distributions do."""
    lan.root(node, _STOP)
    _start(lan, node, "--default-ulimit", "nofile=1024:1024")
    try:
        yield
    finally:
        lan.root(node, _STOP)
        _start(lan, node)


def _start(lan: Lan, node: str, *words: str) -> None:
    lan.until(node, "! pgrep -x dockerd >/dev/null || ps -o stat= -C dockerd | grep -qv '^[^Z]'")
    lan.begin(node, ("dockerd", *words))
    lan.until(node, "docker info >/dev/null 2>&1")


@contextmanager
def not_in_the_group(lan: Lan, node: str) -> Iterator[None]:
    with broken(lan, node, f"gpasswd --delete {USER} docker", f"gpasswd --add {USER} docker"):
        yield


@contextmanager
def no_docker(lan: Lan, node: str) -> Iterator[None]:
    with broken(lan, node, "mv /usr/bin/docker /usr/bin/away", "mv /usr/bin/away /usr/bin/docker"):
        yield


@contextmanager
def image_missing(lan: Lan, node: str) -> Iterator[None]:
    """Remove the tag of the image; its layers stay, under a name that no command uses."""
    make = f"docker tag {IMAGE} {_OLD}; docker rmi {IMAGE}"
    with broken(lan, node, make, f"docker tag {_OLD} {IMAGE}; docker rmi {_OLD}"):
        yield


@contextmanager
def image_of_other_content(lan: Lan, node: str) -> Iterator[None]:
    """Leave what an older build leaves on a node that was off when the new one was distributed."""
    make = f"docker create --name fault {IMAGE} true; docker commit --change 'LABEL orch.content=older' fault {IMAGE}"
    with _replaced(lan, node, make):
        yield


@contextmanager
def image_with_other_torch(lan: Lan, node: str) -> Iterator[None]:
    """Install another torch into the image by hand; its labels say that it is the same."""
    find = "find / -path '*/torch-*.dist-info/METADATA' 2>/dev/null"
    make = f"""file=$(docker run --rm --entrypoint sh {IMAGE} -c "{find}" || true)
        docker create --name fault {IMAGE} true
        docker cp fault:$file /var/tmp/METADATA
        sed -i 's/^Version: .*/Version: 2.9.1/' /var/tmp/METADATA
        docker cp /var/tmp/METADATA fault:$file
        docker commit fault {IMAGE}"""
    with _replaced(lan, node, make):
        yield


@contextmanager
def _replaced(lan: Lan, node: str, make: str) -> Iterator[None]:
    lan.root(node, f"docker tag {IMAGE} {_OLD}; {make}; docker rm fault")
    try:
        yield
    finally:
        undo = f"other=$(docker inspect -f '{{{{.Id}}}}' {IMAGE}); docker tag {_OLD} {IMAGE}; docker rmi {_OLD} $other"
        lan.root(node, undo)


@contextmanager
def files_of_a_container_gone(lan: Lan, node: str) -> Iterator[None]:
    """Leave a container as a power cut does: the engine knows it, and its layers are not on the disk."""
    create = f"docker create --name orch-left --label orch.run_id=dead-0a1b {IMAGE}"
    with broken(lan, node, create, "docker rm -f orch-left"), mounted(lan, node, "/var/lib/docker"):
        yield


@contextmanager
def half_a_run(lan: Lan, going: str, ended: str) -> Iterator[None]:
    """A rank waits for one that has ended: what is left where the controller died in the middle of a launch."""
    words = "docker run -d --name orch-left --label orch.run_id=dead-0a1b --entrypoint"
    remove = "docker rm -f orch-left"
    with (
        broken(lan, going, f"{words} sleep {IMAGE} 600", remove),
        broken(lan, ended, f"{words} true {IMAGE}; docker wait orch-left", remove),
    ):
        yield
