//! The systemd units: systemd accepts them, and each sets every restriction or says why it does not.

use std::io::Write as _;
use std::path::Path;
use std::process::{Command, Stdio};

const SCHEDULER: &str = include_str!("../../../infra/systemd/cueline-scheduler.service");
const STANDALONE: &str = include_str!("../../../infra/systemd/cueline-standalone.service");
const WORKER: &str = include_str!("../../../infra/systemd/cueline-worker@.service");
const RUN_AS: &str = include_str!("../../../infra/systemd/run-as.conf");

/// Settings of systemd (`man systemd.exec`) that take something away from a service.
const RESTRICTIONS: [&str; 26] = [
    "CapabilityBoundingSet",
    "InaccessiblePaths",
    "LimitCORE",
    "LockPersonality",
    "MemoryDenyWriteExecute",
    "NoNewPrivileges",
    "PrivateDevices",
    "PrivateIPC",
    "PrivateTmp",
    "ProcSubset",
    "ProtectClock",
    "ProtectControlGroups",
    "ProtectHome",
    "ProtectHostname",
    "ProtectKernelLogs",
    "ProtectKernelModules",
    "ProtectKernelTunables",
    "ProtectProc",
    "ProtectSystem",
    "RestrictAddressFamilies",
    "RestrictNamespaces",
    "RestrictRealtime",
    "RestrictSUIDSGID",
    "StateDirectoryMode",
    "SystemCallArchitectures",
    "SystemCallFilter",
];

/// The values of a setting, in the order of the lines.
fn values<'a>(unit: &'a str, setting: &str) -> Vec<&'a str> {
    let lines = unit.lines().filter_map(|line| line.split_once('='));
    lines
        .filter(|(name, _)| *name == setting)
        .map(|(_, value)| value)
        .collect()
}

/// The restrictions that a unit neither sets nor leaves out with a reason (`# No …: reason`).
fn forgotten<'a>(unit: &str, restrictions: &[&'a str]) -> Vec<&'a str> {
    let is_forgotten = |name: &&str| {
        let reason = format!("# No {name}: ");
        let explained = unit.lines().any(|line| line.starts_with(&reason));
        let set = values(unit, name).iter().any(|value| *value != "no");
        explained == set
    };
    restrictions
        .iter()
        .copied()
        .filter(|name| is_forgotten(name))
        .collect()
}

#[test]
fn each_unit_sets_every_restriction_or_says_why_not() {
    for unit in [SCHEDULER, STANDALONE, WORKER] {
        assert_eq!(forgotten(unit, &RESTRICTIONS), Vec::<&str>::new(), "{unit}");
        assert_eq!(values(unit, "UMask"), ["0077"]);
        assert_eq!(values(unit, "CapabilityBoundingSet"), [""]);
        assert_eq!(values(unit, "NoNewPrivileges"), ["yes"]);
    }
    assert_eq!(values(SCHEDULER, "ProtectSystem"), ["strict"]);
    for unit in [STANDALONE, WORKER] {
        assert_eq!(values(unit, "StateDirectoryMode"), ["0700"]);
    }
}

#[test]
fn a_restriction_is_set_or_explained_and_not_both() {
    let unit = "A=yes\n# No B: a reason\nC=no\nD=yes\n# No D: a reason\n# No E\n";
    assert_eq!(forgotten(unit, &["A", "B", "C", "D", "E"]), ["C", "D", "E"]);
}

/// A job of another user needs these rights of the worker, and no others.
#[test]
fn a_worker_for_other_users_gets_only_the_rights_to_start_and_stop_their_processes() {
    let mut rights: Vec<&str> = values(RUN_AS, "CapabilityBoundingSet")
        .into_iter()
        .flat_map(str::split_whitespace)
        .collect();
    rights.sort_unstable();
    let expected = [
        "CAP_CHOWN",
        "CAP_DAC_OVERRIDE",
        "CAP_FOWNER",
        "CAP_KILL",
        "CAP_SETGID",
        "CAP_SETUID",
        "CAP_SYS_PTRACE",
    ];
    assert_eq!(rights, expected);
    let list = "Environment=CUELINE_ALLOW_RUN_AS=";
    assert!(RUN_AS.lines().any(|line| line.starts_with(list)));
    for setting in RESTRICTIONS {
        let relaxed = setting != "CapabilityBoundingSet" && !values(RUN_AS, setting).is_empty();
        assert!(!relaxed, "run-as.conf changes {setting}");
    }
}

/// What `systemd-analyze verify` says about files in this folder. Other units of the machine do not count.
fn verify(folder: &Path, units: &[&str]) -> std::io::Result<Vec<String>> {
    let output = Command::new("systemd-analyze")
        .args(["verify", "--man=no"])
        .args(units.iter().map(|unit| folder.join(unit)))
        .stdin(Stdio::null())
        .output()?;
    let text = String::from_utf8_lossy(&output.stderr).into_owned();
    let about = folder.to_string_lossy().into_owned();
    let named = |line: &&str| line.contains(&about) || units.iter().any(|one| line.contains(*one));
    Ok(text.lines().filter(named).map(str::to_owned).collect())
}

#[test]
fn systemd_accepts_the_units() {
    let folder = tempfile::tempdir().expect("a folder");
    let write = |name: &str, text: &str| {
        // systemd looks for the program, which is not installed here.
        let text = text.replace("ExecStart=cueline ", "ExecStart=/bin/true ");
        let path = folder.path().join(name);
        std::fs::create_dir_all(path.parent().expect("a folder")).expect("makes folders");
        std::fs::write(path, text).expect("writes");
    };
    write(
        "cueline-wrong.service",
        &format!("{SCHEDULER}\n[Service]\nProtectsystem=strict\n"),
    );
    write("cueline-scheduler.service", SCHEDULER);
    write("cueline-standalone.service", STANDALONE);
    write("cueline-worker@billing.service", WORKER);
    write("cueline-worker@deploy.service", WORKER);
    write("cueline-worker@deploy.service.d/run-as.conf", RUN_AS);
    // A mistake that systemd must find: it may be missing, or not work in this container.
    let works = verify(folder.path(), &["cueline-wrong.service"]);
    if !works.is_ok_and(|found| found.iter().any(|line| line.contains("Protectsystem"))) {
        // Past the capture of the test harness, which shows nothing of a test that passes.
        let mut errors = std::io::stderr();
        writeln!(
            errors,
            "skipped: no systemd-analyze that works, so systemd_accepts_the_units checked nothing"
        )
        .expect("writes");
        return;
    }
    let units = [
        "cueline-scheduler.service",
        "cueline-standalone.service",
        "cueline-worker@billing.service",
        "cueline-worker@deploy.service",
    ];
    let found = verify(folder.path(), &units).expect("it ran before");
    assert_eq!(found, Vec::<String>::new());
}
