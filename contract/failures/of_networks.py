"""Signatures of ranks that do not find, or lose, each other: NCCL, gloo and torch's store."""

from __future__ import annotations

from contract.failures.signature import configuration, infrastructure, user

NCCL = (
    configuration(
        "nccl.no_interface",
        r"Bootstrap ?: no socket interface found",
        r"connecting to address.{0,200}family [0-9]{1,9} is neither AF_INET",
    ),
    configuration(
        "nccl.versions",
        r"[Mm]ismatched? (?:NCCL )?version",
        r"collective mismatch error",
        r"receiving [0-9]{1,20} bytes instead of [0-9]",
        r"Message truncated",
    ),
    user("nccl.same_gpu", r"Duplicate GPU detected"),
    infrastructure(
        "nccl.timeout",
        r"collective operation timeout: WorkNCCL\((?:SeqNum=(?P<number>[0-9]{1,20}), )?OpType=(?P<op>\w{1,40})",
        lost_peer=True,
    ),
    infrastructure(
        "nccl.hang",
        r"ProcessGroupNCCL's watchdog got stuck for (?P<seconds>[0-9]{1,9})",
        r"due to ProcessGroupNCCL watchdog hang",
        r"Heartbeat monitor timed out",
        r"Received a (?:dump|timeout) signal (?:due to|from)",
        lost_peer=True,
    ),
    infrastructure(
        "nccl.peer_lost",
        r"ncclRemoteError",
        r"remote process exited or there was a network error",
        r"NCCL WARN.{0,300}(?:Connection closed by remote peer|Connection reset by peer)",
        r"NCCL communicator was aborted on rank",
        r"Connection closed by remote peer",
        r"^(?!.{0,200}NCCL INFO).{0,300}(?:socket\w{4,40}|ncclSocket\w{1,40}"
        r"|bootstrap\w{1,40}): .{0,300}(?:Connection (?:refused"
        r"|timed out|reset by peer)"
        r"|Software caused connection abort|Broken pipe)",
        lost_peer=True,
    ),
    infrastructure(
        "nccl.system",
        r"nccl(?:System|Internal|UnhandledCuda)Error",
        r"NCCL error in: .{0,300}(?:unhandled (?:system|cuda) error|internal error)",
        r"NCCL [Ee]rror [0-9]{1,2}: (?:unhandled|internal)",
        nearer=("nccl", "network", "memory", "gpu"),
    ),
    user(
        "nccl.usage",
        r"ncclInvalid(?:Usage|Argument)|NCCL error in: .{0,300}invalid (?:usage|argument)|NCCL [Ee]rror [45]: invalid",
        nearer=("nccl", "network", "gpu"),
    ),
)

NETWORK = (
    infrastructure(
        "network.port_taken",
        r"failed to (?:bind|listen) .{0,200}[\]:](?P<port>[0-9]{1,5}) .{0,100}Address already in use",
        r"port: (?P<port>[0-9]{1,5}), .{0,200}EADDRINUSE",
    ),
    infrastructure("network.socket_taken", r"EADDRINUSE|[Aa]ddress already in use"),
    configuration(
        "network.loopback",
        r"(?:connectFullMesh|timed out connecting|[Cc]onnect).{0,300}remote=\[?(?P<address>127\.0\.[0-9.]{3,7}|::1\b)",
        r"[Cc]onnect(?:ing)? (?:to )?\[?(?P<address>127\.0\.[0-9.]{3,7}|::1)(?:\]:[0-9]|<[0-9])",
    ),
    configuration(
        "network.interface",
        r"[Uu]nable to find (?:address|interface) for:? (?P<interface>\S{1,40}?)\.?$",
        r"ifa != nullptr.{0,200}for: (?P<interface>\S{1,40})",
    ),
    configuration(
        "network.name",
        r"\((?P<name>[\w.-]{1,255}), [0-9]{1,5}\).{0,300}"
        r"(?:Name or service not known|name resolution|No address associated"
        r"|Address family for hostname|getaddrinfo failed)",
        r"(?:unable to resolve|could not resolve|resolve host)[^'\n]{0,60}'?(?P<name>[\w.-]{0,255})",
        r"Name or service not known|Temporary failure in name resolution",
    ),
    infrastructure(
        "network.too_few",
        r"Timed out after [0-9]{1,9} seconds waiting for clients\. (?P<came>[0-9]{1,9})/(?P<all>[0-9]{1,9}) ",
        r"Timed out waiting for clients\. (?P<came>[0-9]{1,9})/(?P<all>[0-9]{1,9}) ",
        r"store based barrier.{0,200}world_size=(?P<all>[0-9]{1,9}), (?:worker_count"
        r"|num_workers_joined)=(?P<came>[0-9]{1,9})",
        lost_peer=True,
    ),
    infrastructure(
        "network.rank_missing",
        r"wait timeout after [0-9]{1,9}ms, keys: \S{0,200}role_info",
        r"DistStoreError.{0,300}role_info",
        r"NCCL WARN Bootstrap Root ?: .{0,80}has already checked in",
        r"store->get\('.{0,200}(?:[Ss]ocket [Tt]imeout|[Ww]ait timeout|[Tt]imed? ?out)",
        lost_peer=True,
    ),
    infrastructure("network.no_route", r"No route to host", r"Network is unreachable", r"Host is unreachable"),
    user(
        "network.sizes_differ",
        r"op\.preamble\.length <= op\.nbytes",
        r"Detected mismatch between collectives on ranks",
        r"received data size doesn't match expected size",
        r"NCCL WARN Mismatched collective detected",
    ),
    infrastructure(
        "network.timeout",
        r"Timed out waiting (?P<ms>[0-9]{1,12})ms for (?:recv|send|\w{1,20}) operation to complete",
        r"[Ww]ait timeout after (?P<ms>[0-9]{1,12})ms",
        r"Application timeout caused pair closure",
        lost_peer=True,
    ),
    configuration(
        "network.mesh", r"connectFullMesh failed(?!.{0,400}Connection (?:closed|reset) by peer)", lost_peer=True
    ),
    infrastructure(
        "network.refused",
        r"(?:failed to connect to|timed out (?:after [0-9]{1,9}m?s )?while|timeout while).{0,200}?"
        r"\(?\[?(?P<host>[\w.-]{1,255})\]?(?:, |:)(?P<port>[0-9]{1,5})",
        lost_peer=True,
        nearer=("network",),
    ),
    infrastructure(
        "network.peer_lost",
        r"(?P<how>Connection (?:closed by peer|reset by peer|timed out))",
        r"(?P<how>Broken pipe|Socket closed)",
        lost_peer=True,
    ),
    infrastructure(
        "network.peer_refused",
        r"^(?!.{0,600}(?:ConnectionPool\(host=|NCCL INFO)).{0,2000}Connection refused",
        lost_peer=True,
        nearer=("network",),
    ),
    infrastructure(
        "network.rendezvous", r"Rendezvous(?:Timeout|Closed|Connection)Error", lost_peer=True, nearer=("network",)
    ),
    infrastructure(
        "network.store",
        r"DistNetworkError|DistStoreError|TCPStore server has shut down|could not join the others",
        r"recvValue\w{0,20} failed|Connection was likely closed",
        lost_peer=True,
        nearer=("network",),
    ),
)
