"""Causes: ranks that do not find, or lose, each other. Gloo and torch's store."""

from __future__ import annotations

from orchestrator.checks.causes.rule import Rule

RULES = (
    Rule(
        id="network.port_taken",
        kind="infrastructure",
        what="the port {port} of {node} is taken by another program",
        todo=(
            "who holds it: ss -ltnp 'sport = :{port}' on {node}; an earlier run: orch status, orch stop",
            "launch again: a free port is chosen; or another one in inventory.yaml: defaults: {{master_port: …}}",
        ),
        signs=(
            r"failed to (?:bind|listen) .*[\]:](?P<port>\d+) .*Address already in use",
            r"port: (?P<port>\d+), .*EADDRINUSE",
            r"(?:EADDRINUSE|Address already in use)",
        ),
        page="room.port_taken",
    ),
    Rule(
        id="network.loopback",
        kind="configuration",
        what="a rank told the others an address of its own machine alone ({address}), where nobody else reaches it",
        todo=(
            "orch doctor --only network: it finds the /etc/hosts line that binds a machine's name to 127.0.1.1",
            "own scripts: leave GLOO_SOCKET_IFNAME and NCCL_SOCKET_IFNAME as the launch sets them",
        ),
        signs=(r"(?:connectFullMesh|timed out connecting|[Cc]onnect).*remote=\[?(?P<address>127\.0\.\d+\.\d+)",),
        page="network.own_name_loops",
    ),
    Rule(
        id="network.interface",
        kind="configuration",
        what="{node} has no network interface {interface}",
        todo=("ip -brief address on {node}; leave GLOO_SOCKET_IFNAME as the launch sets it, by route, for each node",),
        signs=(
            r"[Uu]nable to find (?:address|interface) for:? (?P<interface>\S+?)\.?$",
            r"ifa != nullptr.*for: (?P<interface>\S+)",
        ),
        page="network.interface_missing",
    ),
    Rule(
        id="network.name",
        kind="configuration",
        what="{node} cannot resolve the name {name}",
        todo=(
            "give addresses, not names, in inventory.yaml; own scripts take MASTER_ADDR as the launch sets it",
            "orch doctor --only network",
        ),
        signs=(
            r"\((?P<name>[^,()]+), \d+\).*(?:Name or service not known|name resolution|No address associated)",
            r"(?:unable to resolve|could not resolve|resolve host)[^']*'?(?P<name>[\w.-]*)",
            r"(?P<name>)(?:Name or service not known|Temporary failure in name resolution)",
        ),
        page="network.own_name_astray",
    ),
    Rule(
        id="network.too_few",
        kind="infrastructure",
        what="not all nodes came: {came} of {all} had joined when the time was over",
        todo=(
            "which one: orch why {run} names the silent node, orch test the link that does not carry",
            "its log: orch logs {run} --node NODE; then orch resume {run}",
        ),
        signs=(r"Timed out after \d+ seconds waiting for clients\. (?P<came>\d+)/(?P<all>\d+) clients joined",),
    ),
    Rule(
        id="network.rank_missing",
        kind="configuration",
        what="{node} waited in vain for another node: it never came, or two nodes have the same node rank",
        todo=(
            "by hand: every node its own --node-rank from 0 to nnodes-1, all the same --nnodes",
            "else: orch status, and the log of the node that is silent: orch logs {run}",
        ),
        signs=(r"wait timeout after \d+ms, keys: \S*role_info", r"DistStoreError.*role_info"),
    ),
    Rule(
        id="network.no_route",
        kind="infrastructure",
        what="{node} has no way to another node",
        todo=("is the cable in, is the VPN in the way? orch doctor --only network; orch test",),
        signs=(r"No route to host", r"Network is unreachable", r"Host is unreachable"),
        page="network.cut_off",
    ),
    Rule(
        id="network.sizes_differ",
        kind="user",
        what="ranks met in a collective with tensors of different size, or in different collectives",
        todo=(
            "all ranks make the same calls in the same order with the same shapes: look for `if rank == 0:` around one",
            "batches of unequal number: drop_last=True, or DDP's join()",
        ),
        signs=(
            r"op\.preamble\.length <= op\.nbytes",
            r"Detected mismatch between collectives on ranks",
            r"received data size doesn't match expected size",
        ),
    ),
    Rule(
        id="network.timeout",
        kind="infrastructure",
        what="rank {rank} on {node} waited {ms} ms in a collective for a rank that did not come",
        todo=(
            "who was missing: orch why {run}; a rank that computes alone for minutes keeps all others waiting",
            "orch test tries every collective and every link",
        ),
        signs=(
            r"Timed out waiting (?P<ms>\d+)ms for (?:recv|send|\w+) operation to complete",
            r"Wait timeout after (?P<ms>\d+)ms|wait timeout after (?P<ms2>\d+)ms",
            r"Application timeout caused pair closure(?P<ms>)",
        ),
    ),
    Rule(
        id="network.mesh",
        kind="configuration",
        what="the ranks met at the master, but {node} could not connect to all the others: ports are shut",
        todo=(
            "a firewall that passes the master port alone: orch doctor --only firewall, orch firewall",
            "which link: orch test",
        ),
        signs=(r"connectFullMesh failed",),
        page="firewall.passes_one_port",
    ),
    Rule(
        id="network.refused",
        kind="infrastructure",
        what="{node} did not reach the master at {host}:{port}: nobody listened there, or a firewall is between",
        todo=(
            "does the master's node run? orch status {run}",
            "does its firewall let the others in? orch doctor --only firewall, orch firewall",
        ),
        signs=(
            r"(?:failed to connect to|timed out (?:after \d+ms )?while|timeout while).*?"
            r"\(?\[?(?P<host>[\w.-]+)\]?(?:, |:)(?P<port>\d+)",
            r"(?P<host>)(?P<port>)Connection refused",
        ),
        vague=True,
        page="reach.refused",
    ),
    Rule(
        id="network.peer_lost",
        kind="infrastructure",
        what="rank {rank} on {node} lost a peer that said nothing of itself: its process, machine or network went",
        todo=(
            "is a machine gone? orch status {run}; then orch resume {run} --nodes … without it",
            "is it the network? orch test; orch doctor --only network",
        ),
        signs=(
            r"Connection (?:closed by peer|reset by peer|timed out)(?: \[(?P<peer>[^\]]+)\])?",
            r"Broken pipe|Socket closed|recvValue failed",
        ),
    ),
    Rule(
        id="network.store",
        kind="infrastructure",
        what="rank {rank} on {node} did not reach, or lost, the rendezvous on the master's node",
        todo=(
            "does the master's node run? orch status {run}; its log tells more: orch logs {run}",
            "does its firewall let the others in? orch doctor --only firewall, orch firewall",
        ),
        signs=(r"DistNetworkError|DistStoreError|TCPStore server has shut down",),
        vague=True,
    ),
)
