"""Causes: ranks that do not find, or lose, each other. Gloo and torch's store."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Advice

ADVICE = (
    Advice(
        id="network.port_taken",
        what="the port {port} of {node} is taken by another program",
        todo=(
            "who holds it: ss -ltnp 'sport = :{port}' on {node}; an earlier run: orch status, orch stop",
            "launch again: a free port is chosen; or another one in inventory.yaml: defaults: {{master_port: …}}",
        ),
        page="resources.port_taken",
    ),
    Advice(
        id="network.loopback",
        what="a rank told the others an address of its own machine ({address}), where no other machine reaches it",
        todo=(
            "orch doctor --only network: it finds the /etc/hosts line that binds a machine's name to 127.0.1.1",
            "own scripts: leave GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME as the launch sets them",
        ),
        page="network.own_name_loops",
    ),
    Advice(
        id="network.interface",
        what="{node} has no network interface {interface}",
        todo=("ip -brief address on {node}; leave GLOO_SOCKET_IFNAME as the launch sets it, by route, for each node",),
        page="network.interface_missing",
    ),
    Advice(
        id="network.hub",
        what="{node} did not reach {host}: no internet there, a proxy that is not set, or the site is down",
        todo=(
            "load it once where there is internet and bring it along: --data FOLDER; then --env HF_HUB_OFFLINE=1",
            "behind a proxy: orch launch --env HTTPS_PROXY=http://…",
        ),
        page="network.no_way_out",
    ),
    Advice(
        id="network.rendezvous",
        what="not all nodes met at the rendezvous in time",
        todo=(
            "which one is silent: orch status {run}; orch test the link that does not carry",
            "its log: orch logs {run} --nodes NODE; then orch resume {run}",
        ),
    ),
    Advice(
        id="network.name",
        what="{node} cannot resolve a host name: {name}",
        todo=(
            "give addresses, not names, in inventory.yaml; own scripts take MASTER_ADDR as the launch sets it",
            "orch doctor --only network",
        ),
        page="network.own_name_astray",
    ),
    Advice(
        id="network.too_few",
        what="not all nodes came: {came} of {all} had joined when the time was over",
        todo=(
            "which one: orch why {run} names the silent node, orch test the link that does not carry",
            "its log: orch logs {run} --nodes NODE; then orch resume {run}",
        ),
    ),
    Advice(
        id="network.rank_missing",
        what="{node} waited in vain for another node: it never came, or two nodes have the same node rank",
        todo=(
            "by hand: every node its own --node-rank from 0 to nnodes-1, all the same --nnodes",
            "else: orch status, and the log of the node that is silent: orch logs {run}",
        ),
    ),
    Advice(
        id="network.no_route",
        what="{node} has no way to another node",
        todo=("is the cable in, is the VPN in the way? orch doctor --only network; orch test",),
        page="network.cut_off",
    ),
    Advice(
        id="network.sizes_differ",
        what="ranks met in a collective with tensors of different size, or in different collectives",
        todo=(
            "all ranks make the same calls in the same order with the same shapes: look for `if rank == 0:` around one",
            "batches of unequal number: drop_last=True, or DDP's join()",
        ),
    ),
    Advice(
        id="network.timeout",
        what="rank {rank} on {node} waited in a collective for a rank that did not come",
        todo=(
            "who was missing: orch why {run}; a rank that computes alone for minutes keeps all others waiting",
            "orch test tries every collective and every link",
        ),
    ),
    Advice(
        id="network.mesh",
        what="the ranks met at the master, but {node} could not connect to all the others: ports are shut",
        todo=(
            "a firewall that passes the master port alone: orch doctor --only firewall, orch firewall",
            "which link: orch test",
        ),
        page="firewall.passes_one_port",
    ),
    Advice(
        id="network.refused",
        what="{node} did not reach the master at {host}:{port}: no program listened there, or a firewall is between",
        todo=(
            "does the master's node run? orch status {run}",
            "does its firewall let the others in? orch doctor --only firewall, orch firewall",
        ),
        page="reach.refused",
    ),
    Advice(
        id="network.peer_lost",
        what="rank {rank} on {node} lost a peer that said nothing of itself: its process, machine or network went",
        todo=(
            "is a machine gone? orch status {run}; then orch resume {run} --nodes … without it",
            "is it the network? orch test; orch doctor --only network",
        ),
    ),
    Advice(
        id="network.peer_refused",
        what="{node} was refused by another rank, or by the master: its process is gone, or a firewall is between",
        todo=(
            "does every node's part run? orch status {run}",
            "do firewalls let the nodes in? orch doctor --only firewall, orch firewall",
        ),
        page="reach.refused",
    ),
    Advice(
        id="network.store",
        what="rank {rank} on {node} did not reach, or lost, the rendezvous on the master's node",
        todo=(
            "does the master's node run? orch status {run}; its log tells more: orch logs {run}",
            "does its firewall let the others in? orch doctor --only firewall, orch firewall",
        ),
    ),
)
