"""The end of a command's input comes before the close of its channel, also where the command ends at that moment."""

from __future__ import annotations

from threading import Thread
from typing import Any

import paramiko
from paramiko.common import MSG_CHANNEL_CLOSE, MSG_CHANNEL_EOF

from orchestrator.nodes.ssh import end_input


class Transport:
    """Notes what is sent; while an EOF is, the other side closes the channel."""

    def __init__(self, channel: paramiko.Channel) -> None:
        self.channel, self.sent = channel, list[int]()
        self.closing = Thread(target=channel._handle_close, args=(None,))

    def _send_user_message(self, message: paramiko.Message) -> None:
        kind = message.asbytes()[0]
        if kind == MSG_CHANNEL_EOF:
            self.closing.start()
            self.closing.join(0.2)  # all the time that it needs, unless it has to wait
        self.sent.append(kind)

    def _unlink_channel(self, _number: int) -> None:
        pass


def channel_and_transport() -> tuple[Any, Transport]:
    channel: Any = paramiko.Channel(0)
    transport = Transport(channel)
    channel.transport, channel.active, channel.remote_chanid = transport, True, 0
    return channel, transport


def test_it_comes_before_the_close() -> None:
    channel, transport = channel_and_transport()
    end_input(channel)
    transport.closing.join()
    assert transport.sent == [MSG_CHANNEL_EOF, MSG_CHANNEL_CLOSE]


def test_a_closed_channel_gets_none() -> None:
    channel, transport = channel_and_transport()
    channel._handle_close(None)
    transport.closing.join()
    sent = list(transport.sent)
    end_input(channel)
    assert transport.sent == sent
