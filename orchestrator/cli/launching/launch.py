"""The steps of a launch, on machines or on a cluster: facts, plan, show, ask, start, follow."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

from orchestrator.cli.consent import agreed, require_consent
from orchestrator.cli.launching.command_words import must_run
from orchestrator.cli.launching.first_steps import NotReadyError
from orchestrator.cli.launching.grants import agree_to_hooks
from orchestrator.cli.launching.order import LaunchEngine, LaunchOrder, PlannedRun
from orchestrator.cli.launching.own_code import may_be_copied, own_code
from orchestrator.cli.report import say, say_once
from orchestrator.render.printable import counted
from orchestrator.specs.errors import EXIT_INTERRUPTED, EXIT_OK, UsageError
from orchestrator.specs.inventory import Inventory
from orchestrator.specs.launch_options import LaunchOptions
from orchestrator.specs.plan import Plan
from orchestrator.store.run_names import resolve
from orchestrator.store.run_record import RunRecord, known_records
from orchestrator.store.secret_values import require_values


def launch(order: LaunchOrder) -> int:
    """Start a run and follow it, or print its plan; return the exit code."""
    agree_to_hooks(order.inventory.hooks, order.mode)
    try:
        return _launch(order)
    except NotReadyError as error:
        steps = replace(error.steps, inventory=order.to_write).with_copies(order.inventory)
    if not steps.are_agreed(yes=order.mode.confirmed):
        say("nothing was started")
        return EXIT_INTERRUPTED
    steps.carry_out(order.inventory, quiet=order.mode.as_json)
    return _launch(order.confirmed())


def _launch(order: LaunchOrder) -> int:
    """Launch, as `launch` does. NotReadyError: the inventory is to be written, or an image to be built, before a new
    run."""
    mode = order.mode
    with planned(order) as run:
        if mode.dry_run:
            run.write()
            return EXIT_OK
        require_consent(yes=mode.confirmed, look_first="--dry-run")  # errors were reported first
        run.show(asking=not mode.confirmed)
        question, default = run.question
        if not agreed(question, yes=mode.confirmed, default=default, ends=True):
            say("nothing was started")
            return EXIT_INTERRUPTED
        active = run.start()
        from orchestrator.cli.launching.following import detach, see_through

        return detach(active, mode) if mode.detach else see_through(active, mode)


@contextmanager
def planned(order: LaunchOrder) -> Iterator[PlannedRun]:
    """Yield the planned run: all that precedes the first change on a node."""
    if order.options.checkpoint and not order.options.resume:
        raise UsageError("--checkpoint chooses where a run is resumed from", hint="orch resume RUN --checkpoint STEP")
    order, engine = _placed(order)
    order = engine.settled(order)
    options, mode = order.options, order.mode
    checked = must_run(order.prog, options, continues=order.again is not None)
    if code := own_code(options, order.before):
        may_be_copied(code, yes=mode.confirmed or mode.dry_run)
    request = replace(engine.request(order, checked, code), data_command=checked.needs, sizes=checked.sizes)
    if code and not order.again:
        to = f"{options.on} once" if options.on else counted(len(request.nodes), "node")
        say_once(f"code: {code}, to be copied to {to}")
    require_values(request.secrets, request.environment, os.environ)
    with engine.planned(order, request) as run:
        yield run


def _placed(order: LaunchOrder) -> tuple[LaunchOrder, LaunchEngine]:
    """Return the order and the place where it starts: the cluster of --on or of the resumed run, else machines.

    A run on a cluster needs neither Docker's library nor most of what a launch on machines does: it is submitted
    earlier without those imports.
    """
    options, earlier = order.options, order.earlier
    if options.resume and not earlier:
        earlier = _job_before(order.inventory, options)
    if on := earlier.cluster if earlier else options.on:
        from orchestrator.cli.launching.cluster import ClusterEngine

        cluster = order.inventory.cluster(on)
        return replace(order, options=replace(options, on=on), earlier=earlier), ClusterEngine(cluster)
    from orchestrator.cli.launching.machines import MachineEngine

    return order, MachineEngine()


def _job_before(inventory: Inventory, options: LaunchOptions) -> Plan | None:
    """The plan of the run to be resumed, if this computer has submitted it to a cluster. UsageError: `--on` for another
    run."""
    chosen = resolve(options.resume, known_records())
    plan = RunRecord(chosen).plan() if chosen else None
    if plan and plan.cluster:
        inventory.cluster(plan.cluster)  # refuse one that is gone
        return plan
    if options.on:
        raise UsageError(
            f"run {options.resume} is not a run of a cluster that this computer has submitted",
            hint=f"orch pull {options.resume}; orch launch --on {options.on} …; orch checkpoints push",
        )
    return None
