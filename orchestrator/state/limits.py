"""Limits of the state of a run: times after which something is a condition, and sizes of its collections."""

from __future__ import annotations

NODE_SILENT_S = 10.0
"""Seconds without an answer of a node that is sampled every two seconds."""
ABSENT_S = 30.0
"""Seconds for which a node may not be ready before it is a warning: it imports, or loads an image."""
LAUNCH_S = 3600.0
"""Seconds after the claim of an attempt in which its launch may be under way: images and data are copied first."""
RECENT_S = 300.0
"""Age of the newest recorded line up to which a run without a recorded end counts as active where no node is asked:
agents write a line every ten seconds."""
LEAVE_S = 10.0
"""Seconds in which agents can exit after the first one reported the end; Docker may start one again, which ends at
once."""
SUPERVISED_S = 30.0
"""Seconds after the start of an attempt in which its supervisor may be about to begin."""
STUCK_S = 300.0
"""Seconds after which a fault of the ranks, or a long wait for one, is one degree more severe."""
NO_PROGRESS_S = 60.0
"""Seconds after the newest step from which its remaining time is not shown."""

LOSSES, READINGS, TAIL, MOMENTS, FAILURES = 240, 60, 400, 100, 50
"""Newest values that are kept: losses, samples of a node, its log lines, its rare events, its failures."""
STARTS = 1000
"""Starts of the ranks of an attempt that are counted."""
RECENT = 512
"""Newest lines of a node by which a line that is read twice is recognized."""
LINE_CHARS = 2000
"""Characters of a line that is kept."""
DAMAGED = 100
"""Damaged files of the data on a node."""
FOREIGN = 64
"""Containers that are no part of the run."""
RANKS = 4096
NODES = 4096
