"""Record a command's lines with their times, and draw the recording as an animated picture.

python scripts/cast.py record FILE.cast -- COMMAND…   # asciinema's format, version 2
python scripts/cast.py draw FILE.cast FILE.svg        # the picture in README.md; a test compares it with its recording

The command writes to a pipe, with colors if FORCE_COLOR is set. Of cursor movements only those of progress displays are
understood: up a line, and clear it.
"""

from __future__ import annotations

import argparse
import io
import json
import re
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from html import escape
from pathlib import Path

from rich.console import Console
from rich.terminal_theme import DIMMED_MONOKAI
from rich.text import Text

COLUMNS, ROWS = 100, 26
LONGEST_PAUSE_S = 1.2
"""Longer pauses of a recording are cut to this."""
END_S = 6.0
"""Seconds for which the last picture stays before the animation begins again."""
WIDTH, HEIGHT, MARGIN = 8.0, 18.0, 14.0
"""A character's cell and the border, in pixels."""
BACKGROUND, FOREGROUND = "#1b1d23", "#d7dae0"


UP, CLEAR, CONTROLS = "\x1b[1A", "\x1b[2K", re.compile(r"\x1b\[(?:\?25[lh]|[0-9]*[GJ])|\r")


@dataclass(kw_only=True)
class Line:
    row: int
    at_s: float
    text: str
    """Text with ANSI color codes."""
    until_s: float | None = None
    """Time at which another line takes its place."""


def record(file: Path, command: Sequence[str]) -> int:
    """Run the command, write its lines to the terminal and to the file, and return its exit code."""
    began = time.monotonic()
    with (
        file.open("w", encoding="utf-8") as recording,
        subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT) as process,
        io.TextIOWrapper(process.stdout or io.BytesIO(), encoding="utf-8", newline="\n") as lines,  # a \r ends none
    ):
        recording.write(
            json.dumps({"version": 2, "width": COLUMNS, "height": ROWS, "command": " ".join(command)}) + "\n"
        )
        for line in lines:
            sys.stdout.write(line)
            at_s = round(time.monotonic() - began, 2)
            recording.write(json.dumps([at_s, "o", line.replace("\n", "\r\n")], ensure_ascii=False) + "\n")
    return process.returncode


def lines_of(cast: str) -> list[Line]:
    """Lines of a recording, with long pauses cut. A line that is written again with the same text stays."""
    found: list[Line] = []
    shown: list[Line] = []
    cleared: dict[int, Line] = {}

    def put(text: str, at_s: float) -> None:
        row = len(shown)
        old = cleared.pop(row, None)
        if old is None or old.text != text:
            if old is not None:
                old.until_s = at_s
            old = Line(row=row, at_s=at_s, text=text)
            found.append(old)
        shown.append(old)

    def clear() -> None:
        gone = shown.pop()
        cleared[len(shown)] = gone

    at_s = before_s = 0.0
    for event in map(json.loads, cast.splitlines()[1:]):
        earlier_s, at_s = at_s, at_s + min(LONGEST_PAUSE_S, event[0] - before_s)
        before_s = event[0]
        text = ""
        for part in re.split(r"(\x1b\[1A|\x1b\[2K)", event[2].rstrip("\r\n")):
            if part == CLEAR:
                if text:  # the last line of a progress display, which no newline ends
                    put(text, earlier_s)
                    clear()
                text = ""
            elif part == UP:
                clear()
            else:
                text += CONTROLS.sub("", part)
        put(text, at_s)
    for gone in cleared.values():
        gone.until_s = at_s
    return found


def draw(cast: str) -> str:
    """The recording as an SVG file: below the command, lines appear at their times, and the picture scrolls."""
    command = json.loads(cast.splitlines()[0])["command"]
    lines = [replace(line, row=line.row + 1) for line in lines_of(cast)]
    lines.insert(0, Line(row=0, at_s=0.0, text=f"\x1b[32m$\x1b[0m \x1b[1m{command}\x1b[0m"))
    whole_s = lines[-1].at_s + END_S
    rules = []
    for number, line in enumerate(lines):
        gone = f"{_percent(line.until_s, whole_s)}{{opacity:0}}" if line.until_s is not None else ""
        rules.append(f"@keyframes l{number}{{0%{{opacity:0}}{_percent(line.at_s, whole_s)}{{opacity:1}}{gone}}}")
        rules.append(f"#l{number}{{animation-name:l{number}}}")
    steps = [f"{_percent(line.at_s, whole_s)}{{transform:translateY({_scrolled(line.row)}px)}}" for line in lines]
    width, height = COLUMNS * WIDTH + 2 * MARGIN, ROWS * HEIGHT + 2 * MARGIN
    replaced = "".join(f"#l{number}{{opacity:0}}" for number, line in enumerate(lines) if line.until_s is not None)
    texts = "\n".join(_drawn(number, line) for number, line in enumerate(lines))
    return f"""<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:g} {height:g}" role="img">
<title>{escape(command)}</title>
<style>
text{{font:13px ui-monospace,SFMono-Regular,Menlo,Consolas,monospace;fill:{FOREGROUND};white-space:pre}}
.line{{animation:{whole_s:g}s step-end infinite}}
#all{{animation:scroll {whole_s:g}s step-end infinite;transform:translateY({_scrolled(lines[-1].row)}px)}}
@keyframes scroll{{{"".join(steps)}}}
{"".join(rules)}
@media(prefers-reduced-motion:reduce){{.line,#all{{animation:none}}{replaced}}}
</style>
<rect width="100%" height="100%" rx="8" fill="{BACKGROUND}"/>
<svg x="{MARGIN:g}" y="{MARGIN:g}" width="{COLUMNS * WIDTH:g}" height="{ROWS * HEIGHT:g}"><g id="all">
{texts}
</g></svg>
</svg>
"""


def _percent(at_s: float, whole_s: float) -> str:
    return f"{100 * at_s / whole_s:.2f}%"


def _scrolled(row: int) -> float:
    """Vertical offset of the picture in pixels once this row is there."""
    return -max(0, row + 1 - ROWS) * HEIGHT


def _drawn(number: int, line: Line) -> str:
    parts = "".join(_spans(line.text))
    return f'<text class="line" id="l{number}" y="{line.row * HEIGHT + 13:g}">{parts}</text>'


def _spans(text: str) -> Iterator[str]:
    """The line's parts in their colors, cut at the picture's width."""
    console = Console(width=COLUMNS, color_system="truecolor", file=None, legacy_windows=False)
    shown = Text.from_ansi(text)
    shown.truncate(COLUMNS, overflow="ellipsis")
    for part, style, _ in shown.render(console):
        color = ""
        if style and style.color and not style.color.is_default:
            red, green, blue = style.color.get_truecolor(DIMMED_MONOKAI)
            color = f' fill="#{red:02x}{green:02x}{blue:02x}"'
        bold = ' font-weight="bold"' if style and style.bold else ""
        dim = ' opacity=".6"' if style and style.dim else ""
        yield f"<tspan{color}{bold}{dim}>{escape(part)}</tspan>" if color or bold or dim else escape(part)


def main() -> int:
    parser = argparse.ArgumentParser(prog="python scripts/cast.py", description=(__doc__ or "").splitlines()[0])
    actions = parser.add_subparsers(dest="action", required=True)
    recording = actions.add_parser("record")
    recording.add_argument("cast", type=Path)
    recording.add_argument("command", nargs="+")
    drawing = actions.add_parser("draw")
    drawing.add_argument("cast", type=Path)
    drawing.add_argument("picture", type=Path)
    given = parser.parse_args()
    if given.action == "record":
        return record(given.cast, given.command)
    given.picture.write_text(draw(given.cast.read_text("utf-8")), "utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
