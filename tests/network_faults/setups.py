"""What a cluster has beside the containers of its compose file: small disks, more servers of the broker, a standby of PostgreSQL."""

import json
import os
import re
import shutil
import urllib.parse

from base import ROOT, run
from cluster import SCHEDULERS

WORKER_USER = 10001
MIB = 1 << 20


def service_image(cluster, service):
    """The image as the compose file names it, which may have a variable for its digest."""
    text = (ROOT / f"infra/compose/{cluster.broker}.yaml").read_text()
    return re.search(rf"^    image: ({service}:.*)$", text, re.MULTILINE)[1]


class Single:
    """Two schedulers, three workers, one PostgreSQL, one broker."""

    name = "single"

    def extend(self, cluster, more):
        """Adds to the compose override."""

    def prepare(self, cluster):
        """Before the containers start."""

    def complete(self, cluster):
        """Before the cluster is used."""

    def is_whole(self, cluster):
        """Whether its servers are as before a fault, so that the next fault finds what the last one found."""
        return True

    def remove(self, cluster):
        """After the end of the containers."""


class Disks(Single):
    """The data of PostgreSQL, of the broker and of one worker are on small file systems of their own."""

    name = "disks"
    WORKER = "worker-2"
    # The server of PostgreSQL keeps up to 1 GiB of its log. The files have holes, so they take only what is written.
    MIB = {"postgres": 2048, "nats": 1024, "rabbitmq": 1024, WORKER: 64}

    def folder(self, cluster, name):
        return cluster.folder / "disks" / name

    def extend(self, cluster, more):
        services = more["services"]
        data = {"nats": "/data", "rabbitmq": "/var/lib/rabbitmq"}[cluster.broker]
        services["postgres"]["volumes"] = [f"{self.folder(cluster, 'postgres')}/data:/var/lib/postgresql/data"]
        services[cluster.broker]["volumes"] = [f"{self.folder(cluster, cluster.broker)}/data:{data}"]
        # Only the container that has this name uses it.
        services["worker"]["volumes"].append(f"{self.folder(cluster, self.WORKER)}/data:/var/lib/cueline/{self.WORKER}")

    def prepare(self, cluster):
        for name in ("postgres", cluster.broker, self.WORKER):
            folder = self.folder(cluster, name)
            folder.mkdir(parents=True)
            image = folder.with_suffix(".image")
            with open(image, "wb") as file:
                file.truncate(self.MIB[name] * MIB)
            # Without a share for root, which some servers run as.
            run("mkfs.ext4", "-q", "-F", "-m", "0", str(image))
            run("mount", "-o", "loop", str(image), str(folder))
            (folder / "data").mkdir()
            if name == self.WORKER:
                os.chown(folder / "data", WORKER_USER, WORKER_USER)

    def remove(self, cluster):
        for name in self.MIB:
            if os.path.ismount(self.folder(cluster, name)):
                run("umount", "-l", str(self.folder(cluster, name)), check=False)

    def fill(self, cluster, name):
        """Takes all room on the disk of a part."""
        filler = self.folder(cluster, name) / "filler"
        with open(filler, "wb") as file:
            free = os.statvfs(filler.parent)
            try:
                os.posix_fallocate(file.fileno(), 0, max(1, free.f_bavail * free.f_frsize - 4 * MIB))
                while True:
                    os.write(file.fileno(), b"\0" * 4096)
            except OSError:
                pass
            try:
                # What is left is less than that.
                file.seek(0, os.SEEK_END)
                while True:
                    os.write(file.fileno(), b"\0" * 4096)
            except OSError:
                pass

    def make_room(self, cluster, name):
        (self.folder(cluster, name) / "filler").unlink()


class Brokers(Single):
    """Three servers of the broker, which reach each other in a network of their own. Each message has three copies."""

    name = "brokers"

    def servers(self, cluster):
        return [cluster.broker, f"{cluster.broker}-2", f"{cluster.broker}-3"]

    def extend(self, cluster, more):
        services = more["services"]
        more["networks"]["broker-peers"] = {"internal": True}
        for number, name in enumerate(self.servers(cluster), 1):
            service = services.setdefault(name, {"healthcheck": dict(services[cluster.broker]["healthcheck"])})
            service["networks"] = {
                "broker-schedulers": {"aliases": [cluster.broker]},
                "broker-workers": {"aliases": [cluster.broker]},
                "broker-peers": {"aliases": [f"peer-{number}"]},
            }
            if number > 1:
                service["image"] = service_image(cluster, cluster.broker)
                service["restart"] = "unless-stopped"
                service["depends_on"] = {"secrets": {"condition": "service_completed_successfully"}}
            {"nats": self.extend_nats, "rabbitmq": self.extend_rabbitmq}[cluster.broker](cluster, service, number)
        replicas = {"CUELINE_BROKER_REPLICAS": "3"}
        for name in ("scheduler-1", "scheduler-2", "worker"):
            services[name]["environment"] = replicas
        for name in ("scheduler-1", "scheduler-2"):
            services[name]["depends_on"] = {server: {"condition": "service_healthy"} for server in self.servers(cluster)}

    def extend_nats(self, cluster, service, number):
        peers = ",".join(f"nats-route://peer-{n}:6222" for n in (1, 2, 3))
        service["command"] = [
            *("--config", "/run/secrets/broker/nats.conf", "--name", f"nats-{number}", "--cluster_name", "cueline"),
            *("--cluster", "nats://0.0.0.0:6222", "--routes", peers, "--no_advertise"),
        ]
        if number > 1:
            (cluster.folder / f"data-{number}").mkdir()
            service["volumes"] = [f"{cluster.folder}/data-{number}:/data", "nats-secrets-broker:/run/secrets/broker:ro"]
            service["healthcheck"]["test"] = ["CMD", "wget", "-q", "-O-", "http://127.0.0.1:8222/healthz?js-enabled-only=true"]

    def extend_rabbitmq(self, cluster, service, number):
        # Others find a node by the name after the @. It must lead to the network of the peers only, so it is no host name: Docker makes that
        # an alias in all networks.
        service["environment"] = {"RABBITMQ_NODENAME": f"rabbit@peer-{number}"}
        data, conf = cluster.folder / f"data-{number}", cluster.folder / f"cluster-{number}.conf"
        data.mkdir()
        (data / ".erlang.cookie").write_text("CUELINENETWORK")
        (data / ".erlang.cookie").chmod(0o400)
        lines = ["cluster_partition_handling = pause_minority", "net_ticktime = 8"]
        if number > 1:
            # The first node looks for no others, because it would wait for them.
            lines += ["cluster_formation.peer_discovery_backend = classic_config"]
            lines += [f"cluster_formation.classic_config.nodes.{n} = rabbit@peer-{n}" for n in (1, 2, 3)]
            first = {cluster.broker: {"condition": "service_healthy"}}
            service["depends_on"] = {**service["depends_on"], **first} if number == 2 else {f"{cluster.broker}-2": {"condition": "service_healthy"}}
            service["environment"]["RABBITMQ_CONFIG_FILE"] = "/run/secrets/broker/rabbitmq.conf"
            service["healthcheck"]["test"] = ["CMD", "rabbitmq-diagnostics", "-q", "check_port_connectivity"]
        conf.write_text("\n".join(lines) + "\n")
        service["volumes"] = [
            f"{data}:/var/lib/rabbitmq",
            f"{conf}:/etc/rabbitmq/conf.d/20-cluster.conf:ro",
            "rabbitmq-secrets-broker:/run/secrets/broker:ro",
        ]

    def prepare(self, cluster):
        cluster.compose("up", "--no-deps", "secrets")
        if cluster.broker == "nats":
            # A list of servers, as docs/nats.md says. Of RabbitMQ clients know one name, which has the addresses of all.
            servers = r"s|^\(nats://[^@]*@\)nats:4222$|\1nats:4222,\1nats-2:4222,\1nats-3:4222|"
            change = f"url=$(sed '{servers}' \"$file\"); rm \"$file\"; printf %s \"$url\" >\"$file\"; chmod 400 \"$file\""
            script = f"cd /run/secrets && for file in scheduler/broker-url worker/accounts/*; do {change}; done"
            cluster.compose("run", "--rm", "-T", "--no-deps", "--entrypoint", "sh", "secrets", "-c", script)

    def leader(self, cluster):
        """The server that leads the queue of the results now."""
        if cluster.broker == "nats":
            for server in self.servers(cluster):
                page = cluster.inside(server, "wget", "-q", "-O-", "http://127.0.0.1:8222/jsz?accounts=true&streams=true", check=False)
                for account in json.loads(page or "{}").get("account_details", []):
                    for stream in account.get("stream_detail", []):
                        leader = stream.get("cluster", {}).get("leader")
                        if stream["name"] == "CUELINE_RESULTS" and leader:
                            return "nats" if leader == "nats-1" else leader
            raise RuntimeError("no server knows the leader of CUELINE_RESULTS")
        for server in self.servers(cluster):
            page = cluster.inside(server, "rabbitmqctl", "-q", "list_queues", "-p", "cueline", "name", "leader", check=False)
            found = re.search(r"^cueline\.results\s+rabbit@peer-(\d)", page, re.MULTILINE)
            if found:
                return self.servers(cluster)[int(found[1]) - 1]
        raise RuntimeError("no server knows the leader of cueline.results")

    def is_whole(self, cluster):
        """Whether all servers have what the leaders have. Otherwise the next fault may leave no majority."""
        if cluster.broker == "nats":
            pages = [cluster.inside(server, "wget", "-q", "-O-", "http://127.0.0.1:8222/healthz", check=False) for server in self.servers(cluster)]
            return all('"ok"' in page for page in pages)
        running = "length(rabbit_mnesia:cluster_nodes(running))."
        return all(cluster.inside(server, "rabbitmqctl", "-q", "eval", running, check=False).strip() == "3" for server in self.servers(cluster))

    def complete(self, cluster):
        cluster.find_containers()
        cluster.wait_until("the broker's servers are one cluster", 120, lambda: self.is_whole(cluster))


class Standby(Single):
    """A primary of PostgreSQL with a synchronous standby. The schedulers know one address, which moves at a promotion."""

    name = "standby"
    SERVERS = ("postgres", "postgres-2")
    DATA = "/var/lib/postgresql/data"

    def data(self, cluster, server):
        return cluster.folder / f"data-{server}"

    def extend(self, cluster, more):
        services = more["services"]
        more["networks"]["store-peers"] = {"internal": True}
        for server in self.SERVERS:
            self.data(cluster, server).mkdir()
            services.setdefault(server, {})
            services[server]["networks"] = {"store": {"aliases": ["postgres"]}, "store-peers": {"aliases": [f"peer-{server}"]}}
            secrets = f"{cluster.broker}-secrets-postgres:/run/secrets/postgres:ro"
            services[server]["volumes"] = [f"{self.data(cluster, server)}:{self.DATA}", secrets]
        services["postgres-2"].update(
            image=service_image(cluster, "postgres"),
            environment={"POSTGRES_USER": "cueline", "POSTGRES_DB": "cueline", "POSTGRES_PASSWORD_FILE": "/run/secrets/postgres/password"},
            shm_size="256m",
            restart="unless-stopped",
            # `up` does not start it: its data is a copy of the primary's.
            profiles=["standby"],
        )
        cluster.primary, cluster.standby = self.SERVERS

    def sql(self, cluster, server, statement, check=True):
        command = ["psql", "-qAt", "-h", "/var/run/postgresql", "-U", "cueline", "-d", "cueline", "-c", statement]
        return cluster.inside(server, *command, check=check).strip()

    def complete(self, cluster):
        cluster.find_containers()
        with open(self.data(cluster, "postgres") / "pg_hba.conf", "a") as file:
            file.write("host replication all all scram-sha-256\n")
        self.sql(cluster, "postgres", "ALTER SYSTEM SET wal_keep_size = '512MB'")
        self.sql(cluster, "postgres", "SELECT pg_reload_conf()")
        self.copy(cluster)
        cluster.compose("up", "-d", "--no-deps", "postgres-2")
        cluster.find_containers()
        self.move(cluster, *SCHEDULERS)
        self.wait_for_standby(cluster)

    def copy(self, cluster):
        """Makes the data of the standby, whose server does not run, a copy of the primary's."""
        data = self.data(cluster, cluster.standby)
        for one in data.iterdir():
            shutil.rmtree(one) if one.is_dir() else one.unlink()
        password = urllib.parse.quote(cluster.inside(cluster.primary, "cat", "/run/secrets/postgres/password").strip())
        url = f"postgres://cueline:{password}@peer-{cluster.primary}/cueline?application_name=standby"
        image = json.loads(run("docker", "inspect", cluster.ids[cluster.primary]))[0]["Image"]
        network = f"{cluster.project}_store-peers"
        copy = ["pg_basebackup", "-d", url, "-D", "/copy", "-R", "-X", "stream", "-c", "fast"]
        run("docker", "run", "--rm", "--network", network, "-v", f"{data}:/copy", "--entrypoint", copy[0], image, *copy[1:])
        settings = data / "postgresql.auto.conf"
        lines = [line for line in settings.read_text().splitlines() if not line.startswith("synchronous_standby_names")]
        settings.write_text("\n".join([*lines, "wal_retrieve_retry_interval = '200ms'"]) + "\n")
        owner = os.stat(self.data(cluster, cluster.primary) / "PG_VERSION")
        for folder, _, files in os.walk(data):
            for path in (folder, *(os.path.join(folder, file) for file in files)):
                os.chown(path, owner.st_uid, owner.st_gid)
        data.chmod(0o700)

    def wait_for_standby(self, cluster):
        """Until commits wait for the standby, and a promotion loses nothing."""
        self.sql(cluster, cluster.primary, "ALTER SYSTEM SET synchronous_standby_names = 'standby'")
        self.sql(cluster, cluster.primary, "SELECT pg_reload_conf()")
        look = "SELECT count(*) FROM pg_stat_replication WHERE application_name = 'standby' AND sync_state = 'sync'"
        cluster.wait_until("the standby is synchronous", 60, lambda: self.sql(cluster, cluster.primary, look, check=False) == "1")

    def promote(self, cluster, *schedulers):
        """Promotes the standby, and moves the address of the primary there for new connections of these schedulers."""
        promoted = self.sql(cluster, cluster.standby, "SELECT pg_promote(true, 60)")
        if promoted != "t":
            raise RuntimeError("the standby was not promoted in time")
        cluster.primary, cluster.standby = cluster.standby, cluster.primary
        self.move(cluster, *schedulers)

    def move(self, cluster, *schedulers):
        """New connections of these schedulers reach the primary, whichever server's address they ask for."""
        new = cluster.address(cluster.primary, "store")
        for name in schedulers:
            for command in (["-D", "OUTPUT", "-j", "MOVED"], ["-N", "MOVED"]):
                cluster.in_network(name, "iptables", "-t", "nat", *command, check=False)
            rule = ["-p", "tcp", "--dport", "5432", "-j", "DNAT", "--to-destination", new]
            for command in (["-F", "MOVED"], ["-A", "MOVED", *rule], ["-I", "OUTPUT", "-j", "MOVED"]):
                cluster.in_network(name, "iptables", "-t", "nat", *command)

    def replace_standby(self, cluster):
        """Makes the former primary, which was killed, the standby of the new one."""
        self.copy(cluster)
        cluster.docker("start", cluster.standby)
        self.wait_for_standby(cluster)


SETUPS = {setup.name: setup for setup in (Single(), Disks(), Brokers(), Standby())}
