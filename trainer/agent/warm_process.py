"""The warm process of an agent, `python -u warm_process.py DESCRIPTOR`: imports torch once, and is forked for torchrun
and its ranks at each start.

The agent requests a torchrun on the socket DESCRIPTOR, and becomes its parent: it is a subreaper, and the process
between the two ends. torchrun forks a process for each of its ranks before it has a thread, and hands it the
command and the environment once it knows them. So all have the parents that they have without a warm process.
"""

import sys

BEFORE = frozenset(sys.modules)
"""Modules of the start of Python."""

if __name__ == "__main__":
    from pathlib import Path

    here = Path(__file__).resolve().parent
    if sys.path and Path(sys.path[0]) == here:
        del sys.path[0]  # absent with PYTHONSAFEPATH
    sys.path.insert(0, str(here.parents[1]))
    from trainer.agent import warm_forks

    del sys.path[0]
    part = warm_forks.serve(int(sys.argv[1]), BEFORE)  # returns in the forked processes alone
    try:
        if isinstance(part, warm_forks.Torchrun):
            part.run()
        elif part.module:
            import runpy

            runpy._run_module_as_main(part.module)  # type: ignore[attr-defined]  # as `python -m` does
        else:
            exec(part.code(), sys.modules["__main__"].__dict__)  # noqa: S102  # the program of the rank
    except SystemExit:
        raise
    except BaseException:
        warm_forks.leave_out_frames()
        raise
