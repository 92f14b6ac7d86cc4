//! Keys, tokens and databases stay out of commits, and out of the context from which an image is built.

use std::collections::BTreeSet;
use std::process::{Command, Stdio};

const GIT: &str = include_str!("../../../.gitignore");
const IMAGE: &str = include_str!("../../../.dockerignore");

/// What is made while somebody tries something out in a checkout.
const SECRETS: [&str; 26] = [
    "admin.token",
    "billing-1.token",
    "broker.secret",
    "client.p12",
    "client.pfx",
    "cluster/worker-1/worker.key",
    "data/admin.token",
    "data/lock",
    "data/store.db",
    "demo/.env",
    "demo/.env.production",
    "demo/api.sock",
    "demo/executors/worker-1/journal.db",
    "demo/queue.db-lock",
    "demo/server.json",
    "demo/store.db-shm",
    "demo/store.db-wal",
    "enrol.token",
    "infra/compose/secrets/postgres-password",
    "infra/compose/secrets/token",
    "keys/next",
    "scheduler.creds",
    "server.pem",
    "signing.key",
    "state/worker.key.next",
    "user.nk",
];

/// What the repository and a build need, although its name is like one of the above.
const NEEDED: [&str; 6] = [
    ".cargo/config.toml",
    "cli/src/config/tls.rs",
    "infra/compose/make-secrets",
    "shared/protocol/src/origin/mod.rs",
    "tests/data/crontabs/README.md",
    "worker/handlers/src/secrets/mod.rs",
];

/// The certificates of tests, which are in the repository on purpose.
const CERTIFICATES: [&str; 2] = [
    "scheduler/store-postgres/tests/postgres/tls_files/server.key",
    "shared/broker-nats/tests/nats/tls/client.pem",
];

/// Those of the names that git ignores under these rules alone.
fn ignored<'a>(rules: &str, names: &[&'a str]) -> BTreeSet<&'a str> {
    let folder = tempfile::tempdir().expect("a folder");
    let git = |arguments: &[&str]| {
        Command::new("git")
            .args(arguments)
            .current_dir(folder.path())
            // Neither the settings of a user nor a surrounding call of git count.
            .env("GIT_CONFIG_GLOBAL", "/dev/null")
            .env("GIT_CONFIG_NOSYSTEM", "1")
            .env("HOME", folder.path())
            .env("XDG_CONFIG_HOME", folder.path())
            .env_remove("GIT_DIR")
            .env_remove("GIT_WORK_TREE")
            .env_remove("GIT_INDEX_FILE")
            .stdin(Stdio::null())
            .output()
            .expect("git is installed")
    };
    let made = git(&["init", "--quiet", "--template="]);
    assert!(made.status.success(), "{made:?}");
    std::fs::write(folder.path().join(".gitignore"), rules).expect("writes");
    for name in names {
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("makes folders");
        std::fs::write(path, "").expect("writes");
    }
    let mut arguments = vec!["check-ignore", "--"];
    arguments.extend(names);
    let answer = git(&arguments);
    // 1: none of them is ignored.
    assert!(matches!(answer.status.code(), Some(0 | 1)), "{answer:?}");
    let listed = String::from_utf8(answer.stdout).expect("UTF-8");
    let listed: BTreeSet<&str> = listed.lines().collect();
    let kept = names.iter().filter(|name| listed.contains(**name));
    kept.copied().collect()
}

#[test]
fn git_ignores_keys_tokens_and_databases() {
    assert_eq!(ignored(GIT, &SECRETS), BTreeSet::from(SECRETS));
}

#[test]
fn an_image_is_built_without_keys_tokens_and_databases() {
    assert_eq!(ignored(IMAGE, &SECRETS), BTreeSet::from(SECRETS));
}

#[test]
fn nothing_that_is_needed_is_ignored() {
    for (rules, names) in [
        (GIT, NEEDED.as_slice()),
        (IMAGE, NEEDED.as_slice()),
        (GIT, CERTIFICATES.as_slice()),
    ] {
        let wrong = ignored(rules, names);
        assert!(wrong.is_empty(), "{wrong:?}");
    }
    for name in NEEDED.into_iter().chain(CERTIFICATES) {
        assert!(super::root().join(name).exists(), "{name} has moved");
    }
}

/// In `.dockerignore` a name without a slash counts at the top only, in `.gitignore` everywhere. With one of these
/// beginnings both mean the same, and git can tell what the image leaves out.
#[test]
fn each_rule_of_the_image_says_where_it_counts() {
    for rule in IMAGE.lines() {
        let says = rule.starts_with('/') || rule.starts_with("**/");
        assert!(says || rule.is_empty() || rule.starts_with('#'), "{rule}");
    }
}
