//! Imports twelve real crontabs.

use std::collections::HashSet;
use std::path::PathBuf;

use cueline_model::crontab::{Import, ImportOptions, MixedColumns, UserColumn, import};
use cueline_model::handler::ShellSpec;
use cueline_model::{HandlerSpec, JobSpec, Schedule, TextOrSecret, decode};

/// Some lines of this file name a user.
const MIXED: &str = "CollectorsQuest__collectorsquest.com";

/// Each other file with its number of entries and the number of entries that run as a named user.
const FILES: [(&str, usize, usize); 11] = [
    ("18F__fbopen", 4, 0),
    ("MushroomObserver__mushroom-observer", 8, 0),
    ("MyaThandarKyaw__djangoproject.com", 2, 2),
    ("DragonFlyBSD__DragonFlyBSD", 6, 6),
    ("Debian__debsources", 1, 1),
    ("ETHZ-TEC__FlockLab2-Server", 6, 0),
    ("BspbOrg__smartbirds-server", 9, 0),
    ("MullinsLab__viroverse", 9, 0),
    ("Infinidat__infinimetrics-container", 11, 11),
    ("adiabuk__dotfiles", 5, 0),
    ("fallspinach__hydro_ops", 4, 0),
];

fn read(file: &str) -> Import {
    read_as(file, UserColumn::Auto).unwrap()
}

fn read_as(file: &str, user_column: UserColumn) -> Result<Import, MixedColumns> {
    let file = format!("{file}.crontab");
    let path = PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("../../tests/data/crontabs")
        .join(&file);
    let text = std::fs::read_to_string(path).unwrap();
    let options = ImportOptions {
        user_column,
        ..ImportOptions::new(file).unwrap()
    };
    import(&text, &options)
}

fn jobs(file: &str) -> Vec<JobSpec> {
    let entries = read(file).entries;
    entries
        .into_iter()
        .map(|entry| entry.job.unwrap())
        .collect()
}

fn shell(job: &JobSpec) -> &ShellSpec {
    match &job.handler {
        HandlerSpec::Shell(shell) => shell,
        other => panic!("{other:?}"),
    }
}

#[test]
fn every_entry_of_every_file_becomes_a_job() {
    let mut names = HashSet::new();
    for (file, entries, with_user) in FILES {
        let jobs = jobs(file);
        assert_eq!(jobs.len(), entries, "{file}");
        let users = jobs
            .iter()
            .filter(|job| shell(job).process.run_as.is_some());
        assert_eq!(users.count(), with_user, "{file}");
        for job in jobs {
            assert!(names.insert(job.name.clone()), "{}", job.name);
            let written: decode::Node = serde_json::to_value(&job).unwrap().into();
            assert_eq!(decode::job(&written), Ok(job));
        }
    }
    assert_eq!(names.len(), 65);
}

#[test]
fn the_mixed_file_needs_to_be_told() {
    let error = read_as(MIXED, UserColumn::Auto).unwrap_err();
    assert_eq!((error.with, error.without), (15, 7));
    let entries = read_as(MIXED, UserColumn::Yes).unwrap().entries;
    // The first line has a command where the user should be.
    let error = entries[0].job.clone().unwrap_err();
    assert!(
        error.starts_with("\"cd\" stands in the user column"),
        "{error}"
    );
    let jobs: Vec<JobSpec> = entries
        .into_iter()
        .skip(1)
        .map(|e| e.job.unwrap())
        .collect();
    let users: Vec<Option<&str>> = jobs
        .iter()
        .map(|job| shell(job).process.run_as.as_deref())
        .collect();
    let (apache, root) = (Some("apache"), Some("root"));
    assert_eq!(
        users,
        [apache, apache, apache, apache, apache, apache, root, root]
    );
    assert_eq!(
        shell(&jobs[0]).script,
        "cronic ./symfony log:rotate backend prod"
    );
    assert_eq!(shell(&jobs[0]).shell.as_deref(), Some("/bin/bash"));
    assert_eq!(jobs[0].labels["mailto"], "ops@example.com");
    let home = shell(&jobs[0]).process.env.get("HOME");
    let home = home.and_then(TextOrSecret::as_text);
    assert_eq!(home, Some("/www/vhosts/collectorsquest.com/current"));
    assert_eq!(shell(&jobs[0]).process.cwd.as_deref(), home);
}

#[test]
fn percent_signs_are_cron_s() {
    let escaped = jobs("Infinidat__infinimetrics-container");
    let sleeper = &shell(&escaped[5]).script;
    assert!(
        sleeper.starts_with("sleep \"$(( RANDOM % 3600 ))\"; manage"),
        "{sleeper}"
    );
    assert_eq!(read("Infinidat__infinimetrics-container").warnings, []);
    let unescaped = read("adiabuk__dotfiles");
    let lines: Vec<u32> = unescaped.warnings.iter().map(|w| w.line).collect();
    assert_eq!(lines, [4, 5, 6]);
    let packback = unescaped.entries[2].job.clone().unwrap();
    assert!(shell(&packback).script.ends_with("`date +"));
    assert_eq!(
        shell(&packback).process.stdin,
        Some("m-\nd-\ny`.txt\n".into())
    );
}

#[test]
fn time_zone_reboot_and_empty_mailto_are_kept() {
    let utc = jobs("fallspinach__hydro_ops");
    assert!(matches!(&utc[0].schedule, Schedule::Cron(cron) if cron.timezone() == "UTC"));
    assert!(!shell(&utc[0]).process.env.contains_key("CRON_TZ"));
    assert_eq!(jobs("MullinsLab__viroverse")[0].schedule, Schedule::Startup);
    assert_eq!(
        jobs("Infinidat__infinimetrics-container")[0].labels["mailto"],
        ""
    );
}
