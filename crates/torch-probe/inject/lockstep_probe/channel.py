"""Sends one datagram per record to the agent's AF_UNIX socket, and never waits for the agent.

If the queue is full, the agent is down, or any other error occurs, the record is lost and counted. The socket is connected again (at most
every RECONNECT_S), because a restarted agent binds a new socket under the same path.
"""

import os
import socket
import time

RECONNECT_S = 0.5  # a connect takes microseconds, but a rank with 1,000 steps per second must not try it in each step
SUN_PATH_BYTES = 107  # sockaddr_un.sun_path has 108 bytes including its NUL


class Channel:
    def __init__(self, path):
        self.path = path
        self.dropped = 0
        self.connections = 0
        self._socket = None
        self._next_attempt = 0.0

    def send(self, datagram):
        """Sends a record. Returns True if the kernel accepted it; False if it was dropped and counted."""
        try:
            connection = self._socket or self._connect()  # the thread of a save may close it meanwhile
            if connection is None:
                self.dropped += 1
                return False
            connection.send(datagram)
            return True
        except BlockingIOError:
            self.dropped += 1  # the agent is behind: its queue is full, the connection is fine
        except OSError:
            self.dropped += 1
            self.close()
        return False

    def send_last_words(self, datagram, patience_s=0.05):
        """Sends in a process that is ending: waits a few milliseconds for a full queue, so that the root cause is not lost."""
        deadline = time.monotonic() + patience_s
        while not self.send(datagram) and self._socket is not None and time.monotonic() < deadline:
            self.dropped -= 1
            time.sleep(0.002)

    def connected(self):
        return self._socket is not None

    def close(self):
        if self._socket is not None:
            self._socket.close()
            self._socket = None

    def _connect(self):
        """Returns the connected socket, or None."""
        now = time.monotonic()
        if now < self._next_attempt:
            return None
        self._next_attempt = now + RECONNECT_S
        connection = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC)
        try:
            connection.setblocking(False)
            connect_to(connection, self.path)
        except OSError:
            connection.close()
            return None
        self._socket = connection
        self.connections += 1
        return connection


def connect_to(connection, path):
    """Connects to a path of any length; for a path longer than sun_path, through its opened folder."""
    if len(os.fsencode(path)) <= SUN_PATH_BYTES:
        connection.connect(path)
        return
    folder = os.open(os.path.dirname(path), os.O_PATH | os.O_DIRECTORY)
    try:
        connection.connect(f"/proc/self/fd/{folder}/{os.path.basename(path)}")
    finally:
        os.close(folder)
