"""What happens to the machine, and what the schedulers show, while a fault lasts."""

import http.client
import json
import os
import socket
import threading
import time
import urllib.error
import urllib.parse
import urllib.request

from base import Stopped, now_ms, run
from cluster import SCHEDULERS, SILENT_MS

DOCKER_SOCKET = "/var/run/docker.sock"


def paused_containers():
    """The ids of all paused containers. It is asked twice a second: with a process for each time, that costs a tenth of a core."""
    try:
        if not os.environ.get("DOCKER_HOST"):
            return paused_by_socket()
    except (OSError, ValueError, http.client.HTTPException):
        pass
    return set(run("docker", "ps", "-q", "--no-trunc", "--filter", "status=paused", check=False).split())


def paused_by_socket():
    filters = urllib.parse.quote('{"status":["paused"]}')
    docker = http.client.HTTPConnection("docker", timeout=60)
    docker.sock = socket.socket(socket.AF_UNIX)
    try:
        docker.sock.settimeout(60)
        docker.sock.connect(DOCKER_SOCKET)
        docker.request("GET", f"/containers/json?filters={filters}")
        response = docker.getresponse()
        if response.status != 200:
            raise OSError(f"Docker answered {response.status}")
        return {one["Id"] for one in json.load(response)}
    finally:
        docker.close()


class Standstills(threading.Thread):
    """Notices when this process, and so perhaps the whole machine, did not run for some seconds, or when somebody else has paused containers
    of a cluster."""

    def __init__(self):
        super().__init__(daemon=True)
        self.lock = threading.Lock()
        self.clusters = {}
        self.machine = []

    def add(self, cluster):
        with self.lock:
            self.clusters[cluster] = {"found": [], "paused_from": None}

    def remove(self, cluster):
        with self.lock:
            self.clusters.pop(cluster, None)

    def run(self):
        last = now_ms()
        while True:
            time.sleep(0.5)
            try:
                paused = paused_containers()
            except Stopped:
                return
            now = now_ms()
            with self.lock:
                if now - last > 4000:
                    self.machine.append((last, now))
                for cluster, state in self.clusters.items():
                    self.note_foreign(cluster, state, paused, last, now)
            last = now

    def note_foreign(self, cluster, state, paused, last, now):
        foreign = {name for name, one in cluster.ids.items() if one in paused} - cluster.paused
        if not foreign:
            state["paused_from"] = None
            return
        if state["paused_from"] is None:
            state["paused_from"] = last
        else:
            state["found"].pop()
        state["found"].append((state["paused_from"], now))

    def found(self, cluster):
        with self.lock:
            own = self.clusters.get(cluster, {"found": []})["found"]
            return sorted([*self.machine, *own])

    def met(self, cluster, began, end):
        return any(a <= end and began <= b for a, b in self.found(cluster))


class Watch:
    """Asks each scheduler each second what people would ask, and notes when it first says so, and last."""

    def __init__(self, cluster):
        self.cluster = cluster
        self.began = now_ms()
        # From a text to the seconds since the begin.
        self.seen = {}
        self.lock = threading.Lock()
        self.over = threading.Event()
        self.threads = [threading.Thread(target=self.ask, args=(name,), daemon=True) for name in SCHEDULERS]
        for thread in self.threads:
            thread.start()

    def ask(self, name):
        while not self.over.wait(1):
            for text in self.look(name):
                self.note(text)

    def look(self, name):
        try:
            with urllib.request.urlopen(f"http://127.0.0.1:{self.cluster.ports[name]}/readyz", timeout=3):
                pass
        except urllib.error.HTTPError:
            return [f"{name} is not ready"]
        except (OSError, urllib.error.URLError):
            return [f"{name} does not answer"]
        try:
            executors = self.cluster.api("/executors", schedulers=[name], timeout=3)["executors"]
            stats = self.cluster.api("/stats", schedulers=[name], timeout=3)
        except (OSError, ValueError):
            return [f"{name} answers no query"]
        texts = [f"{one['name']} is silent" for one in executors if one["silent_ms"] >= SILENT_MS and not one["gone"]]
        texts += [f"{one['name']} takes no triggers" for one in executors if one.get("refusal") or one.get("draining")]
        texts += [f"{name} claims nothing"] if stats.get("claims_paused") else []
        texts += [f"{name} declares no executor dead"] if stats.get("executor_timeouts_paused") else []
        return texts

    def note(self, text):
        with self.lock:
            at = round((now_ms() - self.began) / 1000, 1)
            first, _ = self.seen.get(text, (at, at))
            self.seen[text] = (first, at)

    def end(self):
        self.over.set()
        for thread in self.threads:
            thread.join()
        return self.seen


def described(seen):
    """`worker-2 is silent after 16 s`."""
    return ", ".join(f"{text} after {first:.0f} s" for text, (first, _) in sorted(seen.items(), key=lambda one: one[1])) or "nothing"

