//! Completions and man pages are generated from the same definition as the help.

use crate::command::Home;

/// The commands that a help lists. The help of help is no command of its own.
fn listed(help: &str) -> Vec<String> {
    let Some(list) = help.split("Commands:\n").nth(1) else {
        return Vec::new();
    };
    let list = list.split("\n\n").next().expect("its end");
    // A command is indented by two spaces, the continuation of its text by more.
    let lines = list.lines().filter(|line| !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    let names = names.filter(|name| *name != "help");
    names.map(str::to_owned).collect()
}

/// All commands as their words, such as `job` and `history`.
fn commands(home: &Home) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for command in listed(&home.run(&["--help"]).good()) {
        let below = listed(&home.run(&[&command, "--help"]).good());
        all.extend(below.into_iter().map(|name| vec![command.clone(), name]));
        all.push(vec![command]);
    }
    let names: Vec<_> = all.iter().map(|words| words.join(" ")).collect();
    for name in [
        "audit export",
        "context rename",
        "job history",
        "job restore",
        "openapi",
        "user password",
        "worker-key rotate",
    ] {
        assert!(names.iter().any(|known| known == name), "{name}: {names:?}");
    }
    all
}

#[test]
fn completions_contain_all_commands() {
    let home = Home::new();
    let words = commands(&home).concat();
    for shell in ["bash", "zsh", "fish"] {
        let text = home.run(&["completion", shell]).good();
        for word in &words {
            assert!(text.contains(word), "{shell}: {word}");
        }
        for word in [
            "--watch",
            "--context",
            "--namespace",
            "--all-namespaces",
            "--default-namespace",
        ] {
            let long = word.trim_start_matches("--");
            assert!(text.contains(long), "{shell}: {word}");
        }
    }
}

#[test]
fn completions_of_help_go_as_deep_as_the_commands() {
    let home = Home::new();
    let text = home.run(&["completion", "fish"]).good();
    let after_help_job = |line: &&str| {
        line.contains(r#"subcommand help; and __fish_seen_subcommand_from job""#)
            && line.contains(r#"-a "history""#)
    };
    assert_eq!(text.lines().filter(after_help_job).count(), 1);
}

#[test]
fn each_command_has_a_man_page() {
    let home = Home::new();
    home.run(&["man", "pages/man1"]).good();
    let page = |name: &str| {
        let path = home.path().join(format!("pages/man1/{name}.1"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{name}: {error}"))
    };
    assert!(page("cueline").contains(".TH"));
    for command in commands(&home) {
        let name = format!("cueline-{}", command.join("-"));
        assert!(page(&name).contains(".SH NAME"), "{name}");
    }
    assert!(page("cueline-context-rename").contains("NEW_NAME"));
    assert!(!home.path().join("pages/man1/cueline-guard.1").exists());
}

#[test]
fn the_man_pages_do_not_show_the_token() {
    let home = Home::new();
    let made = home
        .command(&["man", "pages"])
        .env("CUELINE_TOKEN", "a-secret-token")
        .status()
        .expect("started");
    assert!(made.success());
    for entry in std::fs::read_dir(home.path().join("pages")).expect("a folder") {
        let text = std::fs::read_to_string(entry.expect("an entry").path()).expect("a page");
        assert!(!text.contains("a-secret-token"), "{text}");
    }
}

#[test]
fn a_closed_output_ends_the_completion_quietly() {
    let home = Home::new();
    let mut child = home
        .command(&["completion", "zsh"])
        .stdout(std::process::Stdio::piped())
        .stderr(std::process::Stdio::piped())
        .spawn()
        .expect("started");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("ended");
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert_eq!((output.status.code(), stderr.as_ref()), (Some(0), ""));
}
