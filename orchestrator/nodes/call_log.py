"""Log of the calls to nodes and their engines, each with its time: for `orch -v` and `orch --debug`."""

from __future__ import annotations

import logging
import shlex
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, cast

from orchestrator.nodes.interface import Completed, Node
from orchestrator.specs.secret import is_sensitive
from orchestrator.specs.secret_forms import REDACTED, hide_secrets

LOG = logging.getLogger("orch.calls")
LONGEST = 200
"""Characters of an argument that are logged."""


def logged(node: Node) -> Node:
    """The node, with each of its calls and those of its engine logged; the node itself where the log is off."""
    return cast(Node, _Logged(node, node.name)) if LOG.isEnabledFor(logging.INFO) else node


def redacted_words(words: Sequence[str]) -> str:
    """Words as a shell would read them, the values of sensitive `NAME=value` words and all secrets by form hidden."""
    hidden = []
    for word in words:
        name, equals, value = word.partition("=")
        hidden.append(f"{name}={REDACTED}" if equals and is_sensitive(name.lstrip("-"), value) else hide_secrets(word))
    return shlex.join(hidden)


class _Logged:
    """Node or engine whose calls are logged, without stdin, file contents and environments."""

    def __init__(self, target: Any, place: str) -> None:
        self._target, self._place = target, place

    def __getattr__(self, name: str) -> Any:
        found = getattr(self._target, name)
        if name == "engine":
            return _Logged(found, f"{self._place} engine")
        return self._timed(name, found) if callable(found) else found

    def _timed(self, name: str, method: Callable[..., Any]) -> Callable[..., Any]:
        def call(*arguments: Any, **options: Any) -> Any:
            what = " ".join([f"{self._place}: {name}", *map(_shown, arguments)])
            began = time.monotonic()
            try:
                result = method(*arguments, **options)
            except BaseException as error:
                _log(what, began, f"{type(error).__name__}: {error}")
                raise
            if isinstance(result, Iterator):
                return _to_the_end(result, what, began)
            _log(what, began, f"exit code {result.exit_code}" if isinstance(result, Completed) else "ok")
            return result

        return call


def _to_the_end(items: Iterator[Any], what: str, began: float) -> Iterator[Any]:
    count = 0
    try:
        for count, item in enumerate(items, 1):  # noqa: B007  # read in `finally`
            yield item
    finally:
        _log(what, began, f"{count} items")


def _log(what: str, began: float, outcome: str) -> None:
    LOG.info("%s: %s (%.3f s)", what, outcome, time.monotonic() - began)


def _shown(argument: Any) -> str:
    if isinstance(argument, str | Path):
        text = str(argument)
    elif isinstance(argument, Mapping):
        text = ",".join(map(str, argument))
    elif isinstance(argument, Sequence) and all(isinstance(word, str) for word in argument):
        text = redacted_words(argument)
    else:
        text = str(getattr(argument, "name", type(argument).__name__))
    text = " ".join(text.split())
    return text if len(text) <= LONGEST else f"{text[:LONGEST]}…"
