//! Contexts and logins: where a stored token goes, and where it never goes.

use std::io::{BufRead as _, BufReader};
use std::os::unix::fs::PermissionsExt as _;
use std::process::{Command, Stdio};

use serde_json::Value;

use crate::command::Home;
use crate::http::Recorder;

const SESSION: &str =
    r#"{"kind":"token","name":"ci","token":"0123456789abcdef","grants":[{"role":"viewer"}]}"#;
const NO_JOBS: &str = r#"{"jobs":[],"now":1}"#;

/// Answers as a server that accepts every token.
fn accepting() -> Recorder {
    Recorder::start(|line| {
        let body = if line.contains("/session") {
            SESSION
        } else if line.starts_with("DELETE") {
            "{}"
        } else {
            NO_JOBS
        };
        ("200 OK".to_owned(), body.to_owned())
    })
}

fn login(home: &Home, server: &Recorder, name: &str) {
    home.write("token", "the-stored-token\n");
    let args = [
        "login",
        &server.url,
        "--name",
        name,
        "--token-file",
        "token",
    ];
    let said = home.run(&args).good();
    assert!(said.contains(&format!("context {name}")), "{said}");
}

fn tokens_at(server: &Recorder) -> Vec<Option<String>> {
    let requests = server.requests();
    let tokens = requests
        .iter()
        .map(|request| request.header("authorization"));
    tokens.map(|token| token.map(str::to_owned)).collect()
}

#[test]
fn a_login_stores_a_token_that_only_its_owner_can_read() {
    let (home, server) = (Home::new(), accepting());
    login(&home, &server, "prod");
    let config = home.path().join(".config/cueline");
    for (path, expected) in [
        ("", 0o700),
        ("contexts.toml", 0o600),
        ("tokens", 0o700),
        ("tokens/prod.toml", 0o600),
    ] {
        let metadata = std::fs::metadata(config.join(path)).expect("it exists");
        assert_eq!(metadata.permissions().mode() & 0o777, expected, "{path}");
    }
    let book = std::fs::read_to_string(config.join("contexts.toml")).expect("a file");
    assert!(!book.contains("the-stored-token"), "{book}");
    home.run(&["job", "list"]).good();
    let sent = tokens_at(&server).pop().flatten();
    assert_eq!(sent.as_deref(), Some("Bearer the-stored-token"));
}

#[test]
fn a_stored_token_is_sent_to_the_address_of_its_context_only() {
    let (home, own, other) = (Home::new(), accepting(), accepting());
    login(&home, &own, "prod");
    home.run(&["--url", &other.url, "job", "list"]).good();
    assert_eq!(tokens_at(&other), [None]);

    let both = ["--context", "prod", "--url", &other.url, "job", "list"];
    let refused = home.run(&both);
    assert_eq!(refused.status, 2, "{refused:#?}");
    assert!(refused.stderr.contains("give only one"), "{refused:#?}");
    assert_eq!(other.requests().len(), 1);

    // The token stays bound to the address that it was stored for.
    let path = ".config/cueline/contexts.toml";
    let book = std::fs::read_to_string(home.path().join(path)).expect("a file");
    home.write(path, book.replace(&own.url, &other.url));
    home.run(&["job", "list"]).good();
    assert_eq!(tokens_at(&other), [None, None]);
}

#[test]
fn a_token_of_a_variable_goes_to_no_context_that_has_one() {
    let (home, own, other) = (Home::new(), accepting(), accepting());
    login(&home, &own, "prod");
    let run = |args: &[&str], url: Option<&str>| {
        let mut command = home.command(args);
        command.env("CUELINE_TOKEN", "the-variable");
        command.envs(url.map(|url| ("CUELINE_URL", url)));
        let output = command.output().expect("started");
        assert!(output.status.success(), "{args:?}: {output:?}");
    };
    let last_at = |server: &Recorder| tokens_at(server).pop().flatten();
    let list = ["job", "list"];
    for (args, url, server, expected) in [
        (&list[..], None, &own, "the-stored-token"),
        (
            &["--context", "prod", "job", "list"],
            None,
            &own,
            "the-stored-token",
        ),
        (&list, Some(&own), &own, "the-variable"),
        (&list, Some(&other), &other, "the-variable"),
        (
            &["job", "list", "--token", "the-flag"],
            None,
            &own,
            "the-flag",
        ),
    ] {
        run(args, url.map(|one: &Recorder| one.url.as_str()));
        let sent = last_at(server);
        assert_eq!(sent, Some(format!("Bearer {expected}")), "{args:?}");
    }
    // Without a token of its own, the context has the variable's.
    home.run(&["logout", "--keep"]).good();
    run(&list, None);
    assert_eq!(last_at(&own).as_deref(), Some("Bearer the-variable"));
}

#[test]
fn a_stored_token_does_not_follow_a_redirect() {
    let other = accepting();
    let place = format!("307 Temporary Redirect\r\nlocation: {}/", other.url);
    let own = Recorder::start(move |line| {
        let head = if line.contains("/session") {
            "200 OK"
        } else {
            &place
        };
        (head.to_owned(), SESSION.to_owned())
    });
    let home = Home::new();
    login(&home, &own, "prod");
    let ended = home.run(&["job", "list"]);
    assert_eq!(ended.status, 1, "{ended:#?}");
    assert!(other.requests().is_empty());
}

#[test]
fn a_stored_token_is_not_sent_to_another_machine_without_tls() {
    let home = Home::new();
    home.write("token", "the-stored-token");
    let plain = ["login", "http://192.0.2.1:9", "--token-file", "token"];
    let refused = home.run(&plain);
    assert_eq!(refused.status, 2, "{refused:#?}");
    assert!(refused.stderr.contains("--insecure-http"), "{refused:#?}");

    std::fs::create_dir_all(home.path().join(".config/cueline/tokens")).expect("made");
    let url = "http://192.0.2.1:9/";
    home.write(
        ".config/cueline/contexts.toml",
        format!("current = \"far\"\n[context.far]\nurl = \"{url}\"\n"),
    );
    home.write(
        ".config/cueline/tokens/far.toml",
        format!("url = \"{url}\"\ntoken = \"the-stored-token\"\n"),
    );
    let refused = home.run(&["job", "list"]);
    assert_eq!(refused.status, 2, "{refused:#?}");
    assert!(refused.stderr.contains("on the way"), "{refused:#?}");
    assert!(!refused.stderr.contains("the-stored-token"), "{refused:#?}");
    let refused = home.run(&["--token", "the-flag", "job", "list"]);
    assert_eq!(refused.status, 2, "{refused:#?}");
    assert!(refused.stderr.contains("on the way"), "{refused:#?}");
}

#[test]
fn a_login_by_password_creates_a_token_and_ends_its_session() {
    let server = Recorder::start(|line| {
        let answer = if line.contains("/login") {
            (
                "200 OK\r\nset-cookie: cueline_session=the-session; Path=/; HttpOnly",
                r#"{"user":{"name":"alice","display_name":"","login":"password","grants":[{"role":"author","scripts":true}],
                "enabled":true,"version":1,"created_at":1,"created_by":"setup","last_login_at":null},"csrf":"the-csrf"}"#,
            )
        } else if line.contains("/tokens") {
            (
                "201 Created",
                r#"{"id":"0123456789abcdef","token":"the-new-token"}"#,
            )
        } else if line.contains("/logout") {
            ("204 No Content", "")
        } else {
            ("200 OK", NO_JOBS)
        };
        (answer.0.to_owned(), answer.1.to_owned())
    });
    let home = Home::new();
    home.write("password", "correct horse battery\n");
    let args = [
        "login",
        &server.url,
        "--user",
        "alice",
        "--password-file",
        "password",
    ];
    let said = home.run(&args).good();
    assert!(said.contains("as user alice"), "{said}");
    home.run(&["job", "list"]).good();

    let requests = server.requests();
    let lines: Vec<_> = requests
        .iter()
        .map(|request| request.line.as_str())
        .collect();
    assert_eq!(
        lines[..3],
        [
            "POST /api/v1/login HTTP/1.1",
            "POST /api/v1/tokens HTTP/1.1",
            "POST /api/v1/logout HTTP/1.1",
        ]
    );
    let body: Value = serde_json::from_str(&requests[0].body).expect("JSON");
    assert_eq!(body["password"], "correct horse battery");
    let body: Value = serde_json::from_str(&requests[1].body).expect("JSON");
    assert_eq!(body["grants"][0]["role"], "author");
    for request in &requests[1..3] {
        assert_eq!(
            request.header("cookie"),
            Some("cueline_session=the-session")
        );
        assert_eq!(request.header("x-csrf-token"), Some("the-csrf"));
        assert_eq!(request.header("authorization"), None);
    }
    assert_eq!(
        requests[3].header("authorization"),
        Some("Bearer the-new-token")
    );
    assert_eq!(requests[3].header("cookie"), None);
}

#[test]
fn a_logout_revokes_the_token_and_forgets_it() {
    let (home, server) = (Home::new(), accepting());
    login(&home, &server, "prod");
    let said = home.run(&["logout"]).good();
    assert!(said.contains("revoked and forgotten"), "{said}");
    let last = server.requests().pop().expect("a request");
    assert_eq!(last.line, "DELETE /api/v1/tokens/0123456789abcdef HTTP/1.1");
    assert!(
        !home
            .path()
            .join(".config/cueline/tokens/prod.toml")
            .exists()
    );
    home.run(&["job", "list"]).good();
    assert_eq!(tokens_at(&server).pop(), Some(None));
}

#[test]
fn contexts_are_listed_chosen_renamed_and_deleted() {
    let (home, server) = (Home::new(), accepting());
    let none = home.run(&["context", "list"]).good();
    assert!(none.contains("cueline login URL"), "{none}");
    login(&home, &server, "one");
    login(&home, &server, "two");
    home.run(&["context", "use", "one"]).good();
    let list = home.run(&["context", "list", "-o", "json"]).good();
    let list: Value = serde_json::from_str(&list).expect("JSON");
    assert_eq!(list["contexts"][0]["name"], "one");
    assert_eq!(list["contexts"][0]["current"], true);
    assert_eq!(list["contexts"][1]["current"], false);

    home.run(&["context", "rename", "one", "three"]).good();
    let shown = home.run(&["context", "show"]).good();
    assert!(
        shown.contains("three") && shown.contains("stored"),
        "{shown}"
    );
    let taken = home.run(&["context", "rename", "three", "two"]);
    assert_eq!(taken.status, 2, "{taken:#?}");

    home.run(&["context", "delete", "three"]).good();
    let gone = home.run(&["--context", "three", "job", "list"]);
    assert_eq!(gone.status, 2, "{gone:#?}");
    assert!(gone.stderr.contains("no context \"three\""), "{gone:#?}");
    assert!(
        !home
            .path()
            .join(".config/cueline/tokens/three.toml")
            .exists()
    );
    // The chosen one is gone, and no other takes its place.
    assert_eq!(home.run(&["context", "show"]).status, 2);
}

#[test]
fn a_context_keeps_its_server() {
    let (home, one, other) = (Home::new(), accepting(), accepting());
    login(&home, &one, "prod");
    let args = [
        "login",
        &other.url,
        "--name",
        "prod",
        "--token-file",
        "token",
    ];
    let refused = home.run(&args);
    assert_eq!(refused.status, 2, "{refused:#?}");
    assert!(refused.stderr.contains("is for"), "{refused:#?}");
    assert!(other.requests().is_empty());
}

/// The path of the request that a command sends, with this value of `CUELINE_NAMESPACE`.
fn path_of(home: &Home, server: &Recorder, args: &[&str], namespace: Option<&str>) -> String {
    let mut command = home.command(args);
    command.envs(namespace.map(|name| ("CUELINE_NAMESPACE", name)));
    let output = command.output().expect("started");
    assert!(output.status.success(), "{args:?}: {output:?}");
    let last = server.requests().pop().expect("a request");
    let path = last.line.split_whitespace().nth(1).expect("a path");
    path.split('?').next().expect("a path").to_owned()
}

fn login_for(home: &Home, server: &Recorder, namespace: &str) {
    home.write("token", "the-stored-token\n");
    let args = [
        "login",
        &server.url,
        "--token-file",
        "token",
        "--default-namespace",
        namespace,
    ];
    home.run(&args).good();
}

#[test]
fn the_namespace_of_a_context_counts_unless_another_one_is_given() {
    let (home, server, other) = (Home::new(), accepting(), accepting());
    login_for(&home, &server, "billing");
    let path = |args: &[&str], variable| path_of(&home, &server, args, variable);
    let list = ["job", "list"];
    assert_eq!(path(&list, None), "/api/v1/namespaces/billing/jobs");
    assert_eq!(path(&list, Some("")), "/api/v1/namespaces/billing/jobs");
    assert_eq!(path(&list, Some("ops")), "/api/v1/namespaces/ops/jobs");
    let named = ["job", "list", "--namespace", "team-a"];
    assert_eq!(path(&named, Some("ops")), "/api/v1/namespaces/team-a/jobs");
    let default = ["job", "list", "--namespace", "default"];
    assert_eq!(path(&default, None), "/api/v1/jobs");
    assert_eq!(path(&["job", "list", "-A"], None), "/api/v1/jobs");

    let elsewhere = ["--url", &other.url, "job", "list"];
    assert_eq!(path_of(&home, &other, &elsewhere, None), "/api/v1/jobs");

    home.write("site.crontab", "@daily echo hello\n");
    let import = [
        "import",
        "crontab",
        "site.crontab",
        "--dry-run",
        "--tz",
        "UTC",
        "-o",
        "json",
    ];
    let found: Value = serde_json::from_str(&home.run(&import).good()).expect("JSON");
    assert_eq!(found["jobs"][0]["namespace"], "billing", "{found:#}");
}

#[test]
fn what_belongs_to_no_namespace_is_asked_for_without_that_of_the_context() {
    let (home, server) = (Home::new(), accepting());
    login_for(&home, &server, "billing");
    for (args, expected) in [
        (&["whoami"][..], "/api/v1/session"),
        (&["user", "list", "-o", "json"], "/api/v1/users"),
        (&["token", "list", "-o", "json"], "/api/v1/tokens"),
        (&["dlq", "list", "-A", "-o", "json"], "/api/v1/dead"),
        (&["namespace", "list", "-o", "json"], "/api/v1/namespaces"),
        (
            &["namespace", "show", "team-a", "-o", "json"],
            "/api/v1/namespaces/team-a/quota",
        ),
        (&["logout"], "/api/v1/tokens/0123456789abcdef"),
    ] {
        assert_eq!(path_of(&home, &server, args, Some("ops")), expected);
    }
}

#[test]
fn a_list_of_all_namespaces_is_shown_again_and_again() {
    let (home, server) = (Home::new(), accepting());
    let list = [
        "--url",
        server.url.as_str(),
        "job",
        "list",
        "-A",
        "--watch",
        "1",
        "-o",
        "json",
    ];
    let mut child = home
        .command(&list)
        .stdout(Stdio::piped())
        .spawn()
        .expect("started");
    let stdout = BufReader::new(child.stdout.take().expect("piped"));
    let mut lines = stdout.lines().map_while(Result::ok);
    // The last line of each answer.
    let ends = lines.by_ref().filter(|line| line == "}");
    assert_eq!(ends.take(2).count(), 2);
    let pid = child.id().to_string();
    let killed = Command::new("kill").args(["-INT", &pid]).status();
    assert!(killed.expect("started").success());
    assert_eq!(child.wait().expect("ended").code(), Some(0));
    for request in server.requests() {
        let line = &request.line;
        assert!(line.starts_with("GET /api/v1/jobs?"), "{line}");
        assert!(line.contains("all_namespaces=true"), "{line}");
    }
}

#[test]
fn a_damaged_file_stops_commands_that_depend_on_it() {
    let home = Home::new();
    std::fs::create_dir_all(home.path().join(".config/cueline")).expect("made");
    home.write(".config/cueline/contexts.toml", "current = ");
    let ended = home.run(&["job", "list"]);
    assert_eq!(ended.status, 2, "{ended:#?}");
    assert!(
        ended.stderr.contains("contexts.toml: is not TOML"),
        "{ended:#?}"
    );
    let server = accepting();
    let ended = home.run(&["--url", &server.url, "job", "list"]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    assert!(ended.stderr.starts_with("warning: "), "{ended:#?}");
}
