//! Secrets of scripts, commands and HTTP requests.

mod support;

use std::collections::BTreeMap;
use std::fs::{self, Permissions};
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};

use cueline_handlers::{CommandHandler, HttpHandler, SecretSources, ShellHandler};
use cueline_worker::model::handler::{HttpSpec, ProcessSpec, ShellSpec};
use cueline_worker::model::{HandlerSpec, SecretName, TextOrSecret};
use cueline_worker::testing::{self, Recorded};
use cueline_worker::{Failure, Output};
use support::server::{answer, get, header, server};
use support::{MARKER, command, info, message, out, sh};
use tempfile::TempDir;

const VALUE: &str = "hush-hush-42";

fn secret(name: &str) -> TextOrSecret {
    name.parse::<SecretName>().expect("a name").into()
}

/// A directory with one secret, as a container platform mounts it.
fn mounted(name: &str, value: &str, mode: u32) -> (TempDir, PathBuf) {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join(name);
    fs::write(&path, value).expect("written");
    fs::set_permissions(&path, Permissions::from_mode(mode)).expect("set");
    (dir, path)
}

fn sources(dir: &Path) -> SecretSources {
    SecretSources::default().dir(dir)
}

/// A script with a secret in a variable.
fn script(text: &str, name: &str) -> ShellSpec {
    ShellSpec {
        process: ProcessSpec {
            env: BTreeMap::from([("PASSWORD".into(), secret(name))]),
            ..ProcessSpec::default()
        },
        ..sh(text)
    }
}

async fn run(spec: ShellSpec, secrets: SecretSources) -> (Result<Output, Failure>, Recorded) {
    let handler = ShellHandler::new(MARKER).secrets(secrets);
    testing::run(&handler, info(HandlerSpec::from(spec))).await
}

#[tokio::test]
async fn a_script_gets_the_value_and_its_output_does_not_show_it() {
    let (dir, _) = mounted("db", &format!("{VALUE}\n"), 0o400);
    // One value comes in two writes.
    let text = "test \"$PASSWORD\" = hush-hush-42 || exit 9
echo \"whole $PASSWORD\"
printf 'parts hush-'; echo 'hush-42'
echo \"error $PASSWORD\" >&2
echo \"last $PASSWORD\"";
    let (result, recorded) = run(script(text, "db"), sources(dir.path())).await;
    let output = result.expect("success");
    assert_eq!(output.text.as_deref(), Some("last ***"));
    assert_eq!(out(&recorded), ["whole ***", "parts ***", "last ***"]);
    let all = format!("{:?}", recorded.lines());
    assert!(all.contains("error ***") && !all.contains(VALUE), "{all}");
}

#[tokio::test]
async fn a_command_gets_the_value_on_standard_input() {
    let (dir, _) = mounted("db", VALUE, 0o600);
    let process = ProcessSpec {
        stdin: Some(secret("db")),
        ..ProcessSpec::default()
    };
    let spec = command(&["grep", "-cx", VALUE], process);
    let handler = CommandHandler::new(MARKER).secrets(sources(dir.path()));
    let (result, _) = testing::run(&handler, info(HandlerSpec::from(spec))).await;
    assert_eq!(result.expect("success").text.as_deref(), Some("1"));
}

#[tokio::test]
async fn a_request_has_the_value_and_its_response_does_not_show_it() {
    let (dir, _) = mounted("token", VALUE, 0o400);
    let (url, mut requests) = server(|request| answer("200 OK", &format!("echo: {request}"))).await;
    let spec = HttpSpec {
        method: "POST".into(),
        headers: BTreeMap::from([("Authorization".into(), secret("token"))]),
        body: Some(secret("token")),
        ..get(&url)
    };
    let handler = HttpHandler::builder().secrets(sources(dir.path()));
    let handler = handler.build();
    let (result, recorded) = testing::run(&handler, info(HandlerSpec::from(spec))).await;
    let request = requests.recv().await.expect("it came");
    assert_eq!(header(&request, "authorization").as_deref(), Some(VALUE));
    assert!(request.ends_with(VALUE), "{request}");
    let text = result.expect("success").text.expect("a text");
    assert!(text.contains("authorization: ***"), "{text}");
    let all = format!("{text} {:?}", recorded.lines());
    assert!(!all.contains(VALUE), "{all}");
}

#[tokio::test]
async fn a_program_gives_what_no_file_has() {
    let empty = tempfile::tempdir().expect("a directory");
    // The value is the program's whole output: its only argument, the name.
    let secrets = sources(empty.path()).command("/bin/echo");
    let text = "test \"$PASSWORD\" = hush-hush-42 && echo \"<$PASSWORD>\"";
    let (result, recorded) = run(script(text, VALUE), secrets).await;
    assert_eq!(out(&recorded), ["<***>"], "{result:?}");
    for (program, reason) in [
        ("/bin/false", "ended with exit status: 1"),
        ("/no/such/program", "could not be started: "),
        ("/bin/true", "the answer is empty"),
    ] {
        let secrets = sources(empty.path()).command(program);
        let text = message(run(script("true", "db"), secrets).await.0);
        assert!(
            text.contains(&format!("secrets_command {program}")) && text.contains(reason),
            "{text}"
        );
    }
}

#[tokio::test]
async fn an_unknown_secret_fails_the_attempt_before_its_start() {
    let (dir, _) = mounted("db", VALUE, 0o400);
    let place = dir.path().join("started");
    let text = format!("touch {}", place.display());
    let failed = run(script(&text, "db-2"), sources(dir.path())).await.0;
    assert_eq!(
        message(failed),
        format!(
            "secret \"db-2\": not found on this worker: there is no file {}, CUELINE_SECRET_DB_2 is not set, \
             secrets_command is not set",
            dir.path().join("db-2").display()
        )
    );
    let failed = run(script(&text, "db"), SecretSources::default()).await.0;
    assert_eq!(
        message(failed),
        "secret \"db\": not found on this worker: secrets_dir is not set, CUELINE_SECRET_DB is not set, \
         secrets_command is not set"
    );
    assert!(!place.exists());
}

#[tokio::test]
async fn an_unusable_file_is_refused_with_the_reason() {
    for (value, mode, reason) in [
        (
            VALUE,
            0o644,
            "has mode 644, so every user of the machine can use it",
        ),
        (
            VALUE,
            0o402,
            "has mode 402, so every user of the machine can use it",
        ),
        ("", 0o400, "is empty"),
        ("a\0b", 0o400, "has a NUL character"),
    ] {
        let (dir, path) = mounted("db", value, mode);
        let text = message(run(script("true", "db"), sources(dir.path())).await.0);
        let expected = format!("secret \"db\": {} {reason}", path.display());
        assert!(text.starts_with(&expected), "{text}");
    }
    let dir = tempfile::tempdir().expect("a directory");
    fs::create_dir(dir.path().join("db")).expect("made");
    let text = message(run(script("true", "db"), sources(dir.path())).await.0);
    assert!(text.ends_with("is not a file"), "{text}");
}

/// Kubernetes mounts a secret as a link to a file in a hidden directory.
#[tokio::test]
async fn a_link_to_a_file_is_followed() {
    let (dir, path) = mounted("hidden", VALUE, 0o400);
    std::os::unix::fs::symlink(&path, dir.path().join("db")).expect("linked");
    let (result, recorded) = run(script("echo \"$PASSWORD\"", "db"), sources(dir.path())).await;
    assert_eq!(out(&recorded), ["***"], "{result:?}");
}

/// Runs itself again in a process with the variable, because a process cannot safely change its own environment.
#[tokio::test]
async fn a_variable_of_the_worker_is_a_source_and_is_not_inherited() {
    const VARIABLE: &str = "CUELINE_SECRET_DB_PASSWORD";
    if std::env::var_os(VARIABLE).is_none() {
        let mut again = tokio::process::Command::new(std::env::current_exe().expect("its path"));
        again.args([
            "--exact",
            "a_variable_of_the_worker_is_a_source_and_is_not_inherited",
        ]);
        let ended = again.env(VARIABLE, VALUE).output().await.expect("it ran");
        let text = String::from_utf8_lossy(&ended.stdout);
        assert!(
            ended.status.success() && text.contains("1 passed"),
            "{text}"
        );
        return;
    }
    let spec = script("test \"$PASSWORD\" = hush-hush-42 && env", "db-password");
    let (result, recorded) = run(spec, SecretSources::default()).await;
    result.expect("success");
    let lines = out(&recorded);
    assert!(lines.contains(&"PASSWORD=***".to_owned()), "{lines:?}");
    assert!(
        !lines.iter().any(|line| line.contains(VARIABLE)),
        "{lines:?}"
    );
}
