"""The jobs that run during the faults, and the record that their handlers keep."""

# Missed fire times of a job that are made up for.
CATCH_UP = 100
# The job whose lost attempts are run again.
RERUN = "serial-0"
PARALLEL = 8

# Bash starts no process for the time and the sleep. On a small machine with several clusters, processes of handlers are most of the load.
RECORD = r"""#!/bin/bash
# record HOLD_SECONDS [exclusive]: writes down its start and its end. Each line is one write.
now() { at=${EPOCHREALTIME/[.,]/}; at=${at:0:13}; }
now
began=$at event=start holder=
if [ "${2-}" = exclusive ]; then
    exec 9>>"/network/locks/$CUELINE_JOB"
    # The kernel gives the lock back, however this process ends.
    if flock -n 9; then
        echo "$CUELINE_EXECUTOR/$CUELINE_RUN_ID/$CUELINE_ATTEMPT" >"/network/locks/$CUELINE_JOB.holder"
    else
        event=overlap holder=$(<"/network/locks/$CUELINE_JOB.holder")
    fi
fi
about="$CUELINE_EXECUTOR $CUELINE_JOB $CUELINE_RUN_ID $CUELINE_ATTEMPT $CUELINE_FIRE_TIME_MS $began"
now
echo "$event $at $about $holder" >>/network/executions
# Nothing is ever written there.
read -rt "$1" <>/network/never
now
echo "end $at $about" >>/network/executions
exit 0
"""


def jobs():
    """Eight jobs a second that may overlap, and three lanes of the whole group that may not."""
    parts = []
    for n in range(PARALLEL):
        parts.append(
            f'[[job]]\nname = "tick-{n}"\nschedule = {{ every = "1s" }}\nblock = {{ parallel = 50 }}\nroute = "round"\n'
            f'misfire = {{ policy = "catch_up", catch_up_limit = {CATCH_UP} }}\nhandler = {{ command = ["/network/record", "0.2"] }}\n'
        )
    for n in range(3):
        name = f"serial-{n}"
        rerun = 'on_lost = "rerun"\n' if name == RERUN else ""
        parts.append(
            f'[[job]]\nname = "{name}"\nschedule = {{ every = "1s" }}\nblock = "serial"\nroute = "round"\n{rerun}'
            f'misfire = {{ policy = "catch_up", catch_up_limit = {CATCH_UP} }}\nhandler = {{ command = ["/network/record", "0.3", "exclusive"] }}\n'
        )
    return "\n".join(parts)


class Event:
    """A line of the record."""

    def __init__(self, line):
        fields = line.split()
        self.event, self.at, self.executor, self.job = fields[0], int(fields[1]), fields[2].split("/")[-1], fields[3]
        self.run, self.attempt, self.fire_at, self.began = (int(field) for field in fields[4:8])
        self.holder = fields[8] if len(fields) > 8 else None


class Record:
    """All lines of the record. Each call reads what is new."""

    def __init__(self, path):
        self.path, self.read, self.events = path, 0, []

    def all(self):
        with open(self.path, "rb") as file:
            file.seek(self.read)
            new = file.read()
        new = new[: new.rfind(b"\n") + 1]
        self.read += len(new)
        self.events += [Event(line) for line in new.decode().splitlines()]
        return self.events

    def since(self, at):
        """The events from this time on. Lines are in order but for some milliseconds."""
        events = self.all()
        first = len(events)
        while first > 0 and at - 5000 <= events[first - 1].at:
            first -= 1
        return [e for e in events[first:] if at <= e.at]
