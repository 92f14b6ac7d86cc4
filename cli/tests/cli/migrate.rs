//! `cueline migrate` on a file. The tests of the roles cover it on servers.

use crate::command::Home;

#[test]
fn migrating_twice_is_the_same_as_once() {
    let home = Home::new();
    let missing = home.run(&["migrate", "--store", "sqlite:s.db", "--check"]);
    assert_eq!(missing.status, 1, "{missing:#?}");
    assert!(missing.stderr.contains("cueline migrate"), "{missing:#?}");
    assert!(!home.path().join("s.db").exists(), "the check has made it");
    home.write("empty.db", "");
    let empty = home.run(&["migrate", "--store", "sqlite:empty.db", "--check"]);
    assert_eq!(empty.status, 1, "{empty:#?}");
    assert!(empty.stderr.contains("the file is empty"), "{empty:#?}");
    for _ in 0..2 {
        let stdout = home.run(&["migrate", "--store", "sqlite:s.db"]).good();
        assert!(stdout.starts_with("sqlite:s.db is up to date"), "{stdout}");
    }
    home.run(&["migrate", "--store", "sqlite:s.db", "--check"])
        .good();
}

/// After a restore its new runs are other runs to the workers.
#[test]
fn a_restored_store_gets_a_new_id() {
    let home = Home::new();
    let renew = [
        "migrate",
        "--restored",
        "--store",
        "sqlite:s.db",
        "-o",
        "json",
    ];
    let id = || {
        let answer: serde_json::Value =
            serde_json::from_str(&home.run(&renew).good()).expect("JSON");
        answer["id"].as_str().expect("an id").to_owned()
    };
    let first = id();
    assert_eq!(first.len(), 32, "{first}");
    assert_ne!(first, id());
    let both = [&renew[..], &["--check"]].concat();
    assert_eq!(home.run(&both).status, 2);
}

#[test]
fn a_file_that_is_no_store_is_refused() {
    let home = Home::new();
    home.write("text", "this is no database");
    for (args, status, words) in [
        (&["migrate"][..], 2, "--store"),
        (&["migrate", "--store", "oracle://h"], 2, "oracle"),
        (&["migrate", "--store-file", "none"], 2, "No such file"),
        (
            &["migrate", "--store-file", "text"],
            2,
            "--store-file: text",
        ),
        (
            &["migrate", "--store", "sqlite:text"],
            1,
            "not a Cueline store",
        ),
    ] {
        let ended = home.run(args);
        assert_eq!(ended.status, status, "{ended:#?}");
        assert!(ended.stderr.contains(words), "{ended:#?}");
    }
}
