"""Facts of all machines, asked at once."""

from __future__ import annotations

import resource
from dataclasses import dataclass, field
from threading import Barrier

import pytest

from orchestrator.fleet.connect import allow_files
from orchestrator.fleet.gather import assumed_facts, gather_facts
from orchestrator.nodes.fake import FakeNode
from orchestrator.nodes.probes import probe
from orchestrator.specs.errors import CommandFailedError, NodeUnreachableError
from orchestrator.specs.facts import EngineFacts
from tests import lan

THREE = lan.NAMES[:3]


def test_facts_of_host_engine_and_image() -> None:
    here = lan.lan(*THREE)
    outcomes = gather_facts(list(here.nodes.values()), lan.request(THREE))
    facts = [outcome.value() for outcome in outcomes]
    assert [fact.name for fact in facts] == list(THREE)
    alpha = facts[0]
    assert (alpha.cpus, alpha.home, alpha.ports_in_use, alpha.image) == (4, "/home/ana", frozenset({22}), lan.IMAGE)
    assert alpha.engine is not None
    assert alpha.engine.id == "alpha"
    assert alpha.routes[lan.address_of("beta")].interface == "eth0"


def test_each_is_asked_for_the_way_to_all_others_and_for_the_run_to_resume() -> None:
    here = lan.lan(*THREE)
    gather_facts(list(here.nodes.values()), lan.request(THREE), resume="r1")
    (call,) = here.nodes["beta"].calls
    assert call == ("sh", "-c", probe.SCRIPT, "sh", "~/orch", "orch", "r1", "10.0.0.11", "10.0.0.13")


@dataclass
class Meeting(lan.Actor):
    """An engine that answers once all have been asked."""

    all_asked: Barrier = field(kw_only=True)

    def facts(self) -> EngineFacts:
        self.all_asked.wait(30)
        return super().facts()


def test_all_are_asked_at_once() -> None:
    here, barrier = lan.lan(*lan.NAMES), Barrier(len(lan.NAMES))
    for node in here.nodes.values():
        node.engine = Meeting(**vars(node.engine), all_asked=barrier)
    outcomes = gather_facts(list(here.nodes.values()), lan.request(lan.NAMES))
    assert [outcome.value().engine.id for outcome in outcomes] == list(lan.NAMES)


@pytest.mark.parametrize(("profile", "tag"), [("", "orch/orch:cpu"), ("cuda", "orch/orch:cuda")])
def test_the_image_is_that_of_the_device_or_of_the_profile(profile: str, tag: str) -> None:
    here = lan.lan("alpha")
    gather_facts(list(here.nodes.values()), lan.request(("alpha",), profile=profile))
    assert ("image", tag) in here.nodes["alpha"].engine.calls


@dataclass
class Nameless(FakeNode):
    """Its name in the inventory has no address now."""

    @property
    def address(self) -> str:
        raise NodeUnreachableError("beta.lan has no IPv4 address", node=self.name)

    @address.setter
    def address(self, value: str) -> None:
        """Field that the dataclass sets and no code reads."""


def test_a_name_without_address_is_an_outcome_and_the_others_are_asked() -> None:
    here = lan.lan(*THREE)
    here.nodes["beta"] = Nameless("beta")
    outcomes = gather_facts(list(here.nodes.values()), lan.request(THREE))
    assert [outcome.error is None for outcome in outcomes] == [True, False, True]
    assert here.nodes["alpha"].calls[0][-1:] == ("10.0.0.13",)


def test_an_answer_that_is_not_understood() -> None:
    here = lan.lan("alpha")
    here.nodes["alpha"].answers = {("sh", "*"): (0, "Welcome to Windows!\n", "")}
    error = gather_facts(list(here.nodes.values()), lan.request(("alpha",)))[0].error
    assert isinstance(error, CommandFailedError)
    assert error.hint.startswith("on it: uname -nrm")


def test_what_is_assumed_says_so() -> None:
    facts = assumed_facts(lan.spec("alpha", user="ana"))
    assert (facts.assumed, facts.address, facts.user, facts.image) == (True, "10.0.0.11", "ana", None)


def test_many_nodes_may_have_many_open_files() -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    try:
        resource.setrlimit(resource.RLIMIT_NOFILE, (300, hard))
        allow_files(5)
        assert resource.getrlimit(resource.RLIMIT_NOFILE)[0] == 300, "a LAN needs no more"
        allow_files(100)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (856, hard)
        allow_files(10**9)
        assert resource.getrlimit(resource.RLIMIT_NOFILE) == (hard, hard), "no more than the system allows"
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
