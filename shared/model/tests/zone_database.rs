//! A changed time-zone database takes effect after a refresh, without a restart.
//!
//! jiff finds the database once for each process. So the test starts itself again with `TZDIR` set to a directory of its own.

use std::path::Path;
use std::process::Command;

use cueline_model::Timestamp;
use cueline_model::schedule::{CronSchedule, zones};

/// Set in the process that has a database of its own.
const MARK: &str = "CUELINE_TEST_OWN_ZONES";

/// A `TZif` file of version 2 (RFC 8536): UTC until 1970, and then one offset of whole hours.
fn constant(offset_s: i32) -> Vec<u8> {
    let mut file = block::<4>(offset_s);
    file.extend(block::<8>(offset_s));
    // The rule after the last transition. POSIX counts westwards.
    file.extend(format!("\n<TST>-{}\n", offset_s / 3_600).into_bytes());
    file
}

/// Header and data, with times of `BYTES` bytes.
fn block<const BYTES: usize>(offset_s: i32) -> Vec<u8> {
    let mut file = b"TZif2".to_vec();
    file.extend([0; 15]);
    // No leap seconds; one transition, two types, names of eight bytes.
    for count in [0_u32, 0, 0, 1, 2, 8] {
        file.extend(count.to_be_bytes());
    }
    file.extend([0; BYTES]);
    file.push(1);
    for (offset, name) in [(0_i32, 0_u8), (offset_s, 4)] {
        file.extend(offset.to_be_bytes());
        file.extend([0, name]);
    }
    file.extend(b"LMT\0TST\0");
    file
}

fn write_zone(dir: &Path, offset_s: i32) {
    let zone = dir.join("Test");
    std::fs::create_dir_all(&zone).expect("creates");
    std::fs::write(zone.join("Zone"), constant(offset_s)).expect("writes");
}

fn next(cron: &CronSchedule) -> String {
    let from: Timestamp = "2027-01-01T12:00:00Z".parse().expect("an instant");
    cron.next_after(from).expect("a fire time").to_string()
}

#[test]
fn a_changed_zone_file_moves_fire_times() {
    if std::env::var_os(MARK).is_none() {
        let dir = tempfile::tempdir().expect("a directory");
        write_zone(dir.path(), 3_600);
        let again = Command::new(std::env::current_exe().expect("a path"))
            .args([
                "a_changed_zone_file_moves_fire_times",
                "--exact",
                "--nocapture",
            ])
            .env("TZDIR", dir.path())
            .env(MARK, dir.path())
            .status();
        assert!(again.expect("starts").success());
        return;
    }
    let dir = std::env::var_os(MARK).expect("is set");
    let cron = CronSchedule::parse("0 2 * * *", "Test/Zone", None, None).expect("parses");
    assert_eq!(next(&cron), "2027-01-02T01:00:00.000Z");
    let before = zones::refresh(&[]);
    assert_eq!(before.len(), 1);
    assert_eq!(zones::refresh(&[]), before, "nothing has changed");
    write_zone(Path::new(&dir), 2 * 3_600);
    assert_eq!(next(&cron), "2027-01-02T01:00:00.000Z", "not yet noticed");
    let after = zones::refresh(&[]);
    assert_ne!(after, before);
    // The schedule was parsed before the change.
    assert_eq!(next(&cron), "2027-01-02T00:00:00.000Z");
    // A zone that the database loses keeps its rules.
    std::fs::remove_file(Path::new(&dir).join("Test/Zone")).expect("removes");
    assert_eq!(zones::refresh(&[]), after);
    assert_eq!(next(&cron), "2027-01-02T00:00:00.000Z");
}
