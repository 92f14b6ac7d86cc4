"""What all parts of tests/network share: output, commands, time, ports."""

import random
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
# Not those that the kernel gives to outgoing connections.
PORTS = range(20000, 30000)

_output = threading.Lock()
_given_ports = set()
_given_blocks = set()


def say(text):
    with _output:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()


def skip(reason):
    say(f"network: skipped: {reason}")
    sys.exit(0)


class Stopped(Exception):
    """The whole series ends."""


stopping = threading.Event()
_commands = set()


def stop():
    """Lets no thread but the main one go on: ends their commands, and refuses further ones."""
    stopping.set()
    with _output:
        for command in _commands:
            command.terminate()


def pause(seconds):
    """Sleeps, unless the series ends meanwhile."""
    if stopping.wait(seconds):
        raise Stopped


def run(*command, check=True, env=None):
    """Runs a command and returns its standard output."""
    clean = threading.current_thread() is threading.main_thread()
    with _output:
        if stopping.is_set() and not clean:
            raise Stopped
        started = subprocess.Popen(command, cwd=ROOT, env=env, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        _commands.add(started)
    output, errors = started.communicate()
    with _output:
        _commands.discard(started)
    if stopping.is_set() and not clean:
        raise Stopped
    if check and started.returncode != 0:
        said = (errors.strip() or output.strip()).splitlines()
        raise RuntimeError(f"{' '.join(command)}: {' / '.join(said[-3:])}")
    return output


def now_ms():
    return int(time.time() * 1000)


def free_port():
    """A port on which nothing listens, and which was not given before."""
    while True:
        port = random.choice(PORTS)
        with socket.socket() as tried, _output:
            if port in _given_ports:
                continue
            try:
                tried.bind(("127.0.0.1", port))
            except OSError:
                continue
            _given_ports.add(port)
            return port


def free_subnets(count):
    """Subnets for the networks of one cluster. Docker has only about thirty of its own, for all that runs on the machine."""
    with _output:
        block = None
        while block is None or block in _given_blocks:
            block = f"10.{random.randrange(128, 250)}.{random.randrange(256)}"
        _given_blocks.add(block)
    return [f"{block}.{32 * n}/27" for n in range(count)]
