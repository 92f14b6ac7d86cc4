//! Configuration of the roles: precedence, origins and errors.

use std::collections::BTreeMap;

use serde_json::Value;

use crate::command::{Ended, Home};

const WORKER: &str = "\
broker = \"nats://cueline:secret@mq:4222\"

[worker]
allow = [\"shell\"]
trust = [\"trusted.keys\"]
concurrency = 8
";

/// A home with a signing key, its public half and a token.
fn home() -> Home {
    let home = Home::new();
    let public = home.run(&["key", "new", "--out", "signing.key"]).good();
    home.write("trusted.keys", public);
    home.run(&["token", "new", "--out", "admin.token"]).good();
    home
}

fn with(home: &Home, variables: &[(&str, &str)], args: &[&str]) -> Ended {
    let output = home
        .command(args)
        .envs(variables.iter().copied())
        .output()
        .expect("started");
    Ended {
        status: output.status.code().unwrap_or(-1),
        stdout: String::from_utf8(output.stdout).expect("text"),
        stderr: String::from_utf8(output.stderr).expect("text"),
    }
}

fn json(ended: Ended) -> Value {
    serde_json::from_str(&ended.good()).expect("JSON")
}

#[test]
fn flags_come_before_variables_before_the_file_before_defaults() {
    let home = home();
    home.write("c.toml", WORKER);
    let variables = [("CUELINE_CONCURRENCY", "9"), ("CUELINE_GROUP", "blue")];
    let args = [
        "config", "check", "-o", "json", "worker", "--config", "c.toml", "--group", "green",
    ];
    let checked = json(with(&home, &variables, &args));
    let of = |key: &str| {
        let one = &checked["roles"]["worker"][key];
        (
            one["value"].as_str().unwrap_or("").to_owned(),
            one["from"].as_str().unwrap_or("").to_owned(),
        )
    };
    let is = |value: &str, from: &str| (value.to_owned(), from.to_owned());
    assert_eq!(of("group"), is("green", "--group"));
    assert_eq!(of("concurrency"), is("9", "CUELINE_CONCURRENCY"));
    assert_eq!(of("allow"), is("shell", "c.toml:4"));
    assert_eq!(of("drain_timeout"), is("30s", "default"));
    assert_eq!(of("broker"), is("nats://cueline:***@mq:4222", "c.toml:1"));
}

#[test]
fn each_setting_is_shown_once_and_no_secret_is() {
    let home = home();
    home.write("url", "postgres://cueline:hush@db/cueline\n");
    let variables = [("CUELINE_TOKEN", "hush-hush-hush-hush")];
    for (role, args, keys) in [
        (
            "scheduler",
            &[
                "--store-file",
                "url",
                "--broker",
                "amqp://u:hush@mq",
                "--signing-key",
                "signing.key",
            ][..],
            &["store", "store_file", "token", "signing_key", "no_migrate"][..],
        ),
        (
            "worker",
            &[
                "--broker",
                "nats://hush@mq",
                "--allow",
                "http",
                "--trust",
                "trusted.keys",
            ],
            &[
                "state_dir",
                "worker_key",
                "enrol_token_file",
                "name",
                "health",
            ],
        ),
        ("standalone", &[], &["store", "broker_file", "jobs", "data"]),
    ] {
        let args = [&["config", "check", role], args].concat();
        let text = with(&home, &variables, &args).good();
        assert!(!text.contains("hush"), "{text}");
        let mut counts: BTreeMap<&str, u32> = BTreeMap::new();
        for line in text.lines().skip(2) {
            *counts
                .entry(line.split_whitespace().next().expect("a key"))
                .or_default() += 1;
        }
        assert!(counts.values().all(|n| *n == 1), "{text}");
        for key in keys {
            assert!(counts.contains_key(key), "{key}: {text}");
        }
    }
}

#[test]
fn without_a_role_each_section_is_checked() {
    let home = home();
    home.write(
        "c.toml",
        format!("{WORKER}[standalone]\nlisten = \"nowhere\"\n"),
    );
    let ended = home.run(&["config", "check", "--config", "c.toml"]);
    assert_eq!(ended.status, 2, "{ended:#?}");
    assert!(ended.stdout.contains("[worker]\n") && ended.stdout.contains("[standalone]\n"));
    assert!(
        ended
            .stderr
            .contains("c.toml:8: standalone.listen: \"nowhere\""),
        "{ended:#?}"
    );
    let none = home.run(&["config", "check"]);
    assert_eq!(none.status, 2, "{none:#?}");
    assert!(
        none.stderr.contains("standalone, scheduler or worker"),
        "{none:#?}"
    );
}

#[test]
fn settings_of_other_roles_in_the_environment_are_ignored() {
    let home = home();
    let variables = [
        ("CUELINE_STORE", "postgres://db/cueline"),
        ("CUELINE_SIGNING_KEY", "elsewhere"),
        ("CUELINE_SCHEDULER_SERVICE_PORT", "7800"),
        ("CUELINE_GROUP", ""),
        ("CUELINE_BROKER", "nats://mq"),
    ];
    let args = [
        "config",
        "check",
        "worker",
        "--allow",
        "http",
        "--trust",
        "trusted.keys",
    ];
    with(&home, &variables, &args).good();
}

/// A valid scheduler, of which a test spoils one setting.
const SCHEDULER: [&str; 9] = [
    "scheduler",
    "--store",
    "sqlite:s.db",
    "--broker",
    "nats://mq",
    "--token-file",
    "admin.token",
    "--signing-key",
    "signing.key",
];

#[track_caller]
fn assert_refused(ended: &Ended, words: &[&str]) {
    assert_eq!(ended.status, 2, "{ended:#?}");
    assert!(!ended.stderr.contains("panicked"), "{ended:#?}");
    assert!(!ended.stderr.contains("secret@"), "{ended:#?}");
    for word in words {
        assert!(ended.stderr.contains(word), "no {word:?} in {ended:#?}");
    }
}

#[test]
#[expect(clippy::too_many_lines, reason = "a table of cases")]
fn wrong_flags_are_named_with_what_is_expected() {
    let home = home();
    home.write("short.token", "short");
    home.write("empty", "\n");
    home.write("spaced.token", "a token with spaces in it");
    for (args, words) in [
        (
            &["--listen", "here"][..],
            &["--listen: \"here\" given", "127.0.0.1:7800"][..],
        ),
        (&["--keep", "long"], &["--keep: \"long\" given", "7d"]),
        (
            &["--name", "a b"],
            &["--name: \"a b\" given", "not allowed in a name"],
        ),
        (
            &["--store", "mysql://u:secret@h/d"],
            &["--store: mysql://u:***@h/d", "postgres://"],
        ),
        (
            &["--store", "postgre://h/d"],
            &["did you mean \"postgres\"?"],
        ),
        (
            &["--store", "postgres://u:pass/secret@h"],
            &["--store: postgres://u:***@h", "%XX"],
        ),
        (&["--store", "sqlite:"], &["--store", "sqlite:PATH"]),
        (
            &["--store", "here"],
            &["--store", "postgres://user:password@host:5432/database"],
        ),
        (
            &["--broker", "embedded:q.db"],
            &["--broker", "cueline standalone", "nats://"],
        ),
        (
            &["--broker", "redis://h"],
            &["--broker", "\"redis\"", "amqp://"],
        ),
        (&["--broker", "nats://"], &["--broker", "nats://"]),
        (&["--broker-prefix", "a b"], &["--broker-prefix", "letters"]),
        (
            &["--broker-replicas", "many"],
            &["--broker-replicas: \"many\"", "1..=9"],
        ),
        (
            &["--broker-ca", "none.pem"],
            &["--broker-ca", "none.pem", "No such file"],
        ),
        (
            &["--broker-certificate", "signing.key"],
            &["broker_key: missing"],
        ),
        (&["--tls-cert", "signing.key"], &["tls_key: missing"]),
        (&["--tls-key", "signing.key"], &["tls_cert: missing"]),
        (
            &["--tls-client-ca", "signing.key"],
            &["tls_cert: missing", "tls_client_ca needs it"],
        ),
        (
            &["--tls-cert", "signing.key", "--tls-key", "signing.key"],
            &["--tls-cert: signing.key: holds no certificate"],
        ),
        (
            &["--tls-cert", "none.pem", "--tls-key", "signing.key"],
            &["--tls-cert", "none.pem", "No such file"],
        ),
        (
            &["--oidc-client-id", "x"],
            &["oidc_issuer: missing", "oidc_client_id needs it"],
        ),
        (
            &["--oidc-issuer", "https://id.example.com"],
            &["oidc_client_id: missing", "oidc_redirect_url: missing"],
        ),
        (
            &["--oidc-issuer", "http://id.example.com"],
            &["--oidc-issuer: \"http://id.example.com\"", "it has no TLS"],
        ),
        (
            &["--oidc-redirect-url", "https://cueline.example.com/x"],
            &["--oidc-redirect-url", "/api/v1/login/oidc/callback"],
        ),
        (
            &["--oidc-scopes", "openid profile"],
            &["--oidc-scopes: \"openid profile\"", "comma"],
        ),
        (
            &["--oidc-grants", "none.toml"],
            &["--oidc-grants", "none.toml", "No such file"],
        ),
        (
            &["--token-file", "none"],
            &["--token-file", "none", "No such file"],
        ),
        (
            &["--token-file", "short.token"],
            &["--token-file: short.token", "at least 16"],
        ),
        (
            &["--token-file", "spaced.token"],
            &["--token-file", "white space"],
        ),
        (&["--token-file", "empty"], &["--token-file", "is empty"]),
        (
            &["--signing-key", "trusted.keys"],
            &["--signing-key: trusted.keys: is a public key"],
        ),
        (
            &["--signing-key", "admin.token"],
            &["--signing-key", "cueline key new"],
        ),
        (
            &["--store-file", "s"],
            &["--store-file", "give one of them"],
        ),
        (&["--config", "none.toml"], &["none.toml", "No such file"]),
        (&["--lisen", "127.0.0.1:1"], &["--lisen", "--listen"]),
        (&["--token", "x"], &["--token", "--token-file"]),
        (&["--url", "http://h"], &["--url", "--listen"]),
        (&["--ca-file", "x"], &["--ca-file", "--tls-client-ca"]),
        (&["-o", "json"], &["--output", "--log-json"]),
    ] {
        // The last of two would be refused by the command line itself.
        let flag = args[0];
        let mut all: Vec<&str> = SCHEDULER.to_vec();
        if let Some(at) = all.iter().position(|a| *a == flag) {
            all.drain(at..at + 2);
        }
        all.extend(args);
        assert_refused(&home.run(&all), words);
    }
}

#[test]
fn all_missing_settings_are_reported_at_once() {
    let home = home();
    assert_refused(
        &home.run(&["scheduler"]),
        &[
            "store: missing; give --store URL, CUELINE_STORE or store in the section [scheduler]",
            "broker: missing",
            "token_file: missing",
            "cueline token new",
            "signing_key: missing",
            "cueline key new",
            "nothing was started",
        ],
    );
    assert_refused(
        &home.run(&["worker"]),
        &[
            "broker: missing",
            "allow: missing",
            "would run nothing",
            "trust: missing",
        ],
    );
    let nothing = [
        "worker",
        "--broker",
        "nats://mq",
        "--trust",
        "trusted.keys",
        "--allow",
        "",
    ];
    assert_refused(
        &home.run(&nothing),
        &["allow: missing", "shell, command, http"],
    );
}

#[test]
fn a_group_may_have_a_signing_key_of_its_own() {
    let home = home();
    home.run(&["key", "new", "--out", "billing.key"]).good();
    let check = |output: &str, keys: &[&str]| {
        let mut args = vec!["config", "check", "-o", output, "scheduler"];
        args.extend(["--store", "sqlite:s.db", "--broker", "nats://mq"]);
        args.extend(["--token-file", "admin.token"]);
        for key in keys {
            args.extend(["--signing-key", key]);
        }
        home.run(&args)
    };
    let both = check("json", &["signing.key", "billing=billing.key"]);
    let both = json(both)["roles"]["scheduler"]["signing_key"]["value"].take();
    assert_eq!(both, "signing.key,billing=billing.key");
    let one_file = ["signing.key", "billing=billing.key", "sales=billing.key"];
    check("json", &one_file).good();
    for (keys, words) in [
        (
            &["billing=billing.key"][..],
            &[
                "--signing-key: \"billing=billing.key\" given",
                "for all other groups",
            ][..],
        ),
        (
            &["signing.key", "billing.key"],
            &[
                "--signing-key: \"billing.key\" given",
                "for all groups without",
            ],
        ),
        (
            &["signing.key", "a=billing.key", "a=signing.key"],
            &[
                "--signing-key: \"a=signing.key\" given",
                "another key for the group a",
            ],
        ),
        (
            &["signing.key", "a=trusted.keys"],
            &["--signing-key: trusted.keys: is a public key"],
        ),
        (
            &["signing.key", "a=none.key"],
            &["--signing-key: none.key: failed to read"],
        ),
    ] {
        assert_refused(&check("table", keys), words);
    }
}

#[test]
fn wrong_keys_and_kinds_of_workers_are_named() {
    let home = home();
    let secret = std::fs::read_to_string(home.path().join("signing.key")).expect("a key");
    home.write("bad.keys", "# ours\ncueline-public-key:AAAA\n");
    home.write("no.keys", "# nothing yet\n");
    for (args, words) in [
        (
            &["--allow", "shel"][..],
            &["--allow: unknown kind \"shel\"; did you mean \"shell\"?"][..],
        ),
        (&["--allow", "python"], &["--allow", "shell, command, http"]),
        (&["--trust", "signing.key"], &["--trust", "is a secret key"]),
        (&["--trust", secret.trim()], &["--trust", "is a secret key"]),
        (
            &["--trust", "bad.keys"],
            &["--trust: bad.keys:2: is not a public key"],
        ),
        (&["--trust", "no.keys"], &["trust: missing"]),
        (
            &["--trust", "cueline-public-key:x"],
            &["--trust", "cueline key public"],
        ),
        (
            &["--concurrency", "0"],
            &["--concurrency: \"0\"", "1..=10000"],
        ),
        (&["--concurrency", "ten"], &["--concurrency: \"ten\""]),
        (&["--drain-timeout", "30"], &["--drain-timeout: \"30\""]),
        (
            &["--health", "8080"],
            &["--health: \"8080\"", "127.0.0.1:7800"],
        ),
        (
            &["--fence-after", "26s"],
            &["fence_after: 26s given", "at most 25s"],
        ),
        (
            &["--failover-after", "2s"],
            &["--failover-after: \"2s\"", "at least 3s"],
        ),
        (&["--group", ""], &["--group", "must not be empty"]),
    ] {
        let mut all = vec!["worker", "--broker", "nats://mq"];
        for (flag, value) in [("--allow", "http"), ("--trust", "trusted.keys")] {
            if args[0] != flag {
                all.extend([flag, value]);
            }
        }
        all.extend(args);
        let ended = home.run(&all);
        assert_refused(&ended, words);
        let key = secret.trim().trim_start_matches("cueline-secret-key:");
        assert!(!ended.stderr.contains(key), "{ended:#?}");
    }
}

#[test]
fn wrong_networks_and_places_of_secrets_are_named() {
    let home = home();
    let worker = [
        "worker",
        "--broker",
        "nats://mq",
        "--allow",
        "http",
        "--trust",
        "trusted.keys",
    ];
    let cases: [(&[&str], &[&str]); 3] = [
        (
            &[
                "--secrets-dir",
                "no-such",
                "--secrets-command",
                "trusted.keys",
            ],
            &[
                "--secrets-dir: \"no-such\" given; failed to find it",
                "--secrets-command: \"trusted.keys\" given; an absolute path is expected",
            ],
        ),
        (
            &["--secrets-dir", "trusted.keys"],
            &["--secrets-dir: \"trusted.keys\" given; it is not a directory"],
        ),
        (
            &[
                "--http-allow",
                "10.0.0.0/8,10.0.0.1/8",
                "--http-deny",
                "db.internal",
            ],
            &[
                "--http-allow: \"10.0.0.1/8\" given: the address has bits beyond the prefix; 10.0.0.0/8 is expected",
                "--http-deny: \"db.internal\" given; a network such as 10.0.0.0/8",
            ],
        ),
    ];
    for (args, words) in cases {
        assert_refused(&home.run(&[&worker[..], args].concat()), words);
    }
}

#[test]
fn wrong_variables_are_named() {
    let home = home();
    for (name, value, words) in [
        (
            "CUELINE_LISTEN",
            "here",
            &["CUELINE_LISTEN: \"here\" given"][..],
        ),
        (
            "CUELINE_LOG_JSON",
            "yes",
            &["CUELINE_LOG_JSON: \"yes\"", "true or false"],
        ),
        (
            "CUELINE_CONFIG",
            "none.toml",
            &["none.toml", "No such file"],
        ),
        (
            "CUELINE_START_TIMEOUT",
            "soon",
            &["CUELINE_START_TIMEOUT: \"soon\""],
        ),
    ] {
        assert_refused(&with(&home, &[(name, value)], &SCHEDULER), words);
    }
}

#[test]
fn unknown_variables_are_warnings() {
    let home = home();
    // What Kubernetes sets in every container for a Service called cueline, and two slips.
    let variables = [
        ("CUELINE_SERVICE_HOST", "10.0.0.1"),
        ("CUELINE_SERVICE_PORT_HTTP", "7800"),
        ("CUELINE_PORT", "tcp://10.0.0.1:7800"),
        ("CUELINE_PORT_7800_TCP_ADDR", "10.0.0.1"),
        ("CUELINE_STORRE", "x"),
        ("CUELINE_COLOUR", "x"),
    ];
    let args = [&["config", "check"], &SCHEDULER[..]].concat();
    let ended = with(&home, &variables, &args);
    assert_eq!(ended.status, 0, "{ended:#?}");
    let slip =
        "warning: CUELINE_STORRE: unknown variable, ignored; did you mean \"CUELINE_STORE\"?";
    assert!(ended.stderr.contains(slip), "{ended:#?}");
    let others = "warning: CUELINE_COLOUR, CUELINE_PORT, CUELINE_PORT_7800_TCP_ADDR, CUELINE_SERVICE_HOST, CUELINE_SERVICE_PORT_HTTP: unknown variables, ignored; docs/configuration.md";
    assert!(ended.stderr.contains(others), "{ended:#?}");
}

#[test]
fn wrong_files_are_named_with_line_and_key() {
    for (text, words) in [
        (
            "[scheduler]\nlisten = \"here\"",
            &["c.toml:2: scheduler.listen: \"here\" given"][..],
        ),
        (
            "[scheduler]\nlisten = 7800",
            &["c.toml:2: scheduler.listen: the number 7800 given; a text"],
        ),
        (
            "[scheduler]\nlog_json = \"yes\"",
            &["c.toml:2: scheduler.log_json: a text given; true or false"],
        ),
        (
            "[scheduler]\nlisen = \"x\"",
            &["c.toml:2: scheduler.lisen: unknown key; did you mean \"listen\"?"],
        ),
        (
            "[scheduler]\ncolour = \"x\"",
            &["c.toml:2: scheduler.colour: unknown key; expected one of store,"],
        ),
        (
            "[scheduler]\nallow = [\"shell\"]",
            &[
                "c.toml:2: scheduler.allow: a scheduler has no such key; it belongs in [standalone] or [worker]",
            ],
        ),
        (
            "[worker]\nallow = \"shell\"",
            &["c.toml:2: worker.allow: a text given; a list"],
        ),
        ("[worker]\nallow = [1]", &["c.toml:2: worker.allow"]),
        (
            "[worker]\nconcurrency = \"8\"",
            &["c.toml:2: worker.concurrency: a text given; a whole number"],
        ),
        (
            "[shceduler]\nlisten = \"x\"",
            &["c.toml:1: shceduler: unknown key; did you mean \"scheduler\"?"],
        ),
        (
            "scheduler = 1",
            &["c.toml:1: scheduler: the number 1 given; a section [scheduler]"],
        ),
        (
            "lisen = \"x\"",
            &["c.toml:1: lisen: unknown key; did you mean \"listen\"?"],
        ),
        (
            "store = \"nats://u:secret@h\"",
            &["c.toml:1: store: nats://u:***@h"],
        ),
        (
            "[scheduler]\nkeep = \"7d\"\nkeep = \"8d\"",
            &["c.toml:3:", "TOML", "duplicate"],
        ),
        ("[scheduler", &["c.toml:1:", "TOML"]),
    ] {
        let home = home();
        home.write("c.toml", text);
        let mut args: Vec<&str> = SCHEDULER.to_vec();
        args.extend(["--config", "c.toml"]);
        if text.starts_with("store") {
            args.drain(1..3);
        }
        assert_refused(&home.run(&args), words);
    }
}

#[test]
fn a_secret_that_others_can_read_is_a_warning() {
    use std::os::unix::fs::PermissionsExt as _;
    let home = home();
    let open = std::fs::Permissions::from_mode(0o644);
    std::fs::set_permissions(home.path().join("admin.token"), open).expect("set");
    let ended = home.run(&[&["config", "check"], &SCHEDULER[..]].concat());
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(
        ended.stderr.contains("warning: admin.token: others"),
        "{ended:#?}"
    );
    assert!(ended.stderr.contains("chmod 600"), "{ended:#?}");
}
