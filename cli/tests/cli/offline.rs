//! Commands that need no server.

use std::process::Stdio;

use crate::command::Home;

#[test]
fn the_help_names_every_command() {
    let home = Home::new();
    let help = home.run(&["--help"]).good();
    for command in [
        "job",
        "trigger",
        "run",
        "events",
        "executor",
        "queue",
        "dlq",
        "namespace",
        "audit",
        "import",
        "cron",
        "doctor",
        "health",
        "standalone",
        "scheduler",
        "worker",
        "migrate",
        "config",
        "key",
        "token",
        "login",
        "logout",
        "whoami",
        "context",
        "user",
        "setup",
        "worker-key",
        "openapi",
        "completion",
        "man",
        "bench",
    ] {
        assert!(
            help.lines().any(|l| l.trim_start().starts_with(command)),
            "{command}\n{help}"
        );
    }
    for command in [
        "apply", "diff", "list", "show", "next", "pause", "resume", "delete", "history", "restore",
    ] {
        let help = home.run(&["job", command, "--help"]).good();
        assert!(help.contains("Usage: cueline job"), "{help}");
    }
    assert!(home.run(&["--version"]).good().starts_with("cueline 0."));
    let nothing = home.run(&[]);
    assert_eq!(nothing.status, 2);
    assert!(nothing.stderr.contains("Usage: cueline"), "{nothing:?}");
}

#[test]
fn the_help_does_not_show_the_token() {
    let home = Home::new();
    let output = home
        .command(&["--help"])
        .env("CUELINE_TOKEN", "a-secret-token")
        .output()
        .expect("started");
    assert!(!String::from_utf8_lossy(&output.stdout).contains("a-secret-token"));
}

#[test]
fn cron_next_shows_local_times_around_a_change_of_clocks() {
    let home = Home::new();
    let args = [
        "cron",
        "next",
        "30 2 * * *",
        "--tz",
        "Europe/Berlin",
        "--from",
        "2027-03-27T00:00:00Z",
        "-n",
        "3",
    ];
    assert_eq!(
        home.run(&args).good(),
        "Sat 2027-03-27 02:30:00 +01:00\n\
         Sun 2027-03-28 03:00:00 +02:00\n\
         Mon 2027-03-29 02:30:00 +02:00\n"
    );
    let json = home.run(&[&args[..], &["-o", "json"]].concat()).good();
    let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
    assert_eq!(json["times"][0], 1_806_111_000_000_i64);
}

#[test]
fn a_closed_output_is_no_failure() {
    let home = Home::new();
    let mut child = home
        .command(&["cron", "next", "* * * * *", "-n", "1000"])
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .spawn()
        .expect("started");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ended");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), ""));
}

const CRONTAB: &str = "\
# made up
MAILTO=ops@example.org
30 2 * * * /usr/local/bin/backup --all
61 * * * * /bin/false
@daily echo hello
";

#[test]
fn a_crontab_is_read_line_by_line() {
    let home = Home::new();
    home.write("site.crontab", CRONTAB);
    let args = [
        "import",
        "crontab",
        "site.crontab",
        "--dry-run",
        "--tz",
        "Europe/Berlin",
    ];
    let ended = home.run(&args);
    assert_eq!(ended.status, 2, "{ended:#?}");
    assert!(ended.stdout.contains("site.crontab:3: job "), "{ended:#?}");
    assert!(
        ended.stdout.contains("02:30 every day, Europe/Berlin"),
        "{ended:#?}"
    );
    assert!(ended.stdout.contains("site.crontab:5: job "), "{ended:#?}");
    assert!(
        ended.stdout.ends_with("nothing was applied: dry run\n"),
        "{ended:#?}"
    );
    assert!(
        ended.stderr.contains("refused: site.crontab:4: "),
        "{ended:#?}"
    );
    assert!(
        ended.stderr.contains("1 of 3 lines were refused"),
        "{ended:#?}"
    );

    let json = home.run(&[&args[..], &["-o", "json"]].concat());
    let json: serde_json::Value = serde_json::from_str(&json.stdout).expect("JSON");
    assert_eq!(json["jobs"].as_array().map(Vec::len), Some(2), "{json:#}");
    assert_eq!(json["refused"][0]["place"], "site.crontab:4", "{json:#}");
}

#[test]
fn an_unreachable_server_is_reported_with_a_hint() {
    let home = Home::new();
    // Nothing listens there. A port that the system picks could be given to the server of another test meanwhile.
    let url = "http://127.0.0.1:9";
    for args in [
        &["job", "list"][..],
        &["run", "show", "1"],
        &["trigger", "a"],
        &["executor", "list"],
        &["health"],
    ] {
        let ended = home.run(&[&["--url", url], args].concat());
        assert_eq!(ended.status, 1, "{ended:#?}");
        assert!(ended.stderr.contains(url), "{ended:#?}");
        assert!(ended.stderr.contains("cueline standalone"), "{ended:#?}");
    }
    let doctor = home.run(&["--url", url, "doctor"]);
    assert_eq!(doctor.status, 1, "{doctor:#?}");
    assert!(doctor.stdout.contains("bad  server"), "{doctor:#?}");
}

#[test]
fn a_damaged_discovery_file_is_a_warning_only() {
    let home = Home::new();
    std::fs::create_dir(home.path().join("cueline")).expect("made");
    home.write("cueline/server.json", "{");
    let ended = home.run(&["--url", "http://127.0.0.1:9", "job", "list"]);
    assert!(ended.stderr.starts_with("warning: "), "{ended:#?}");
    assert_eq!(ended.status, 1, "{ended:#?}");
}
