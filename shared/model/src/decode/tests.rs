//! Tests of single definitions. `tests/round_trip.rs` checks that serialised jobs decode to the same jobs.

use super::*;
use crate::{Block, Route, Schedule};

fn json(text: &str) -> serde_json::Value {
    serde_json::from_str(text).unwrap_or_else(|error| panic!("{text}: {error}"))
}

fn node(text: &str) -> Node {
    json(text).into()
}

/// A valid job with these fields set, or removed if they are null.
fn with(fields: &str) -> Node {
    let mut job =
        json(r#"{"name": "j", "schedule": {"every": "10s"}, "handler": {"shell": "true"}}"#);
    for (key, value) in json(fields).as_object().unwrap() {
        job[key] = value.clone();
    }
    job.into()
}

fn jobs(root: &Node) -> Result<Vec<JobSpec>, Vec<Problem>> {
    super::jobs(root, &Namespace::default())
}

fn problems(fields: &str) -> Vec<String> {
    match job(&with(fields)) {
        Ok(spec) => panic!("{fields} was accepted: {spec:?}"),
        Err(problems) => problems.iter().map(ToString::to_string).collect(),
    }
}

#[test]
fn the_job_file_of_the_guide_is_read() {
    let specs = jobs(&node(
        r#"{"job": [
        {"name": "nightly-backup", "group": "default",
         "schedule": {"cron": "30 2 * * *", "timezone": "Europe/Berlin"},
         "misfire": "fire_once", "route": "consistent_hash", "block": "serial", "timeout": "30m",
         "retry": {"max": 3, "backoff": "exponential", "first": "10s", "cap": "10m"},
         "handler": {"shell": "pg_dump app"}, "params": "{\"full\": false}"},
        {"name": "verify-backup", "after": {"all": ["nightly-backup"], "on": "success"},
         "handler": {"command": ["/usr/local/bin/verify", "/backup/app.zst"]}}]}"#,
    ))
    .unwrap();
    assert_eq!(specs.len(), 2);
    assert_eq!(specs[1].schedule, Schedule::Manual);
    assert_eq!(specs[1].group.as_str(), "default");
}

#[test]
fn short_forms_mean_their_long_forms() {
    let same = [
        (
            r#"{"misfire": "skip"}"#,
            r#"{"misfire": {"policy": "skip"}}"#,
        ),
        (r#"{"retry": 3}"#, r#"{"retry": {"max": 3}}"#),
        (
            r#"{"handler": {"script": "a", "version": 2}}"#,
            r#"{"handler": {"script": {"name": "a", "version": 2}}}"#,
        ),
        (
            r#"{"route": {"sharded": 2}}"#,
            r#"{"route": {"sharded": ["", ""]}}"#,
        ),
        (
            r#"{"handler": {"shell": "x"}}"#,
            r#"{"handler": {"shell": {"script": "x"}}}"#,
        ),
        (
            r#"{"handler": {"command": ["x"]}}"#,
            r#"{"handler": {"command": {"argv": ["x"]}}}"#,
        ),
        (
            r#"{"handler": {"http": "http://a"}}"#,
            r#"{"handler": {"http": {"url": "http://a", "method": "get"}}}"#,
        ),
        (
            r#"{"after": "p"}"#,
            r#"{"after": {"all": ["p"], "on": "success", "pass_output": false}}"#,
        ),
        (
            r#"{"params": {"a": [1, true]}}"#,
            r#"{"params": "{\"a\":[1,true]}"}"#,
        ),
        (r#"{"timeout": null}"#, "{}"),
        (
            r#"{"start_at": "2027-01-01T01:00:00+01:00"}"#,
            r#"{"start_at": 1798761600000}"#,
        ),
        (
            r#"{"schedule": null, "after": "p"}"#,
            r#"{"schedule": {"manual": true}, "after": "p"}"#,
        ),
    ];
    for (short, long) in same {
        assert_eq!(
            job(&with(short)).unwrap(),
            job(&with(long)).unwrap(),
            "{short}"
        );
    }
    assert_eq!(
        job(&with(r#"{"block": {"parallel": 4}}"#)).unwrap().block,
        Block::Parallel(4)
    );
    let sharded = job(&with(
        r#"{"route": {"sharded": ["1=Shanghai", "0=Beijing"]}}"#,
    ))
    .unwrap();
    assert_eq!(
        sharded.route,
        Route::Sharded(vec!["Beijing".into(), "Shanghai".into()])
    );
}

/// Invalid fields and their complete errors.
const WRONG: &[(&str, &str)] = &[
    (
        r#"{"name": null}"#,
        "name: missing; the job's name is expected",
    ),
    (
        r#"{"name": "a b"}"#,
        r#"job "a b": name: "a b": ' ' is not allowed in a name: use letters and digits of any language, '-', '_', '.' and ':'"#,
    ),
    (r#"{"name": 5}"#, "name: 5 given; a name is expected"),
    (
        r#"{"handler": null}"#,
        r#"job "j": handler: missing; what the job runs ({ shell = … }, { command = … }, { http = … }, { native = … } or { script = … }) is expected"#,
    ),
    (
        r#"{"schedule": null}"#,
        r#"job "j": schedule: missing; one of { cron = … }, { every = … }, { after = … }, { at = … }, { startup = true }, { manual = true }, or a parent in `after`, is expected"#,
    ),
    (
        r#"{"schedule": "10s"}"#,
        r#"job "j": schedule: "10s" given; a table with cron, every, after, at, startup, manual, timezone, dialect, dst, anchor is expected"#,
    ),
    (
        r#"{"schedule": {"cron": "* * * * *", "every": "1s"}}"#,
        r#"job "j": schedule: cron, every given together; exactly one of cron, every, after, at, startup, manual is expected"#,
    ),
    (
        r#"{"schedule": {"timezone": "UTC"}}"#,
        r#"job "j": schedule: a table with "timezone" given; exactly one of cron, every, after, at, startup, manual is expected"#,
    ),
    (
        r#"{"schedule": {"every": "1s", "timezone": "UTC"}}"#,
        r#"job "j": schedule.timezone: goes with "cron", not with "every""#,
    ),
    (
        r#"{"schedule": {"manual": false}}"#,
        r#"job "j": schedule.manual: false given; true, or another of cron, every, after, at, startup, manual, is expected"#,
    ),
    (
        r#"{"schedule": {"cron": "61 * * * *"}}"#,
        r#"job "j": schedule.cron: "61 * * * *": minute 61 is out of range 0–59"#,
    ),
    (
        r#"{"schedule": {"cron": "0 0 30 2 *"}}"#,
        r#"job "j": schedule.cron: "0 0 30 2 *": no date ever matches day-of-month, month and day-of-week together; for a job that never fires by itself use { manual = true }"#,
    ),
    (
        r#"{"schedule": {"cron": "0 0 * * *", "timezone": "Europe/Berln"}}"#,
        r#"job "j": schedule.timezone: unknown time zone "Europe/Berln"; did you mean "Europe/Berlin"? (an IANA name such as "Europe/Berlin" or "UTC" is expected)"#,
    ),
    (
        r#"{"schedule": {"cron": "0 0 * * *", "dialect": "quarz"}}"#,
        r#"job "j": schedule.dialect: unknown dialect "quarz"; did you mean "quartz"? (quartz, unix)"#,
    ),
    (
        r#"{"schedule": {"every": "50ms"}}"#,
        r#"job "j": schedule.every: "50ms" is too short; at least 100ms is expected"#,
    ),
    (
        r#"{"schedule": {"every": 10}}"#,
        r#"job "j": schedule.every: 10 given; a duration with its unit, such as "250ms", "10s" or "1h30m", is expected"#,
    ),
    (
        r#"{"schedule": {"after": "9000d"}}"#,
        r#"job "j": schedule.after: "9000d" is too long; at most 3650d is accepted"#,
    ),
    (
        r#"{"schedule": {"at": "tomorrow"}}"#,
        r#"job "j": schedule.at: "tomorrow" given; an instant such as "2027-01-01T00:00:00Z" or "2027-01-01T01:00:00+01:00" is expected"#,
    ),
    (
        r#"{"timeout": "5"}"#,
        r#"job "j": timeout: "5" is not a duration: write a number with a unit, such as 250ms, 10s, 5m, 1h30m or 2d"#,
    ),
    (
        r#"{"timeout": "0s"}"#,
        r#"job "j": timeout: "0s" is too short; at least 1ms is expected"#,
    ),
    (
        r#"{"start_at": "2027-01-02T00:00:00Z", "end_at": "2027-01-01T00:00:00Z"}"#,
        r#"job "j": end_at: 2027-01-01T00:00:00.000Z is not after start_at (2027-01-02T00:00:00.000Z); a later instant is expected"#,
    ),
    (
        r#"{"misfire": "fireonce"}"#,
        r#"job "j": misfire: unknown policy "fireonce"; did you mean "fire_once"? (skip, fire_once, catch_up)"#,
    ),
    (
        r#"{"misfire": {"catch_up_limit": 10001}}"#,
        r#"job "j": misfire.catch_up_limit: 10001 is out of range 1–10000"#,
    ),
    (
        r#"{"route": "robin"}"#,
        r#"job "j": route: unknown strategy "robin"; did you mean "round"? (first, last, round, random, consistent_hash, lfu, lru, failover, busyover, least_loaded, weighted, any, broadcast, sharded, executor)"#,
    ),
    (
        r#"{"route": "LEAST_LOADED"}"#,
        r#"job "j": route: unknown strategy "LEAST_LOADED"; did you mean "least_loaded"? (first, last, round, random, consistent_hash, lfu, lru, failover, busyover, least_loaded, weighted, any, broadcast, sharded, executor)"#,
    ),
    (
        r#"{"route": "fail_over"}"#,
        r#"job "j": route: unknown strategy "fail_over"; did you mean "failover"? (first, last, round, random, consistent_hash, lfu, lru, failover, busyover, least_loaded, weighted, any, broadcast, sharded, executor)"#,
    ),
    (
        r#"{"route": 3}"#,
        r#"job "j": route: 3 given; one of first, last, round, random, consistent_hash, lfu, lru, failover, busyover, least_loaded, weighted, any, broadcast, sharded, executor is expected"#,
    ),
    (
        r#"{"route": "executor"}"#,
        r#"job "j": route: "executor" given; the executor's name, { executor = "worker-2" }, is expected"#,
    ),
    (
        r#"{"route": {"executor": 2}}"#,
        r#"job "j": route.executor: 2 given; the name of an executor is expected"#,
    ),
    (
        r#"{"route": {"executor": "a/b"}}"#,
        r#"job "j": route.executor: "a/b": '/' is not allowed in a name: use letters and digits of any language, '-', '_', '.' and ':'"#,
    ),
    (
        r#"{"route": {"executor": "a", "sharded": 2}}"#,
        r#"job "j": route: a table of 2 keys given; a strategy, { executor = "worker-2" } or { sharded = 8 }, is expected"#,
    ),
    (
        r#"{"route": {"exectuor": "a"}}"#,
        r#"job "j": route.exectuor: unknown key; did you mean "executor"? (sharded, executor)"#,
    ),
    (
        r#"{"selector": 1}"#,
        r#"job "j": selector: 1 given; labels of executors, "zone=a,!spot" or { zone = "a" }, is expected"#,
    ),
    (
        r#"{"selector": "zone a"}"#,
        r#"job "j": selector: "zone a" is no requirement: KEY=VALUE, KEY!=VALUE, KEY or !KEY is expected, several separated by commas"#,
    ),
    (
        r#"{"selector": "zone>a"}"#,
        r#"job "j": selector: "zone>a" cannot be the key of a label: 1–63 letters, digits, '-', '_', '.', '/' are expected"#,
    ),
    (
        r#"{"selector": {"zone": "a b"}}"#,
        r#"job "j": selector: "a b" cannot be the value of a label: at most 63 letters, digits, '-', '_', '.', '/' are expected"#,
    ),
    (
        r#"{"route": "sharded"}"#,
        r#"job "j": route: "sharded" given; the number of shards or their items, { sharded = 8 } or { sharded = ["0=Beijing", "1=Shanghai"] }, is expected"#,
    ),
    (
        r#"{"route": {"sharded": 1001}}"#,
        r#"job "j": route.sharded: 1001 is out of range 1–1000"#,
    ),
    (
        r#"{"route": {"sharded": []}}"#,
        r#"job "j": route.sharded: a list of 0 given; a list of 1–1000 shards is expected"#,
    ),
    (
        r#"{"route": {"weighted": 2}}"#,
        r#"job "j": route.weighted: unknown key; expected one of sharded, executor"#,
    ),
    (
        r#"{"route": {"any": 2}}"#,
        r#"job "j": route.any: unknown key; expected one of sharded, executor"#,
    ),
    (
        r#"{"block": "fifo"}"#,
        r#"job "j": block: unknown policy "fifo"; expected one of serial, discard, cover, parallel"#,
    ),
    (
        r#"{"block": {"parallel": 0}}"#,
        r#"job "j": block.parallel: 0 is out of range 1–10000"#,
    ),
    (
        r#"{"block": "parallel"}"#,
        r#"job "j": block: "parallel" given; how many at a time, { parallel = 4 }, is expected"#,
    ),
    (
        r#"{"scope": "cluster"}"#,
        r#"job "j": scope: unknown scope "cluster"; expected one of group, executor"#,
    ),
    (
        r#"{"on_lost": "retry"}"#,
        r#"job "j": on_lost: unknown policy "retry"; did you mean "rerun"? (fail, rerun)"#,
    ),
    (
        r#"{"priority": 10}"#,
        r#"job "j": priority: 10 is out of range 0–9"#,
    ),
    (
        r#"{"priority": "high"}"#,
        r#"job "j": priority: "high" given; a whole number 0–9 is expected"#,
    ),
    (
        r#"{"retry": 1001}"#,
        r#"job "j": retry: 1001 is out of range 0–1000"#,
    ),
    (
        r#"{"retry": {"on": ["failed", "timedout"]}}"#,
        r#"job "j": retry.on[1]: unknown outcome "timedout"; did you mean "timed_out"? (failed, timed_out, lost, unroutable)"#,
    ),
    (
        r#"{"retry": {"backof": "fixed"}}"#,
        r#"job "j": retry.backof: unknown key; did you mean "backoff"? (max, backoff, first, cap, jitter_percent, on)"#,
    ),
    (
        r#"{"enabled": "yes"}"#,
        r#"job "j": enabled: "yes" given; true or false is expected"#,
    ),
    (
        r#"{"fence": "keeps"}"#,
        r#"job "j": fence: unknown policy "keeps"; did you mean "keep"? (stop, keep)"#,
    ),
    (
        r#"{"labels": {"a": [1]}}"#,
        r#"job "j": labels.a: a list of 1 given; a text is expected"#,
    ),
    (
        r#"{"after": {"all": []}}"#,
        r#"job "j": after.all: a list of 0 given; 1 to 32 parents are expected"#,
    ),
    (
        r#"{"after": {"any": ["a", "b", "a"]}}"#,
        r#"job "j": after.any[2]: "a" is given twice; each parent once is expected"#,
    ),
    (
        r#"{"after": {"all": ["a"], "any": ["b"]}}"#,
        r#"job "j": after: `all` and `any` are given; one of them is expected, with a list of the parents' names"#,
    ),
    (
        r#"{"after": {"on": "always"}}"#,
        r#"job "j": after: neither `all` nor `any` is given; one of them is expected, with a list of the parents' names"#,
    ),
    (
        r#"{"after": {"any": "a"}}"#,
        r#"job "j": after.any: "a" given; a list of the parents' names is expected"#,
    ),
    (
        r#"{"after": "j"}"#,
        r#"job "j": after: "j" is this job itself; another job is expected as its parent"#,
    ),
    (
        r#"{"after": {"all": ["p"], "on": "end"}}"#,
        r#"job "j": after.on: unknown end "end"; expected one of success, failure, always"#,
    ),
    (
        r#"{"handler": {"shell": "a", "http": "http://a"}}"#,
        r#"job "j": handler: shell and http together given; exactly one of shell, command, http, native, script is expected"#,
    ),
    (
        r#"{"handler": {"bash": "a"}}"#,
        r#"job "j": handler.bash: unknown key; expected one of shell, command, http, native, script, version"#,
    ),
    (
        r#"{"handler": {"script": "a/b"}}"#,
        r#"job "j": handler.script: "a/b" given; a name without '/' is expected. The field `namespace` has the namespace of the job, its group and its parents"#,
    ),
    (
        r#"{"handler": {"script": "a", "version": 0}}"#,
        r#"job "j": handler.version: 0 is out of range 1–4294967295"#,
    ),
    (
        r#"{"handler": {"script": {"name": "a"}, "version": 2}}"#,
        r#"job "j": handler.version: given beside a table; `version` is expected in that table"#,
    ),
    (
        r#"{"handler": {"shell": "a", "version": 2}}"#,
        r#"job "j": handler.version: given beside shell; only a script has versions"#,
    ),
    (
        r#"{"handler": {"script": {"version": 2}}}"#,
        r#"job "j": handler.script.name: missing; the name of a script is expected"#,
    ),
    (
        r#"{"handler": {"script": {"name": "a", "text": "x"}}}"#,
        r#"job "j": handler.script.text: unknown key; expected one of name, version, env, clear_env, cwd, stdin, run_as"#,
    ),
    (
        r#"{"handler": {"shell": " "}}"#,
        r#"job "j": handler.shell: an empty text given; a script is expected"#,
    ),
    (
        r#"{"handler": {"shell": {"script": "x", "interpreter": "python"}}}"#,
        r#"job "j": handler.shell.interpreter: unknown interpreter "python"; did you mean "python3"? (sh, bash, python3, node, php, pwsh)"#,
    ),
    (
        r#"{"handler": {"shell": {"script": "x", "env": {"A=B": "c"}}}}"#,
        r#"job "j": handler.shell.env.A=B: "A=B" cannot be the name of a variable: an empty text, '=', NUL and line breaks are not allowed"#,
    ),
    (
        r#"{"handler": {"command": "a b"}}"#,
        r#"job "j": handler.command: "a b" given; a list of the program and its arguments, such as ["pg_dump", "app"], is expected"#,
    ),
    (
        r#"{"handler": {"command": ["a", 1]}}"#,
        r#"job "j": handler.command[1]: 1 given; a text is expected"#,
    ),
    (
        r#"{"handler": {"command": []}}"#,
        r#"job "j": handler.command: a list of 0 given; a program and its arguments, at most 4096, is expected"#,
    ),
    (
        r#"{"handler": {"http": "ftp://a"}}"#,
        r#"job "j": handler.http: "ftp://a" given; an absolute http or https URL with a host, such as "https://example.com/hook", is expected"#,
    ),
    (
        r#"{"handler": {"http": {"url": "https:///x"}}}"#,
        r#"job "j": handler.http.url: "https:///x" given; an absolute http or https URL with a host, such as "https://example.com/hook", is expected"#,
    ),
    (
        r#"{"handler": {"http": {"url": "http://a", "expect": [99]}}}"#,
        r#"job "j": handler.http.expect[0]: 99 is out of range 100–599"#,
    ),
    (
        r#"{"handler": {"shell": {"script": "x", "env": {"A": {"secret": "../db"}}}}}"#,
        r#"job "j": handler.shell.env.A.secret: "../db" given: the name of a secret has 1 to 128 letters, digits, '.', '_' and '-', and does not begin with '.'"#,
    ),
    (
        r#"{"handler": {"shell": {"script": "x", "env": {"A": {"secret": 1}}}}}"#,
        r#"job "j": handler.shell.env.A.secret: 1 given; a text is expected"#,
    ),
    (
        r#"{"handler": {"command": {"argv": ["x"], "stdin": {}}}}"#,
        r#"job "j": handler.command.stdin.secret: missing; the name of a secret is expected"#,
    ),
    (
        r#"{"handler": {"http": {"url": "http://a", "headers": {"X": {"secret": ".a"}}}}}"#,
        r#"job "j": handler.http.headers.X.secret: ".a" given: the name of a secret has 1 to 128 letters, digits, '.', '_' and '-', and does not begin with '.'"#,
    ),
    (
        r#"{"handler": {"http": {"url": "http://a", "redirects": 11}}}"#,
        r#"job "j": handler.http.redirects: 11 is out of range 0–10"#,
    ),
    (
        r#"{"handler": {"http": {"url": "http://a", "redirects": true}}}"#,
        r#"job "j": handler.http.redirects: true given; a whole number 0–10 is expected"#,
    ),
    (
        r#"{"handler": {"native": "a b"}}"#,
        r#"job "j": handler.native: "a b" has a blank or control character; the name of a registered handler is expected"#,
    ),
];

#[test]
fn each_wrong_definition_gets_its_error_message() {
    for (fields, expected) in WRONG {
        let found = problems(fields);
        assert!(
            found.contains(&(*expected).to_owned()),
            "{fields}\n{found:#?}\n{expected}"
        );
    }
}

#[test]
fn sizes_are_bounded() {
    let long = |n: usize| "x".repeat(n);
    let labels = |n: usize| {
        let labels = (10..10 + n).map(|n| format!(r#""l{n}": "x""#));
        let labels: Vec<String> = labels.collect();
        format!(r#"{{"labels": {{{}}}}}"#, labels.join(", "))
    };
    assert!(job(&with(&labels(64))).is_ok());
    let refused = r#"job "j": labels: 65 given; at most 64 labels are accepted"#;
    assert_eq!(problems(&labels(65)), [refused]);
    let one = problems(&format!(r#"{{"labels": {{"a": "{}"}}}}"#, long(64 * 1024)));
    let refused = r#"job "j": labels: names and texts of 65537 bytes given; at most 65536 bytes are accepted"#;
    assert_eq!(one, [refused]);
    let params = problems(&format!(r#"{{"params": "{}"}}"#, long(64 * 1024 + 1)));
    assert_eq!(
        params,
        [r#"job "j": params: a text of 65537 bytes given; at most 65536 bytes are accepted"#]
    );
    let script = problems(&format!(
        r#"{{"handler": {{"shell": "{}"}}}}"#,
        long(256 * 1024 + 1)
    ));
    assert_eq!(script.len(), 1, "{script:?}");
    let name = problems(&format!(r#"{{"name": "{}"}}"#, long(5_000)));
    assert!(name[0].len() < 400, "{name:?}");
    let keys: Vec<String> = (0..5_000).map(|n| format!(r#""k{n}": 1"#)).collect();
    assert_eq!(
        problems(&format!("{{{}}}", keys.join(","))).len(),
        MAX_PROBLEMS + 1
    );
}

#[test]
fn all_problems_are_collected() {
    let found = problems(
        r#"{"route": "robin", "priority": 11, "nmae": 1, "handler": {"http": "x"}, "schedule": {"every": "1ms"}}"#,
    );
    assert_eq!(found.len(), 5, "{found:#?}");
}

#[test]
fn a_file_is_checked_as_a_whole() {
    let file = |text: &str| -> Vec<String> {
        let problems = jobs(&node(text)).unwrap_err();
        problems.iter().map(ToString::to_string).collect()
    };
    let good = r#"{"name": "a", "schedule": {"manual": true}, "handler": {"native": "x"}}"#;
    assert_eq!(
        file(&format!(r#"{{"job": [{good}, {good}]}}"#)),
        [r#"job "a": name: "a" is given twice in this file; each job needs a name of its own"#]
    );
    assert_eq!(
        file(r#"{"jbo": []}"#),
        [r#"jbo: unknown key; did you mean "job"? (job, jobs)"#]
    );
    assert_eq!(
        file(r#"{"job": {"name": "a"}}"#),
        [r#"job: a table with "name" given; a list of jobs is expected ([[job]] in TOML)"#]
    );
    assert_eq!(
        file(r#"{"jobs": [5]}"#)[0].split(" given").next(),
        Some("jobs[0]: 5")
    );
    assert_eq!(
        file(r#"{"jobs": [{"schedule": {"manual": true}, "handler": {"native": "x"}}]}"#),
        ["jobs[0].name: missing; the job's name is expected"]
    );
    assert_eq!(jobs(&node("{}")), Ok(Vec::new()));
    assert_eq!(
        jobs(&node(&format!(r#"{{"jobs": [{good}]}}"#)))
            .unwrap()
            .len(),
        1
    );
}

#[test]
fn problems_name_the_line_of_the_wrong_value() {
    let at = |line, value| Node {
        line: Some(line),
        value,
    };
    let text = |text: &str| Value::Text(text.to_owned());
    let entry = |key: &str, node| (key.to_owned(), node);
    let job_node = at(
        3,
        Value::Map(vec![
            entry("name", at(4, text("a"))),
            entry(
                "schedule",
                at(
                    5,
                    Value::Map(vec![entry("cron", at(5, text("61 * * * *")))]),
                ),
            ),
            entry("nonsense", at(6, Value::Null)),
            entry("name", at(7, text("a"))),
        ]),
    );
    let problems = job(&job_node).unwrap_err();
    let mut lines: Vec<Option<u32>> = problems.iter().map(|p| p.line).collect();
    lines.sort_unstable();
    // The missing handler is reported at the job's own line.
    assert_eq!(lines, [Some(3), Some(5), Some(6), Some(7)]);
}

fn in_zones(count: usize, zone: impl Fn(usize) -> String) -> Vec<Problem> {
    let jobs: Vec<serde_json::Value> = (0..count)
        .map(|i| {
            serde_json::json!({
                "name": format!("j{i}"),
                "schedule": { "cron": "@daily", "timezone": zone(i) },
                "handler": { "shell": "true" },
            })
        })
        .collect();
    let root = serde_json::json!({ "jobs": jobs });
    self::jobs(&root.into()).expect_err("problems")
}

#[test]
fn one_wrong_time_zone_in_many_jobs_has_the_same_message_everywhere() {
    let found = in_zones(100, |_| "Europe/Berln".to_owned());
    assert_eq!(found.len(), 100);
    for problem in &found {
        assert_eq!(problem.message, found[0].message);
        assert!(problem.message.contains("did you mean \"Europe/Berlin\"?"));
        assert_eq!(problem.field, "schedule.timezone");
    }
}

#[test]
fn the_search_for_time_zones_that_were_meant_is_bounded() {
    let found = in_zones(100, |i| format!("Europe/Berln{i}"));
    assert_eq!(found.len(), 100);
    let suggested = found.iter().filter(|p| p.message.contains("did you mean"));
    assert_eq!(suggested.count(), 20);
    assert!(
        found
            .iter()
            .all(|p| p.message.contains("unknown time zone"))
    );
}

#[test]
fn a_hundred_thousand_unknown_time_zones_are_a_bounded_number_of_problems() {
    let zones: [fn(usize) -> String; 2] =
        [|_| "Mars/Phobos".to_owned(), |i| format!("Mars/Phobos{i}")];
    for zone in zones {
        let found = in_zones(MAX_JOBS, zone);
        assert_eq!(found.len(), MAX_PROBLEMS + 1);
    }
}

fn team(text: &str) -> Namespace {
    text.parse().expect("a namespace")
}

#[test]
fn all_names_of_a_definition_are_in_its_namespace() {
    let fields = r#"{"namespace": "team-a", "group": "g", "after": "p", "schedule": null}"#;
    let spec = job(&with(fields)).expect("a definition");
    assert_eq!(spec.name.as_str(), "team-a/j");
    assert_eq!(spec.group.as_str(), "team-a/g");
    assert_eq!(spec.parents()[0].as_str(), "team-a/p");
    assert!(spec.stays_in_its_namespace());
    let spec = job(&with(r#"{"namespace": "team-a"}"#)).expect("a definition");
    assert_eq!(spec.group.as_str(), "team-a/default");
}

#[test]
fn a_definition_without_a_namespace_is_in_that_of_its_request() {
    let file = node(
        r#"{"jobs": [
        {"name": "j", "schedule": {"manual": true}, "handler": {"native": "x"}},
        {"name": "j", "namespace": "default", "schedule": {"manual": true}, "handler": {"native": "x"}}]}"#,
    );
    let specs = super::jobs(&file, &team("team-a")).expect("definitions");
    let names: Vec<_> = specs.iter().map(|spec| spec.name.as_str()).collect();
    assert_eq!(names, ["team-a/j", "j"]);
    let twice = jobs(&file).expect_err("both are in the namespace default");
    assert!(twice[0].message.contains("given twice"), "{twice:?}");
}

#[test]
fn a_definition_cannot_name_anything_of_another_namespace() {
    for (field, fields) in [
        ("name", r#"{"name": "team-b/j"}"#),
        ("group", r#"{"group": "team-b/g"}"#),
        ("after", r#"{"after": "team-b/p"}"#),
        ("after.all[0]", r#"{"after": {"all": ["team-b/p"]}}"#),
        ("after.any[1]", r#"{"after": {"any": ["p", "team-b/p"]}}"#),
        ("group", r#"{"namespace": "team-b", "group": "team-b/g"}"#),
    ] {
        let found = problems(fields);
        assert_eq!(found.len(), 1, "{found:?}");
        assert!(found[0].contains(&format!("{field}: ")), "{found:?}");
        assert!(found[0].contains("`namespace`"), "{found:?}");
    }
    let found = problems(r#"{"namespace": "a/b"}"#);
    assert!(found[0].contains("'/' is not allowed"), "{found:?}");
}

#[test]
fn a_printed_definition_has_its_namespace_and_local_names() {
    let fields = r#"{"namespace": "team-a", "group": "g", "after": "p", "schedule": null}"#;
    let spec = job(&with(fields)).expect("a definition");
    let written = serde_json::to_value(&spec).expect("it is written");
    assert_eq!(written["namespace"], "team-a");
    assert_eq!(written["name"], "j");
    assert_eq!(written["group"], "g");
    assert_eq!(written["after"]["all"], serde_json::json!(["p"]));
    assert_eq!(job(&written.clone().into()), Ok(spec.clone()));
    let read: JobSpec = serde_json::from_value(written).expect("it is read");
    assert_eq!(read, spec);
    let plain = job(&with("{}")).expect("a definition");
    let written = serde_json::to_value(&plain).expect("it is written");
    assert_eq!(written.get("namespace"), None);
}

#[test]
fn a_definition_that_leaves_its_namespace_is_not_written() {
    let mut spec = job(&with("{}")).expect("a definition");
    spec.group = "team-b/g".parse().expect("a name");
    assert!(!spec.stays_in_its_namespace());
    assert!(serde_json::to_value(&spec).is_err());
}

#[test]
fn a_file_defines_scripts_beside_jobs() {
    let root = node(
        r#"{"script": [{"name": "backup", "language": "python3", "text": "print(1)", "remark": "first"},
                       {"name": "backup", "namespace": "team", "language": "sh", "text": "true"}],
            "job": [{"name": "j", "schedule": {"every": "10s"}, "handler": {"script": "backup", "version": 1}}]}"#,
    );
    let found = file(&root, &Namespace::default()).unwrap();
    let names: Vec<&str> = found.scripts.iter().map(|s| s.name.as_str()).collect();
    assert_eq!(names, ["backup", "team/backup"]);
    let script = &found.scripts[0];
    assert_eq!(
        (script.text.as_str(), script.remark.as_str()),
        ("print(1)", "first")
    );
    assert_eq!(
        found.jobs[0].script(),
        Some(("backup".parse().unwrap(), Some(1)))
    );
    let written = serde_json::to_value(script).unwrap();
    let read = super::script(&written.into(), &Namespace::default());
    assert_eq!(read.as_ref(), Ok(script));
}

#[test]
fn wrong_scripts_are_refused_with_their_place() {
    let long = "x".repeat(crate::script::MAX_SCRIPT_BYTES + 1);
    let whole = |fields: &str| format!(r#"{{"script": [{{"name": "a", {fields}}}]}}"#);
    for (text, expected) in [
        (r#"{"script": {}}"#.to_owned(), "script: a table of 0 keys given; a list of scripts is expected ([[script]] in TOML)"),
        (whole(r#""language": "sh""#), "script[0].text: missing; the script's text is expected"),
        (whole(r#""language": "sh", "text": " ""#), "script[0].text: an empty text given; a script is expected"),
        (whole(r#""language": "perl", "text": "x""#), r#"script[0].language: unknown language "perl"; expected one of sh, bash, python3, node, php, pwsh"#),
        (whole(r#""text": "x""#), "script[0].language: missing; the program that runs it"),
        (whole(&format!(r#""language": "sh", "text": "{long}""#)), "script[0].text: "),
        (whole(r#""language": "sh", "text": "x", "shell": "/bin/sh""#), "script[0].shell: unknown key"),
        (
            r#"{"script": [{"name": "a", "language": "sh", "text": "x"}, {"name": "a", "language": "sh", "text": "y"}]}"#.to_owned(),
            r#"script[1].name: "a" is given twice in this file; each script needs a name of its own"#,
        ),
    ] {
        let problems = file(&node(&text), &Namespace::default()).expect_err("is refused");
        let first = problems[0].to_string();
        assert!(first.starts_with(expected), "{first}");
    }
}

#[test]
fn retention_is_an_age_or_a_table() {
    let read = |fields: &str| job(&with(fields)).expect("a definition").retention;
    let short = read(r#"{"retention": "30d"}"#);
    assert_eq!(short, read(r#"{"retention": {"age": "30d"}}"#));
    assert_eq!(short.age.map(|age| age.to_string()).as_deref(), Some("30d"));
    let all = read(r#"{"retention": {"age": "30d", "runs": 100, "logs": "3d", "outputs": "30d"}}"#);
    assert_eq!(all.runs, Some(100));
    assert!(read("{}").is_empty());
    for (fields, says) in [
        (
            r#"{"retention": 7}"#,
            "retention: 7 given; an age such as \"30d\"",
        ),
        (r#"{"retention": "7"}"#, "write a number with a unit"),
        (
            r#"{"retention": "59s"}"#,
            "retention: \"59s\" is too short; at least 1m is expected",
        ),
        (
            r#"{"retention": {"age": "4000d"}}"#,
            "retention.age: \"4000d\" is too long; at most 3650d",
        ),
        (r#"{"retention": {"runs": 0}}"#, "retention.runs: 0"),
        (r#"{"retention": {"runs": 1000001}}"#, "1000000"),
        (r#"{"retention": {"days": 7}}"#, "retention.days"),
        (
            r#"{"retention": {"age": "3d", "logs": "4d"}}"#,
            "retention.logs: \"4d\" is longer than age (\"3d\")",
        ),
        (
            r#"{"retention": {"age": "3d", "outputs": "4d"}}"#,
            "retention.outputs",
        ),
    ] {
        let found = problems(fields).join("\n");
        assert!(found.contains(says), "{fields}: {found}");
    }
}

#[test]
fn limits_name_what_is_wrong() {
    let read = |fields: &str| job(&with(fields)).expect("a definition");
    let limited = read(
        r#"{"rate_limit": {"count": 10, "per": "second"}, "concurrency": {"key": "db-main", "limit": 3}}"#,
    );
    let rate = limited.rate_limit.expect("a rate");
    assert_eq!((rate.rate.count, rate.rate.per.as_str()), (10, "second"));
    assert_eq!(rate.key, None);
    let concurrency = limited.concurrency.expect("a limit");
    assert_eq!(
        (concurrency.key.as_str(), concurrency.limit),
        ("db-main", 3)
    );
    let shared = read(r#"{"rate_limit": {"count": 1, "per": "hour", "key": "mail"}}"#);
    let key = shared.rate_limit.and_then(|rate| rate.key);
    assert_eq!(key.as_deref(), Some("mail"));
    for (fields, says) in [
        (
            r#"{"rate_limit": 10}"#,
            "rate_limit: 10 given; a table such as { count = 10, per = \"second\" }",
        ),
        (
            r#"{"rate_limit": {"count": 10}}"#,
            "rate_limit.per: missing; the interval (second, minute or hour) is expected",
        ),
        (
            r#"{"rate_limit": {"per": "hour"}}"#,
            "rate_limit.count: missing; the number of dispatches is expected",
        ),
        (
            r#"{"rate_limit": {"count": 0, "per": "hour"}}"#,
            "rate_limit.count: 0 is out of range 1–1000000",
        ),
        (
            r#"{"rate_limit": {"count": 1, "per": "day"}}"#,
            "rate_limit.per: unknown interval \"day\"; expected one of second, minute, hour",
        ),
        (
            r#"{"rate_limit": {"count": 1, "per": "hour", "key": "a/b"}}"#,
            "rate_limit.key: \"a/b\" given; a name without '/' is expected",
        ),
        (
            r#"{"rate_limit": {"count": 1, "per": "hour", "burst": 3}}"#,
            "rate_limit.burst: unknown key",
        ),
        (
            r#"{"concurrency": 3}"#,
            "concurrency: 3 given; a table such as { key = \"db\", limit = 3 }",
        ),
        (
            r#"{"concurrency": {"limit": 3}}"#,
            "concurrency.key: missing; a name that jobs share is expected",
        ),
        (
            r#"{"concurrency": {"key": "db"}}"#,
            "concurrency.limit: missing; the number of attempts at work at the same time is expected",
        ),
        (
            r#"{"concurrency": {"key": "db", "limit": 1001}}"#,
            "concurrency.limit: 1001 is out of range 1–1000",
        ),
        (
            r#"{"concurrency": {"key": " db", "limit": 1}}"#,
            "concurrency.key: \" db\": ",
        ),
    ] {
        let found = problems(fields).join("\n");
        assert!(found.contains(says), "{fields}: {found}");
    }
}
