//! Calendar events against `systemd-analyze`, command lines, and whole units.

use std::process::Command as Process;

use super::*;
use crate::handler::HandlerSpec;
use crate::policy::{Block, MisfirePolicy};
use crate::schedule::{CronSchedule, Schedule};
use crate::time::Timestamp;

fn options() -> SystemdOptions {
    SystemdOptions {
        timezone: "UTC".to_owned(),
        group: "default".parse().unwrap(),
    }
}

fn file(name: &str, text: &str) -> UnitFile {
    UnitFile {
        name: name.to_owned(),
        place: name.to_owned(),
        text: text.to_owned(),
    }
}

fn both(timer: &str, service: &str) -> Vec<Entry> {
    let files = [
        file("job.timer", &format!("[Timer]\n{timer}\n")),
        file("job.service", &format!("[Service]\n{service}\n")),
    ];
    import(&files, &options())
}

fn only(timer: &str, service: &str) -> (JobSpec, Vec<String>) {
    let mut entries = both(timer, service);
    assert_eq!(entries.len(), 1, "{entries:?}");
    let entry = entries.remove(0);
    let notes = entry
        .notes
        .iter()
        .map(|note| format!("{}: {}", note.kind(), note.message()));
    (entry.job.unwrap(), notes.collect())
}

fn refusal(timer: &str, service: &str) -> String {
    both(timer, service).remove(0).job.unwrap_err()
}

/// Events with a cron expression.
const EVENTS: [&str; 48] = [
    "minutely",
    "hourly",
    "daily",
    "weekly",
    "monthly",
    "quarterly",
    "semiannually",
    "yearly",
    "annually",
    "daily Asia/Tokyo",
    "weekly Pacific/Auckland",
    "Mon",
    "Mon..Fri 08:00",
    "Mon *-*-1..7",
    "Sun *-*~07/1",
    "Sat,Thu,Mon..Wed,Sat..Sun",
    "Wed, 17:48",
    "Wed..Sat,Tue 5:5",
    "monday 1..7:30",
    "monday *-*-1..7 17:00",
    "Mon,Fri *-*-1..14 *:30:45",
    "Fri *-*-8..14 6:0",
    "Sun *-*-29..31 6:0",
    "Sun *-*~07/1 3:0",
    "Mon *-05~1..7",
    "*-*~03",
    "*-02~03 1:2:3",
    "*-*~1,3",
    "*-*~1..3 9:00",
    "*-*~07/2 1:0",
    "*-2,5~1 3:00",
    "*:0/15",
    "*:2/3",
    "*:*:*",
    "*:*:0/20",
    "00..22/2:30",
    "05/2:00",
    "12,14,13,12:20,10,30",
    "12..14:10,20,30",
    "03-05 08:05:40",
    "05:40",
    "05:40:10.0",
    "2030-03-05 05:40 UTC",
    "2028/2-03-01 00:00",
    "2027..2031-02-29 00:00",
    "30-1-1",
    "12:00 Europe/Berlin",
    "*-1/3-31 23:59:59",
];

/// The first five elapses, as `systemd-analyze` has them.
fn elapses(event: &str) -> Option<Vec<i64>> {
    let output = Process::new("systemd-analyze")
        .args([
            "calendar",
            "--iterations=5",
            "--base-time=2027-01-01 00:00:00 UTC",
            event,
        ])
        .env("TZ", "UTC")
        .env("LC_ALL", "C")
        .output()
        .ok()?;
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    assert!(output.status.success(), "{event}: {output:?}");
    let times = text.lines().filter_map(|line| {
        let (label, time) = line.split_once(": ")?;
        let label = label.trim();
        if !label.starts_with("Next elapse") && !label.starts_with("Iter.") {
            return None;
        }
        // `Mon 2027-01-04 00:00:00 UTC`
        let [_, date, time, "UTC"] = time.split_whitespace().collect::<Vec<_>>()[..] else {
            return None;
        };
        let instant: Timestamp = format!("{date}T{time}Z").parse().ok()?;
        Some(instant.as_millis() / 1_000)
    });
    Some(times.collect())
}

#[test]
fn calendar_events_elapse_when_systemd_says() {
    let base: Timestamp = "2027-01-01T00:00:00Z".parse().unwrap();
    for event in EVENTS {
        let Calendar::Cron {
            expression,
            timezone,
        } = calendar::read(event).unwrap()
        else {
            panic!("{event} is one instant");
        };
        let zone = timezone.as_deref().unwrap_or("UTC");
        let cron = CronSchedule::parse(&expression, zone, Some(crate::Dialect::Quartz), None)
            .unwrap_or_else(|error| panic!("{event}: {expression}: {error}"));
        let Some(expected) = elapses(event) else {
            println!("skipped: systemd-analyze is not installed");
            return;
        };
        let next = |t: &Timestamp| cron.next_after(*t);
        let ours: Vec<i64> = std::iter::successors(next(&base), next)
            .take(5)
            .map(|t| t.as_millis() / 1_000)
            .collect();
        assert_eq!(ours, expected, "{event}: {expression} in {zone}");
    }
}

/// What stands between backquotes.
fn code(cell: &str) -> Vec<&str> {
    cell.split('`').skip(1).step_by(2).collect()
}

/// The table of the page. Each of its events is compared with `systemd-analyze` above.
#[test]
fn events_become_the_expressions_of_the_page() {
    let page = include_str!("../../../../../docs/from-systemd.md");
    let (_, section) = page.split_once("## Calendar events").unwrap();
    let rows = section.lines().filter(|line| line.starts_with('|')).skip(2);
    let mut seen = 0;
    for row in rows {
        let [events, becomes] = row.trim_matches('|').split('|').collect::<Vec<_>>()[..] else {
            panic!("two columns are expected: {row}");
        };
        let (events, expressions) = (code(events), code(becomes));
        let count = if becomes.trim().starts_with("refused") {
            0
        } else {
            events.len()
        };
        assert_eq!(expressions.len(), count, "{row}");
        for (at, event) in events.into_iter().enumerate() {
            seen += 1;
            match (calendar::read(event), expressions.get(at)) {
                (Ok(Calendar::Cron { expression, .. }), Some(expected)) => {
                    assert_eq!(expression, *expected, "{event}");
                    assert!(EVENTS.contains(&event), "{event}");
                }
                (Err(_), None) => {}
                (found, _) => panic!("{event}: {found:?}, the page says{becomes}"),
            }
        }
    }
    assert_eq!(seen, 9, "events of the page");
}

#[test]
fn events_without_an_expression_are_refused_with_the_reason() {
    let cases = [
        ("Mon *-*-13 00:00", "cron has no expression for both"),
        ("Fri *-*-1..8", "cron has no expression for both"),
        ("*:*:0/0.5", "have a fraction"),
        ("Fri..Mon 1:2", "go backwards"),
        ("Fre 1:2", "\"Fre\" is no weekday"),
        ("25:00", "the hour \"25\": 0–23 is expected"),
        ("*:0/0", "a repetition of 1–59 is expected"),
        ("*-*-32", "the day \"32\": 1–31 is expected"),
        ("*-*~40", "1–28 is expected"),
        ("5..3:00", "goes backwards"),
        ("2100-01-01", "the year \"2100\": 1970–2099 is expected"),
        ("1:2:3:4", "HH:MM:SS is expected"),
        ("12", "is no calendar event"),
        ("", "is no calendar event"),
        ("@soon", "a number of seconds since 1970"),
    ];
    for (event, reason) in cases {
        let error = calendar::read(event).unwrap_err();
        assert!(error.contains(reason), "{event:?}: {error}");
    }
    let timer = "OnCalendar=12:00 Europe/Berln";
    let error = refusal(timer, "ExecStart=/bin/true");
    assert!(error.contains("did you mean \"Europe/Berlin\"?"), "{error}");
}

#[test]
fn a_timer_becomes_a_job_that_does_the_same() {
    let (job, notes) = only(
        "OnCalendar=Mon..Fri 02:30\nRandomizedDelaySec=5min 30s\nPersistent=true",
        "Type=oneshot\nUser=backup\nWorkingDirectory=/srv\nEnvironment=A=1 \"B=two words\"\n\
         ExecStart=/usr/bin/backup --to ${B} \\\n  $A '%p'\nTimeoutStartSec=30min\nTimeoutStopSec=20",
    );
    // The user's own variables are not known here.
    assert_eq!(notes, [] as [&str; 0]);
    let Schedule::Cron(cron) = &job.schedule else {
        panic!("{:?}", job.schedule)
    };
    assert_eq!(cron.expression(), "0 30 2 ? * MON,TUE,WED,THU,FRI");
    assert_eq!(job.name.as_str(), "job");
    assert_eq!(job.jitter.as_millis(), 330_000);
    assert_eq!(job.misfire.policy, MisfirePolicy::FireOnce);
    assert_eq!(job.block, Block::Discard);
    assert_eq!(job.timeout.unwrap().as_millis(), 1_800_000);
    assert_eq!(job.kill_grace.as_millis(), 20_000);
    let HandlerSpec::Command(command) = &job.handler else {
        panic!("{:?}", job.handler)
    };
    assert_eq!(
        command.argv,
        ["/usr/bin/backup", "--to", "two words", "1", "job"]
    );
    assert_eq!(command.process.cwd.as_deref(), Some("/srv"));
    assert_eq!(command.process.run_as.as_deref(), Some("backup"));
    assert!(command.process.clear_env);
    assert_eq!(command.process.env["B"].as_text(), Some("two words"));
    assert!(
        command.process.env["PATH"]
            .as_text()
            .unwrap()
            .contains("/usr/bin")
    );
}

#[test]
fn each_difference_is_noted() {
    let (job, notes) = only(
        "OnBootSec=5min\nOnUnitActiveSec=1h\nAccuracySec=1s\nWakeSystem=yes",
        "ExecStartPre=-/bin/mkdir -p '/a b'\nExecStart=/bin/x\nNice=5\nEnvironmentFile=-/etc/x",
    );
    assert!(
        matches!(job.schedule, Schedule::FixedRate { every, .. } if every.as_millis() == 3_600_000)
    );
    let HandlerSpec::Shell(shell) = &job.handler else {
        panic!("{:?}", job.handler)
    };
    assert_eq!(
        shell.script,
        "set -e\n/bin/mkdir -p '/a b' || true\n/bin/x\n"
    );
    for part in [
        "changed: OnUnitActiveSec=1h: the job fires on a fixed grid",
        "left out: OnBootSec=5min",
        "left out: AccuracySec=1s",
        "left out: WakeSystem=yes",
        "left out: EnvironmentFile=-/etc/x",
        "left out: settings without a counterpart: Nice",
        "changed: its commands are one shell script",
    ] {
        assert!(
            notes.iter().any(|note| note.starts_with(part)),
            "{part}: {notes:?}"
        );
    }
    let (job, notes) = only("OnBootSec=1", "ExecCondition=/bin/ready\nExecStart=/bin/x");
    assert_eq!(job.schedule, Schedule::Startup);
    assert_eq!(job.enabled, Some(false));
    assert!(
        notes
            .iter()
            .any(|note| note.starts_with("paused: a job has no conditions"))
    );
    let entries = both("OnCalendar=1:0\nOnCalendar=2:0", "ExecStart=/bin/x");
    let jobs: Vec<String> = entries
        .iter()
        .map(|e| e.job.as_ref().unwrap().name.to_string())
        .collect();
    assert_eq!(jobs, ["job", "job-2"]);
    assert!(
        entries[0].notes[0]
            .message()
            .contains("their runs may overlap")
    );
    let (job, _) = only("OnUnitInactiveSec=90", "ExecStart=/bin/x");
    assert!(matches!(job.schedule, Schedule::FixedDelay { after } if after.as_millis() == 90_000));
    let (job, _) = only(
        "OnCalendar=1:0\nOnCalendar=\nOnCalendar=2:0",
        "ExecStart=/bin/x",
    );
    assert!(matches!(&job.schedule, Schedule::Cron(cron) if cron.expression().contains(" 0 2 ")));
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table")]
fn wrong_units_are_refused_with_what_to_do() {
    let cases = [
        ("OnCalendar=daily", "Type=oneshot", "there is no ExecStart="),
        (
            "OnCalendar=daily",
            "Type=forking\nExecStart=/x",
            "stay in the foreground",
        ),
        (
            "OnCalendar=daily",
            "DynamicUser=yes\nExecStart=/x",
            "give it a User=",
        ),
        (
            "OnCalendar=daily",
            "DynamicUser=maybe\nExecStart=/x",
            "yes or no is expected",
        ),
        (
            "OnCalendar=daily",
            "ExecStart=/x %H",
            "the specifier %H depends on the machine",
        ),
        ("OnCalendar=daily", "ExecStart=/x \"a", "is never closed"),
        (
            "OnCalendar=daily",
            "ExecStart=/x \\q",
            "an escape is not understood",
        ),
        ("OnCalendar=daily", "ExecStart=$X", "may not be a variable"),
        (
            "OnCalendar=daily",
            "User=u\nExecStart=+/x",
            "write a job of its own",
        ),
        (
            "OnCalendar=daily",
            "EnvironmentFile=/e\nExecStart=/x $A",
            "has its value from elsewhere",
        ),
        (
            "OnCalendar=daily",
            "Environment=A\nExecStart=/x",
            "NAME=value is expected",
        ),
        (
            "OnCalendar=daily",
            "Type=oneshot\nTimeoutStartSec=soon\nExecStart=/x",
            "is no time span",
        ),
        (
            "OnCalendar=daily",
            "StandardInput=socket\nExecStart=/x",
            "write the job by hand",
        ),
        (
            "OnCalendar=daily\nUnit=a.target",
            "ExecStart=/x",
            "a job runs a service",
        ),
        (
            "OnCalendar=daily\nUnit=b.service",
            "ExecStart=/x",
            "its service b.service is missing",
        ),
        ("OnUnitActiveSec=infinity", "ExecStart=/x", "never elapses"),
        ("OnUnitActiveSec=10ms", "ExecStart=/x", "schedule.every"),
        (
            "Persistent=yes",
            "ExecStart=/x",
            "no event that a job can have",
        ),
        (
            "OnCalendar=daily\nnonsense",
            "ExecStart=/x",
            "is no setting",
        ),
    ];
    for (timer, service, reason) in cases {
        let error = refusal(timer, service);
        assert!(error.contains(reason), "{timer} {service}: {error}");
    }
}

#[test]
fn command_lines_are_split_as_by_systemd() {
    let known = [("ONE", "'one'"), ("TWO", "'two two' too"), ("THREE", "")];
    let known = known.map(|(n, v)| (n.to_owned(), v.to_owned())).into();
    let variables = exec::Variables {
        known: &known,
        is_complete: true,
    };
    let specifiers = exec::Specifiers {
        unit: "web-sync@a\\x2db-c.service".to_owned(),
    };
    let read = |text: &str| -> Vec<Vec<String>> {
        let commands = exec::commands(text, &specifiers, &variables).unwrap();
        commands.into_iter().map(|command| command.argv).collect()
    };
    let cases: [(&str, &[&[&str]]); 9] = [
        // The examples of systemd.service(5).
        (
            "/bin/echo ${ONE} ${TWO} ${THREE}",
            &[&["/bin/echo", "'one'", "'two two' too", ""]],
        ),
        (
            "/bin/echo $ONE $TWO $THREE",
            &[&["/bin/echo", "one", "two two", "too"]],
        ),
        (
            "echo one ; echo \"two two\"",
            &[&["echo", "one"], &["echo", "two two"]],
        ),
        (
            "echo / >/dev/null & \\; ls",
            &[&["echo", "/", ">/dev/null", "&", ";", "ls"]],
        ),
        (
            "-/bin/x a\\tb \\x41 \\101 'c\"d' \"e'f\" g\"h i\"",
            &[&["/bin/x", "a\tb", "A", "A", "c\"d", "e'f", "gh i"]],
        ),
        (
            "x $$A a${ONE}b 5%% ${UNKNOWN}",
            &[&["x", "$A", "a'one'b", "5%", ""]],
        ),
        (":x $ONE ${TWO}", &[&["x", "$ONE", "${TWO}"]]),
        (
            "@/bin/x other %p %i %I %j",
            &[&["/bin/x", "web-sync", "a\\x2db-c", "a-b/c", "sync"]],
        ),
        (
            "x %N %n %t %%",
            &[&[
                "x",
                "web-sync@a\\x2db-c",
                "web-sync@a\\x2db-c.service",
                "/run",
                "%",
            ]],
        ),
    ];
    for (text, expected) in cases {
        assert_eq!(read(text), expected, "{text}");
    }
}
