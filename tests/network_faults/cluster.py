"""A cluster of containers: infra/compose/BROKER.yaml with ports of its own, and the tools that faults are made of."""

import json
import os
import re
import shutil
import subprocess
import urllib.error
import urllib.request
from collections import defaultdict

from base import ROOT, free_port, free_subnets, now_ms, pause, run
from jobs import RECORD, Record, jobs

WORKERS = 3
SCHEDULERS = ("scheduler-1", "scheduler-2")
NETWORKS = ("store", "broker-schedulers", "broker-workers", "api", "jobs")
# After this silence, an executor gets no further triggers.
SILENT_MS = 15000
LIVE = ("scheduled", "dispatching", "queued", "running")
# Each health check starts a process in a container. The intervals of the compose files would take a good part of a small machine.
HEALTH_INTERVAL = "10s"
# That of RabbitMQ starts an Erlang machine, a second of a processor.
RABBITMQ_INTERVAL = "30s"


class Cluster:
    def __init__(self, broker, number, folder, setup, watch):
        """`setup` has the parts beside those of the compose file, `watch` is the Standstills of the machine."""
        self.broker, self.folder, self.setup, self.watch = broker, folder, setup, watch
        self.name = f"{broker}-{number}"
        self.project = f"cueline-network-{self.name}-{os.getpid()}-{now_ms() % 100000}"
        if subprocess.run(["docker", "compose", "version"], capture_output=True).returncode == 0:
            self.compose_command = ["docker", "compose"]
        else:
            self.compose_command = ["docker-compose"]
        self.ports = {name: free_port() for name in SCHEDULERS}
        self.env = dict(os.environ, CUELINE_PORT_1=str(self.ports["scheduler-1"]), CUELINE_PORT_2=str(self.ports["scheduler-2"]))
        shared = folder / "shared"
        (shared / "locks").mkdir(parents=True)
        (shared / "executions").touch()
        (shared / "record").write_text(RECORD)
        (shared / "record").chmod(0o755)
        os.mkfifo(shared / "never")
        for path in (folder, shared, shared / "locks", shared / "executions", shared / "never"):
            path.chmod(0o777)
        self.record = Record(shared / "executions")
        self.token = ""
        self.ids = {}
        # By this script.
        self.paused = set()
        self.started = False

    # Start and stop.

    def write_override(self):
        quick = {"healthcheck": {"interval": HEALTH_INTERVAL}}
        services = {name: dict(quick) for name in ("postgres", self.broker, *SCHEDULERS, "worker")}
        if self.broker == "rabbitmq":
            services[self.broker] = {"healthcheck": {"interval": RABBITMQ_INTERVAL}}
        services["worker"]["volumes"] = [f"{self.folder}/shared:/network"]
        more = {"services": services, "networks": {name: {} for name in NETWORKS}}
        self.setup.extend(self, more)
        for network, subnet in zip(more["networks"].values(), free_subnets(len(more["networks"]))):
            network["ipam"] = {"config": [{"subnet": subnet}]}
        override = self.folder / "override.yaml"
        # JSON is YAML.
        override.write_text(json.dumps(more, indent=1))
        self.files = ["-f", f"infra/compose/{self.broker}.yaml", "-f", str(override)]

    def compose(self, *command, check=True):
        return run(*self.compose_command, "-p", self.project, *self.files, *command, check=check, env=self.env)

    def start(self):
        self.started = True
        self.write_override()
        self.setup.prepare(self)
        self.compose("up", "-d")
        self.token = self.compose("run", "--rm", "-T", "--entrypoint", "cat", "cli", "/run/secrets/client/token").strip()
        self.setup.complete(self)
        everyone = {f"worker-{n + 1}" for n in range(WORKERS)}
        self.wait_until("all workers are alive", 120, lambda: self.alive() == everyone)
        self.find_containers()
        jobs_file = self.folder / "jobs.toml"
        jobs_file.write_text(jobs())
        jobs_file.chmod(0o644)
        self.compose("run", "--rm", "-T", "-v", f"{jobs_file}:/jobs.toml:ro", "cli", "job", "apply", "-f", "/jobs.toml")
        self.watch.add(self)

    def find_containers(self):
        for one in self.compose("ps", "-q").split():
            about = json.loads(run("docker", "inspect", one))[0]
            service = about["Config"]["Labels"]["com.docker.compose.service"]
            if service != "worker":
                self.ids[service] = one
                continue
            log = subprocess.run(["docker", "logs", one], capture_output=True, text=True)
            lines = (log.stdout + log.stderr).splitlines()
            names = [line.split("/")[-1].split()[0] for line in lines if " worker default/" in line]
            if names:
                self.ids[names[-1]] = one

    def stop(self):
        if not self.started:
            return
        self.watch.remove(self)
        # A container that is paused does not stop.
        for one in run("docker", "ps", "-q", "--filter", f"label=com.docker.compose.project={self.project}", "--filter", "status=paused").split():
            run("docker", "unpause", one, check=False)
        # Nothing of it is needed any more, so it need not drain.
        self.compose("kill", check=False)
        self.compose("down", "-v", "--remove-orphans", check=False)
        self.setup.remove(self)

    # What schedulers say.

    def api(self, path, method="GET", body=None, schedulers=SCHEDULERS, timeout=10):
        """Asks the first scheduler that answers."""
        error = None
        for name in schedulers:
            request = urllib.request.Request(
                f"http://127.0.0.1:{self.ports[name]}/api/v1{path}",
                method=method,
                data=None if body is None else json.dumps(body).encode(),
                headers={"Authorization": f"Bearer {self.token}", "Content-Type": "application/json"},
            )
            try:
                with urllib.request.urlopen(request, timeout=timeout) as response:
                    return json.loads(response.read() or "null")
            except (OSError, urllib.error.URLError) as one:
                error = one
        raise error

    def forged(self):
        """The counters of forged messages of both schedulers since their starts. No part of this cluster forges."""
        sums = defaultdict(int)
        for name in SCHEDULERS:
            try:
                counters = self.api("/stats", schedulers=[name])["since_start"]
            except OSError:
                continue
            for counter, n in counters.items():
                if n and ("forged" in counter or "foreign" in counter):
                    sums[counter] += n
        return dict(sums)

    def executors(self, **how):
        """The silence of each worker in milliseconds, or nothing if no scheduler answers."""
        try:
            answer = self.api("/executors", **how)
        except OSError:
            return {}
        return {one["name"]: one["silent_ms"] for one in answer["executors"] if not one["gone"]}

    def alive(self):
        return {name for name, silent in self.executors().items() if silent < SILENT_MS}

    def runs(self, query=""):
        found, after = [], None
        while True:
            more = f"&after={after}" if after else ""
            page = self.api(f"/runs?limit=1000{query}{more}")
            found += page["runs"]
            after = page.get("next")
            if not after:
                return found

    def unfinished(self):
        return self.runs("".join(f"&state={state}" for state in LIVE))

    # Logs.

    def log_lines(self, *texts):
        """The lines of the schedulers' logs with one of these texts."""
        lines = []
        for name in SCHEDULERS:
            done = subprocess.run(["docker", "logs", self.ids[name]], capture_output=True, text=True)
            lines += [f"{name}: {line}" for line in (done.stdout + done.stderr).splitlines() if any(text in line for text in texts)]
        return lines[:10]

    def keep_logs(self):
        """Copies the logs of all containers, for a look at a violation after their end."""
        folder = ROOT / "target" / "network" / self.project
        folder.mkdir(parents=True, exist_ok=True)
        for name, one in self.ids.items():
            with open(folder / f"{name}.log", "wb") as file:
                subprocess.run(["docker", "logs", "-t", one], stdout=file, stderr=subprocess.STDOUT)
        shutil.copy(self.record.path, folder / "executions")
        return folder

    # Waiting.

    def wait_until(self, what, seconds, condition):
        """Waits. Time in which the machine stands still does not count."""
        waited, last = 0, now_ms()
        while not condition():
            pause(0.5)
            now = now_ms()
            if not self.watch.met(self, last, now):
                waited += min(now - last, 4000)
            last = now
            if waited > seconds * 1000:
                raise RuntimeError(f"not in time ({seconds} s): {what}")

    # What faults are made of.

    def process_of(self, name):
        return run("docker", "inspect", "-f", "{{.State.Pid}}", self.ids[name]).strip()

    def address(self, name, network):
        return json.loads(run("docker", "inspect", self.ids[name]))[0]["NetworkSettings"]["Networks"][f"{self.project}_{network}"]["IPAddress"]

    def in_network(self, name, *command, check=True):
        return run("nsenter", "-t", self.process_of(name), "-n", *command, check=check)

    def drop(self, name, *rule):
        self.in_network(name, "iptables", "-A", *rule, "-j", "DROP")

    def cut(self, name, network, *ways):
        """Drops the packets of a container in one of its networks: those that it sends, those that it gets, or both."""
        own = self.address(name, network)
        for way in ways or ("out", "in"):
            # In its own networks a container has one address each.
            self.drop(name, "OUTPUT", "-s", own) if way == "out" else self.drop(name, "INPUT", "-d", own)

    def unmet(self, *names):
        """The rules that met no packet."""
        found = []
        for name in names:
            rules = self.in_network(name, "iptables", "-L", "-v", "-n", "-x", check=False).splitlines()
            found += [f"{name}: {rule.strip()}" for rule in rules if re.match(r"\s*0\s+0\s+(DROP|NFQUEUE)\b", rule)]
        return found

    def drop_nothing(self, *names, about=""):
        """Ends the dropping. Each rule (about this address) must have met a packet: a fault that has no effect shows nothing."""
        unmet = [rule for rule in self.unmet(*names) if about in rule]
        for name in names:
            self.in_network(name, "iptables", "-F", check=False)
        if unmet:
            raise RuntimeError(f"rules that met no packet: {'; '.join(unmet)}")

    def disconnect(self, name, network):
        run("docker", "network", "disconnect", f"{self.project}_{network}", self.ids[name])

    def connect(self, name, network, alias):
        run("docker", "network", "connect", "--alias", alias, f"{self.project}_{network}", self.ids[name])

    def vanish(self, name, networks):
        """Ends a container without a FIN: it first loses its network."""
        for network in networks:
            self.cut(name, network)
        self.docker("kill", name)

    def lose(self, name, percent):
        for chain, interface in (("INPUT", "-i"), ("OUTPUT", "-o")):
            self.drop(name, chain, "!", interface, "lo", "-m", "statistic", "--mode", "random", "--probability", str(percent / 100))

    def docker(self, action, *names):
        if action == "pause":
            self.paused |= set(names)
        run("docker", action, *(self.ids[name] for name in names), check=action != "unpause")
        if action == "unpause":
            self.paused -= set(names)

    def inside(self, name, *command, check=True):
        return run("docker", "exec", self.ids[name], *command, check=check)
