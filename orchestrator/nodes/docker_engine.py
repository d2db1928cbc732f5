"""A node's Docker Engine through the Docker SDK: structured answers, never the text of a command line."""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import wraps
from typing import Any, BinaryIO, ParamSpec, TypeVar

import docker
import requests
from docker.errors import APIError, DockerException, ImageNotFound, NotFound
from paramiko import SSHException
from urllib3.exceptions import ReadTimeoutError

from orchestrator.nodes.interface import MIB, BuildRequest, CommandOutput, Completed, Login, LogLine, Progress
from orchestrator.nodes.log_stream import rejoin_lines, resumed
from orchestrator.specs.container import ContainerSpec
from orchestrator.specs.errors import ConflictError, DeadlineError, EngineError, EngineRefusedError
from orchestrator.specs.facts import EngineFacts, ImageFacts
from orchestrator.specs.run import ContainerFacts

UNPACKING_S = 1800
"""Read timeout while an engine handles an image: it unpacks gigabytes, possibly on a slow disk."""
STDERR = 2
"""Number of that stream in the output of a command that is attached to."""
PIECE = 64 * 1024
"""Bytes of such output that are read at once."""
P = ParamSpec("P")
R = TypeVar("R")


def _attached(reader: BinaryIO) -> Iterator[tuple[int, bytes]]:
    """Output of a command, each piece with the number of its stream (Docker Engine API, ContainerAttach).

    `reader`: that of the HTTP header. The SDK (docker 7, `frames_iter`) reads the connection itself, and loses what has
    arrived together with the header: all that a short command writes.
    """
    while len(header := reader.read(8)) == 8:
        stream, size = struct.unpack(">BxxxL", header)
        while size and (piece := reader.read(min(size, PIECE))):
            size -= len(piece)
            yield stream, piece


def _import_error(answer: str) -> str:
    """Error in the engine's answer to an import; the answer itself where it is of another form."""
    try:
        return str(json.loads(answer)["error"])
    except (ValueError, LookupError, TypeError, RecursionError):
        return answer.strip()[-200:]


def _again_if_lost(ask: Callable[P, R]) -> Callable[P, R]:
    """Ask once more over a new connection if the engine closed the first one without an answer, as a new engine may.

    Only for requests that change nothing, or that change nothing more when they are made twice.
    """

    @wraps(ask)
    def asking(*args: P.args, **options: P.kwargs) -> R:
        try:
            return ask(*args, **options)
        except EngineRefusedError:
            raise
        except EngineError:
            return ask(*args, **options)

    return asking


class DockerEngine:
    """`Engine` over a Docker SDK client with any connection."""

    def __init__(self, node: str, connect: Callable[[], docker.APIClient], *, explain: Callable[[], str]) -> None:
        """`connect` is called at the first use; `explain` asks the node why its engine does not answer."""
        self._node = node
        self._connect = connect
        self._explain = explain
        self._client: docker.APIClient | None = None
        self._silence_s = 0

    @_again_if_lost
    def facts(self) -> EngineFacts:
        with self._asking("describe itself") as api:
            info = api.info()
        return EngineFacts(
            kind="podman" if _is_podman(info) else "docker",
            version=_text(info, "ServerVersion"),
            id=_text(info, "ID"),
            architecture=_text(info, "Architecture"),
            operating_system=_text(info, "OperatingSystem"),
            runtimes=tuple(sorted(info.get("Runtimes") or {})),
            storage_driver=_text(info, "Driver"),
            cgroup_version=_text(info, "CgroupVersion"),
            rootless="name=rootless" in (info.get("SecurityOptions") or ()),
            cpus=_count(info, "NCPU"),
            memory_mib=_count(info, "MemTotal") // MIB,
        )

    @_again_if_lost
    def image(self, reference: str) -> ImageFacts | None:
        with self._asking(f"inspect image {reference}") as api:
            try:
                return image_facts(api.inspect_image(reference))
            except ImageNotFound:
                return None

    @_again_if_lost
    def images(self) -> list[ImageFacts]:
        with self._asking("list its images") as api:
            ids = {entry["Id"] for entry in api.images()}
        return [facts for id in sorted(ids) if (facts := self.image(id))]

    def build(self, request: BuildRequest, context: BinaryIO) -> Iterator[Progress]:
        with self._asking(f"build {request.tag}", UNPACKING_S) as api:
            answers = api.build(
                fileobj=context,
                custom_context=True,
                dockerfile=request.dockerfile,
                tag=request.tag,
                buildargs=dict(request.args),
                labels=dict(request.labels),
                nocache=request.no_cache,
                rm=True,
                forcerm=True,
                decode=True,
            )
            failure = ""
            for answer in answers:  # read to its end, which closes the connection
                failure = failure or answer.get("error", "").strip()
                if text := answer.get("stream", answer.get("status", "")).rstrip():
                    yield Progress(text=text)
            if failure:
                raise EngineError(f"building {request.tag} failed: {failure}", node=self._node)

    def save(self, reference: str) -> Iterator[bytes]:
        with self._asking(f"save image {reference}", UNPACKING_S) as api:
            yield from api.get_image(reference, chunk_size=MIB)

    def load(self, archive: Iterable[bytes]) -> None:
        with self._asking("load an image", UNPACKING_S) as api:
            for answer in api.load_image(iter(archive)) or ():
                if "error" in answer:
                    raise EngineError(f"loading an image failed: {answer['error'].strip()}", node=self._node)

    def import_root(self, archive: Iterable[bytes], reference: str) -> None:
        repository, _, tag = reference.rpartition(":")
        with self._asking(f"import {reference}", UNPACKING_S) as api:
            answer = api.import_image_from_data(iter(archive), repository=repository, tag=tag)
            if '"error"' in answer:
                raise EngineError(f"importing {reference} failed: {_import_error(answer)}", node=self._node)

    def pull(self, reference: str, login: Login | None = None) -> Iterator[Progress]:
        repository, _, tag = reference.rpartition(":")
        with self._asking(f"pull {reference}", UNPACKING_S) as api:
            answers = api.pull(repository, tag=tag, stream=True, decode=True, auth_config=dict(login or {}))
            yield from self._transfer(f"pulling {reference}", answers)

    def push(self, reference: str, login: Login | None = None) -> Iterator[Progress]:
        repository, _, tag = reference.rpartition(":")
        with self._asking(f"push {reference}", UNPACKING_S) as api:
            answers = api.push(repository, tag=tag, stream=True, decode=True, auth_config=dict(login or {}))
            yield from self._transfer(f"pushing {reference}", answers)

    def _transfer(self, what: str, answers: Iterable[Mapping[str, Any]]) -> Iterator[Progress]:
        """Progress of all layers together. EngineRefusedError: the registry or the engine refused it."""
        done, failure = dict[str, tuple[int, int]](), ""
        for answer in answers:  # read to its end, which closes the connection
            failure = failure or str(answer.get("error", "")).strip()
            detail, layer = answer.get("progressDetail") or {}, str(answer.get("id", ""))
            if answer.get("status") in ("Downloading", "Pushing") and _count(detail, "total"):
                done[layer] = (_count(detail, "current"), _count(detail, "total"))
            now, total = (sum(numbers) for numbers in zip(*done.values(), strict=True)) if done else (0, 0)
            yield Progress(text=what, done=min(now, total), total=total)
        if failure:
            raise EngineRefusedError(f"{what} failed: {failure}", node=self._node)

    @_again_if_lost
    def tag(self, image_id: str, reference: str) -> None:
        repository, _, tag = reference.rpartition(":")
        with self._asking(f"tag {image_id} as {reference}") as api:
            api.tag(image_id, repository, tag, force=True)

    @_again_if_lost
    def remove_image(self, reference: str) -> None:
        with self._asking(f"remove image {reference}") as api:
            try:
                api.remove_image(reference)
            except ImageNotFound:
                return

    def create(self, spec: ContainerSpec) -> str:
        try:
            with self._asking(f"create container {spec.name}") as api:
                answer = api.create_container_from_config(spec.create_arguments(), spec.name)
            return str(answer["Id"])
        except EngineRefusedError:
            raise
        except EngineError:  # the answer was lost; the container may exist, and would be in the way of a second attempt
            made = self.container(spec.name)
            if made is None or made.status != "created" or made.labels != spec.labels:
                raise
            return made.id

    def start(self, container: str) -> None:
        with self._asking(f"start container {container[:12]}") as api:
            api.start(container)

    def rename_and_keep(self, container: str, name: str) -> None:
        with self._asking(f"set container {container[:12]} aside") as api:
            api.rename(container, name)
        self.disable_restart(container)

    def disable_restart(self, container: str) -> None:
        with self._asking(f"change the restart policy of container {container[:12]}") as api:
            api.update_container(container, restart_policy={"Name": "no"})

    @_again_if_lost
    def container(self, container: str) -> ContainerFacts | None:
        with self._asking(f"inspect container {container[:12]}") as api:
            try:
                return container_facts(api.inspect_container(container))
            except NotFound:
                return None

    @_again_if_lost
    def containers(self, labels: Mapping[str, str]) -> list[ContainerFacts]:
        wanted = [f"{key}={value}" if value else key for key, value in labels.items()]
        with self._asking("list its containers") as api:
            ids = [entry["Id"] for entry in api.containers(all=True, filters={"label": wanted})]
        return [facts for id in ids if (facts := self.container(id))]

    def logs(
        self, container: str, *, follow: bool = False, since: str = "", tail: int | None = None
    ) -> Iterator[LogLine]:
        with self._asking(f"give the logs of container {container[:12]}") as api:

            def ask(follow: bool, tail: int | None) -> Iterator[LogLine]:
                newest = "all" if tail is None else tail
                frames = api.logs(container, stream=True, follow=follow, timestamps=True, tail=newest)
                try:
                    yield from rejoin_lines(frames)
                finally:
                    frames._response.close()  # `frames.close()` knows no way to close a stream over SSH

            yield from resumed(ask, since, follow=follow) if since else ask(follow, tail)

    def wait(self, container: str) -> ContainerFacts:
        with self._asking(f"wait for container {container[:12]}") as api:
            api.wait(container, timeout=None)
        facts = self.container(container)
        if facts is None:
            raise EngineError(f"container {container[:12]} was removed while it was waited for", node=self._node)
        return facts

    def signal(self, container: str, signal: str) -> None:
        with self._asking(f"signal container {container[:12]}") as api:
            api.kill(container, signal)

    @_again_if_lost
    def stop(self, container: str, timeout_s: int) -> None:
        with self._asking(f"stop container {container[:12]}") as api:
            try:
                api.stop(container, timeout=timeout_s)
            except NotFound:
                return

    @_again_if_lost
    def remove(self, container: str) -> None:
        with self._asking(f"remove container {container[:12]}") as api, suppress(NotFound):
            api.remove_container(container, force=True, v=True)

    def execute(self, container: str, argv: Sequence[str]) -> Completed:
        with self._asking(f"run {argv[0]} in container {container[:12]}") as api:
            handle = api.exec_create(container, list(argv))
            out, err = CommandOutput(argv, self._node), CommandOutput(argv, self._node)
            connection: Any = api.exec_start(handle, socket=True)
            response = connection._response
            try:
                api._disable_socket_timeout(connection)  # a command may be silent for long
                for stream, piece in _attached(response.raw._fp.fp):
                    (err if stream == STDERR else out).add(piece)
            finally:
                response.close()
            code = api.exec_inspect(handle)["ExitCode"]
        return Completed(node=self._node, argv=tuple(argv), exit_code=code, stdout=out.text, stderr=err.text)

    def run_once(self, spec: ContainerSpec, *, timeout_s: float = 60.0) -> Completed:
        container = self.create(spec)
        try:
            self.start(container)
            with self._asking(f"run {spec.command[0]}") as api:
                try:
                    code = api.wait(container, timeout=timeout_s)["StatusCode"]
                except requests.exceptions.RequestException as error:
                    if not _ran_out_of_time(error):
                        raise
                    raise DeadlineError(
                        f"{spec.command[0]} had not ended after {timeout_s:.0f} s", node=self._node
                    ) from None
                out, err = CommandOutput(spec.command, self._node), CommandOutput(spec.command, self._node)
                for output in (out, err):
                    for chunk in api.logs(
                        container, stdout=output is out, stderr=output is err, stream=True, follow=False
                    ):
                        output.add(chunk)
        finally:
            self.remove(container)
        return Completed(node=self._node, argv=spec.command, exit_code=code, stdout=out.text, stderr=err.text)

    def close(self) -> None:
        if self._client is not None:
            self._client.close()
            self._client = None  # the next use opens a new connection

    @contextmanager
    def _asking(self, what: str, silence_s: int | None = None) -> Iterator[Any]:
        """The SDK's client, its many exceptions turned into ours. `silence_s`: for what takes longer than an answer."""
        try:
            if self._client is None:
                self._client = self._connect()
                self._silence_s = self._client.timeout
            if silence_s:
                self._client.timeout = silence_s
            yield self._client
        except APIError as error:
            kind = ConflictError if error.status_code == 409 else EngineRefusedError
            raise kind(f"the engine would not {what}: {error.explanation}", node=self._node) from error
        except (DockerException, SSHException, EOFError, OSError) as error:  # those of requests are OSErrors
            if _ran_out_of_time(error):
                raise DeadlineError(
                    f"the container engine did not {what} within {silence_s or self._silence_s} s",
                    node=self._node,
                    hint="is its disk or its link busy? Run the same command again: it continues where it stopped",
                ) from error
            self.close()  # its connection may be broken
            reason = self._explain() or str(error)
            raise EngineError(f"no answer from the container engine: {reason}", node=self._node) from error
        finally:
            if silence_s and self._client is not None:
                self._client.timeout = self._silence_s


def _ran_out_of_time(error: Exception) -> bool:
    """The engine answers a wait with its headers at once; requests calls a body that is late a lost connection."""
    return isinstance(error, requests.exceptions.Timeout) or any(
        isinstance(cause, ReadTimeoutError) for cause in error.args
    )


def _is_podman(info: Mapping[str, Any]) -> bool:
    """Return whether Podman answers for Docker: it adds its builder's version, and no Docker was ever called 2 to
    16."""
    major = _text(info, "ServerVersion").partition(".")[0]
    return "BuildahVersion" in info or (major.isdecimal() and 2 <= int(major[:4]) <= 16)


def _text(info: Mapping[str, Any], key: str) -> str:
    """The engine's text under this key; empty if missing, as with engines that imitate Docker."""
    value = info.get(key)
    return value if isinstance(value, str) else ""


def _count(info: Mapping[str, Any], key: str) -> int:
    value = info.get(key)
    return value if isinstance(value, int) and 0 <= value < 2**63 else 0


def image_facts(answer: Mapping[str, Any]) -> ImageFacts:
    return ImageFacts(
        id=answer["Id"],
        tags=tuple(sorted(answer.get("RepoTags") or ())),
        layers=tuple((answer.get("RootFS") or {}).get("Layers") or ()),
        labels=dict((answer.get("Config") or {}).get("Labels") or {}),
        size_bytes=answer.get("Size", 0),
        architecture=answer.get("Architecture", ""),
    )


def container_facts(answer: Mapping[str, Any]) -> ContainerFacts:
    state = answer["State"]
    ended = state["Status"] in ("exited", "dead")
    return ContainerFacts(
        id=answer["Id"],
        name=answer["Name"].lstrip("/"),
        image=answer["Image"],
        labels=dict(answer["Config"].get("Labels") or {}),
        status=state["Status"],
        exit_code=state["ExitCode"] if ended else None,
        oom_killed=bool(state.get("OOMKilled")),
        started_at=_time(state["StartedAt"]),
        finished_at=_time(state["FinishedAt"]),
        error=state.get("Error", ""),
        restarts=answer.get("RestartCount", 0),
    )


def _time(text: str) -> str:
    """Docker writes the year 1 for "never"."""
    return "" if text.startswith("0001-") else text
