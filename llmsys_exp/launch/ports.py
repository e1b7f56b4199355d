"""TCP ports that are free on this machine."""

from __future__ import annotations

import random
import socket
from pathlib import Path

_PORTS = (20_000, 32_768)
_PORT_TRIES = 100


def free_port() -> int:
    """Return a TCP port that is free now on this machine, and that no outgoing connection will be given."""
    picker = random.SystemRandom()  # the user's seed must not make two jobs agree
    low, high = _PORTS
    first_given_out = _first_ephemeral_port()
    if low < first_given_out < high:
        high = first_given_out
    for _ in range(_PORT_TRIES):
        port = picker.randrange(low, high)
        if is_free(port):
            return port
    with socket.socket() as listener:
        listener.bind(("", 0))
        return listener.getsockname()[1]


def is_free(port: int) -> bool:
    """Whether a TCP port can be listened on now."""
    with socket.socket() as listener:
        # a port whose last connections are still closing is free for a listener
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listener.bind(("", port))
        except OSError:
            return False
        return True


def _first_ephemeral_port() -> int:
    try:
        text = Path("/proc/sys/net/ipv4/ip_local_port_range").read_text(encoding="ascii")
        return int(text.split()[0])
    except (OSError, ValueError, IndexError):
        return _PORTS[1]
