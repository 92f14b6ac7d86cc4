//! Wrong input ends with status 2 and a message that says what was given and what is expected. It never panics.

use crate::command::{Ended, Home};

#[track_caller]
fn assert_refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.status, 2, "{ended:#?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
    assert!(ended.stderr.starts_with("error: "), "{ended:#?}");
    for word in words {
        assert!(ended.stderr.contains(word), "no {word:?} in {ended:#?}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn wrong_arguments_are_named() {
    let home = Home::new();
    for (args, words) in [
        (&["jobs"][..], &["jobs", "similar"][..]),
        (&["job", "aply"], &["aply", "apply"]),
        (&["job", "apply"], &["--file"]),
        (&["job", "show"], &["<JOB>"]),
        (&["job", "show", "a b"], &["a b", "not allowed in a name"]),
        (&["job", "show", ""], &["must not be empty"]),
        (&["job", "next", "a", "-n", "0"], &["1..=1000"]),
        (&["job", "next", "a", "-n", "five"], &["five"]),
        (
            &["job", "next", "a", "--from", "noon"],
            &["noon", "2027-01-31T12:00:00Z"],
        ),
        (&["run", "show", "0"], &["<RUN>"]),
        (&["run", "show", "first"], &["first"]),
        (&["run", "list", "--state", "done"], &["done", "succeeded"]),
        (&["run", "list", "--limit", "1000001"], &["1..=1000000"]),
        (&["trigger", "a", "--at", "later"], &["later", "instant"]),
        (&["-o", "xml", "job", "list"], &["xml", "table", "json"]),
        (
            &["--url", "localhost", "job", "list"],
            &["localhost", "http://127.0.0.1:7800"],
        ),
        (&["--url", "ftp://a", "job", "list"], &["ftp://a", "http"]),
        (&["--url", "http://a?b", "job", "list"], &["query"]),
        (&["cron", "next"], &["<EXPRESSION>"]),
        (
            &["cron", "next", "61 * * * *"],
            &["minute 61 is out of range 0–59"],
        ),
        (&["cron", "next", "* * *"], &["* * *", "5"]),
        (
            &["cron", "next", "* * * * *", "--tz", "Europe/Berlim"],
            &["--tz", "Europe/Berlin"],
        ),
        (
            &["cron", "next", "* * * * *", "--dialect", "vixie"],
            &["vixie", "unix"],
        ),
        (&["import", "crontab", "none.crontab"], &["none.crontab"]),
        (&["import", "crontab", ".", "--dry-run"], &["not a file"]),
        (&["job", "list", "--watch", "0"], &["1..=86400"]),
        (
            &["user", "list", "--namespace", "team-a"],
            &["--namespace", "cueline user", "no namespace"],
        ),
        (
            &["namespace", "quota", "team-a", "--max-jobs", "many"],
            &["--max-jobs", "none for no limit"],
        ),
        (
            &["namespace", "quota", "team-a"],
            &["--max-jobs", "--delete"],
        ),
        (
            &["--namespace", "a", "login", "http://127.0.0.1:9"],
            &["--namespace", "--default-namespace"],
        ),
        (
            &["--namespace", "a b", "job", "list"],
            &["namespace: \"a b\""],
        ),
        (&["--context", "a/b", "job", "list"], &["context: ", "'/'"]),
        (
            &["--context", "none", "job", "list"],
            &["no context \"none\""],
        ),
        (
            &["login", "https://a.example", "--token", "x"],
            &["--token has no effect on login", "--token-file"],
        ),
        (
            &["login", "https://a.example", "--user", "b"],
            &["--password-file"],
        ),
        (
            &["user", "create", "a", "--grant", "viewr"],
            &["viewr", "did you mean"],
        ),
        (
            &["user", "change", "a", "--url", "http://127.0.0.1:9"],
            &["nothing to change"],
        ),
        (&["token", "create", "ci"], &["--grant"]),
        (&["completion", "tcsh"], &["tcsh", "bash"]),
        (
            &["standalone", "--context", "a"],
            &["--context is only for client commands"],
        ),
        (&["standalone", "--listen", "here"], &["--listen"]),
        (&["standalone", "--workers", "0"], &["--workers"]),
    ] {
        let ended = home.run(args);
        assert_refused(&ended, words);
    }
}

/// A definition with one thing changed; it begins on line 1, and `change` is line 4.
fn toml(change: &str) -> String {
    format!("[[job]]\nname = \"a\"\nhandler = {{ shell = \"true\" }}\n{change}\n")
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn job_files_are_refused_with_file_line_job_and_field() {
    let every = "schedule = { every = \"10s\" }\n";
    for (change, words) in [
        (
            "schedule = { cron = \"61 * * * *\" }",
            &["jobs.toml:4: job \"a\": schedule.cron: \"61 * * * *\": minute 61"][..],
        ),
        (
            "schedule = { cron = \"* * * * *\", timezone = \"Mars\" }",
            &["jobs.toml:4:", "schedule.timezone", "Mars"],
        ),
        (
            "schedule = { every = 10 }",
            &["jobs.toml:4:", "schedule.every", "10s"],
        ),
        (
            "schedule = { every = \"1ms\" }",
            &["jobs.toml:4:", "schedule.every"],
        ),
        (
            "schedule = { every = \"1s\", after = \"1s\" }",
            &["jobs.toml:4:", "schedule"],
        ),
        (
            "schedule = { evry = \"1s\" }",
            &["jobs.toml:4:", "evry", "every"],
        ),
        ("schedule = \"daily\"", &["jobs.toml:4:", "schedule"]),
        ("", &["jobs.toml:1:", "schedule", "missing"]),
        (
            &format!("{every}route = \"robin\""),
            &[
                "jobs.toml:5:",
                "route: unknown strategy \"robin\"; did you mean \"round\"?",
            ],
        ),
        (
            &format!("{every}block = \"parallel\""),
            &["jobs.toml:5:", "block"],
        ),
        (
            &format!("{every}priority = 10"),
            &["jobs.toml:5:", "priority", "9"],
        ),
        (
            &format!("{every}timeout = \"soon\""),
            &["jobs.toml:5:", "timeout", "10s"],
        ),
        (
            &format!("{every}retry = {{ max = -1 }}"),
            &["jobs.toml:5:", "retry.max"],
        ),
        (
            &format!("{every}enabled = \"yes\""),
            &["jobs.toml:5:", "enabled"],
        ),
        (
            &format!("{every}colour = \"red\""),
            &["jobs.toml:5:", "colour"],
        ),
        (
            &format!("{every}start_at = \"tomorrow\""),
            &["jobs.toml:5:", "start_at"],
        ),
        (
            &format!("{every}name = \"b\""),
            &["jobs.toml:5:", "TOML", "duplicate"],
        ),
        (
            &format!("{every}labels = {{ a = [] }}"),
            &["jobs.toml:5:", "labels.a"],
        ),
        (
            &format!("{every}[[job]]\nname = \"a\"\n{every}handler = {{ native = \"x\" }}"),
            &["jobs.toml:5:", "twice"],
        ),
        ("schedule = { every = ", &["jobs.toml:4:", "TOML"]),
    ] {
        let home = Home::new();
        home.write("jobs.toml", toml(change));
        let ended = home.run(&["job", "apply", "-f", "jobs.toml"]);
        assert_refused(&ended, words);
        assert!(
            ended.stderr.ends_with("nothing was applied\n"),
            "{ended:#?}"
        );
    }
}

#[test]
fn syntax_errors_of_each_format_are_named() {
    for (name, text, words) in [
        (
            "jobs.yaml",
            &b"job:\n  - name: a\n    schedule: {every: 10}\n"[..],
            &["jobs.yaml:3:", "schedule.every"][..],
        ),
        ("jobs.yml", b"job: [", &["jobs.yml:", "YAML"]),
        (
            "jobs.yaml",
            b"a: 1\n---\nb: 2\n",
            &["jobs.yaml:2:", "second document"],
        ),
        (
            "jobs.yaml",
            b"? [a]\n: b\n",
            &["jobs.yaml:1:", "keys are texts"],
        ),
        ("jobs.yaml", b"- a\n- b\n", &["jobs.yaml:1:", "list"]),
        (
            "jobs.json",
            b"{\"job\": [\n{\"name\": \"a\",}\n]}",
            &["jobs.json:2:", "JSON"],
        ),
        (
            "jobs.json",
            b"{\"job\": [\n{\"name\": 7}]}",
            &["jobs.json:2:", "name"],
        ),
        ("jobs.json", b"", &["jobs.json:1:", "JSON"]),
        (
            "jobs.txt",
            b"",
            &["jobs.txt", ".toml, .yaml, .yml or .json"],
        ),
        ("jobs", b"", &["jobs", ".toml"]),
        ("jobs.toml", b"a = \"\n\xff\"", &["jobs.toml:2:", "UTF-8"]),
        ("jobs.toml", b"jobz = 1", &["jobs.toml:1:", "jobz"]),
    ] {
        let home = Home::new();
        home.write(name, text);
        assert_refused(&home.run(&["job", "apply", "-f", name]), words);
    }
}

#[test]
fn files_that_cannot_be_read_are_named() {
    let home = Home::new();
    let large = home.write("large.toml", vec![b'#'; 4 * 1024 * 1024 + 1]);
    std::fs::create_dir(home.path().join("folder.toml")).expect("made");
    for (file, word) in [
        ("none.toml", "No such file"),
        ("folder.toml", "not a file"),
        (large.to_str().expect("text"), "4194304"),
        ("/dev/zero", "not a file"),
    ] {
        assert_refused(&home.run(&["job", "apply", "-f", file]), &[file, word]);
    }
}

#[test]
fn all_errors_of_all_files_are_listed_at_once() {
    let home = Home::new();
    home.write(
        "one.toml",
        toml("schedule = { every = \"x\" }\nroute = \"robin\""),
    );
    home.write(
        "two.yaml",
        "job:\n  - name: a\n    schedule: {every: 10s}\n    handler: {shell: x}\n",
    );
    home.write(
        "three.json",
        r#"{"job": [{"name": "a", "schedule": {"every": "10s"}, "handler": {"shell": "x"}}]}"#,
    );
    let ended = home.run(&[
        "job",
        "apply",
        "-f",
        "one.toml",
        "two.yaml",
        "-f",
        "three.json",
    ]);
    assert_refused(
        &ended,
        &[
            "one.toml:4:",
            "one.toml:5:",
            "three.json: job \"a\": name: given in two.yaml",
        ],
    );
    assert_eq!(ended.stderr.lines().count(), 4, "{ended:#?}");
}

#[test]
fn what_a_file_contains_does_not_control_the_terminal() {
    let home = Home::new();
    home.write(
        "jobs.json",
        r#"{"job": [{"name": "a\u001b[2J\u009b31m\u202e", "\u001b]0;title\u0007": 1}]}"#,
    );
    for (file, word) in [
        ("jobs.json", "not allowed in a name"),
        ("\u{1b}[2J\u{202e}.toml", "No such file"),
    ] {
        let ended = home.run(&["job", "apply", "-f", file]);
        assert_refused(&ended, &[word]);
        let harmful = |c: char| (c.is_control() && c != '\n') || c == '\u{202e}';
        assert!(!ended.stderr.contains(harmful), "{ended:#?}");
    }
}
