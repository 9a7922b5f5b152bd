"""Connections without the token are few and short, shared among users, and do not keep the owner out."""

import asyncio
import http.client
import os
import socket
import subprocess
import sys

import pytest
from studio_browser import serving

from trinity_compat.studio import connections
from trinity_compat.studio.connections import Connections

NOBODY = 65534


def opened(listener):
    made = socket.create_connection((listener.host, listener.port), timeout=60)
    made.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
    return made


def is_closed(one):
    """Wait until the studio has closed the connection; return whether it did."""
    one.settimeout(60)
    try:
        return one.recv(1) == b""
    except ConnectionError:
        return True


def is_open(one):
    one.setblocking(False)
    try:
        return one.recv(1, socket.MSG_PEEK) != b""
    except BlockingIOError:
        return True
    except ConnectionError:
        return False


def asked(listener, cookie=True):
    client = http.client.HTTPConnection(listener.host, listener.port, timeout=60)
    client.request(
        "GET", "/alive", headers={"Cookie": f"{listener.cookie}={listener.ticket}"} if cookie else {}
    )
    answer = client.getresponse()
    answer.read()
    return client, answer.status


def test_of_many_idle_connections_the_oldest_are_closed_and_the_owner_is_answered(tmp_path):
    with serving(tmp_path, connections=Connections(most=8)) as listener:
        first, status = asked(listener)
        assert status == 204
        strangers = [opened(listener) for _ in range(20)]
        assert all(is_closed(one) for one in strangers[:12])
        assert asked(listener)[1] == 204
        assert [is_open(one) for one in strangers[13:]] == [True] * 7
        first.request("GET", "/alive")  # the owner's own is not counted
        assert first.getresponse().status == 401
        for one in strangers:
            one.close()


def test_a_connection_without_the_token_ends_after_a_while(tmp_path):
    with serving(tmp_path, connections=Connections(seconds=3.0)) as listener:
        assert is_closed(opened(listener))
        client, status = asked(listener, cookie=False)
        assert status == 401
        assert is_closed(client.sock) if client.sock else True
        owner, status = asked(listener)
        assert is_closed(opened(listener))  # it came after the owner's
        assert status == 204 and is_open(owner.sock)


HOLD = """
import encodings.idna, os, socket, sys
os.setuid(int(sys.argv[2]))
held = []
for _ in range(int(sys.argv[3])):
    held.append(socket.socket())
    try:
        held[-1].connect(("127.0.0.1", int(sys.argv[1])))
    except ConnectionError:
        pass  # closed at once
print("held", flush=True)
sys.stdin.read()
"""


@pytest.mark.skipif(os.geteuid() != 0, reason="needs root, to act as another user")
def test_another_user_s_many_connections_close_none_of_the_owner_s(tmp_path):
    with serving(tmp_path, connections=Connections(most=8)) as listener:
        ours = [opened(listener) for _ in range(3)]
        words = [sys.executable, "-c", HOLD, str(listener.port), str(NOBODY), "30"]
        with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as theirs:
            assert theirs.stdout.readline() == "held\n"
            assert asked(listener)[1] == 204
            assert [is_open(one) for one in ours] == [True] * 3
            theirs.stdin.close()
        for one in ours:
            one.close()


def test_addresses_share_the_room_too(monkeypatch):
    class Transport:
        closed = False

        def abort(self):
            self.closed = True

    async def work():
        found = Connections(most=3)
        peers = [("10.0.0.1", 1), ("10.0.0.2", 1), ("10.0.0.2", 2), ("10.0.0.3", 1)]
        transports = [Transport() for _ in peers]
        for peer, transport in zip(peers, transports, strict=True):
            found.opened(peer, transport)
        return [transport.closed for transport in transports]

    assert asyncio.run(work()) == [False, True, False, False]
    assert connections._is_here("127.0.0.2") and not connections._is_here("10.0.0.1")
