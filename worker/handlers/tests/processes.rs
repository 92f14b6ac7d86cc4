//! Scripts and commands as real processes: their input, their recorded output, and their ends.
#![cfg(target_os = "linux")]

mod support;

use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::fs::PermissionsExt;
use std::time::Duration;

use cueline_handlers::{CommandHandler, ShellHandler};
use cueline_worker::model::HandlerSpec;
use cueline_worker::model::handler::{Interpreter, ProcessSpec, ShellSpec};
use cueline_worker::{LogStream, Output, testing};
use support::{
    MARKER, command, end, info, message, number, out, run_command, sh, shell, stream, with,
};
use tokio::time::Instant;

fn installed(program: &str) -> bool {
    let found = std::env::split_paths(&std::env::var_os("PATH").unwrap_or_default())
        .any(|dir| dir.join(program).is_file());
    if !found {
        println!("skipped: {program} is not installed");
    }
    found
}

/// A script per language that prints its first three arguments and two variables.
const SPEAK: [(Interpreter, &str, &str); 6] = [
    (
        Interpreter::Sh,
        "sh",
        r#"echo "$1|$2|$3|$CUELINE_RUN_ID|$CUELINE_SHARD_ITEM""#,
    ),
    (
        Interpreter::Bash,
        "bash",
        r#"a=("$@"); echo "${a[0]}|${a[1]}|${a[2]}|$CUELINE_RUN_ID|$CUELINE_SHARD_ITEM""#,
    ),
    (
        Interpreter::Python3,
        "python3",
        "import os, sys\nprint('|'.join(sys.argv[1:] + [os.environ['CUELINE_RUN_ID'], os.environ['CUELINE_SHARD_ITEM']]))",
    ),
    (
        Interpreter::Node,
        "node",
        "console.log([...process.argv.slice(2), process.env.CUELINE_RUN_ID, process.env.CUELINE_SHARD_ITEM].join('|'))",
    ),
    (
        Interpreter::Php,
        "php",
        "<?php echo implode('|', array_merge(array_slice($argv, 1), [getenv('CUELINE_RUN_ID'), getenv('CUELINE_SHARD_ITEM')]));",
    ),
    (
        Interpreter::Pwsh,
        "pwsh",
        "($args + @($env:CUELINE_RUN_ID, $env:CUELINE_SHARD_ITEM)) -join '|'",
    ),
];

#[tokio::test]
async fn each_interpreter_passes_arguments_and_variables() {
    for (interpreter, program, script) in SPEAK {
        if !installed(program) {
            let (result, _) = shell(with(interpreter, script)).await;
            let message = message(result);
            assert!(
                message.contains(&format!("{program:?} was not found")),
                "{message}"
            );
            continue;
        }
        for params in ["p 1", "--version", "-x", ""] {
            let mut info = info(HandlerSpec::from(with(interpreter, script)));
            info.params = Some(params.to_owned());
            let (result, recorded) = testing::run(&ShellHandler::new(MARKER), info).await;
            let wanted = format!("{params}|1|3|41|Beijing");
            assert_eq!(out(&recorded), [wanted.as_str()], "{program}: {result:?}");
            assert_eq!(result.expect("success").text, Some(wanted));
        }
    }
}

#[tokio::test]
async fn a_script_of_256_kib_runs_in_each_interpreter() {
    for (interpreter, program, script) in SPEAK {
        if !installed(program) {
            continue;
        }
        let comment = if program == "node" { "//" } else { "#" };
        let padding = format!("\n{comment} {}", "x".repeat(60)).repeat(256 * 1024 / 60);
        let dir = tempfile::tempdir().expect("a directory");
        let handler = ShellHandler::new(MARKER).script_dir(dir.path());
        let info = info(HandlerSpec::from(with(
            interpreter,
            &(script.to_owned() + &padding),
        )));
        let (result, recorded) = testing::run(&handler, info).await;
        assert_eq!(
            out(&recorded),
            ["p 1|1|3|41|Beijing"],
            "{program}: {result:?}"
        );
        let left = std::fs::read_dir(dir.path()).expect("readable").count();
        assert_eq!(left, 0, "the script's file goes with the run");
    }
}

#[tokio::test]
async fn only_its_owner_may_read_the_file_of_a_long_script() {
    let script = format!(
        "stat -c %a \"$0\" \"$(dirname \"$0\")\"\n#{}",
        "x".repeat(128 * 1024)
    );
    let (result, recorded) = shell(sh(&script)).await;
    assert_eq!(out(&recorded), ["600", "700"], "{result:?}");
}

#[tokio::test]
async fn a_named_shell_runs_the_script_as_cron_does() {
    let dir = tempfile::tempdir().expect("a directory");
    let path = dir.path().join("my-shell");
    std::fs::write(&path, "#!/bin/sh\nprintf '%s\\n' \"$#\" \"$@\"").expect("written");
    std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o755)).expect("set");
    let spec = ShellSpec {
        shell: Some(path.display().to_string()),
        ..sh("echo hi")
    };
    let (result, recorded) = shell(spec).await;
    assert_eq!(out(&recorded), ["2", "-c", "echo hi"], "{result:?}");
}

#[tokio::test]
async fn cron_gets_exactly_its_environment() {
    let account = nix::unistd::User::from_uid(nix::unistd::getuid())
        .expect("looked up")
        .expect("known");
    let process = ProcessSpec {
        clear_env: true,
        env: BTreeMap::from([("FOO".into(), "$HOME `x`".into())]),
        ..ProcessSpec::default()
    };
    let (result, recorded) = run_command(command(&["env"], process.clone())).await;
    let found: BTreeSet<String> = out(&recorded).into_iter().collect();
    let home = account.dir.display().to_string();
    let wanted = [
        "FOO=$HOME `x`".to_owned(),
        format!("HOME={home}"),
        format!("LOGNAME={}", account.name),
        format!("USER={}", account.name),
        "SHELL=/bin/sh".to_owned(),
        "PATH=/usr/bin:/bin".to_owned(),
        "CUELINE_RUN_ID=41".to_owned(),
        "CUELINE_ATTEMPT=2".to_owned(),
        "CUELINE_JOB=nightly".to_owned(),
        "CUELINE_FIRE_TIME=2027-01-15T08:00:00.123Z".to_owned(),
        "CUELINE_FIRE_TIME_MS=1800000000123".to_owned(),
        "CUELINE_PARAMS=p 1".to_owned(),
        "CUELINE_SHARD_INDEX=1".to_owned(),
        "CUELINE_SHARD_TOTAL=3".to_owned(),
        "CUELINE_SHARD_ITEM=Beijing".to_owned(),
        "CUELINE_EXECUTOR=worker-1".to_owned(),
        format!("CUELINE_WORKER_STATE={MARKER}"),
        "CUELINE_WORKER_GUARD=".to_owned(),
    ];
    assert_eq!(found, BTreeSet::from(wanted), "{result:?}");
    let (_, recorded) = run_command(command(&["pwd"], process.clone())).await;
    assert_eq!(out(&recorded), [home]);

    let process = ProcessSpec {
        env: BTreeMap::from([
            ("HOME".into(), "/usr".into()),
            ("PATH".into(), "/bin".into()),
        ]),
        ..process
    };
    let (_, recorded) = run_command(command(&["sh", "-c", "pwd; echo $PATH"], process)).await;
    assert_eq!(out(&recorded), ["/usr", "/bin"]);
}

#[tokio::test]
async fn the_workers_environment_is_inherited_but_cannot_be_forged() {
    let process = ProcessSpec {
        env: BTreeMap::from([("CUELINE_WORKER_STATE".into(), "another".into())]),
        ..ProcessSpec::default()
    };
    let (_, recorded) = run_command(command(&["env"], process)).await;
    let found = out(&recorded);
    let path = std::env::var("PATH").expect("set");
    assert!(found.contains(&format!("PATH={path}")), "{found:?}");
    assert!(
        found.contains(&format!("CUELINE_WORKER_STATE={MARKER}")),
        "{found:?}"
    );
}

#[tokio::test]
async fn input_reaches_the_process_and_one_that_does_not_read_it_blocks_nothing() {
    let big = "line\n".repeat(200_000);
    let process = ProcessSpec {
        stdin: Some(big.clone().into()),
        ..ProcessSpec::default()
    };
    let (result, _) = run_command(command(&["wc", "-c"], process.clone())).await;
    assert_eq!(result.expect("success").text, Some(big.len().to_string()));
    // Both directions at once: neither pipe is large enough for all of it.
    let (result, recorded) = run_command(command(&["cat"], process.clone())).await;
    assert_eq!(out(&recorded).len(), 200_000, "{result:?}");
    let (result, _) = run_command(command(&["echo", "unread"], process.clone())).await;
    assert_eq!(result.expect("success").text.as_deref(), Some("unread"));
    // Here a child holds the other end of the input and does not read it either.
    let script = ShellSpec {
        process,
        ..sh("sleep 60 <&0 >/dev/null 2>&1 & echo pid $!")
    };
    let begun = Instant::now();
    let (result, recorded) = shell(script).await;
    end(number(&recorded, "pid ").await);
    assert!(result.is_ok() && begun.elapsed() < Duration::from_secs(20));
}

#[tokio::test]
async fn without_input_a_reader_is_at_the_end_at_once() {
    let (result, _) = run_command(command(&["cat"], ProcessSpec::default())).await;
    assert_eq!(result.expect("success").text, None);
}

#[tokio::test]
async fn much_output_is_kept_in_order_and_streams_are_told_apart() {
    let script = "i=0; while [ $i -lt 20000 ]; do echo out $i; i=$((i+1)); done; echo bad >&2; printf 'caf\\303\\251 \\377 end'";
    let (result, recorded) = shell(sh(script)).await;
    let lines = out(&recorded);
    assert_eq!(lines.len(), 20_001);
    assert!((0..20_000).all(|i| lines[i] == format!("out {i}")));
    assert_eq!(lines[20_000], "café \u{fffd} end");
    assert_eq!(stream(&recorded, LogStream::Err), ["bad"]);
    assert_eq!(
        result.expect("success"),
        Output {
            text: Some("café \u{fffd} end".into()),
            exit_status: Some(0)
        }
    );
}

#[tokio::test]
async fn progress_lines_are_reported() {
    let (_, recorded) = shell(sh("echo ::progress 0.25; echo work; echo ::progress 1")).await;
    assert_eq!(recorded.progress(), [0.25, 1.0]);
    assert_eq!(out(&recorded), ["work"]);
}

#[tokio::test]
async fn lines_are_logged_as_they_come() {
    let dir = tempfile::tempdir().expect("a directory");
    let gate = dir.path().join("gate");
    let spec = command(
        &[
            "sh",
            "-c",
            "echo first; while [ ! -e \"$0\" ]; do sleep 0.01; done",
            &gate.display().to_string(),
        ],
        ProcessSpec::default(),
    );
    let (cx, recorded) = testing::context(info(HandlerSpec::from(spec)));
    let handler = CommandHandler::new(MARKER);
    let task = tokio::spawn(async move { cueline_worker::Handler::run(&handler, cx).await });
    support::eventually("the first line", || out(&recorded) == ["first"]).await;
    std::fs::write(&gate, "").expect("written");
    assert!(task.await.expect("no panic").is_ok());
}

#[tokio::test]
async fn a_background_process_neither_delays_the_run_nor_is_killed() {
    let dir = tempfile::tempdir().expect("a directory");
    let spec = ShellSpec {
        process: ProcessSpec {
            cwd: Some(dir.path().display().to_string()),
            ..ProcessSpec::default()
        },
        ..sh(
            "(while [ ! -e gate ]; do sleep 0.01; done; touch alive) & echo left $!; printf partial",
        )
    };
    let begun = Instant::now();
    let (result, recorded) = shell(spec).await;
    let elapsed = begun.elapsed();
    assert!(elapsed < Duration::from_secs(20), "{elapsed:?}");
    assert_eq!(result.expect("success").text.as_deref(), Some("partial"));
    number(&recorded, "left ").await;
    std::fs::write(dir.path().join("gate"), "").expect("written");
    let sign = dir.path().join("alive");
    support::eventually("it was left alone", || sign.exists()).await;
}

#[tokio::test]
async fn failures_name_the_exit_status_or_the_signal() {
    let (result, _) = shell(sh("echo x; exit 3")).await;
    let failure = result.expect_err("a failure");
    assert_eq!(failure.message, "exited with status 3");
    assert_eq!(failure.exit_status, Some(3));
    let (result, _) = shell(sh("kill -SEGV $$")).await;
    let failure = result.expect_err("a failure");
    assert_eq!(failure.message, "killed by signal 11 (SIGSEGV)");
    assert_eq!(failure.exit_status, None);
}

#[tokio::test]
async fn a_failed_start_names_its_cause() {
    let plain = ProcessSpec::default;
    let failure_of = |argv: &[&str], process: ProcessSpec| {
        let spec = command(argv, process);
        async { message(run_command(spec).await.0) }
    };
    let text = failure_of(&["no-such-program"], plain()).await;
    assert!(
        text.contains("\"no-such-program\" was not found in PATH"),
        "{text}"
    );
    let text = failure_of(&["/no/such/program"], plain()).await;
    assert!(
        text.ends_with("could not be started: it does not exist"),
        "{text}"
    );
    let text = failure_of(&["/etc/passwd"], plain()).await;
    assert!(text.contains("not executable"), "{text}");
    let text = failure_of(&[], plain()).await;
    assert!(text.contains("command: it is empty"), "{text}");
    let missing = ProcessSpec {
        cwd: Some("/no/such/dir".into()),
        ..plain()
    };
    let text = failure_of(&["true"], missing).await;
    assert_eq!(text, "cwd: /no/such/dir is not a directory on this machine");
    let nobody = ProcessSpec {
        run_as: Some("no-such-user".into()),
        ..plain()
    };
    let text = failure_of(&["true"], nobody).await;
    assert_eq!(
        text,
        "run_as: \"no-such-user\" does not exist on this machine"
    );
    let text = failure_of(&["echo", &"x".repeat(200 * 1024)], plain()).await;
    assert!(text.contains("too long"), "{text}");
    let text = failure_of(&["echo", "a\0b"], plain()).await;
    assert!(text.contains("could not be started"), "{text}");
    let (result, _) = shell(sh("a\0b")).await;
    assert!(message(result).contains("NUL"));
}

#[tokio::test]
async fn work_for_another_handler_is_refused() {
    let spec = HandlerSpec::Native("invoice".into());
    let (result, _) = testing::run(&ShellHandler::new(MARKER), info(spec.clone())).await;
    assert!(message(result).contains("shell handler was given a job of kind native:invoice"));
    let (result, _) = testing::run(&CommandHandler::new(MARKER), info(spec)).await;
    assert!(message(result).contains("command handler was given a job of kind native:invoice"));
}

#[tokio::test]
async fn root_runs_processes_as_another_user() {
    if !nix::unistd::geteuid().is_root() {
        println!("skipped: needs root");
        return;
    }
    let Ok(Some(nobody)) = nix::unistd::User::from_name("nobody") else {
        println!("skipped: there is no user nobody");
        return;
    };
    let process = ProcessSpec {
        run_as: Some("nobody".into()),
        cwd: Some("/".into()),
        ..ProcessSpec::default()
    };
    let long = format!("#{}\n", "x".repeat(128 * 1024));
    for padding in ["", long.as_str()] {
        let spec = ShellSpec {
            process: process.clone(),
            ..sh(&format!("{padding}id -u; id -G; echo $USER $LOGNAME $HOME"))
        };
        let handler = ShellHandler::new(MARKER).allow_run_as(["nobody".to_owned()]);
        let (result, recorded) = testing::run(&handler, info(HandlerSpec::from(spec))).await;
        let wanted = [
            nobody.uid.to_string(),
            nobody.gid.to_string(),
            format!("nobody nobody {}", nobody.dir.display()),
        ];
        assert_eq!(out(&recorded), wanted, "{result:?} {recorded:?}");
    }
    let as_nobody = HandlerSpec::from(ShellSpec {
        process,
        ..sh("id -u")
    });
    let (result, _) = testing::run(&ShellHandler::new(MARKER), info(as_nobody)).await;
    let text = message(result);
    assert!(text.contains("does not run jobs as \"nobody\""), "{text}");
    let handler = ShellHandler::new(MARKER).allow_run_as(["nobody".to_owned()]);
    let as_root = info(HandlerSpec::from(sh("id -u")));
    let text = message(testing::run(&handler, as_root).await.0);
    assert!(text.contains("does not run jobs as root"), "{text}");
}

#[tokio::test]
async fn a_worker_without_root_runs_processes_as_its_own_user_only() {
    if nix::unistd::geteuid().is_root() {
        println!("skipped: needs a user other than root");
        return;
    }
    let handler = CommandHandler::new(MARKER).allow_run_as(["root".to_owned()]);
    let process = ProcessSpec {
        run_as: Some("root".into()),
        ..ProcessSpec::default()
    };
    let spec = info(HandlerSpec::from(command(&["true"], process)));
    let text = message(testing::run(&handler, spec).await.0);
    assert!(text.contains("only root may"), "{text}");
}

#[tokio::test]
#[ignore = "a measurement, not a test"]
async fn cost_of_a_run() {
    const RUNS: u32 = 500;
    let handler = ShellHandler::new(MARKER);
    let info = info(HandlerSpec::from(sh(":")));
    let begun = Instant::now();
    for _ in 0..RUNS {
        let (result, _) = testing::run(&handler, info.clone()).await;
        assert!(result.is_ok(), "{result:?}");
    }
    println!("{:?} per run of `sh -c :`", begun.elapsed() / RUNS);
}
