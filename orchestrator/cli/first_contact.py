"""First contact with machines: their host keys are accepted, and the user's key is copied to those that lack it."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from orchestrator.cli.consent import asked, can_ask, chosen
from orchestrator.cli.report import report_error, report_errors, say
from orchestrator.cli.trust import TIMEOUT_S, accept_keys, is_known, shown_by
from orchestrator.render.printable import counted
from orchestrator.specs.errors import NodeUnreachableError, OrchError
from orchestrator.specs.reach import Reach

if TYPE_CHECKING:
    from orchestrator.nodes.ssh import SshNode
    from orchestrator.specs.inventory import NodeSpec

TRIES = 3
_KEY_MISSING = (Reach.LOGIN, Reach.NO_KEY)
_REFUSED = (*_KEY_MISSING, Reach.KEY_LOCKED)
"""A login by password that is refused is explained by the keys that there are."""
Place = tuple[str, int]


@dataclass(kw_only=True)
class _Passwords:
    """Passwords that were accepted, in memory alone, and the machines on which the last one is tried.

    A machine that has merely been found, or that a file names, may be a stranger's: its sshd would read a password that
    works elsewhere.
    """

    tried_on: set[str]
    """Names of machines that the user has typed, whose host key was known before, or that get it by consent."""
    listed: Collection[str] = ()
    """Names of machines of a file, which may share a password once the user has seen the list of them."""
    each: bool = False
    """True if a password is asked for on each machine."""
    accepted: list[str] = field(default_factory=list)

    def tried(self, spec: NodeSpec) -> list[str]:
        """Return the password that is tried on this machine before one is asked for, if any."""
        return self.accepted[-1:] if spec.name in self.tried_on and not self.each else []

    def shared_by(self, specs: Sequence[NodeSpec]) -> list[str]:
        """Return the names of machines that may get the password of another one only if the user agrees to that."""
        if self.each or len(specs) < 2:
            return []
        return [
            spec.name for spec in specs if spec.name in self.listed and spec.name not in self.tried_on and is_near(spec)
        ]


def is_near(spec: NodeSpec) -> bool:
    """Return whether a machine has an address of a private network: a file can name any machine of the internet."""
    from ipaddress import ip_address

    from orchestrator.nodes.ssh_config import login_of
    from orchestrator.nodes.ssh_connection import resolve

    try:
        return ip_address(resolve(login_of(spec).spec)).is_private
    except (OrchError, ValueError):
        return False


def let_in(
    specs: Sequence[NodeSpec],
    *,
    named: Collection[str] = (),
    listed: Collection[str] = (),
    each: bool = False,
    yes: bool,
) -> list[NodeSpec]:
    """Return the machines that let the user's key in; the errors of the others are reported.

    `named`: names of machines that the user has typed; `listed`: those of a file that the user has named; `each`: ask
    for a password on each machine. Jump hosts come first, also those that are not among the machines: the others are
    asked through them.
    """
    ways = _ways(specs)
    if hops := [spec.name for spec, _ in ways.values() if spec not in specs]:
        say(f"jump hosts on the way, which get your key first: {', '.join(hops)}")
    done: dict[Place, bool] = {}
    passwords = _Passwords(tried_on=set(named), listed=listed, each=each)
    for length in sorted({len(way) for _, way in ways.values()}):
        round_ = []
        for place, (spec, way) in ways.items():
            if len(way) != length:
                continue
            if missing := [hop for hop in way if not done.get(hop)]:
                at = f"{missing[0][0]}:{missing[0][1]}"
                reason = f"it is reached through {at}, which does not let your key in"
                report_error(NodeUnreachableError(reason, node=spec.name, hint="fix that one first"))
            else:
                round_.append((place, spec))
        fit = {spec.name for spec in _round([spec for _, spec in round_], passwords, yes=yes)}
        done |= {place: spec.name in fit for place, spec in round_}
    return [spec for spec in specs if spec.connection == "local" or done.get(_place(spec))]


def _ways(specs: Sequence[NodeSpec]) -> dict[Place, tuple[NodeSpec, tuple[Place, ...]]]:
    """Machines and their jump hosts by place, with the places on the way to each."""
    from orchestrator.nodes.ssh_connection import jump_hosts

    ways: dict[Place, tuple[NodeSpec, tuple[Place, ...]]] = {}
    for spec in specs:
        if spec.connection == "local":
            continue
        try:
            hops = jump_hosts(spec)
            places = tuple(_place(hop) for hop in hops)
            ways[_place(spec)] = (spec, places)  # also where it was a jump host of another one
        except OrchError as error:
            error.node = error.node or spec.name
            report_error(error)
            continue
        for number, hop in enumerate(hops):
            name = f"jump-{hop.name}" if hop.name in {one.name for one in specs} else hop.name
            ways.setdefault(places[number], (hop.model_copy(update={"name": name}), places[:number]))
    return ways


def _place(spec: NodeSpec) -> Place:
    from orchestrator.nodes.ssh_config import login_of

    try:
        login = login_of(spec)
    except OrchError:
        return spec.address.lower(), spec.port
    return login.spec.address.lower(), login.spec.port


def _round(specs: Sequence[NodeSpec], passwords: _Passwords, *, yes: bool) -> list[NodeSpec]:
    """Let the key in on machines that can be reached now; return those that accept it."""
    from orchestrator.fleet.fan_out import fan_out

    shown = fan_out(specs, shown_by, timeout_s=TIMEOUT_S)
    passwords.tried_on |= {one.name for one in (each.result for each in shown) if one and is_known(one)}
    trusted, _ = accept_keys(shown, yes=yes, again="this command")
    fit: list[NodeSpec] = []
    missing: list[NodeSpec] = []
    refusals: list[OrchError] = []
    for outcome in fan_out(trusted, log_in, timeout_s=TIMEOUT_S):
        error = outcome.error
        if error is None:
            fit.append(outcome.item)
        elif isinstance(error, NodeUnreachableError) and error.reach in _KEY_MISSING:
            missing.append(outcome.item)
            refusals.append(error)
        else:
            error.node = error.node or outcome.item.name
            report_error(error)
    if fit:
        say(f"your key is accepted already: {', '.join(spec.name for spec in fit)}")
    if not missing:
        return fit
    if not can_ask():
        report_errors(refusals)
        return fit
    return [*fit, *_copied(missing, refusals, passwords, yes=yes)]


def _copied(
    specs: Sequence[NodeSpec], refusals: Sequence[OrchError], passwords: _Passwords, *, yes: bool
) -> list[NodeSpec]:
    """Copy the key to machines that lack it, after one question; return those that accept it now."""
    from orchestrator.nodes.first_login import make_key, public_key
    from orchestrator.nodes.ssh_config import login_of

    keys = {spec.name: public_key(login_of(spec)) for spec in specs}
    sharing = [] if yes else passwords.shared_by(specs)
    question = _question(specs, sharing, has_key=None not in keys.values())
    agreed_on = chosen(question, list(keys), yes=yes, default=not sharing)
    passwords.tried_on |= set(sharing) & set(agreed_on)
    if any(keys[name] is None for name in agreed_on):
        say(f"made {make_key()}")
        keys = {spec.name: public_key(login_of(spec)) for spec in specs}
    report_errors(error for error in refusals if keys.get(error.node, "") is None)
    if len(agreed_on) > 1 and not passwords.accepted and not passwords.each:
        own = [name for name in agreed_on if name not in passwords.tried_on]
        if len(own) < len(agreed_on) and not sharing:
            say("the password of the last machine is tried on the next, and asked for again where it is refused")
        if own:
            say(f"asked for each, as they were not typed here and their host keys are new: {', '.join(own)}")
    done: list[NodeSpec] = []
    for spec in specs:
        key = keys[spec.name]
        if key is None:
            continue
        if spec.name not in agreed_on:
            say(f"{spec.name}: left as it is")
            continue
        try:
            _copy(spec, key, passwords)
            done.append(spec)
        except OrchError as error:
            error.node = error.node or spec.name
            report_error(error)
    if done:
        say(f"key copied, and accepted: {', '.join(spec.name for spec in done)}")
    return done


def _question(specs: Sequence[NodeSpec], sharing: Sequence[str], *, has_key: bool) -> str:
    """Return the question for consent, after the places that it is about. `sharing`: machines that get one password."""
    places = [_login_name(spec) for spec in specs]
    to = places[0] if len(places) == 1 else f"these {counted(len(places), 'machine')}"
    if len(places) > 1:
        named = (f"{spec.name} ({place})" for spec, place in zip(specs, places, strict=True))
        say(f"without your key: {', '.join(named)}")
    if sharing:
        whose = "each of them gets" if len(sharing) == len(specs) else f"{', '.join(sharing)} get"
        say(f"their host keys are new: {whose} the password that you type (--ask-each: one for each)")
    made = "You have no SSH key. Make ~/.ssh/id_ed25519, without a passphrase, and copy its public key to"
    return f"{'Copy your public key to' if has_key else made} {to}{', with one password' if sharing else ''}?"


def _copy(spec: NodeSpec, key: str, passwords: _Passwords) -> None:
    from orchestrator.nodes.first_login import authorize

    node = _by_password(spec, passwords)
    try:
        authorize(node, key)
    finally:
        node.close()
    log_in(spec)


def log_in(spec: NodeSpec) -> None:
    """Log in by key. OrchError says why it could not."""
    from orchestrator.nodes.ssh import SshNode

    node = SshNode(spec)
    try:
        node.open()
    finally:
        node.close()


def _login_name(spec: NodeSpec) -> str:
    from orchestrator.nodes.ssh_config import login_of

    to = login_of(spec).spec
    port = f":{to.port}" if to.port != 22 else ""
    return f"{to.user}@{to.address}{port}"


def _by_password(spec: NodeSpec, passwords: _Passwords) -> SshNode:
    """Log in by the password of the last machine, or by one that is asked for; three at most."""
    from orchestrator.nodes.ssh import SshNode

    place = _login_name(spec)
    for left in range(TRIES, 0, -1):
        known = passwords.tried(spec) if left == TRIES else []
        password = known[0] if known else asked(f"Password of {place}", hidden=True)
        node = SshNode(spec, password=password)
        try:
            node.open()
        except NodeUnreachableError as error:
            node.close()
            if error.reach not in _REFUSED:
                raise
            say(f"{spec.name}: {'the password of the last machine' if known else 'that password'} is refused")
            continue
        passwords.accepted.append(password)
        return node
    raise NodeUnreachableError(
        f"{place} refused {TRIES} passwords; nothing was changed there",
        reach=Reach.LOGIN,
        node=spec.name,
        hint="is it your machine, and the user right (--user)? Does its sshd allow PasswordAuthentication?",
    )
