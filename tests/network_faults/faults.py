"""The faults: what begins one, what ends it, how long it lasts, and what it may lose."""

from cluster import SCHEDULERS, WORKERS
from delay import delay, delay_no_more
from setups import SETUPS

FAILOVER_SECONDS = 30
# Longer than failover_after: a worker that is away for so long has lost its work to others.
LONG_SECONDS = 40
# Longer than a scheduler waits for the answer to a commit, 60 s.
SPLIT_SECONDS = 75


class Fault:
    """`begin` and `end` get the cluster.

    `loses` are the workers whose work at hand it may lose (G4, G10): those that it kills, and those that the schedulers do not hear for longer
    than failover_after, although they hear themselves. An outage of the whole broker loses nothing, however long it is: no handler of these
    jobs is at work when its worker is fenced. `frozen` are those that run nothing meanwhile."""

    def __init__(self, name, seconds, begin, end, loses=(), frozen=(), setup="single"):
        self.name, self.seconds, self.begin, self.end = name, seconds, begin, end
        self.loses, self.frozen = set(loses), set(frozen)
        self.setup = SETUPS[setup]


EVERYONE = [f"worker-{n + 1}" for n in range(WORKERS)]
ONE = "worker-2"


def all_of(c):
    return ["postgres", c.broker, *SCHEDULERS, *EVERYONE]


def no_names(c):
    for name in [*SCHEDULERS, *EVERYONE]:
        c.drop(name, "OUTPUT", "-d", "127.0.0.11")
    # Connections break meanwhile, so that names are needed.
    c.docker("restart", c.broker)


def schedulers_apart(c):
    """One reaches the store and not the broker, the other the broker and not the store."""
    c.cut("scheduler-1", "broker-schedulers")
    c.cut("scheduler-2", "store")


def pause(name):
    return lambda c: c.docker("pause", name), lambda c: c.docker("unpause", name)


def worker_faults():
    cut_one = lambda *ways: (lambda c: c.cut(ONE, "broker-workers", *ways), lambda c: c.drop_nothing(ONE))
    return [
        Fault("worker-frozen", LONG_SECONDS, *pause(ONE), [ONE], [ONE]),
        Fault("worker-cut", LONG_SECONDS, *cut_one("out", "in"), [ONE]),
        Fault("worker-cut-out", LONG_SECONDS, *cut_one("out"), [ONE]),
        Fault("worker-cut-in", LONG_SECONDS, *cut_one("in"), [ONE]),
        Fault("worker-cut-short", 10, *cut_one("out", "in"), [ONE]),
        Fault(
            "worker-unplugged",
            LONG_SECONDS,
            lambda c: c.disconnect(ONE, "broker-workers"),
            lambda c: c.connect(ONE, "broker-workers", "worker"),
            [ONE],
        ),
        Fault("worker-gone", LONG_SECONDS, lambda c: c.vanish(ONE, ["broker-workers"]), lambda c: c.docker("start", ONE), [ONE]),
    ]


def scheduler_faults():
    cut = lambda network: (lambda c: c.cut("scheduler-1", network), lambda c: c.drop_nothing("scheduler-1"))
    return [
        Fault("scheduler-frozen", LONG_SECONDS, *pause("scheduler-1")),
        Fault("scheduler-cut-broker", LONG_SECONDS, *cut("broker-schedulers")),
        Fault("scheduler-cut-store", LONG_SECONDS, *cut("store")),
        Fault("schedulers-apart", LONG_SECONDS, schedulers_apart, lambda c: c.drop_nothing(*SCHEDULERS)),
        Fault(
            "scheduler-gone",
            LONG_SECONDS,
            lambda c: c.vanish("scheduler-1", ["store", "broker-schedulers"]),
            lambda c: c.docker("start", "scheduler-1"),
        ),
    ]


def broker_faults(broker):
    sides = ("broker-schedulers", "broker-workers")
    return [
        Fault("broker-frozen", 15, *pause(broker)),
        Fault("broker-frozen-long", LONG_SECONDS, *pause(broker)),
        Fault("broker-cut-workers", LONG_SECONDS, lambda c: c.cut(broker, "broker-workers"), lambda c: c.drop_nothing(broker), EVERYONE),
        Fault("broker-gone", 15, lambda c: c.vanish(broker, sides), lambda c: c.docker("start", broker)),
        Fault("broker-loss", LONG_SECONDS, lambda c: c.lose(broker, 5), lambda c: c.drop_nothing(broker)),
        Fault("broker-delay", LONG_SECONDS, lambda c: delay(c, broker, 200), lambda c: delay_no_more(c, broker)),
    ]


def store_faults():
    return [
        Fault("store-frozen", 20, *pause("postgres")),
        Fault("store-gone", 15, lambda c: c.vanish("postgres", ["store"]), lambda c: c.docker("start", "postgres")),
        Fault("store-loss", LONG_SECONDS, lambda c: c.lose("postgres", 5), lambda c: c.drop_nothing("postgres")),
    ]


def faults_of_all():
    return [
        # As when the host of all of them is suspended. What is on its way then is minutes old when it arrives.
        Fault("all-frozen", 260, lambda c: c.docker("pause", *all_of(c)), lambda c: c.docker("unpause", *all_of(c)), EVERYONE, EVERYONE),
        Fault("dns", 15, no_names, lambda c: c.drop_nothing(*SCHEDULERS, *EVERYONE)),
    ]


def disk_faults(broker):
    full = lambda name: (lambda c: c.setup.fill(c, name), lambda c: c.setup.make_room(c, name))

    def make_room_for_broker(c):
        c.setup.make_room(c, broker)
        if broker == "rabbitmq":
            # Its queues and streams end when they cannot write. They do not come back by themselves when there is room again.
            c.docker("restart", broker)

    return [
        Fault("worker-disk-full", LONG_SECONDS, *full(ONE), setup="disks"),
        Fault("broker-disk-full", LONG_SECONDS, full(broker)[0], make_room_for_broker, setup="disks"),
        Fault("store-disk-full", LONG_SECONDS, *full("postgres"), setup="disks"),
    ]


def leader_faults(broker):
    """Faults of the server that leads, whichever that is."""

    def at_leader(begin, end):
        def find_and_begin(c):
            c.leader = c.setup.leader(c)
            begin(c, c.leader)

        return find_and_begin, lambda c: end(c, c.leader)

    networks = ("broker-schedulers", "broker-workers", "broker-peers")

    def isolate(*chosen):
        # Perhaps no client is connected to it. The other servers always are.
        heal = lambda c, name: c.drop_nothing(name, about=c.address(name, "broker-peers"))
        return at_leader(lambda c, name: [c.cut(name, network) for network in chosen], heal)

    def thaw(c, name):
        c.docker("unpause", name)
        if broker == "rabbitmq":
            # It serves clients again, but the others do not count it as theirs until it is restarted: docs/rabbitmq.md.
            c.docker("restart", name)

    # Any worker may be connected to that server.
    return [
        Fault("broker-leader-cut", LONG_SECONDS, *isolate(*networks), EVERYONE, setup="brokers"),
        # Its clients still reach it, and it reaches no other server.
        Fault("broker-leader-apart", LONG_SECONDS, *isolate("broker-peers"), EVERYONE, setup="brokers"),
        Fault(
            "broker-leader-gone",
            LONG_SECONDS,
            *at_leader(lambda c, name: c.vanish(name, networks), lambda c, name: c.docker("start", name)),
            EVERYONE,
            setup="brokers",
        ),
        Fault(
            "broker-leader-frozen",
            LONG_SECONDS,
            *at_leader(lambda c, name: c.docker("pause", name), thaw),
            EVERYONE,
            setup="brokers",
        ),
    ]


def promotion_faults():
    def promote(c):
        for network in ("store", "store-peers"):
            c.cut(c.primary, network)
        c.setup.promote(c, *SCHEDULERS)

    def split(c):
        """The primary and one scheduler are cut off from the standby and the other scheduler, which reach each other. All reach the broker."""
        old, new = c.address(c.primary, "store"), c.address(c.standby, "store")
        c.cut(c.primary, "store-peers")
        c.drop("scheduler-2", "OUTPUT", "-d", old)
        c.drop("scheduler-1", "OUTPUT", "-d", new)
        c.setup.promote(c, "scheduler-2")

    def replace(c, *cut):
        # What leads a cluster ends the former primary, before it may be heard again.
        former = c.standby
        c.docker("kill", former)
        for name in cut:
            c.in_network(name, "iptables", "-F")
        c.setup.move(c, *SCHEDULERS)
        c.setup.replace_standby(c)

    return [
        Fault("store-promoted", LONG_SECONDS, promote, lambda c: replace(c), setup="standby"),
        Fault("store-split", SPLIT_SECONDS, split, lambda c: replace(c, *SCHEDULERS), setup="standby"),
    ]


def faults(broker):
    return [
        *worker_faults(),
        *scheduler_faults(),
        *broker_faults(broker),
        *store_faults(),
        *faults_of_all(),
        *disk_faults(broker),
        *leader_faults(broker),
        *promotion_faults(),
    ]
