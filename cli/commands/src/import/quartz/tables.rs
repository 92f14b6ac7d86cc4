//! Quartz's tables in PostgreSQL. They are only read.

use cueline_interface::Failure;
use cueline_model::Timestamp;
use cueline_model::decode::MAX_JOBS;
use cueline_model::import::quartz::{Data, QuartzJob, QuartzTrigger, TriggerKind};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow};
use sqlx::{AssertSqlSafe, Connection as _, Row as _};

use super::Source;

/// Reads all jobs and triggers of one scheduler.
pub(super) async fn read(
    url: &str,
    prefix: &str,
    scheduler: Option<&str>,
    source: &mut Source,
) -> Result<(), Failure> {
    let is_name = |c: char| c.is_ascii_alphanumeric() || "_.".contains(c);
    if !prefix.chars().all(is_name) {
        return Err(Failure::bad_input(format!(
            "--prefix {prefix:?}: letters, digits, '_' and '.' are expected, as in QRTZ_ or quartz.QRTZ_"
        )));
    }
    let options = connect_options(url).map_err(|e| Failure::bad_input(format!("--jdbc: {e}")))?;
    let failed = |error: sqlx::Error| {
        Failure::with_hint(
            format!("failed to read Quartz's tables: {error}"),
            "the user needs the right to read them; --prefix names them if they are not called QRTZ_…",
        )
    };
    let mut database = PgConnection::connect_with(&options).await.map_err(failed)?;
    let names = scheduler_names(&mut database, prefix)
        .await
        .map_err(failed)?;
    let scheduler = match (scheduler, &names[..]) {
        (Some(given), _) if names.iter().any(|name| name == given) => given.to_owned(),
        (None, [only]) => only.clone(),
        (None, []) => {
            return Err(Failure::bad_input("the tables have no jobs"));
        }
        (given, _) => {
            let given = given.map_or_else(String::new, |given| format!(" {given:?}"));
            return Err(Failure::bad_input(format!(
                "--scheduler{given}: the tables have jobs of {}; give one of them",
                names.join(", ")
            )));
        }
    };
    let jobs = rows(&mut database, JOBS, prefix, &scheduler)
        .await
        .map_err(failed)?;
    let triggers = rows(&mut database, TRIGGERS, prefix, &scheduler)
        .await
        .map_err(failed)?;
    for rows in [&jobs, &triggers] {
        if rows.len() > MAX_JOBS {
            return Err(Failure::bad_input(format!(
                "the tables have more than {MAX_JOBS} jobs or triggers; an import takes at most that many"
            )));
        }
    }
    for row in &jobs {
        source.jobs.push(job(row).map_err(failed)?);
    }
    for row in &triggers {
        let (trigger, problem) = trigger(row).map_err(failed)?;
        match problem {
            None => source.triggers.push(trigger),
            Some(reason) => source.refused.push((trigger.place, reason)),
        }
    }
    database.close().await.map_err(failed)
}

/// The address of a PostgreSQL database, also in the form that Java uses.
fn connect_options(url: &str) -> Result<PgConnectOptions, String> {
    let plain = url.strip_prefix("jdbc:").unwrap_or(url);
    let kind = plain.split(':').next().unwrap_or_default();
    if !matches!(kind, "postgresql" | "postgres") {
        return Err(format!(
            "a database of the kind {kind:?}; only PostgreSQL is read (jdbc:postgresql://HOST:PORT/DATABASE). \
             For another database write a job file of Quartz and give it by --xml"
        ));
    }
    let mut options: PgConnectOptions = plain
        .parse()
        .map_err(|error: sqlx::Error| error.to_string())?;
    let query = plain.split_once('?').map_or("", |(_, query)| query);
    let schema = query
        .split('&')
        .find_map(|part| part.strip_prefix("currentSchema="));
    if let Some(schema) = schema {
        options = options.options([("search_path", schema)]);
    }
    Ok(options.application_name("cueline import quartz"))
}

const JOBS: &str = "SELECT job_name, job_group, description, job_class_name, \
    is_nonconcurrent::text AS excludes, is_update_data::text AS keeps, requests_recovery::text AS recovers, job_data \
    FROM {prefix}JOB_DETAILS WHERE sched_name = $1 ORDER BY job_group, job_name LIMIT {limit}";

const TRIGGERS: &str = "SELECT t.trigger_name, t.trigger_group, t.job_name, t.job_group, t.description, \
    t.priority::bigint AS priority, t.trigger_state, t.trigger_type, t.start_time::bigint AS start_time, \
    t.end_time::bigint AS end_time, t.calendar_name, t.misfire_instr::bigint AS misfire, t.job_data, \
    c.cron_expression, c.time_zone_id, s.repeat_count::bigint AS repeat_count, \
    s.repeat_interval::bigint AS repeat_interval, p.str_prop_1, p.str_prop_2, p.str_prop_3, \
    p.int_prop_1::bigint AS int_prop_1, p.long_prop_1::bigint AS long_prop_1 \
    FROM {prefix}TRIGGERS t \
    LEFT JOIN {prefix}CRON_TRIGGERS c USING (sched_name, trigger_name, trigger_group) \
    LEFT JOIN {prefix}SIMPLE_TRIGGERS s USING (sched_name, trigger_name, trigger_group) \
    LEFT JOIN {prefix}SIMPROP_TRIGGERS p USING (sched_name, trigger_name, trigger_group) \
    WHERE t.sched_name = $1 ORDER BY t.trigger_group, t.trigger_name LIMIT {limit}";

async fn scheduler_names(
    database: &mut PgConnection,
    prefix: &str,
) -> Result<Vec<String>, sqlx::Error> {
    let sql = format!("SELECT DISTINCT sched_name FROM {prefix}JOB_DETAILS ORDER BY 1 LIMIT 100");
    sqlx::query_scalar(AssertSqlSafe(sql))
        .fetch_all(database)
        .await
}

async fn rows(
    database: &mut PgConnection,
    sql: &str,
    prefix: &str,
    scheduler: &str,
) -> Result<Vec<PgRow>, sqlx::Error> {
    let limit = (MAX_JOBS + 1).to_string();
    let sql = sql.replace("{prefix}", prefix).replace("{limit}", &limit);
    sqlx::query(AssertSqlSafe(sql))
        .bind(scheduler)
        .fetch_all(database)
        .await
}

fn job(row: &PgRow) -> Result<QuartzJob, sqlx::Error> {
    let (name, group): (String, String) = (row.try_get("job_name")?, row.try_get("job_group")?);
    let data: Option<Vec<u8>> = row.try_get("job_data")?;
    let is_true = |column: &str| -> Result<bool, sqlx::Error> {
        let text: Option<String> = row.try_get(column)?;
        Ok(matches!(
            text.as_deref(),
            Some("true" | "t" | "1" | "y" | "Y")
        ))
    };
    Ok(QuartzJob {
        place: format!("job {group}.{name}"),
        name,
        group,
        description: row.try_get("description")?,
        class: row.try_get("job_class_name")?,
        recovers: is_true("recovers")?,
        excludes_itself: Some(is_true("excludes")?),
        keeps_data: is_true("keeps")?,
        data: Data::from_column(data.as_deref()),
    })
}

/// A trigger, or the reason why its row is not understood.
fn trigger(row: &PgRow) -> Result<(QuartzTrigger, Option<String>), sqlx::Error> {
    let (name, group): (String, String) =
        (row.try_get("trigger_name")?, row.try_get("trigger_group")?);
    let data: Option<Vec<u8>> = row.try_get("job_data")?;
    // Quartz writes 0 for an instant that is not given.
    let time = |column: &str| -> Result<Option<Timestamp>, sqlx::Error> {
        let ms: Option<i64> = row.try_get(column)?;
        Ok(ms.filter(|ms| *ms > 0).map(Timestamp::from_millis))
    };
    let kind_name: String = row.try_get("trigger_type")?;
    let kind = kind(row, &kind_name)?;
    let problem = kind.is_none().then(|| {
        format!("the tables have no row of the type {kind_name} that is understood for it; write the job by hand")
    });
    let misfire: Option<i64> = row.try_get("misfire")?;
    let trigger = QuartzTrigger {
        place: format!("trigger {group}.{name}"),
        name,
        group,
        job_name: row.try_get("job_name")?,
        job_group: row.try_get("job_group")?,
        description: row.try_get("description")?,
        priority: row.try_get("priority")?,
        calendar: row.try_get("calendar_name")?,
        start: time("start_time")?,
        end: time("end_time")?,
        misfire: misfire.unwrap_or_default(),
        data: Data::from_column(data.as_deref()),
        kind: kind.unwrap_or(TriggerKind::Other(kind_name)),
        state: row.try_get("trigger_state")?,
    };
    Ok((trigger, problem))
}

fn kind(row: &PgRow, name: &str) -> Result<Option<TriggerKind>, sqlx::Error> {
    let number = |column: &str| row.try_get::<Option<i64>, _>(column);
    let text = |column: &str| row.try_get::<Option<String>, _>(column);
    Ok(match name {
        "CRON" => {
            let timezone = text("time_zone_id")?;
            text("cron_expression")?.map(|expression| TriggerKind::Cron {
                expression,
                timezone,
            })
        }
        "SIMPLE" => match (number("repeat_count")?, number("repeat_interval")?) {
            (Some(repeats), Some(interval_ms)) => Some(TriggerKind::Simple {
                repeats,
                interval_ms,
            }),
            _ => None,
        },
        "CAL_INT" => match (number("int_prop_1")?, text("str_prop_1")?) {
            (Some(interval), Some(unit)) => Some(TriggerKind::CalendarInterval {
                interval,
                unit,
                timezone: text("str_prop_2")?,
            }),
            _ => None,
        },
        "DAILY_I" => match (number("int_prop_1")?, text("str_prop_1")?) {
            (Some(interval), Some(unit)) => {
                let times = numbers(&text("str_prop_3")?.unwrap_or_default());
                let days = numbers(&text("str_prop_2")?.unwrap_or_default());
                let at = |index: usize, otherwise: [u8; 3]| match times.get(index..index + 3) {
                    Some([hour, minute, second]) => [*hour, *minute, *second],
                    _ => otherwise,
                };
                Some(TriggerKind::DailyTime {
                    interval,
                    unit,
                    days,
                    from: at(0, [0, 0, 0]),
                    to: at(3, [23, 59, 59]),
                    repeats: number("long_prop_1")?.unwrap_or(-1),
                })
            }
            _ => None,
        },
        other => Some(TriggerKind::Other(other.to_owned())),
    })
}

/// The numbers of a text such as `8,0,0,17,0,0`.
fn numbers(text: &str) -> Vec<u8> {
    text.split(',')
        .filter_map(|part| part.trim().parse().ok())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_java_are_understood() {
        let options = connect_options("jdbc:postgresql://db:5433/quartz?user=q&currentSchema=jobs");
        let options = options.expect("an address");
        assert_eq!(options.get_host(), "db");
        assert_eq!(options.get_port(), 5433);
        assert_eq!(options.get_database(), Some("quartz"));
        assert_eq!(options.get_username(), "q");
        for other in [
            "jdbc:mysql://db/quartz",
            "jdbc:oracle:thin:@db",
            "quartz",
            "",
        ] {
            let error = connect_options(other).expect_err("another database");
            assert!(
                error.contains("only PostgreSQL is read"),
                "{other}: {error}"
            );
        }
    }
}
