"""`--fetch-once`: download on one node before the containers start, and copy from there to the others."""

from __future__ import annotations

import json
import os
import secrets as random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from contract.downloads import Manifest, Source, decode_manifest
from orchestrator.fleet.downloads.spread import copy_download, has_files
from orchestrator.fleet.fan_out import Notify, fan_out
from orchestrator.fleet.prepare import run_to_end
from orchestrator.fleet.runs.secrets import place_secrets, remove_secrets, secret_values, secrets_of
from orchestrator.nodes.interface import TRANSFER_TIMEOUT_S, Node, Progress
from orchestrator.plan.fetch import TOKEN, cache_folder, fetch_container, must_use_our_cache
from orchestrator.specs.errors import OrchError, PreflightError, RunFailedError
from orchestrator.specs.plan import NodePlan, Plan


@dataclass(frozen=True, kw_only=True)
class NodeCache:
    """The project's cache on a node of the plan."""

    node: Node
    part: NodePlan

    @property
    def folder(self) -> str:
        return cache_folder(self.part)

    def manifest(self, source: Source) -> Manifest | None:
        """The manifest of this download; None: it is not here, or files of it are missing."""
        read = self.node.run(["cat", "--", f"{self.folder}/{source.manifest}"])
        if read.exit_code:
            return None
        try:
            manifest = decode_manifest(read.stdout, source)
        except ValueError:
            return None
        return manifest if has_files(self.node, self.folder, manifest) else None


def fetch_once(nodes: Mapping[str, Node], plan: Plan, sources: Sequence[Source], notify: Notify) -> None:
    """Bring these downloads to every node of the plan, all with the same content.

    Nothing is downloaded that a node has. A second call continues what a first one began. Raises the first error, with
    its node.
    """
    must_use_our_cache(plan)
    caches = [NodeCache(node=nodes[part.node], part=part) for part in plan.nodes]
    for source in sources:
        _bring(caches, plan, source, notify)


def _bring(caches: Sequence[NodeCache], plan: Plan, source: Source, notify: Notify) -> None:
    asked = [outcome.value() for outcome in fan_out(caches, lambda one: one.manifest(source))]
    found = [(cache, manifest) for cache, manifest in zip(caches, asked, strict=True) if manifest]
    holder, manifest = found[0] if found else _download_on_one(caches, plan, source, notify)
    lacking = [cache for cache, held in zip(caches, asked, strict=True) if held != manifest and cache is not holder]
    if found and not lacking:
        notify(holder.node.name, Progress(text=f"{source.text}: every node has it already"))

    def supply(target: NodeCache) -> None:
        copy_download((holder.node, holder.folder), (target.node, target.folder), manifest, source, notify)

    for outcome in fan_out(lacking, supply, timeout_s=TRANSFER_TIMEOUT_S):
        outcome.value()


def _download_on_one(
    caches: Sequence[NodeCache], plan: Plan, source: Source, notify: Notify
) -> tuple[NodeCache, Manifest]:
    """Download on the first node that reaches the server. PreflightError: none does; other errors are the server's."""
    cut_off = list[OrchError]()
    for cache in caches:
        try:
            _download(cache, plan, source, notify)
        except PreflightError as error:
            if type(error) is not PreflightError:  # the engine, or the connection to the node
                raise
            cut_off.append(error)
            continue
        except RunFailedError as error:
            error.hint = error.hint or "launch again: what came is kept, and the download continues"
            raise
        if manifest := cache.manifest(source):
            return cache, manifest
        raise RunFailedError(
            f"{source.text} was downloaded and is not complete", node=cache.node.name, hint="try again"
        )
    raise PreflightError(
        f"--fetch-once {source.text}: no node reaches the server: {'; '.join(map(str, cut_off))}",
        hint="one node needs a way to the internet; a proxy: --env https_proxy=http://HOST:PORT",
    )


def _download(cache: NodeCache, plan: Plan, source: Source, notify: Notify) -> None:
    node, text = cache.node, f"downloading {source.text}"
    spec = fetch_container(plan, cache.part, source, f"orch-fetch-{random.token_hex(4)}")
    folder = secrets_of(cache.part.container.labels)
    values = secret_values([secret for secret in plan.secrets if secret.name == TOKEN], os.environ)

    def show(line: str) -> None:
        try:
            said = json.loads(line)
            notify(node.name, Progress(text=text, done=int(said["done"]), total=int(said["total"])))
        except (ValueError, KeyError, TypeError):
            notify(node.name, Progress(text=line))

    node.run(["mkdir", "-p", "--", cache.folder]).check(f"making {cache.folder}")
    notify(node.name, Progress(text=text))
    try:
        place_secrets(node, cache.part, values)
        run_to_end(node.engine, spec, show, doing=text, node=node.name)
    finally:
        if values:
            remove_secrets(node, folder)
