"""One cluster, to which one fault after the other happens."""

import json
import threading
import time
from collections import defaultdict

from base import ROOT, Stopped, now_ms, pause, say, stopping
from checks import Window, check, fire_times
from cluster import WORKERS
from faults import EVERYONE, LONG_SECONDS, Fault
from jobs import PARALLEL
from watch import Watch, described

# How long a cluster may take to be as before, after a fault is over.
HEAL_SECONDS = 120
# Later than this, a start counts as late.
LATE_MS = 2000
STEADY_SECONDS = 8
LANES_SECONDS = 120
# How often a fault is tried when the machine stands still meanwhile.
REPETITIONS = 3
# The logs of a cluster grow, and few copies of them are enough.
KEPT_LOGS = 3


def is_tick_start(event):
    return event.event != "end" and event.job.startswith("tick-")


class Step:
    """A fault that was made, and the runs whose fire times are after the one before and not after it."""

    def __init__(self, window, round_, what, after, until):
        self.window, self.round, self.what, self.after, self.until = window, round_, what, after, until


class Storm:
    def __init__(self, cluster, results):
        self.cluster, self.results = cluster, results
        self.windows = []
        # Not judged yet: their runs go on.
        self.steps = []
        self.judged_until = 0
        self.last_fires = {}
        self.reported = set()
        self.excused = 0
        self.kept = 0

    def say(self, text):
        say(f"{self.cluster.name}: {text}")

    def begin(self):
        self.cluster.start()
        since = now_ms()
        self.cluster.wait_until("the cluster is steady", HEAL_SECONDS, lambda: self.is_steady(since))
        pause(STEADY_SECONDS)

    def is_steady(self, since):
        """Whether all workers are alive and get runs, and all jobs have fired in time for some seconds."""
        now = now_ms()
        if now - since < 5000 or len(self.cluster.alive()) != WORKERS:
            return False
        recent = [e for e in self.cluster.record.since(now - 5000) if is_tick_start(e)]
        in_time = all(e.began - e.fire_at < LATE_MS for e in recent)
        served = len(recent) >= PARALLEL * 4 and len({e.executor for e in recent}) == WORKERS and in_time
        return served and self.cluster.setup.is_whole(self.cluster)

    def make(self, fault, round_):
        """Makes the fault. Fails if the cluster is not as before in time."""
        for repetition in range(REPETITIONS):
            started = now_ms()
            try:
                began, effective, over, healed, seen = self.inject(fault)
            except RuntimeError as error:
                # While containers are paused, a rule meets no packet.
                if repetition + 1 == REPETITIONS or not self.cluster.watch.met(self.cluster, started - 10000, now_ms()):
                    raise
                self.say(f"{fault.name}: {error}; the machine stood still meanwhile, so this says nothing")
                self.windows.append(Window(fault, started, now_ms(), now_ms(), now_ms() + LONG_SECONDS * 1000, True))
                self.cluster.wait_until("the cluster is steady", HEAL_SECONDS, lambda: self.is_steady(started))
                continue
            pause(1)
            disturbed = self.cluster.watch.met(self.cluster, began - 10000, healed)
            window = Window(fault, began, effective, over, healed, disturbed)
            self.windows.append(window)
            gap, latest, back = self.times(window)
            self.say(
                f"{fault.name}: for {(over - began) / 1000:.0f} s; seen: {described(seen)}; no start for {gap:.1f} s, "
                f"latest start {latest:.1f} s after its fire time, in time again {back:.1f} s after the end"
                + ("; the machine stood still meanwhile, so this says nothing" if disturbed else "")
            )
            what = {"seconds": (over - began) / 1000, "healed": (healed - over) / 1000, "seen": seen, "gap": gap, "latest": latest, "back": back}
            after = self.steps[-1].until if self.steps else self.judged_until
            self.steps.append(Step(window, round_, what, after, now_ms()))
            pause(STEADY_SECONDS)
            self.wait_for_lanes()
            self.judge_ended()
            if not disturbed:
                break

    def wait_for_lanes(self):
        """Until serial lanes have caught up, so that the next fault meets no run of this one. Not for ever: a busy machine may not get there."""
        try:
            self.cluster.wait_until("no backlog", LANES_SECONDS, lambda: all(now_ms() - one["fire_at"] < 5000 for one in self.cluster.unfinished()))
        except (RuntimeError, OSError):
            self.say("serial lanes still have a backlog; their runs count for this fault, whatever happens to them later")

    def inject(self, fault):
        """Begins and ends a fault. Returns when it began, took effect, ended, and when the cluster was as before, and what was seen."""
        began = now_ms()
        watch = Watch(self.cluster)
        try:
            fault.begin(self.cluster)
            effective = now_ms()
            while now_ms() - began < fault.seconds * 1000:
                pause(0.2)
        finally:
            seen = watch.end()
        fault.end(self.cluster)
        over = now_ms()
        self.cluster.wait_until(f"{fault.name}: the cluster is as before", HEAL_SECONDS, lambda: self.is_steady(over))
        return began, effective, over, now_ms(), seen

    def times(self, window):
        """The longest time without a start, the latest start, and when the last late one was, after the end of the fault."""
        found = [e for e in self.cluster.record.since(window.began - 2000) if is_tick_start(e) and e.at <= window.healed]
        starts = sorted(e.at for e in found)
        gap = max((b - a for a, b in zip(starts, starts[1:])), default=0)
        latest = max((e.began - e.fire_at for e in found), default=0)
        late = [e.began for e in found if e.began - e.fire_at >= LATE_MS]
        back = max(0, max(late, default=window.over) - window.over)
        return gap / 1000, latest / 1000, back / 1000

    # Judgement.

    def periods(self):
        """The faults, and the times in which the machine stood still. It freezes one part after the other, and lets them go on in the same way."""
        standstill = Fault("standstill", 0, None, None, EVERYONE, EVERYONE)
        found = self.cluster.watch.found(self.cluster)
        return self.windows + [Window(standstill, a - 1000, b, b, b + LONG_SECONDS * 1000, True) for a, b in found]

    def judge_ended(self):
        """Judges the faults whose runs have ended. Serial lanes may have a backlog, so that others are judged after the next fault."""
        if not self.steps:
            return
        oldest = min((one["fire_at"] for one in self.cluster.unfinished()), default=now_ms())
        ended = [step for step in self.steps if step.until < oldest]
        if not ended:
            return
        self.steps = self.steps[len(ended) :]
        # Runs are created shortly before or any time after their fire time.
        since = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(ended[0].after / 1000 - 60))
        runs = self.cluster.runs(f"&since={since}")
        log = self.cluster.record.all()
        for step in ended:
            self.judge(step, runs, log)

    def judge(self, step, runs, log):
        runs = [one for one in runs if step.after < one["fire_at"] <= step.until]
        # A run may start during a later fault than the one in which it is due. An overlap belongs to the fault at its time.
        of_these = [e for e in log if step.after < e.fire_at <= step.until]
        meanwhile = [e for e in log if step.after < e.at <= step.until]
        wrong, excused = check(runs, of_these, meanwhile, self.periods(), self.last_fires)
        self.excused += excused
        for one in runs:
            if one["kind"] == "schedule":
                self.last_fires[one["job"]] = max(self.last_fires.get(one["job"], 0), *fire_times(one))
        self.judged_until = step.until
        fault, window = step.window.fault, step.window
        met = [one for one in runs if window.began - 1000 <= one["fire_at"] <= window.healed]
        states, lost = defaultdict(int), defaultdict(int)
        for one in met:
            states[one["state"]] += 1
            if one["state"] == "lost":
                lost[f"{(one.get('executor') or '?').split('/')[-1]}: {one.get('message')}"] += 1
        again = sum(1 for one in met if one["attempt"] > 1)
        text = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
        self.say(f"{fault.name}: {text}; {again} in a later attempt; {len(wrong) or 'no'} violations")
        for why, n in sorted(lost.items()):
            self.say(f"    {n} lost at {why}")
        wrong += self.forged()
        self.report(wrong)
        self.write(step, judged=True, states=states, again=again, lost=lost, violations=wrong)

    def write(self, step, judged, states, again, lost, violations):
        window = step.window
        self.results.write(
            kind="fault",
            broker=self.cluster.broker,
            cluster=self.cluster.project,
            fault=window.fault.name,
            round=step.round,
            began=window.began,
            disturbed=window.disturbed,
            judged=judged,
            states=dict(states),
            again=again,
            lost=dict(lost),
            violations=violations,
            **step.what,
        )

    def forged(self):
        """G16: no part of this cluster forges."""
        forged = self.cluster.forged()
        if not forged:
            return []
        lines = self.cluster.log_lines("origin is not known", "unknown origin")
        return [f"G16: genuine messages counted as forged: {json.dumps(forged)}: {'; '.join(lines)}"]

    def report(self, wrong):
        new = [text for text in wrong if text not in self.reported]
        self.reported |= set(new)
        for text in new[:50]:
            self.say(f"VIOLATION: {text}")
        if new and self.kept < KEPT_LOGS:
            self.kept += 1
            self.keep()
        return new

    def keep(self):
        folder = self.cluster.keep_logs()
        try:
            (folder / "runs.json").write_text(json.dumps(self.cluster.runs()))
        except OSError as error:
            self.say(f"no scheduler answers: {error}")
        windows = [[w.fault.name, w.began, w.effective, w.over, w.healed, w.disturbed] for w in self.windows]
        (folder / "windows.json").write_text(json.dumps(windows))
        self.say(f"the logs are in {folder.relative_to(ROOT)}")

    def give_up(self, fault, round_, error):
        """The cluster is not as before, or a fault could not be made."""
        for line in self.cluster.compose("ps", check=False).splitlines():
            self.say(f"    {line}")
        text = f"{fault.name}: {error}"
        self.cluster.find_containers()
        self.report([text])
        self.results.write(
            kind="failure", broker=self.cluster.broker, cluster=self.cluster.project, fault=fault.name, round=round_, violations=[text]
        )

    def end(self):
        """Lets all runs end, and checks all of them once more together."""
        cluster = self.cluster
        wrong = []
        cluster.api("/pauses", "POST", {"all": True, "reason": "the faults are over"})
        try:
            # Serial lanes may have a backlog.
            cluster.wait_until("all runs have ended", 5 * HEAL_SECONDS, lambda: not cluster.unfinished())
        except RuntimeError as error:
            wrong.append(f"G4: {error}")
        # The last lines of handlers.
        pause(2)
        self.judge_ended()
        for step in self.steps:
            self.write(step, judged=False, states={}, again=0, lost={}, violations=[])
        runs, log = cluster.runs(), cluster.record.all()
        found, excused = check(runs, log, log, self.periods(), {})
        wrong += found + self.forged()
        states = defaultdict(int)
        for one in runs:
            states[one["state"]] += 1
        self.say(f"{', '.join(f'{n} {state}' for state, n in sorted(states.items()))}; those after the last fault are skipped by its pause")
        self.say(f"{len(runs)} runs, {sum(1 for e in log if e.event != 'end')} starts, {excused} overlaps with frozen processes")
        new = self.report(wrong)
        standstills = len(cluster.watch.found(cluster))
        self.results.write(
            kind="series",
            broker=cluster.broker,
            cluster=cluster.project,
            violations=new,
            states=dict(states),
            runs=len(runs),
            standstills=standstills,
        )
        return new


class Lanes:
    """Clusters beside each other, each with one fault at a time. What is free takes the next fault."""

    def __init__(self, steps, end, make_cluster, results):
        """`steps` are pairs of a fault and a round, `end` is the time after which none begins."""
        self.steps, self.until, self.make_cluster, self.results = list(steps), end, make_cluster, results
        self.lock = threading.Lock()
        self.violations = 0

    def next(self, setup):
        """The next step, if possible one for a cluster that is there."""
        with self.lock:
            if not self.steps or time.time() > self.until:
                return None
            fitting = [step for step in self.steps if step[0].setup is setup]
            step = (fitting or self.steps)[0]
            self.steps.remove(step)
            return step

    def run(self, number):
        """Makes steps until there is none."""
        storm, cluster = None, None
        while True:
            if stopping.is_set():
                raise Stopped
            step = self.next(cluster.setup if cluster else None)
            if storm and (step is None or step[0].setup is not cluster.setup):
                self.finish(storm)
                storm, cluster = None, None
            if step is None:
                return
            fault, round_ = step
            try:
                if not storm:
                    cluster = self.make_cluster(number, fault.setup)
                    storm = Storm(cluster, self.results)
                    storm.begin()
                storm.make(fault, round_)
            except (RuntimeError, OSError) as error:
                if stopping.is_set():
                    raise Stopped from error
                storm.give_up(fault, round_, error)
                self.finish(storm)
                storm, cluster = None, None

    def finish(self, storm):
        try:
            if storm.windows:
                storm.end()
        except (RuntimeError, OSError) as error:
            if stopping.is_set():
                raise Stopped from error
            storm.say(f"its runs could not be judged: {error}")
            self.count(1)
        self.count(len(storm.reported))
        storm.cluster.stop()

    def count(self, n):
        with self.lock:
            self.violations += n
