"""Writes golden.json: fire times by cronsim (https://pypi.org/project/cronsim/), which follows Debian's cron.

    pip install cronsim==2.8 && python3 generate.py > golden.json

Two lists: the expressions of the crontabs in tests/data/crontabs, with the next 20 fire times in UTC; and expressions
around the clock changes of 2027 in three time zones, with every fire time of a window. Times are Unix seconds.
"""

import json
import sys
from datetime import datetime, timedelta, timezone
from itertools import takewhile
from pathlib import Path
from zoneinfo import ZoneInfo

from cronsim import CronSim

CRONTABS = Path(__file__).parents[4] / "tests/data/crontabs"
NICKNAMES = {"@daily": "0 0 * * *"}
START = datetime(2027, 1, 1, tzinfo=timezone.utc)

# The clocks change here (local dates); Lord Howe's by half an hour.
CHANGES = {
    "America/New_York": ["2027-03-14", "2027-11-07"],
    "Europe/Berlin": ["2027-03-28", "2027-10-31"],
    "Australia/Lord_Howe": ["2027-04-04", "2027-10-03"],
}
AROUND_CHANGES = [
    "30 1 * * *",
    "45 1 * * *",
    "0 2 * * *",
    "15 2 * * *",
    "30 2 * * *",
    "59 2 * * *",
    "0 3 * * *",
    "10,40 1,2 * * *",
    "30 2 * * 0",
    "0 0 * * *",
    "* 2 * * *",
    "30 * * * *",
    "*/15 * * * *",
    "*/20 1-3 * * *",
    "0 */2 * * *",
    "0-59/20 2 * * *",
]


def expressions_of(text):
    for line in text.splitlines():
        line = line.strip()
        if not line or line.startswith("#") or (line[0].isalpha() and "=" in line.split()[0]):
            continue
        words = line.split()
        if words[0] == "@reboot":
            continue
        yield NICKNAMES[words[0]] if words[0].startswith("@") else " ".join(words[:5])


def seconds(moments):
    return [int(moment.timestamp()) for moment in moments]


def crontabs():
    found = {e for path in sorted(CRONTABS.glob("*.crontab")) for e in expressions_of(path.read_text())}
    for expression in sorted(found):
        fires = CronSim(expression, START)
        yield {"cron": expression, "after": int(START.timestamp()), "fires": seconds(next(fires) for _ in range(20))}


def around_changes():
    for zone, days in CHANGES.items():
        for day in days:
            noon = datetime.fromisoformat(day).replace(hour=12, tzinfo=ZoneInfo(zone))
            start, end = noon - timedelta(days=1), noon + timedelta(days=1)
            for expression in AROUND_CHANGES:
                fires = takewhile(lambda t: t.timestamp() < end.timestamp(), CronSim(expression, start))
                yield {
                    "cron": expression,
                    "timezone": zone,
                    "after": int(start.timestamp()),
                    "until": int(end.timestamp()),
                    "fires": seconds(fires),
                }


def main():
    lists = {"crontabs": list(crontabs()), "changes": list(around_changes())}
    body = ",\n".join(
        f'"{name}": [\n' + ",\n".join(json.dumps(entry) for entry in entries) + "\n]" for name, entries in lists.items()
    )
    sys.stdout.write("{" + body + "}\n")


main()
