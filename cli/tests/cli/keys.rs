//! `cueline key` and `cueline token`: only the owner can read the files, none is overwritten, and the halves are not
//! confused.

use std::os::unix::fs::PermissionsExt as _;

use crate::command::Home;

fn mode(home: &Home, name: &str) -> u32 {
    let metadata = std::fs::metadata(home.path().join(name)).expect("a file");
    metadata.permissions().mode() & 0o777
}

#[test]
fn a_key_is_created_once_and_its_public_half_can_be_printed_again() {
    let home = Home::new();
    let public = home.run(&["key", "new", "--out", "k"]).good();
    assert!(public.starts_with("cueline-public-key:"), "{public}");
    assert_eq!(mode(&home, "k"), 0o600);
    assert_eq!(home.run(&["key", "public", "k"]).good(), public);
    let again = home.run(&["key", "new", "--out", "k"]);
    assert_eq!(again.status, 2, "{again:#?}");
    assert!(again.stderr.contains("k exists"), "{again:#?}");
    assert_eq!(
        home.run(&["key", "public", "k"]).good(),
        public,
        "it was written over"
    );

    let other = home.run(&["key", "new", "--out", "l"]).good();
    assert_ne!(other, public);
    home.write("both.keys", format!("# old\n{public}\n{other} # new\n"));
    let list = home.run(&["key", "list", "k", "both.keys"]).good();
    assert_eq!(list.matches(public.trim()).count(), 2, "{list}");
    assert_eq!(list.matches(other.trim()).count(), 1, "{list}");
    let secret = std::fs::read_to_string(home.path().join("k")).expect("a key");
    assert!(!list.contains(secret.trim()), "{list}");
}

#[test]
fn a_standalone_servers_key_is_accepted() {
    let home = Home::new();
    home.run(&["key", "new", "--out", "k"]).good();
    let secret = std::fs::read_to_string(home.path().join("k")).expect("a key");
    home.write(
        "bare",
        secret.trim().trim_start_matches("cueline-secret-key:"),
    );
    assert_eq!(
        home.run(&["key", "public", "bare"]).good(),
        home.run(&["key", "public", "k"]).good()
    );
}

#[test]
fn a_file_without_a_key_is_refused() {
    let home = Home::new();
    home.write("text", "hello");
    for (args, words) in [
        (&["key", "public", "none"][..], "No such file"),
        (&["key", "public", "text"], "is not a signing key"),
        (&["key", "public", "."], "is not a file"),
        (&["key", "list", "text"], "is not a signing key"),
        (&["key", "list"], "<FILE>"),
        (&["key", "new", "--out", "none/k"], "none/k"),
    ] {
        let ended = home.run(args);
        assert_ne!(ended.status, 0, "{ended:#?}");
        assert!(ended.stderr.contains(words), "{ended:#?}");
    }
}

#[test]
fn tokens_differ_and_are_private() {
    let home = Home::new();
    let printed = home.run(&["token", "new"]).good();
    assert_eq!(printed.trim().len(), 64, "{printed}");
    assert_ne!(home.run(&["token", "new"]).good(), printed);
    let stdout = home.run(&["token", "new", "--out", "t"]).good();
    assert_eq!(mode(&home, "t"), 0o600);
    let token = std::fs::read_to_string(home.path().join("t")).expect("a token");
    assert!(!stdout.contains(token.trim()), "{stdout}");
    assert_eq!(home.run(&["token", "new", "--out", "t"]).status, 2);
}

#[test]
fn an_enrolment_token_is_created_without_a_server() {
    let home = Home::new();
    let args = ["worker-key", "token", "--offline", "--out", "t"];
    let stdout = home.run(&args).good();
    assert_eq!(mode(&home, "t"), 0o600);
    let text = std::fs::read_to_string(home.path().join("t")).expect("a token");
    assert!(text.starts_with("cueline-enrol:"), "{text}");
    let secret = text.trim().rsplit(':').next().expect("a secret");
    assert!(!stdout.contains(secret), "{stdout}");
    let again = home.run(&args);
    assert_eq!(again.status, 2, "{again:#?}");
    assert!(again.stderr.contains("t exists"), "{again:#?}");
    for (wrong, words) in [
        (&["worker-key", "token", "--offline"][..], "--out"),
        (
            &[
                "worker-key",
                "token",
                "--offline",
                "--out",
                "u",
                "--uses",
                "2",
            ],
            "--uses",
        ),
        (&["worker-key", "token", "--executor", "e1"], "--group"),
        (
            &["worker-key", "token", "--valid", "3600"],
            "is not a duration",
        ),
        (
            &["worker-key", "revoke", "e1", "xyz"],
            "16 lower-case hexadecimal digits",
        ),
    ] {
        let ended = home.run(wrong);
        assert_eq!(ended.status, 2, "{ended:#?}");
        assert!(ended.stderr.contains(words), "{ended:#?}");
    }
}
