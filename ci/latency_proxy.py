"""A TCP proxy on 127.0.0.1 that delays each direction by half of a round trip, and a new connection by a whole one.

    latency_proxy.py PORT MILLISECONDS   in front of this port; prints the port that it listens on, and runs until it is killed
"""

import ctypes
import queue
import socket
import sys
import threading
import time

PIECE = 1 << 16
SET_TIMER_SLACK = 29


def pump(source, target, delay, begin):
    """Passes on what comes from one socket, each piece after the delay, and nothing before the connection would be there."""
    pieces = queue.SimpleQueue()

    def write():
        # The default slack of 50 us is a twentieth of the shortest round trip.
        ctypes.CDLL(None).prctl(SET_TIMER_SLACK, 1, 0, 0, 0)
        while True:
            due, piece = pieces.get()
            time.sleep(max(0.0, due - time.monotonic()))
            try:
                if not piece:
                    return target.shutdown(socket.SHUT_WR)
                target.sendall(piece)
            except OSError:
                return

    threading.Thread(target=write, daemon=True).start()
    piece = b"first"
    while piece:
        try:
            piece = source.recv(PIECE)
        except OSError:
            piece = b""
        pieces.put((max(time.monotonic(), begin) + delay, piece))


def main():
    port, trip = int(sys.argv[1]), float(sys.argv[2]) / 1e3
    with socket.create_server(("127.0.0.1", 0), backlog=128) as listener:
        print(listener.getsockname()[1], flush=True)
        while True:
            client, _ = listener.accept()
            server = socket.create_connection(("127.0.0.1", port))
            begin = time.monotonic() + trip
            for end in client, server:
                end.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
            for pair in (client, server), (server, client):
                threading.Thread(target=pump, args=(*pair, trip / 2, begin), daemon=True).start()


if __name__ == "__main__":
    main()
