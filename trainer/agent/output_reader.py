"""Progress in a line of a program's output: epoch, step and loss, as training programs print them.

A line is data of a stranger: at most `LONGEST` characters of it are searched, and every repetition of a pattern is
bounded, so that no line takes long. Its figures are shown with their source and decide nothing.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

LONGEST = 1024
"""Characters of a line that are searched: its first and its last half, where it is longer."""
KEY_CHARS = 40
"""Characters of the name of a loss, and of the text before a bar, that are kept."""
STEP_LIMIT = 10**12

_NUMBER = r"[-+]?\d{1,12}(?:\.\d{0,20})?(?:[eE][-+]?\d{1,3})?"
_FIGURE = re.compile(r"\d|nan|inf", re.IGNORECASE)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]{0,12}[A-Za-z]|\x1b\][^\x07\x1b]{0,80}\x07|[\x00-\x08\x0e-\x1a\x1c-\x1f]")
"""A control sequence of a terminal, or a control character."""

# ── Bars ──────────────────────────────────────────────────────────────────────────────────────────────────────────────

_TQDM = re.compile(
    r"(?P<percent>\d{1,3})%\s{0,3}\|[^|]{0,200}\|\s{0,6}(?P<step>[\d.]{1,10}[kMGT]?)/(?P<steps>[\d.]{1,10}[kMGT]?)"
    r"\s{0,3}\[\d[\d:]{1,10}<[\d:?]{1,12},\s{0,8}(?:\?|[\d.]{1,10}(?:e[+-]\d{1,3})?)\s?(?P<unit>[^\s,\]]{1,12})"
)
_TQDM_END = re.compile(r"(?:,[^\]\n]{0,400})?\]")
"""The postfix of a bar of tqdm."""
_TQDM_WITHOUT_TOTAL = re.compile(
    r"(?:^|\s)(?P<step>\d{1,12})it \[\d[\d:]{1,10},\s{0,8}(?:\?|[\d.]{1,10})\s?(?P<unit>it/s|s/it)"
)
_ULTRALYTICS = re.compile(
    r"\d{1,3}% (?:[━─╸╺ ]{1,60}\s?)?(?P<step>\d{1,9})/(?P<steps>\d{1,9}) (?:\[|[\d.]{1,8}(?:it/s|s/it))"
)
_RICH = re.compile(r"(?:^|\s)(?P<step>\d{1,9})/(?P<steps>\d{1,9})\s{1,3}\d{1,3}:\d\d:\d\d\s{0,2}•")
_KERAS = re.compile(
    r"^\s{0,4}(?P<step>\d{1,9})/(?P<steps>\d{1,9}|Unknown)\s{1,3}(?:\[[=>.]{1,60}\]|[━]{1,60}|-)?\s{0,3}-?\s{0,3}"
    r"(?:ETA: )?[\d:]{1,10}s?\s{1,3}(?:-\s)?(?:\d{1,6}[mu]?s/(?:step|epoch|sample)\b|- loss)"
)
_BARS = (_TQDM, _TQDM_WITHOUT_TOTAL, _RICH, _ULTRALYTICS, _KERAS)
_NO_TRAINING = re.compile(
    r"download|fetch|map\b|map \(|filter|tokeni[sz]|loading|shards?\b|generating .{0,20}split|extract|writing|resolv"
    r"|saving|uploading|preprocess|collect|caching|scanning|valid|\bval\b|eval|test|sanity|predict|inference|sampling|box\(p",
    re.IGNORECASE,
)
"""Text before a bar that counts something other than steps of the training."""
_NO_STEPS = re.compile(r"[kMGT]?i?B(?:/s|$)|\w?B/s|(?:files?|examples?|ba|Bytes?)/s")
"""Unit of a bar that counts bytes, files or rows of a data set."""
_OF_EPOCHS = re.compile(r"\bepochs?\W{0,4}$", re.IGNORECASE)
"""Text before a bar that counts epochs."""

# ── Words ─────────────────────────────────────────────────────────────────────────────────────────────────────────────

_WORDS = (
    r"(epochs?|ep|iters?|iterations?|it|steps?|global[_ ]steps?|batch(?:es)?|mini-?batch|updates?|num_updates|rounds?"
    r"|total_timesteps|timesteps?|episodes?|trial)"
)
_COUNT = re.compile(
    r"(?<![A-Za-z_/.-])" + _WORDS + r"(?:\((?:train|training)\)|\s{1,2}(?:no\.?|number|#)|_num|_idx)?['\"]?"
    r"(?:\s-\s)?\s{0,3}[:=#|\[(\s]{0,10}\s{0,8}['\"]?(\d{1,12}(?:\.\d{1,8})?)"
    r"(?![\d.]{0,9}(?:e[-+]?\d|\s?(?:ms|s|sec|seconds|min|h|%|x|k?it/s)\b))"
    r"(?:\s{0,12}(?:/|of|out of)\s{0,12}(\d{1,12})(?![\d.]{0,8}[a-z%]))?",
    re.IGNORECASE,
)
_INNER = re.compile(
    r"(?:\s{0,4}[\])]?[,:]?\s{0,4}[\[(]|:\s{1,8}(?=\d{1,12}\s{0,2}/\s{0,2}\d{1,12}\s))\s{0,10}"
    r"(\d{1,12})\s{0,10}/\s{0,10}(\d{1,12})"
)
"""`[i/n]`, or `: i/n`, after an epoch."""
_BRACKETS = re.compile(
    r"^\s{0,4}\[(\d{1,7})/(\d{1,7})\]\s?\[(\d{1,12})(?:/(\d{1,12}))?\](?=.{0,40}loss)", re.IGNORECASE
)
"""`[epoch/epochs][step/steps]` without words, before a loss."""
_TRAIN = re.compile(
    r"(?<![A-Za-z])train\W{1,3}(\d{1,6})\s{0,2}\[\s{0,10}(\d{1,12})/\s{0,10}(\d{1,12})"
    r"|(?:train|epoch|training)\W{1,3}(\d{1,6})/(\d{1,6})\]\s?\[\s{0,8}(\d{1,12})/(\d{1,12})\]",
    re.IGNORECASE,
)
"""`Train: 0 [50/1251]`, `Train: [0/300][10/1251]`."""
_ULTRALYTICS_ROW = re.compile(r"^\W{0,4}\s{0,4}(\d{1,7})/(\d{1,7})\s{1,12}[\d.]{1,8}G?(?:\s{1,12}[\d.]{1,9}){2}")
_XGBOOST = re.compile(r"^\s{0,4}\[(\d{1,9})\]\s{1,4}\S{1,20}-\S{1,20}:" + _NUMBER)
_TOTAL = re.compile(
    r"(?:num|total|max)[_ ]?(?:train[_ ])?(epochs|steps|iters|iterations|optimization steps)\s{0,3}[:=]\s{0,4}"
    r"(\d{1,12})\b",
    re.IGNORECASE,
)
_LOSS = re.compile(
    r"(?<![A-Za-z])((?:[a-z]{1,14}[_/ .-]){0,2}(?:loss|nll|mse|rmse|objective)"
    r"(?:[_/ .](?:train|step|epoch|avg|mean|total|val|valid|test|eval)|_[dg]\b)?(?:\((?:train|avg|sum)\))?)"
    r"(?: (?:at|after) [a-z]{1,10} \d{1,12})?(?:/total)?['\"]?\s{0,12}(?:[:=|]|-(?=\s))?\s{0,16}['\"]?(nan|inf|"
    + _NUMBER
    + r")(?!\d|\.\d|-\d)",
    re.IGNORECASE,
)
_LOSS_TRAIN = re.compile(
    r"(?<![A-Za-z])(loss\s{1,2}(?:train|training))\s{0,2}[:=]\s{0,4}(nan|inf|" + _NUMBER + ")", re.IGNORECASE
)
_PLAIN_LOSS = re.compile(r"(?:train(?:ing)?[_/ .-])?loss(?:[_/ .](?:train|step))?", re.IGNORECASE)
_VALIDATION = re.compile(r"(?<![a-z])(?:val|valid|validation|eval|evaluation|test|dev)(?![a-z])", re.IGNORECASE)
_VALIDATION_BEFORE = re.compile(r"(?:val|valid|validation|eval|test|dev)(?: set)?[_ /:]{0,2}\s{0,2}$", re.IGNORECASE)
_OF_VALIDATION = 9
"""Class of the loss of a validation; smaller classes come first."""
_POWERS = {"k": 1e3, "M": 1e6, "G": 1e9, "T": 1e12}


@dataclass(frozen=True, kw_only=True)
class OutputFigures:
    """Progress that a line reports; None: it does not. Both counts are as printed: they begin at 0 or at 1."""

    epoch: float | None = None
    """A fraction where the program prints one."""
    epochs: int | None = None
    step: int | None = None
    """Position within the epoch or the training, in the unit that the program counts: steps, batches or samples."""
    steps: int | None = None
    loss: float | None = None
    """NaN and infinities are as printed."""
    loss_key: str = ""
    """The name of the loss on the line."""
    loss_class: int = 0
    """Smaller for the loss of the training itself, larger for a part of it."""
    validation_loss: float | None = None
    unit: str = ""
    """`steps` or `it` where the line says that it counts those."""
    fraction_of_epoch: bool = False
    """True if the epoch is printed as a fraction, so that its number says nothing about passes over a bar."""
    bar: bool = False
    """True if it is one state of a progress bar."""
    before: str = ""
    """Text before the bar, digits replaced: the same for each of its states."""
    end: int = 0
    """Position in the searched text after a bar of tqdm; 0 for other lines."""
    training: bool = True
    """False for a bar of something else, such as a download or a validation."""

    @property
    def is_empty(self) -> bool:
        return (self.epoch, self.epochs, self.step, self.steps, self.loss, self.validation_loss) == (None,) * 6


def searched(line: str) -> str:
    """The line as it is searched: without control sequences, and its middle left out where it is long."""
    if len(line) > LONGEST * 4:
        line = line[: LONGEST * 2] + line[-LONGEST * 2 :]
    if not line.isprintable():
        line = _ESCAPE.sub("", line)
    if len(line) > LONGEST:
        line = line[: LONGEST // 2] + line[-LONGEST // 2 :]
    return line


def read_figures(line: str) -> OutputFigures:
    """Figures of a line without its newline; those of its last part where carriage returns divide it."""
    text = searched(line.rstrip("\r\n").rpartition("\r")[2])
    if not _FIGURE.search(text):
        return OutputFigures()
    found: dict[str, Any] = {}
    bar = next((match for pattern in _BARS if (match := pattern.search(text))), None)
    if bar:
        found = _of_bar(bar, text)
        if not found["training"]:
            return OutputFigures(**found)  # its losses and words are not of the training
    if row := _ULTRALYTICS_ROW.search(text):
        found |= {"epoch": float(row[1]), "epochs": int(row[2])}
    _add_counts(text, found, bar=bool(bar))
    if not bar:
        for total in _TOTAL.finditer(text):
            found.setdefault("epochs" if "epoch" in total[1].lower() else "steps", int(total[2]))
    return OutputFigures(**found, **_losses(text))


def _of_bar(bar: re.Match[str], text: str) -> dict[str, Any]:
    before = text[: bar.start()][-2 * KEY_CHARS :]
    values = bar.groupdict()
    unit, step, steps = values.get("unit") or "it/s", _amount(bar["step"]), _amount(values.get("steps") or "")
    key = re.sub(r"\d{1,12}", "#", before).strip()[-KEY_CHARS:]
    training = not (_NO_TRAINING.search(before) or _NO_STEPS.match(unit))
    found: dict[str, Any] = {"bar": True, "before": key, "training": training}
    if bar.re is _TQDM and (end := _TQDM_END.match(text, bar.end())):
        found["end"] = end.end()
    if not training:
        return found
    if _OF_EPOCHS.search(before):
        return found | {"epoch": float(step or 0), "epochs": steps}
    return found | {"step": step, "steps": steps, "unit": "it" if unit in ("it/s", "s/it") else ""}


def _add_counts(text: str, found: dict[str, Any], *, bar: bool) -> None:
    """Add the numbers after words such as epoch and step. A bar's count is the step of its line."""
    for match in _COUNT.finditer(text):
        word, number, total = match[1].lower(), float(match[2]), match[3]
        field = "epoch" if word.startswith("ep") and not word.startswith("episode") else "step"
        if (word == "it" and not total and not re.match(r"it[:=]", match[0], re.IGNORECASE)) or (
            field == "step" and bar
        ):
            continue
        value = number if field == "epoch" else int(number)
        known = found.setdefault(field, value)
        if field == "epoch":
            found.setdefault("fraction_of_epoch", "." in match[2])
        elif word.removesuffix("s") in ("step", "iter", "iteration", "batch", "update", "global step", "global_step"):
            found.setdefault("unit", "steps")
        if total and known == value:
            found.setdefault(f"{field}s", int(total))
        if field == "epoch" and "step" not in found and (inner := _INNER.match(text, match.end())):
            found |= {"step": int(inner[1]), "steps": int(inner[2]), "unit": ""}
    if not bar and ("epoch" not in found or "step" not in found) and (train := _TRAIN.search(text)):
        if train[1]:
            found |= {"epoch": float(train[1]), "step": int(train[2]), "steps": int(train[3])}
        else:
            epoch, epochs, step, steps = (int(train[group]) for group in (4, 5, 6, 7))
            found |= {"epoch": float(epoch), "epochs": epochs, "step": step, "steps": steps}
    if not found and (both := _BRACKETS.search(text)):
        found |= {"epoch": float(both[1]), "epochs": int(both[2]), "step": int(both[3])}
        found |= {"steps": int(both[4])} if both[4] else {}
    if not found and (boosting := _XGBOOST.search(text)):
        found["step"] = int(boosting[1])


def _losses(text: str) -> dict[str, Any]:
    """The loss of the training, of the best class that the line has, and the first one of a validation."""
    best: tuple[int, str, float] | None = None
    found: dict[str, Any] = {}
    for rank, key, value in _all_losses(text):
        if rank == _OF_VALIDATION:
            found.setdefault("validation_loss", value)
        elif best is None or rank < best[0]:
            best = rank, key, value
    if best:
        found |= {"loss": best[2], "loss_key": best[1][:KEY_CHARS], "loss_class": best[0]}
    return found


def _all_losses(text: str) -> Iterator[tuple[int, str, float]]:
    """Class, name and value of each loss: train before plain before total before others."""
    if match := _LOSS_TRAIN.search(text):
        yield 0, match[1], float(match[2])
    for match in _LOSS.finditer(text):
        key = match[1]
        if _VALIDATION.search(key) or _VALIDATION_BEFORE.search(text[max(0, match.start() - 14) : match.start()]):
            rank = _OF_VALIDATION
        elif _PLAIN_LOSS.fullmatch(key):
            rank = 1
        else:
            rank = 2 if any(word in key.lower() for word in ("total", "train", "lm")) else 3
        yield rank, key, float(match[2])


def _amount(text: str) -> int | None:
    """The number before a bar's slash, such as `9.91M`; None where it is none."""
    try:
        number = float(text.rstrip("kMGT")) * _POWERS.get(text[-1:], 1)
    except ValueError:
        return None
    return int(number) if math.isfinite(number) and number <= STEP_LIMIT else None
