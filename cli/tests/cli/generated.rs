//! Completions and man pages are generated from the same definition as the help.

use crate::command::Home;

/// The commands that the help lists.
fn commands(home: &Home) -> Vec<String> {
    let help = home.run(&["--help"]).good();
    let list = help.split("Commands:\n").nth(1).expect("a list");
    let list = list.split("\n\n").next().expect("its end");
    // A command is indented by two spaces, the continuation of its text by more.
    let lines = list.lines().filter(|line| !line.starts_with("   "));
    let names = lines.filter_map(|line| line.split_whitespace().next());
    let names: Vec<_> = names.map(str::to_owned).collect();
    assert!(names.len() > 20, "{names:?}");
    names
}

#[test]
fn completions_contain_all_commands() {
    let home = Home::new();
    for shell in ["bash", "zsh", "fish"] {
        let text = home.run(&["completion", shell]).good();
        for command in commands(&home) {
            assert!(text.contains(&command), "{shell}: {command}");
        }
        for word in ["rename", "--watch", "--context"] {
            let long = word.trim_start_matches("--");
            assert!(text.contains(long), "{shell}: {word}");
        }
    }
}

#[test]
fn each_command_has_a_man_page() {
    let home = Home::new();
    home.run(&["man", "pages/man1"]).good();
    let page = |name: &str| {
        let path = home.path().join(format!("pages/man1/{name}.1"));
        std::fs::read_to_string(&path).expect("a page")
    };
    assert!(page("cueline").contains(".TH"));
    for command in commands(&home) {
        // The help of help is no command of its own.
        if command != "help" {
            assert!(
                page(&format!("cueline-{command}")).contains(".SH NAME"),
                "{command}"
            );
        }
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
