"""Compares the runs in the store with the records of the handlers: G1, G2, G4, G5 and G6."""

import re
from collections import defaultdict
from datetime import datetime, timezone

from jobs import RERUN

# Handlers run for 0.3 s at most, and report their end at once. What ended so long before a fault is in the store.
REPORTED_MS = 3000
# A fault takes effect when its commands have ended. Starts that were recorded just then may be seen a little later.
EFFECT_MS = 1000
PERIOD_MS = 1000
TERMINAL = {"succeeded", "failed", "timed_out", "lost", "unroutable", "cancelled", "discarded", "covered", "skipped"}


class Window:
    """When a fault began, took effect, ended, and when the cluster was as before."""

    def __init__(self, fault, began, effective, over, healed, disturbed):
        self.fault, self.began, self.effective, self.over, self.healed, self.disturbed = fault, began, effective, over, healed, disturbed

    def may_lose(self, executor, start, end):
        """Whether it may lose an attempt that its worker had at that time: one whose end was not reported yet when the fault began."""
        return executor in self.fault.loses and start <= self.effective + EFFECT_MS and self.began - REPORTED_MS <= end


def check(runs, log, meanwhile, windows, last_fires):
    """The violations in runs that have ended, and the number of overlaps with frozen processes.

    `log` has the events of these runs, `meanwhile` all events of some time, among which overlaps are looked for. `last_fires` has the last
    fire time of each job before these runs."""
    overlaps, excused = check_overlaps(meanwhile, windows)
    wrong = [
        *check_lost(runs, log, windows),
        *check_fires(runs, last_fires),
        *check_ends(runs, log),
        *check_attempts(runs, log),
        *overlaps,
    ]
    return wrong, excused


def check_lost(runs, log, windows):
    """What was lost, or started again, without a fault that may lose it."""
    wrong = []
    starts, ends = defaultdict(dict), {}
    for e in log:
        if e.event == "end":
            ends[e.run, e.attempt] = e.at
        else:
            starts[e.run].setdefault(e.attempt, e)
    for one in runs:
        last = starts[one["id"]].get(one["attempt"]) if one["state"] == "lost" else None
        began = [starts[one["id"]][attempt] for attempt in sorted(starts[one["id"]])]
        # Each start but the last was followed by another attempt, so it was lost.
        lost = [
            (e.executor, begun_at(e, one, windows), ends.get((e.run, e.attempt), e.began + REPORTED_MS))
            for e in began
            if e.attempt < one["attempt"] or e is last
        ]
        if one["state"] == "lost" and last is None:
            # It waited in its lane, and its record or the confirmation was lost. Such an attempt counts as started (G10, preconditions).
            lost.append(((one.get("executor") or "").split("/")[-1], one.get("queued_at") or one["fire_at"], one["ended_at"]))
        for executor, start, end in lost:
            if not any(w.may_lose(executor, start, end) for w in windows):
                about = f"run {one['id']} of {one['job']} on {executor}, there from {start} to {end},"
                wrong.append(f"G4: {about} was lost without a fault that may lose it: {one['state']}, {one.get('ended_at')}, {one.get('message')}")
        if len(began) > 1 and one["job"] != RERUN:
            wrong.append(f"G4: run {one['id']} of {one['job']} has {len(began)} started attempts, and its on_lost is fail")
    return wrong


def begun_at(start, one, windows):
    """When the worker began an attempt. A process that was being started when its worker froze writes its record after the thaw. The worker
    has noted the start before."""
    frozen = any(start.executor in w.fault.frozen and w.began <= start.began <= w.healed for w in windows)
    noted = one.get("started_at") if frozen and start.attempt == one["attempt"] else None
    return min(start.began, noted or start.began)


def fire_times(one):
    """The fire times that a run accounts for: its own, and for a skipped one perhaps further ones, which its message counts."""
    shared = re.search(r"stands for (\d+) fire times since (\S+)Z", one.get("message") or "") if one["state"] == "skipped" else None
    if not shared:
        return [one["fire_at"]]
    first = round(datetime.fromisoformat(shared[2]).replace(tzinfo=timezone.utc).timestamp() * 1000)
    return sorted({one["fire_at"], *(first + n * PERIOD_MS for n in range(int(shared[1])))})


def check_fires(runs, last_fires):
    """G1, G2: one run for each fire time, or a skipped run that counts it."""
    wrong = []
    by_job = defaultdict(list)
    for job, at in last_fires.items():
        by_job[job].append(at)
    for one in runs:
        if one["kind"] == "schedule":
            by_job[one["job"]] += fire_times(one)
    for job, times in sorted(by_job.items()):
        times.sort()
        for a, b in zip(times, times[1:]):
            if b == a:
                wrong.append(f"G2: {job} has two runs for {a}")
            elif b - a != PERIOD_MS:
                wrong.append(f"G1: {job} has no run between {a} and {b}")
    return wrong


def check_ends(runs, log):
    """G4: each run has ended, and what succeeded was seen to end."""
    wrong = []
    ended = {(e.run, e.attempt) for e in log if e.event == "end"}
    for one in runs:
        if one["state"] not in TERMINAL:
            wrong.append(f"G4: run {one['id']} of {one['job']} is {one['state']}")
        if one["state"] == "succeeded" and (one["id"], one["attempt"]) not in ended:
            wrong.append(f"G4: run {one['id']} of {one['job']} succeeded without an end")
        if one["state"] in ("failed", "timed_out", "cancelled", "discarded", "covered"):
            wrong.append(f"G4: run {one['id']} of {one['job']} is {one['state']}: {one.get('message')}")
    return wrong


def check_attempts(runs, log):
    """G5: no attempt starts twice, and none after a later one of its run."""
    wrong = []
    by_id = {one["id"]: one for one in runs}
    started, latest = set(), {}
    for e in log:
        if e.event == "end":
            continue
        if (e.run, e.attempt) in started:
            wrong.append(f"G5: attempt {e.attempt} of run {e.run} of {e.job} started twice")
        started.add((e.run, e.attempt))
        if latest.get(e.run, 0) > e.attempt:
            wrong.append(f"G5: attempt {e.attempt} of run {e.run} of {e.job} started after attempt {latest[e.run]}")
        latest[e.run] = max(latest.get(e.run, 0), e.attempt)
        if e.run not in by_id:
            wrong.append(f"G4: the store does not know run {e.run} of {e.job}")
        elif by_id[e.run]["attempt"] < e.attempt:
            wrong.append(f"G5: the store does not know attempt {e.attempt} of run {e.run} of {e.job}")
    return wrong


def check_overlaps(log, windows):
    """G6: lanes. A frozen process still holds its lock, and runs nothing. What it does at the thaw, until it is killed, is reported."""
    wrong, excused = [], 0
    for e in log:
        if e.event != "overlap":
            continue
        holder = (e.holder or "?").split("/")[-3] if e.holder and e.holder.count("/") >= 2 else "?"
        if any(w.began <= e.at <= w.healed and holder in w.fault.frozen for w in windows):
            excused += 1
        else:
            wrong.append(f"G6: run {e.run} of {e.job} on {e.executor} overlaps with {e.holder} at {e.at}")
    return wrong, excused
