"""Claim an attempt on the nodes before anything of an earlier one is stopped: of two claimants, one continues the run.

The folder `runs/RUN/attempts/N` of a node is the claim. It is filled under another name and renamed, which succeeds for
one claimant alone; a connection that is cut in between leaves no claim without its id. A single node that
names another claimant is left out; two of them, or more than half, are believed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from orchestrator.fleet.fan_out import fan_out
from orchestrator.nodes.interface import Completed, Node
from orchestrator.specs.errors import ConflictError, OrchError
from orchestrator.state.journal_entries import ClaimEntry
from orchestrator.store.run_record import user_here

TAKEN, STOPPED = 17, 19
"""Exit codes of the script: another claim of this attempt or of a later one; the run was stopped."""
TIMEOUT_S = 10.0
LOOKS, LOOK_EVERY_S = 10, 0.2
"""Looks at the other nodes after the first one has refused: another claimant's claims may still be on their way."""
LONGEST_OWNER = 200
ACTS_ALONE = ("replan", "add_nodes")
"""Reasons for a claim that no person has asked for at this moment."""

# A constant. $1: the project's folder, $2: the run, $3: the attempt, $4: id of the claim, $5: the claimant,
# $6: `auto` for a supervisor or `user`, $7: `look` to claim nothing. 0: claimed. 17: another one has this attempt, or a
# later one. 19: the run was stopped, and no person asks to continue it.
CLAIM = r"""
LC_ALL=C; export LC_ALL
project=$1
case $project in "~"*) project=$HOME${project#"~"};; esac
run=$project/runs/$2
a=$run/attempts
text() { head -c 200 -- "$1" 2>/dev/null; }
by() { printf 'attempt %s by %s\n' "$1" "$(text "$a/$1/owner")"; }
later() {
  for d in "$a"/*/; do
    n=${d%/}; n=${n##*/}
    case $n in ''|*[!0-9]*|????????*) continue;; esac
    [ "$n" -gt "$1" ] && { by "$n"; return 0; }
  done
  return 1
}
make() {  # a folder that is not empty has no other one renamed to its name
  mkdir -p -- "$run" && umask 077 && mkdir -p -- "$a" && new=$(mktemp -d -- "$a/.$1.XXXXXX") || return 1
  printf '%s\n' "$3" >"$new/owner" && printf '%s\n' "$2" >"$new/id" && mv -T -- "$new" "$a/$1" && return 0
  rm -rf -- "$new"
  return 1
}
if [ "$6" != user ] && [ -e "$run/stopped" ]; then printf '%s\n' "$(text "$run/stopped")"; exit 19; fi
later "$3" && exit 17
if [ "$7" = look ]; then
  [ ! -d "$a/$3" ] || [ "$(text "$a/$3/id")" = "$4" ] || { by "$3"; exit 17; }
  exit 0
fi
if [ "$(text "$a/$3/id")" != "$4" ] && ! why=$(make "$3" "$4" "$5" 2>&1) && [ "$(text "$a/$3/id")" != "$4" ]; then
  [ -d "$a/$3" ] && { by "$3"; exit 17; }
  printf '%s\n' "$why" >&2
  exit 1
fi
later "$3" && exit 17  # one that came in between wins
[ "$6" = user ] && rm -f -- "$run/stopped"
exit 0
"""

# A constant. $1 to $4 as above: only the own claim is removed, at once for whoever looks, and of a run that has never
# begun what its launch has made.
RELEASE = r"""
project=$1
case $project in "~"*) project=$HOME${project#"~"};; esac
run=$project/runs/$2
a=$run/attempts
[ "$(head -c 200 -- "$a/$3/id" 2>/dev/null)" = "$4" ] || exit 0
mv -- "$a/$3" "$a/.$3.$4" && rm -rf -- "$a/.$3.$4"
rmdir -- "$a" "$run" 2>/dev/null
[ "$3" = 0 ] && [ -d "$run" ] || exit 0
left=$(find "$run" -mindepth 1 -maxdepth 1 ! -type l ! -name plan.json ! -name code ! -name 'code-*.list' \
  ! -name agents.token)
[ -n "$left" ] || rm -rf -- "$run"
exit 0
"""


@dataclass(kw_only=True)
class NodesClaimed:
    """Nodes on which an attempt was claimed, and the others."""

    claim: ClaimEntry
    held: list[str] = field(default_factory=list)
    left_out: dict[str, str] = field(default_factory=dict)
    """Nodes that alone speak of another claimant or of a stop, and their words."""
    failed: dict[str, OrchError] = field(default_factory=dict)
    """Nodes that did not answer, or could not make the folder."""


def claim_on(
    nodes: Sequence[Node],
    places: Mapping[str, str],
    run_id: str,
    claim: ClaimEntry,
    *,
    rest: Callable[[float], object] = time.sleep,
) -> NodesClaimed:
    """Claim an attempt on all these nodes that answer: first on one alone, then on the others at once.

    ConflictError: another claimant has it, or the run was stopped. Nothing is claimed then.
    """
    claiming = _Claiming(places=places, run_id=run_id, claim=claim)
    in_turn = [*nodes]
    while in_turn and not claiming.held:
        first = in_turn.pop(0)
        claiming.ask([first])
        if first.name in claiming.left_out and claiming.is_lost_within(LOOKS, in_turn, rest):
            raise claiming.lost()
    claiming.ask(in_turn)
    if claiming.is_lost([]):
        release(nodes, places, run_id, claim)
        raise claiming.lost()
    return claiming


def release(nodes: Sequence[Node], places: Mapping[str, str], run_id: str, claim: ClaimEntry) -> None:
    """Remove this claim from the nodes that answer. One that stays keeps no one from a later attempt."""
    words = (run_id, str(claim.attempt), claim.id)
    fan_out(
        nodes,
        lambda node: node.run(["sh", "-c", RELEASE, "sh", places[node.name], *words], timeout_s=TIMEOUT_S),
        timeout_s=TIMEOUT_S,
    )


@dataclass(kw_only=True)
class _Claiming(NodesClaimed):
    """The same while nodes are asked."""

    places: Mapping[str, str]
    run_id: str

    def ask(self, nodes: Sequence[Node]) -> None:
        for outcome in fan_out(nodes, self._run, timeout_s=TIMEOUT_S):
            name, answer = outcome.item.name, outcome.result
            if answer is None:
                self.failed[name] = outcome.error or OrchError("no answer", node=name)
            elif answer.exit_code:
                self.left_out[name] = _words(answer)
            else:
                self.held.append(name)

    def is_lost(self, others: Sequence[Node]) -> bool:
        """Return whether two nodes refuse, or more than half of those that answer; `others` are looked at alone."""
        asked = fan_out(others, lambda node: self._run(node, "look"), timeout_s=TIMEOUT_S) if others else ()
        codes = [outcome.result.exit_code for outcome in asked if outcome.result is not None]
        refusing = len(self.left_out) + sum(code != 0 for code in codes)
        return refusing >= 2 or 2 * refusing > len(self.held) + len(self.left_out) + len(codes)

    def is_lost_within(self, looks: int, others: Sequence[Node], rest: Callable[[float], object]) -> bool:
        """Look several times: the other claimant asks one node first, too."""
        for _ in range(looks):
            if self.is_lost(others):
                return True
            rest(LOOK_EVERY_S)
        return False

    def lost(self) -> ConflictError:
        words = ", ".join(dict.fromkeys(self.left_out.values()))
        where = ", ".join(self.left_out)
        return ConflictError(
            f"attempt {self.claim.attempt} of run {self.run_id} cannot start: {words} (on {where})",
            hint=f"to follow it: orch logs -f {self.run_id}; to end it and continue here: orch restart {self.run_id}",
        )

    def _run(self, node: Node, *look: str) -> Completed:
        claim, mode = self.claim, "auto" if self.claim.why in ACTS_ALONE else "user"
        words = (self.places[node.name], self.run_id, str(claim.attempt), claim.id, claimant(), mode, *look)
        answer = node.run(["sh", "-c", CLAIM, "sh", *words], timeout_s=TIMEOUT_S)
        if answer.exit_code not in (TAKEN, STOPPED):
            answer.check(f"making {words[0]}", hint="may this user write there? set `workspace` in the inventory")
        return answer


def claimant() -> str:
    """The person, the computer and the time, as other computers show them."""
    return f"{user_here()} at {datetime.now(UTC):%Y-%m-%d %H:%M} UTC"


def _words(answer: Completed) -> str:
    """The words of a node on one line, bounded."""
    text = answer.stdout.strip()[:LONGEST_OWNER]
    return "".join(one if one.isprintable() else " " for one in text) or "another claim"
