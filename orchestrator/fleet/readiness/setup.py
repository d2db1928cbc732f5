"""`orch setup`: ask every node what it lacks, and execute the confirmed steps."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import replace

from orchestrator.fleet.fan_out import Outcome, fan_out
from orchestrator.fleet.readiness.package_lock import PATIENCE, Patience, run_unlocked
from orchestrator.nodes.interface import Node
from orchestrator.nodes.probes.setup_probe import ask, primary_keys
from orchestrator.specs.errors import CommandFailedError, EngineError, OrchError
from orchestrator.specs.facts import EngineFacts
from orchestrator.specs.inventory import NodeSpec
from orchestrator.specs.setup import SetUp, SetupFacts, SetupPlan, Step

ASK_TIMEOUT_S, WORK_TIMEOUT_S = 40.0, 3600.0
ENGINE_READY_S, PAUSE_S = 60.0, 0.5
"""The first start of an engine creates its folders and network rules; without systemd nothing else waits for it."""

OnStep = Callable[[str, str, str | float], None]
"""Callback with a node, a step, and its state: empty as it begins, a text while it waits, or the seconds it took."""


def survey(specs: Sequence[NodeSpec], nodes: Sequence[Node]) -> tuple[Outcome[Node, SetupFacts], ...]:
    """Facts on what is installed on each node; one outcome per node, in order. Changes nothing."""
    by_name = {spec.name: spec for spec in specs}
    return fan_out(nodes, lambda node: ask(node, by_name[node.name]), timeout_s=ASK_TIMEOUT_S)


def carry_out(
    plans: Sequence[SetupPlan], nodes: Sequence[Node], on_step: OnStep, patience: Patience = PATIENCE
) -> tuple[SetUp, ...]:
    """Every plan on its node, all nodes at once, each in the order of its steps; a failure ends that node's alone."""
    by_name = {node.name: node for node in nodes}

    def work(plan: SetupPlan) -> SetUp:
        became = SetUp(node=plan.node)
        for step in plan.to_do:
            if became.error and not step.always:
                continue
            try:
                _do(by_name[plan.node], step, on_step, patience)
            except OrchError as failed:
                if not became.error:
                    became = replace(became, error=failed.message, hint=failed.hint)
            else:
                became = replace(became, done=(*became.done, step.why))
        return became

    outcomes = fan_out(plans, work, timeout_s=WORK_TIMEOUT_S)
    return tuple(
        outcome.result
        or SetUp(node=outcome.item.node, error=str(outcome.error), hint="orch setup   # continues where it stopped")
        for outcome in outcomes
    )


def verified(
    results: Sequence[SetUp],
    plans: Sequence[SetupPlan],
    nodes: Sequence[Node],
    *,
    now: Callable[[], float] = time.monotonic,
    rest: Callable[[float], object] = time.sleep,
) -> tuple[SetUp, ...]:
    """The results with the facts of each engine as a new login gets them: a user's new group counts only there.

    `nodes`: those where all steps succeeded, connected again.
    """
    gpus = {plan.node for plan in plans if any("nvidia-ctk" in step.argv for step in plan.steps)}

    def engine_facts(node: Node) -> EngineFacts:
        deadline = now() + ENGINE_READY_S
        while True:
            try:
                return node.engine.facts()
            except EngineError:
                if now() >= deadline:
                    raise
                rest(PAUSE_S)

    outcomes = fan_out(nodes, engine_facts, timeout_s=ENGINE_READY_S + ASK_TIMEOUT_S)
    asked = {outcome.item.name: outcome for outcome in outcomes}
    return tuple(_verified(result, asked.get(result.node), gpus=result.node in gpus) for result in results)


def _verified(result: SetUp, asked: Outcome[Node, EngineFacts] | None, *, gpus: bool) -> SetUp:
    if asked is None:
        return result
    if asked.error:
        return replace(
            result,
            error=f"all steps succeeded, but its engine does not answer: {asked.error.message}",
            hint=asked.error.hint or "log out there and in again, if this computer is the node; else: orch doctor",
        )
    engine = asked.value()
    if gpus and "nvidia" not in engine.runtimes:
        return replace(
            result, engine=engine, error="its engine answers, but does not know the runtime nvidia",
            hint="on it: sudo nvidia-ctk runtime configure --runtime=docker, and restart Docker",
        )  # fmt: skip
    return replace(result, engine=engine)


def _do(node: Node, step: Step, on_step: OnStep, patience: Patience) -> None:
    began = patience.now()
    on_step(node.name, step.why, "")
    answer = run_unlocked(node, step, lambda text: on_step(node.name, step.why, text), patience)
    out = answer.check(step.why, hint="orch setup   # once that is fixed; what was done stays")
    if step.only_key and primary_keys(out) != (step.only_key,):
        shown = ", ".join(primary_keys(out)) or "no key at all"
        raise CommandFailedError(
            f"what was fetched holds {shown}, not {step.only_key} alone: nothing of it is trusted or installed",
            node=node.name,
            hint="did a proxy answer with its own page? Otherwise look in NVIDIA's installation guide for a new key",
        )
    on_step(node.name, step.why, patience.now() - began)
