"""A line of a file for each fault that was made, and the table that is made of these lines."""

import json
import threading
from collections import defaultdict
from statistics import median


class Results:
    def __init__(self, path):
        self.path, self.lock = path, threading.Lock()

    def write(self, **what):
        if self.path:
            with self.lock, open(self.path, "a") as file:
                file.write(json.dumps(what) + "\n")


def read(paths):
    return [json.loads(line) for path in paths for line in open(path) if line.strip()]


def span(values):
    """`2.1 s (1.9–2.4)`: the median and the range."""
    low, middle, high = min(values), median(values), max(values)
    return f"{middle:.1f} s ({low:.1f}–{high:.1f})" if f"{low:.1f}" != f"{high:.1f}" else f"{middle:.1f} s"


def what_people_see(lines):
    """What was seen in at least half of the rounds, with the median of the seconds after which it was first seen."""
    after = defaultdict(list)
    for line in lines:
        for text, (first, _) in line["seen"].items():
            after[text].append(first)
    common = {text: seconds for text, seconds in after.items() if 2 * len(seconds) >= len(lines)}
    return ", ".join(f"{text} after {span(seconds)}" for text, seconds in sorted(common.items(), key=lambda one: median(one[1]))) or "nothing"


def what_becomes_of_runs(lines):
    states = defaultdict(int)
    for line in lines:
        for state, n in line["states"].items():
            states[state] += n
    again = sum(line["again"] for line in lines)
    counted = ", ".join(f"{n} {state}" for state, n in sorted(states.items()))
    return counted + (f"; {again} in a later attempt" if again else "")


def summary(paths):
    """A table with a line for each fault and broker."""
    lines = read(paths)
    groups, order = defaultdict(list), []
    for line in lines:
        if line["kind"] != "fault" or line["disturbed"]:
            continue
        if line["fault"] not in order:
            order.append(line["fault"])
        groups[line["fault"], line["broker"]].append(line)
    yield "| fault | broker | rounds | lasts | what people see | no start for | latest start | in time again | runs | violations |"
    yield "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"
    for fault in order:
        for broker in ("nats", "rabbitmq"):
            made = groups.get((fault, broker))
            if not made:
                continue
            judged = [line for line in made if line["judged"]]
            yield (
                f"| {fault} | {broker} | {len(made)} | {span([line['seconds'] for line in made])} | {what_people_see(made)} "
                f"| {span([line['gap'] for line in made])} | {span([line['latest'] for line in made])} | {span([line['back'] for line in made])} "
                f"| {what_becomes_of_runs(judged)} | {sum(len(line['violations']) for line in judged)}"
                + (f", {len(made) - len(judged)} not judged" if len(judged) < len(made) else "")
                + " |"
            )
    others = [line for line in lines if line["kind"] != "fault"]
    for line in others:
        if line["violations"]:
            yield f"{line['cluster']}: {len(line['violations'])} violations outside of a fault's runs: {line['violations'][0]}"
    disturbed = sum(1 for line in lines if line["kind"] == "fault" and line["disturbed"])
    clusters = len({line["cluster"] for line in lines})
    yield f"{len(lines) - len(others)} faults in {clusters} clusters; {disturbed} while the machine stood still, which are left out"
