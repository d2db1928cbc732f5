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
        lost_peer=True,
    ),
    infrastructure(
        "nccl.system",
        r"nccl(?:System|Internal|UnhandledCuda)Error",
        r"NCCL error in: .{0,300}(?:unhandled (?:system|cuda) error|internal error)",
        nearer=("nccl", "network", "memory", "gpu"),
    ),
)

NETWORK = (
    infrastructure(
        "network.port_taken",
        r"failed to (?:bind|listen) .{0,200}[\]:](?P<port>[0-9]{1,5}) .{0,100}Address already in use",
        r"port: (?P<port>[0-9]{1,5}), .{0,200}EADDRINUSE",
        r"EADDRINUSE|[Aa]ddress already in use",
    ),
    infrastructure(
        "network.hub",
        r"(?:[Cc]ouldn't|[Cc]annot|could not|Failed to) (?:connect to|reach|resolve) .{0,40}"
        r"(?P<host>huggingface\.co)",
        r"HTTPSConnectionPool\(host='(?P<host>[\w.-]{1,80})'.{0,200}Max retries exceeded",
        r"LocalEntryNotFoundError|OfflineModeIsEnabled",
    ),
    configuration(
        "network.loopback",
        r"(?:connectFullMesh|timed out connecting|[Cc]onnect).{0,300}remote=\[?(?P<address>127\.0\.[0-9.]{3,7})",
        r"[Cc]onnect(?:ing)? (?:to )?\[?(?P<address>127\.0\.[0-9.]{3,7})(?:\]:[0-9]|<[0-9])",
    ),
    configuration(
        "network.interface",
        r"[Uu]nable to find (?:address|interface) for:? (?P<interface>\S{1,40}?)\.?$",
        r"ifa != nullptr.{0,200}for: (?P<interface>\S{1,40})",
    ),
    configuration(
        "network.name",
        r"\((?P<name>[\w.-]{1,255}), [0-9]{1,5}\).{0,300}"
        r"(?:Name or service not known|name resolution|No address associated)",
        r"(?:unable to resolve|could not resolve|resolve host)[^'\n]{0,60}'?(?P<name>[\w.-]{0,255})",
        r"Name or service not known|Temporary failure in name resolution",
    ),
    infrastructure(
        "network.too_few",
        r"Timed out after [0-9]{1,9} seconds waiting for clients\. (?P<came>[0-9]{1,9})/(?P<all>[0-9]{1,9}) ",
        r"Timed out waiting for clients\. (?P<came>[0-9]{1,9})/(?P<all>[0-9]{1,9}) ",
        lost_peer=True,
    ),
    infrastructure(
        "network.rank_missing",
        r"wait timeout after [0-9]{1,9}ms, keys: \S{0,200}role_info",
        r"DistStoreError.{0,300}role_info",
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
    infrastructure("network.peer_refused", r"Connection refused", lost_peer=True, nearer=("network",)),
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
