//! Quartz's tables in PostgreSQL become jobs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use cueline_test_servers::postgres::Postgres;
use cueline_tests::{Finished, finish, program};
use serde_json::Value;

/// The columns that an import reads, of the tables that Quartz 2 has.
pub(crate) const TABLES: &str = "
CREATE TABLE qrtz_job_details (sched_name VARCHAR(120), job_name VARCHAR(200), job_group VARCHAR(200), description VARCHAR(250),
  job_class_name VARCHAR(250), is_durable BOOL, is_nonconcurrent BOOL, is_update_data BOOL, requests_recovery BOOL, job_data BYTEA);
CREATE TABLE qrtz_triggers (sched_name VARCHAR(120), trigger_name VARCHAR(200), trigger_group VARCHAR(200), job_name VARCHAR(200),
  job_group VARCHAR(200), description VARCHAR(250), next_fire_time BIGINT, prev_fire_time BIGINT, priority INTEGER,
  trigger_state VARCHAR(16), trigger_type VARCHAR(8), start_time BIGINT, end_time BIGINT, calendar_name VARCHAR(200),
  misfire_instr SMALLINT, job_data BYTEA);
CREATE TABLE qrtz_simple_triggers (sched_name VARCHAR(120), trigger_name VARCHAR(200), trigger_group VARCHAR(200),
  repeat_count BIGINT, repeat_interval BIGINT, times_triggered BIGINT);
CREATE TABLE qrtz_cron_triggers (sched_name VARCHAR(120), trigger_name VARCHAR(200), trigger_group VARCHAR(200),
  cron_expression VARCHAR(120), time_zone_id VARCHAR(80));
CREATE TABLE qrtz_simprop_triggers (sched_name VARCHAR(120), trigger_name VARCHAR(200), trigger_group VARCHAR(200),
  str_prop_1 VARCHAR(512), str_prop_2 VARCHAR(512), str_prop_3 VARCHAR(512), int_prop_1 INT, int_prop_2 INT, long_prop_1 BIGINT,
  long_prop_2 BIGINT, dec_prop_1 NUMERIC(13, 4), dec_prop_2 NUMERIC(13, 4), bool_prop_1 BOOL, bool_prop_2 BOOL);
";

pub(crate) const ROWS: &str = r"
INSERT INTO qrtz_job_details VALUES
  ('main', 'report', 'DEFAULT', 'A report', 'com.acme.Report', true, true, false, true, convert_to(E'#\n#date\nday=1\n', 'UTF8')),
  ('main', 'poll', 'io', NULL, 'com.acme.Poll', true, false, true, false, '\xaced0005'),
  ('main', 'by-hand', 'DEFAULT', NULL, 'com.acme.Hand', true, false, false, false, NULL);
INSERT INTO qrtz_triggers VALUES
  ('main', 'nightly', 'DEFAULT', 'report', 'DEFAULT', NULL, 0, 0, 7, 'WAITING', 'CRON', 1700000000000, 0, NULL, 2, NULL),
  ('main', 'often', 'DEFAULT', 'poll', 'io', NULL, 0, 0, 5, 'PAUSED', 'SIMPLE', 1700000000000, 0, NULL, 0, NULL),
  ('main', 'shop-hours', 'DEFAULT', 'poll', 'io', NULL, 0, 0, 5, 'WAITING', 'DAILY_I', 1700000000000, 0, 'holidays', 1, NULL),
  ('main', 'done', 'DEFAULT', 'poll', 'io', NULL, 0, 0, 5, 'COMPLETE', 'CRON', 1700000000000, 0, NULL, 0, NULL);
INSERT INTO qrtz_cron_triggers VALUES
  ('main', 'nightly', 'DEFAULT', '0 30 2 * * ?', 'Asia/Tokyo'), ('main', 'done', 'DEFAULT', '0 0 0 * * ?', 'UTC');
INSERT INTO qrtz_simple_triggers VALUES ('main', 'often', 'DEFAULT', -1, 5000, 3);
INSERT INTO qrtz_simprop_triggers VALUES
  ('main', 'shop-hours', 'DEFAULT', 'MINUTE', '2,3,4,5,6', '8,0,0,17,30,0', 30, 0, -1, 0, NULL, NULL, NULL, NULL);
";

async fn import(url: &str, more: &[&str]) -> Result<Finished> {
    let args = [
        "import",
        "quartz",
        "--dry-run",
        "--tz",
        "UTC",
        "-o",
        "json",
        "--jdbc",
        url,
    ];
    let command = program::command(&program::cueline(), &[&args[..], more].concat());
    finish(command, Duration::from_secs(30)).await
}

#[tokio::test]
async fn quartz_s_tables_become_jobs() -> Result<()> {
    let server = Postgres::shared()?;
    let database = server.create_database()?;
    server.sql(&database, TABLES)?;
    let url = format!("jdbc:{}", server.url(&database));
    let empty = import(&url, &[]).await?;
    ensure!(
        empty.stderr.contains("the tables have no jobs"),
        "{empty:#?}"
    );
    server.sql(&database, ROWS)?;

    let found = import(&url, &[]).await?;
    ensure!(found.status == Some(2), "{found:#?}");
    let found: Value = serde_json::from_str(&found.stdout)?;
    let jobs = found["jobs"].as_array().context("no jobs")?;
    let names: Vec<_> = jobs.iter().filter_map(|job| job["name"].as_str()).collect();
    assert_eq!(
        names,
        ["by-hand", "report", "io.poll.often", "io.poll.shop-hours"]
    );
    let report = &jobs[1];
    assert_eq!(report["schedule"]["cron"], "0 30 2 * * ?");
    assert_eq!(report["schedule"]["timezone"], "Asia/Tokyo");
    assert_eq!(report["params"], r#"{"day":"1"}"#);
    assert_eq!(report["priority"], 7);
    assert_eq!(report["misfire"]["policy"], "skip");
    assert_eq!(report["on_lost"], "rerun");
    assert_eq!(report["block"], "serial");
    assert_eq!(jobs[2]["enabled"], false);
    assert_eq!(jobs[3]["schedule"]["cron"], "0 0,30 8-17 ? * 2-6");
    assert_eq!(jobs[3]["enabled"], false, "its calendar cannot be read");
    assert_eq!(found["refused"][0]["place"], "trigger DEFAULT.done");
    let notes = found["warnings"].to_string();
    for part in [
        "a serialised Java object of 4 bytes",
        "the calendar",
        "@PersistJobDataAfterExecution",
    ] {
        assert!(notes.contains(part), "{part}: {notes}");
    }

    let other = import(&url, &["--scheduler", "other"]).await?;
    ensure!(
        other.stderr.contains("the tables have jobs of main"),
        "{other:#?}"
    );
    let none = import(&url, &["--prefix", "none_"]).await?;
    ensure!(
        none.stderr.contains("failed to read Quartz's tables"),
        "{none:#?}"
    );
    Ok(())
}
