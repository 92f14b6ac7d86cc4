//! Commands against a standalone server of the same binary.

use std::io::{BufRead, BufReader, ErrorKind};
use std::net::TcpListener;
use std::os::unix::fs::PermissionsExt as _;
use std::path::Path;
use std::process::{Child, Command, Stdio};

use serde_json::Value;

use crate::command::Home;
use crate::http::Recorder;

pub(crate) const START: [&str; 5] = ["standalone", "--listen", "127.0.0.1:0", "--data", "data"];

/// A standalone server; killed when dropped.
pub(crate) struct Server {
    child: Child,
    pub(crate) home: Home,
}

impl Server {
    pub(crate) fn start() -> Self {
        Self::start_with(&[])
    }

    fn start_with(variables: &[(&str, &str)]) -> Self {
        let home = Home::new();
        let mut command = home.command(&START);
        command.envs(variables.iter().copied());
        Self::start_by(command, home)
    }

    pub(crate) fn start_by(mut command: Command, home: Home) -> Self {
        let mut child = command.stdout(Stdio::piped()).spawn().expect("started");
        let stdout = child.stdout.take().expect("piped");
        // It prints its token file when it is ready. If it ends instead, so does its output.
        let ready = BufReader::new(stdout)
            .lines()
            .map_while(Result::ok)
            .any(|line| line.starts_with("token"));
        assert!(ready, "the server ended: {:?}", child.wait());
        Self { child, home }
    }

    pub(crate) fn run(&self, args: &[&str]) -> crate::command::Ended {
        self.home.run(args)
    }

    pub(crate) fn apply(&self, jobs: &str) -> String {
        self.home.write("jobs.toml", jobs);
        self.run(&["job", "apply", "-f", "jobs.toml"]).good()
    }

    fn json(&self, args: &[&str]) -> Value {
        let text = self.run(&[args, &["-o", "json"]].concat()).good();
        serde_json::from_str(&text).expect("JSON")
    }
}

impl Server {
    fn json_file(&self, name: &str) -> Value {
        let text = std::fs::read(self.home.path().join(name)).expect("a file");
        serde_json::from_slice(&text).expect("JSON")
    }

    /// The port of its API, from its announcement.
    pub(crate) fn port(&self) -> u16 {
        let announced = self.json_file("cueline/server.json");
        let url = announced["url"].as_str().expect("an address");
        let port = url.rsplit(':').next().expect("a port");
        port.parse().expect("a number")
    }
}

/// The modes of everything below `folder`, with the path.
fn modes(folder: &Path) -> Vec<(String, u32)> {
    let mut found = Vec::new();
    for entry in std::fs::read_dir(folder).expect("a folder") {
        let path = entry.expect("an entry").path();
        let metadata = std::fs::symlink_metadata(&path).expect("it exists");
        let mode = metadata.permissions().mode() & 0o777;
        found.push((path.display().to_string(), mode));
        if metadata.is_dir() {
            found.extend(modes(&path));
        }
    }
    found
}

impl Drop for Server {
    fn drop(&mut self) {
        // By SIGTERM, so that its children end with it.
        let pid = self.child.id().to_string();
        let _ = Command::new("kill").args(["-TERM", &pid]).status();
        let _ = self.child.wait();
    }
}

const JOBS: &str = r#"
[[job]]
name = "hello"
schedule = { manual = true }
handler = { shell = "echo hello $1; echo oops >&2" }

[[job]]
name = "broken"
schedule = { manual = true }
handler = { shell = "exit 3" }

[[job]]
name = "nightly"
schedule = { cron = "30 2 * * *", timezone = "Europe/Berlin" }
handler = { command = ["true"] }
"#;

#[test]
fn a_server_starts_with_the_variables_of_a_kubernetes_service_called_cueline() {
    let server = Server::start_with(&[
        ("CUELINE_SERVICE_HOST", "10.0.0.1"),
        ("CUELINE_SERVICE_PORT", "7800"),
        ("CUELINE_PORT", "tcp://10.0.0.1:7800"),
        ("CUELINE_PORT_7800_TCP", "tcp://10.0.0.1:7800"),
    ]);
    server.run(&["job", "list"]).good();
}

#[test]
fn jobs_are_applied_compared_shown_and_deleted() {
    let server = Server::start();
    let first = server.apply(JOBS);
    assert!(
        first.ends_with("3 created, 0 changed, 0 unchanged\n"),
        "{first}"
    );
    let again = server.apply(JOBS);
    assert_eq!(again, "0 created, 0 changed, 3 unchanged\n");

    server
        .home
        .write("new.toml", JOBS.replace("30 2 * * *", "30 3 * * *"));
    let diff = server.run(&["job", "diff", "-f", "new.toml"]).good();
    assert_eq!(
        diff,
        "~ nightly\n    schedule.cron: \"30 2 * * *\" → \"30 3 * * *\"\n"
    );
    let dry = server
        .run(&["job", "apply", "-f", "new.toml", "--dry-run"])
        .good();
    assert!(dry.contains("changed   nightly"), "{dry}");
    assert_eq!(
        server.run(&["job", "diff", "-f", "jobs.toml"]).good(),
        "no differences\n"
    );

    let list = server.run(&["job", "list"]).good();
    let nightly = list
        .lines()
        .find(|l| l.starts_with("nightly"))
        .expect("listed");
    assert!(nightly.contains("02:30 every day, Europe/Berlin"), "{list}");
    assert!(list.starts_with("NAME "), "{list}");
    let show = server.run(&["job", "show", "nightly"]).good();
    assert!(show.contains("command: true"), "{show}");
    let next = server
        .run(&[
            "job",
            "next",
            "nightly",
            "-n",
            "2",
            "--from",
            "2027-03-27T00:00:00Z",
        ])
        .good();
    assert_eq!(
        next,
        "Sat 2027-03-27 02:30:00 +01:00\nSun 2027-03-28 03:00:00 +02:00\n"
    );

    assert_eq!(
        server.run(&["job", "pause", "nightly"]).good(),
        "nightly is paused\n"
    );
    assert!(server.run(&["job", "list"]).good().contains("paused"));
    assert_eq!(
        server.run(&["job", "resume", "nightly"]).good(),
        "nightly is resumed\n"
    );
    server.run(&["job", "delete", "nightly"]).good();
    let gone = server.run(&["job", "show", "nightly"]);
    assert_eq!(
        (gone.status, gone.stderr.as_str()),
        (1, "error: there is no job \"nightly\"\n")
    );
    assert_eq!(
        server.json(&["job", "list"])["jobs"]
            .as_array()
            .map(Vec::len),
        Some(2)
    );
}

#[test]
fn the_history_of_a_job_is_compared_restored_and_in_the_audit_log() {
    let server = Server::start();
    server.apply(JOBS);
    server.apply(&JOBS.replace("30 2 * * *", "30 3 * * *"));
    let history = server.json(&["job", "history", "nightly"]);
    let versions = history["versions"].as_array().expect("a list");
    let numbers: Vec<_> = versions.iter().map(|v| v["version"].as_u64()).collect();
    assert_eq!(numbers, [Some(2), Some(1)]);
    let table = server.run(&["job", "history", "nightly"]).good();
    assert!(table.starts_with("VERSION "), "{table}");
    let diff = server.run(&["job", "history", "nightly", "--diff", "1", "2"]);
    assert_eq!(
        diff.good(),
        "schedule.cron: \"30 2 * * *\" → \"30 3 * * *\"\n"
    );
    assert_eq!(
        server.run(&["job", "restore", "nightly", "1"]).good(),
        "nightly has the definition of version 1 again, as a new version\n"
    );
    let show = server.run(&["job", "show", "nightly"]).good();
    assert!(show.contains("02:30 every day"), "{show}");
    let none = server.run(&["job", "restore", "nightly", "9"]);
    assert_eq!(none.status, 1, "{none:#?}");
    assert!(none.stderr.contains("has no version 9"), "{none:#?}");

    let list = server
        .run(&["audit", "list", "--object", "nightly", "--limit", "2"])
        .good();
    assert_eq!(list.matches("job.update").count(), 2, "{list}");
    assert!(list.contains("token admin"), "{list}");
    assert!(list.contains("more: --after"), "{list}");
    let exported = server.run(&["audit", "export", "--since", "2020-01-01T00:00:00Z"]);
    let lines: Vec<Value> = exported
        .good()
        .lines()
        .map(|line| serde_json::from_str(line).expect("JSON"))
        .collect();
    let actions: Vec<_> = lines.iter().filter_map(|l| l["action"].as_str()).collect();
    assert_eq!(actions[..2], ["job.update", "job.update"]);
    assert_eq!(actions[2..], ["job.create"; 3]);
}

#[test]
fn a_trigger_is_waited_for_and_its_log_read() {
    let server = Server::start();
    server.apply(JOBS);
    let good = server
        .run(&["trigger", "hello", "--param", "world", "--wait"])
        .good();
    assert!(good.contains("  queued → worker-1  started +"), "{good}");
    assert!(good.contains("  succeeded in "), "{good}");
    let bad = server.run(&["trigger", "broken", "--wait"]);
    assert_eq!(bad.status, 1, "{bad:#?}");
    assert!(bad.stdout.contains("failed"), "{bad:#?}");

    let id = good.split_whitespace().nth(1).expect("an id");
    let log = server.run(&["run", "logs", "-f", id]).good();
    let mut lines: Vec<&str> = log.lines().collect();
    lines.sort_unstable();
    assert_eq!(lines, ["hello world", "oops"]);
    let show = server.run(&["run", "show", id]).good();
    assert!(show.contains("succeeded"), "{show}");
    let failed = server.run(&["run", "list", "--state", "failed"]).good();
    assert!(
        failed.contains("broken") && !failed.contains("hello"),
        "{failed}"
    );
    let cancel = server.run(&["run", "cancel", id]).good();
    assert_eq!(cancel, format!("run {id} had already ended: succeeded\n"));

    let one = server.json(&["trigger", "hello", "--key", "k"]);
    let two = server.json(&["trigger", "hello", "--key", "k"]);
    assert_eq!(
        (&one["runs"], &two["duplicate"]),
        (&two["runs"], &Value::Bool(true))
    );
}

#[test]
fn a_refused_request_exits_with_status_2() {
    let server = Server::start();
    server.home.write(
        "jobs.toml",
        "[[job]]\nname = \"child\"\nafter = \"missing\"\nhandler = { shell = \"true\" }\n",
    );
    let ended = server.run(&["job", "apply", "-f", "jobs.toml"]);
    assert_eq!(ended.status, 2, "{ended:#?}");
    assert!(ended.stderr.contains("missing"), "{ended:#?}");
    assert!(
        ended.stderr.ends_with("nothing was applied\n"),
        "{ended:#?}"
    );

    let wrong = server.run(&["--token", "wrong", "job", "list"]);
    assert_eq!(wrong.status, 1, "{wrong:#?}");
    assert!(
        wrong.stderr.contains("--token or CUELINE_TOKEN"),
        "{wrong:#?}"
    );
    // The token of this user's server is sent to that server only.
    let port = server.port();
    let elsewhere = server.run(&["--url", &format!("http://localhost:{port}"), "job", "list"]);
    assert_eq!(elsewhere.status, 1, "{elsewhere:#?}");
    assert!(
        elsewhere.stderr.contains("no Authorization header"),
        "{elsewhere:#?}"
    );
    let none = server.run(&["trigger", "none"]);
    assert_eq!(
        (none.status, none.stderr.as_str()),
        (1, "error: there is no job \"none\"\n")
    );
}

#[test]
fn doctor_reports_no_problem_of_a_healthy_server() {
    let server = Server::start();
    server.apply(JOBS);
    // The first heartbeat may need a moment.
    let deadline = std::time::Duration::from_mins(1);
    let mut waited = std::time::Duration::ZERO;
    while !server.run(&["executor", "list"]).good().contains("yes") {
        assert!(waited < deadline, "no executor is alive");
        std::thread::sleep(std::time::Duration::from_millis(50));
        waited += std::time::Duration::from_millis(50);
    }
    let doctor = server.run(&["doctor"]);
    assert_eq!(doctor.status, 0, "{doctor:#?}");
    for what in [
        "token",
        "server",
        "clock",
        "store",
        "failover",
        "executors",
        "jobs",
        "data",
    ] {
        assert!(
            doctor.stdout.contains(&format!("ok   {what}")),
            "{what}: {doctor:#?}"
        );
    }
}

#[test]
fn a_ready_server_is_healthy_without_a_token() {
    let server = Server::start();
    let url = format!("http://127.0.0.1:{}", server.port());
    let home = Home::new();
    let health = home.run(&["--url", &url, "health"]);
    assert_eq!(health.good(), format!("{url} is ready\n"));
}

#[test]
fn a_process_that_is_not_ready_is_not_healthy_and_says_why() {
    let worker = Recorder::start(|_| {
        let problem = r#"{"type":"about:blank","title":"Service Unavailable","status":503,"detail":"no broker lease"}"#;
        ("503 Service Unavailable".to_owned(), problem.to_owned())
    });
    let health = Home::new().run(&["--url", &worker.url, "health"]);
    assert_eq!(health.status, 1, "{health:#?}");
    assert!(health.stderr.contains("no broker lease"), "{health:#?}");
    assert_eq!(worker.requests()[0].line, "GET /readyz HTTP/1.1");
}

#[test]
fn a_crontab_becomes_jobs() {
    let server = Server::start();
    server.home.write(
        "site.crontab",
        "30 2 * * * /usr/local/bin/backup\n@hourly echo x\n",
    );
    let first = server
        .run(&["import", "crontab", "site.crontab", "--tz", "UTC"])
        .good();
    assert!(
        first.ends_with("2 created, 0 changed, 0 unchanged\n"),
        "{first}"
    );
    let again = server
        .run(&["import", "crontab", "site.crontab", "--tz", "UTC"])
        .good();
    assert!(
        again.ends_with("0 created, 0 changed, 2 unchanged\n"),
        "{again}"
    );
}

#[test]
fn other_users_can_read_no_file_of_a_server_whatever_its_umask() {
    let home = Home::new();
    let started = home.command(&START);
    // Only a process itself can set its umask.
    let mut command = Command::new("/bin/sh");
    command
        .args(["-c", "umask 0; exec \"$0\" \"$@\""])
        .arg(started.get_program())
        .args(started.get_args())
        .current_dir(home.path())
        .env_clear()
        .envs(
            started
                .get_envs()
                .filter_map(|(name, value)| Some((name, value?))),
        )
        .stdin(Stdio::null());
    let server = Server::start_by(command, home);
    server.apply(
        "[[job]]\nname = \"umask\"\nschedule = { manual = true }\nhandler = { shell = \"umask\" }\n",
    );
    let ended = server.run(&["trigger", "umask", "--wait"]).good();
    let id = ended.split_whitespace().nth(1).expect("an id");
    let log = server.run(&["run", "logs", id]).good();
    assert_eq!(log, "0000\n", "a job has the umask of its server");
    let mut found = modes(&server.home.path().join("data"));
    found.extend(modes(&server.home.path().join("cueline")));
    let names = [
        "store.db",
        "queue.db-lock",
        "journal.db-wal",
        "worker.lock",
        "api.sock",
        "server.json",
    ];
    for name in names {
        assert!(
            found.iter().any(|(path, _)| path.ends_with(name)),
            "{name}: {found:?}"
        );
    }
    for (path, mode) in found {
        assert_eq!(mode & 0o077, 0, "{path} has mode {mode:03o}");
    }
}

#[test]
fn a_stranger_on_the_port_of_a_server_that_was_killed_gets_no_token() {
    let mut server = Server::start();
    let port = server.port();
    server.child.kill().expect("killed");
    server.child.wait().expect("ended");
    let stranger = TcpListener::bind(("127.0.0.1", port)).expect("the port is free now");
    stranger.set_nonblocking(true).expect("set");
    let address = format!("http://127.0.0.1:{port}");
    for args in [
        &["job", "list"][..],
        &["--token", "of-the-user", "job", "list"],
        &["--url", address.as_str(), "job", "list"],
        &["doctor"],
    ] {
        let ended = server.run(args);
        assert_eq!(ended.status, 1, "{ended:#?}");
        let text = format!("{}{}", ended.stdout, ended.stderr);
        assert!(text.contains("api.sock"), "{ended:#?}");
        let connected = stranger.accept().map(|_| ()).map_err(|error| error.kind());
        assert_eq!(connected, Err(ErrorKind::WouldBlock), "{args:?}");
    }
}

#[test]
fn a_job_cannot_read_the_environment_of_its_server() {
    let server = Server::start();
    server.apply(
        "[[job]]\nname = \"spy\"\nschedule = { manual = true }\nhandler = { shell = \"cat /proc/$PPID/environ\" }\n",
    );
    let ended = server.run(&["trigger", "spy", "--wait"]);
    if nix::unistd::geteuid().is_root() {
        println!("skipped: root can read the environment of every process");
        return;
    }
    assert_eq!(ended.status, 1, "{ended:#?}");
    let id = ended.stdout.split_whitespace().nth(1).expect("an id");
    let log = server.run(&["run", "logs", id]).good();
    assert!(log.contains("Permission denied"), "{log}");
}
