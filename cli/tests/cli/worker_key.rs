//! `cueline worker-key show` and `rotate`, and the settings of a worker's key.

use std::os::unix::fs::PermissionsExt as _;

use crate::command::Home;

const SECRET: &str = "BwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwcHBwc=";
const ID: &str = "fe812c12f3ab4ce6";

fn home() -> Home {
    let home = Home::new();
    home.write("worker.key", format!("cueline-worker-key:{SECRET}\n"));
    home
}

#[test]
fn a_key_is_shown_without_its_secret() {
    let home = home();
    for place in [&["worker.key"][..], &["--state-dir", "."]] {
        let text = home.run(&[&["worker-key", "show"], place].concat()).good();
        assert!(text.contains(ID) && !text.contains(SECRET), "{text}");
        assert_eq!(text.lines().count(), 1, "{text}");
    }
    let json = ["worker-key", "show", "worker.key", "-o", "json"];
    let json = home.run(&json).good();
    assert!(json.contains(&format!("\"id\": \"{ID}\"")), "{json}");
    assert!(json.contains("\"next\": null") && !json.contains(SECRET));
}

#[test]
fn the_next_key_waits_beside_the_present_one() {
    let home = home();
    let rotate = ["worker-key", "rotate", "--state-dir", "."];
    let text = home.run(&rotate).good();
    let next = home.path().join("worker.key.next");
    let mode = std::fs::metadata(&next)
        .expect("a file")
        .permissions()
        .mode();
    assert_eq!(mode & 0o777, 0o600);
    let secret = std::fs::read_to_string(&next).expect("a key");
    let secret = secret.trim().trim_start_matches("cueline-worker-key:");
    assert!(!text.contains(secret), "{text}");

    let shown = home.run(&["worker-key", "show", "worker.key"]).good();
    assert!(shown.contains(ID) && shown.contains("next key"), "{shown}");
    let again = home.run(&rotate);
    assert_eq!(again.status, 2, "{again:#?}");
    assert!(
        again.stderr.contains("already being replaced"),
        "{again:#?}"
    );
    let kept = std::fs::read_to_string(&next).expect("a key");
    assert!(kept.contains(secret), "it was written over");
}

#[test]
fn a_missing_key_is_not_made_by_looking_at_it() {
    let home = Home::new();
    home.write("text", "hello");
    for (args, words) in [
        (&["show", "none"][..], "No such file"),
        (&["show", "text"], "is not a worker's key"),
        (&["rotate", "--state-dir", "."], "No such file"),
        (&["show"], "<FILE|--state-dir <DIR>>"),
        (&["show", "text", "--state-dir", "."], "cannot be used"),
    ] {
        let ended = home.run(&[&["worker-key"], args].concat());
        assert_eq!(ended.status, 2, "{ended:#?}");
        assert!(ended.stderr.contains(words), "{ended:#?}");
    }
    assert!(!home.path().join("worker.key").exists());
}

#[test]
fn a_file_without_an_enrolment_token_is_refused_by_its_setting() {
    let home = home();
    let public = home.run(&["key", "new", "--out", "k"]).good();
    let check = |token: &str| {
        home.run(&[
            "config",
            "check",
            "worker",
            "--broker",
            "nats://mq",
            "--allow",
            "http",
            "--trust",
            public.trim(),
            "--enrol-token-file",
            token,
        ])
    };
    home.write("token", format!("cueline-enrol:0123456789abcdef:{SECRET}"));
    let text = check("token").good();
    assert!(!text.contains(SECRET), "{text}");
    let refused = check("worker.key");
    assert_eq!(refused.status, 2, "{refused:#?}");
    let place = "--enrol-token-file: worker.key: an enrolment token must have the form";
    assert!(refused.stderr.contains(place), "{refused:#?}");
    assert!(!refused.stderr.contains(SECRET), "{refused:#?}");
}
