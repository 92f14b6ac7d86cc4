"""Holds back the packets of a container. netem of the kernel would do that too, but not each kernel has it."""

import select
import socket
import struct
import subprocess
import sys
import time
from collections import deque

QUEUE = 7


def delay(cluster, name, ms):
    """Holds back what a container sends."""
    cluster.in_network(name, "iptables", "-A", "OUTPUT", "!", "-o", "lo", "-j", "NFQUEUE", "--queue-num", str(QUEUE))
    cluster.delayer = subprocess.Popen(["nsenter", "-t", cluster.process_of(name), "-n", sys.executable, __file__, str(ms)])


def delay_no_more(cluster, name):
    try:
        cluster.drop_nothing(name)
    finally:
        cluster.delayer.terminate()
        cluster.delayer.wait()


def forward_late(ms):
    """Answers the kernel for each packet in its queue (nfnetlink_queue) after this time."""

    def message(kind, attribute, payload):
        body = struct.pack("=BBH", 0, 0, socket.htons(QUEUE)) + struct.pack("=HH", 4 + len(payload), attribute) + payload
        body += b"\0" * (-len(body) % 4)
        return struct.pack("=IHHII", 16 + len(body), 3 << 8 | kind, 1, 0, 0) + body

    packet, verdict, configure = 0, 1, 2
    netlink = socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, 12)
    netlink.bind((0, 0))
    netlink.send(message(configure, 1, struct.pack(">BBH", 1, 0, 0)))
    # Only that there is a packet, not its content. The kernel keeps that.
    netlink.send(message(configure, 2, struct.pack(">IB", 0, 1)))
    netlink.send(message(configure, 3, struct.pack(">I", 100_000)))
    held = deque()
    while True:
        wait = max(0.0, held[0][0] - time.monotonic()) if held else None
        if select.select([netlink], [], [], wait)[0]:
            data, at = netlink.recv(1 << 20), 0
            while at < len(data):
                length, kind = struct.unpack_from("=IH", data, at)
                if kind == 3 << 8 | packet:
                    inner = at + 20
                    while inner < at + length:
                        size, attribute = struct.unpack_from("=HH", data, inner)
                        if attribute == 1:
                            held.append((time.monotonic() + ms / 1000, data[inner + 4 : inner + 8]))
                        inner += (size + 3) & ~3
                at += (length + 3) & ~3
        while held and held[0][0] <= time.monotonic():
            netlink.send(message(verdict, 2, struct.pack(">I", 1) + held.popleft()[1]))


if __name__ == "__main__":
    forward_late(int(sys.argv[1]))
