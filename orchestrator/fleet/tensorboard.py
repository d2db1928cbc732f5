"""Copy the TensorBoard event files of runs from the nodes into a cache on this computer, then what is added to them."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Mapping, Sequence
from contextlib import closing
from pathlib import Path

from platformdirs import user_cache_path

from orchestrator.fleet.fan_out import fan_out
from orchestrator.fleet.runs.bring_results import SPARE
from orchestrator.fleet.runs.results import files_of_run, run_with_files
from orchestrator.nodes.interface import MIB, TRANSFER_TIMEOUT_S, Node
from orchestrator.specs.errors import ConfigError, PreflightError


class EventFiles:
    """Event files of the runs that these words mean (an empty one: the newest), with the project's folder by node."""

    def __init__(self, nodes: Sequence[Node], wanted: Mapping[str, Mapping[str, str]]) -> None:
        self._asked = list[tuple[Path, Node, str]]()
        for word, places in wanted.items():
            known = [node for node in nodes if node.name in places]
            to = user_cache_path("orch") / "tensorboard" / run_with_files(known, places, word)
            self._asked += [(to, node, places[node.name]) for node in known]

    def copy(self, tell: Callable[[str], object]) -> None:
        """Copy what is not here yet. `tell` gets the errors of nodes."""
        for outcome in fan_out(self._asked, lambda one: self._copy(*one), timeout_s=TRANSFER_TIMEOUT_S):
            if outcome.error:
                tell(f"note: {outcome.error}")

    def link(self, board: str, tell: Callable[[str], object]) -> None:
        """Copy, and make a link to each run's files in this folder. ConfigError: there are none."""
        self.copy(tell)
        for folder in dict.fromkeys(folder for folder, *_ in self._asked):
            tell(f"event files: {folder}" if folder.is_dir() else f"note: no TensorBoard files of {folder.name}")
            Path(board, folder.name).symlink_to(folder)
        if not any(Path(board).glob("*/*")):
            raise ConfigError("no node that answered has event files", hint="orch runs")

    def _copy(self, to: Path, node: Node, place: str) -> None:
        folder, files = files_of_run(node, place, to.name, "events.out.tfevents.*")
        for file in files:
            target = to / node.name / file.path.removeprefix("tensorboard/")
            target.parent.mkdir(parents=True, exist_ok=True)
            target.touch()
            if (present := target.stat().st_size) < file.size:
                chunks = node.stream(["tail", "-c", f"+{present + 1}", "--", f"{folder}/{file.path}"])
                with closing(chunks), target.open("r+b") as copy:  # type: ignore[type-var]  # a generator on all nodes
                    copy.seek(present)  # no append: a second command writes the same bytes at the same place
                    while present < file.size and (chunk := next(chunks, b"")):
                        if shutil.disk_usage(to).free < SPARE:
                            raise PreflightError(f"less than {SPARE // MIB} MiB are free in {to}", node="controller")
                        present += copy.write(chunk[: file.size - present])
