use std::fmt::Write as _;

use super::*;
use crate::handler::{HandlerSpec, Interpreter};
use crate::policy::{Block, Scope};
use crate::route::Route;

const NOW: Timestamp = Timestamp::from_millis(1_800_000_000_000);

fn options() -> XxlOptions {
    XxlOptions {
        timezone: "Asia/Shanghai".to_owned(),
        now: NOW,
    }
}

/// A dump with jobs, each of which has these columns beside the usual ones.
fn dump(jobs: &[&[(&str, &str)]]) -> Dump {
    let mut text = "INSERT INTO `xxl_job_group` (`id`,`app_name`,`title`) VALUES (1,'billing-executor','x');\n".to_owned();
    for (index, columns) in jobs.iter().enumerate() {
        let mut row: Vec<(&str, String)> = [
            ("job_group", "1"),
            ("job_desc", "report"),
            ("schedule_type", "CRON"),
            ("schedule_conf", "0 0 1 * * ?"),
            ("misfire_strategy", "DO_NOTHING"),
            ("executor_route_strategy", "ROUND"),
            ("executor_handler", "demoJobHandler"),
            ("executor_block_strategy", "SERIAL_EXECUTION"),
            ("glue_type", "BEAN"),
            ("trigger_status", "1"),
        ]
        .map(|(column, value)| (column, value.to_owned()))
        .into();
        row.push(("id", (index + 1).to_string()));
        for (column, value) in *columns {
            row.retain(|(known, _)| known != column);
            row.push((column, (*value).to_owned()));
        }
        let columns: Vec<&str> = row.iter().map(|(column, _)| *column).collect();
        let values: Vec<String> = row
            .iter()
            .map(|(_, value)| format!("'{}'", value.replace('\\', "\\\\").replace('\'', "''")))
            .collect();
        let _ = writeln!(
            text,
            "INSERT INTO `xxl_job_info` ({}) VALUES ({});",
            columns.join(","),
            values.join(",")
        );
    }
    read(&text).expect("is read")
}

/// The only job of a dump, its script and its notes.
fn one(columns: &[(&str, &str)]) -> (JobSpec, Vec<ScriptSpec>, Vec<Note>) {
    let found = import(&dump(&[columns]), &options());
    let entry = found.entries.into_iter().next().expect("an entry");
    (entry.job.expect("is converted"), found.scripts, entry.notes)
}

fn refusal(columns: &[(&str, &str)]) -> String {
    let found = import(&dump(&[columns]), &options());
    assert_eq!(found.scripts, []);
    found.entries[0].job.clone().expect_err("is refused")
}

fn says(notes: &[Note], kind: &str, part: &str) -> bool {
    notes
        .iter()
        .any(|note| note.kind() == kind && note.message().contains(part))
}

#[test]
fn a_bean_job_keeps_what_it_does() {
    let (job, scripts, notes) = one(&[
        ("executor_param", "month=3"),
        ("executor_timeout", "90"),
        ("executor_fail_retry_count", "2"),
        ("author", "ann"),
        ("executor_route_strategy", "FIRST"),
    ]);
    assert_eq!(job.name.as_str(), "report");
    assert_eq!(job.group.as_str(), "billing-executor");
    assert_eq!(
        job.handler,
        HandlerSpec::Native("demoJobHandler".to_owned())
    );
    assert_eq!((job.block, job.scope), (Block::Serial, Scope::Executor));
    assert_eq!(job.route, Route::First);
    assert_eq!(job.params.as_deref(), Some("month=3"));
    assert_eq!(
        job.timeout.map(crate::duration::DurationMs::as_millis),
        Some(90_000)
    );
    assert_eq!(job.retry.max, 2);
    assert_eq!(job.labels["author"], "ann");
    assert_eq!(job.enabled, None);
    let first = job.next_fire(NOW).expect("fires").to_string();
    assert!(
        first.ends_with("T17:00:00.000Z"),
        "1 o'clock in Shanghai: {first}"
    );
    assert_eq!((scripts, notes), (Vec::new(), Vec::new()));
}

#[test]
fn each_kind_of_schedule_is_converted() {
    let schedule = |columns: &[(&str, &str)]| {
        let (job, _, _) = one(columns);
        serde_json::to_value(job.schedule).expect("is written")
    };
    let every = schedule(&[
        ("schedule_type", "FIX_RATE"),
        ("schedule_conf", "30"),
        ("trigger_next_time", "1800000007000"),
    ]);
    assert_eq!(every["every"], "30s");
    assert_eq!(
        every["anchor"],
        Timestamp::from_millis(1_800_000_007_000).to_string()
    );
    assert_eq!(
        schedule(&[("schedule_type", "FIX_DELAY"), ("schedule_conf", "5")]),
        json!({ "after": "5s" })
    );
    let manual = json!({ "manual": true });
    for kind in ["NONE", ""] {
        let columns = [
            ("schedule_type", kind),
            ("schedule_conf", ""),
            ("trigger_status", "0"),
        ];
        assert_eq!(schedule(&columns), manual, "{kind}");
    }
    let old = schedule(&[
        ("schedule_type", ""),
        ("schedule_conf", ""),
        ("job_cron", "0 0 1 * * ?"),
    ]);
    assert_eq!(old["cron"], "0 0 1 * * ?");
}

#[test]
fn a_stopped_job_is_paused_and_an_unknown_value_is_refused() {
    let (job, _, notes) = one(&[("trigger_status", "0"), ("alarm_email", "ops@example.com")]);
    assert_eq!(job.enabled, Some(false));
    assert!(says(&notes, "paused", "stopped in XXL-JOB"));
    assert!(says(
        &notes,
        "left out",
        "the alarm by e-mail to ops@example.com"
    ));
    for (column, value, part) in [
        ("schedule_conf", "0 0 1 1 1 ? 2020", "never fires again"),
        ("schedule_conf", "x", "schedule.cron"),
        (
            "schedule_type",
            "LUNAR",
            "the schedule type LUNAR is unknown",
        ),
        ("misfire_strategy", "X", "the misfire strategy X is unknown"),
        (
            "executor_route_strategy",
            "X",
            "the routing strategy X is unknown",
        ),
        (
            "executor_block_strategy",
            "X",
            "the block strategy X is unknown",
        ),
        ("executor_handler", "", "executor_handler is empty"),
        (
            "glue_type",
            "GLUE_GROOVY",
            "only XXL-JOB's executor compiles",
        ),
        (
            "glue_type",
            "GLUE_RUBY",
            "the glue type GLUE_RUBY is unknown",
        ),
        ("job_group", "9", "its executor group 9 is missing"),
        ("executor_timeout", "soon", "executor_timeout \"soon\""),
    ] {
        let reason = refusal(&[(column, value)]);
        assert!(reason.contains(part), "{column} {value}: {reason}");
    }
}

#[test]
fn the_source_of_a_script_becomes_a_script() {
    for (kind, language, note) in [
        ("GLUE_SHELL", Interpreter::Bash, ""),
        ("GLUE_PYTHON", Interpreter::Python3, "changed"),
        ("GLUE_PYTHON2", Interpreter::Python3, "paused"),
        ("GLUE_NODEJS", Interpreter::Node, ""),
        ("GLUE_PHP", Interpreter::Php, ""),
        ("GLUE_POWERSHELL", Interpreter::Pwsh, "changed"),
    ] {
        let (job, scripts, notes) = one(&[
            ("glue_type", kind),
            ("glue_source", "echo 'a'\r\nexit 0\r\n"),
            ("glue_remark", "first version"),
            ("executor_handler", ""),
        ]);
        let [script] = &scripts[..] else {
            panic!("{kind}: {scripts:?}");
        };
        assert_eq!(script.language, language, "{kind}");
        assert_eq!(script.text, "echo 'a'\nexit 0\n");
        assert_eq!(script.remark, "first version");
        assert_eq!(job.script(), Some((script.name.clone(), None)));
        assert_eq!(
            notes.iter().map(Note::kind).collect::<String>(),
            note,
            "{kind}"
        );
    }
    let reason = refusal(&[("glue_type", "GLUE_SHELL"), ("glue_source", " ")]);
    assert!(reason.contains("glue_source"), "{reason}");
}

#[test]
fn earlier_versions_of_a_source_are_left_out() {
    let mut text = String::from(
        "INSERT INTO xxl_job_logglue (id, job_id, glue_source) VALUES (1,1,'a'),(2,1,'b'),(3,7,'c');",
    );
    text += "INSERT INTO xxl_job_group (id, app_name) VALUES (1,'x');";
    text += "INSERT INTO xxl_job_info (id, job_group, job_desc, schedule_type, glue_type, glue_source) \
             VALUES (1, 1, 'a', 'NONE', 'GLUE_SHELL', 'b');";
    let found = import(&read(&text).expect("is read"), &options());
    assert!(says(
        &found.entries[0].notes,
        "left out",
        "2 versions of its source"
    ));
}

#[test]
fn names_are_descriptions_with_the_id_where_two_are_the_same() {
    let found = import(
        &dump(&[
            &[("job_desc", "月报 (生成)")],
            &[("job_desc", "sync")],
            &[("job_desc", "sync!")],
            &[("job_desc", "??")],
        ]),
        &options(),
    );
    let names: Vec<String> = found
        .entries
        .iter()
        .map(|entry| entry.job.as_ref().expect("is converted").name.to_string())
        .collect();
    assert_eq!(names, ["月报-生成", "sync-2", "sync-3", "job-4"]);
    assert!(says(
        &found.entries[0].notes,
        "changed",
        "becomes the name \"月报-生成\""
    ));
    assert_eq!(found.entries[0].place, "job 1");
}

#[test]
fn children_run_after_their_parents() {
    let job = |name: &'static str, children: &'static str| {
        vec![("job_desc", name), ("child_jobid", children)]
    };
    let jobs = [job("a", "2,3, 9"), job("b", "3,1"), job("c", "3")];
    let jobs: Vec<&[(&str, &str)]> = jobs.iter().map(Vec::as_slice).collect();
    let found = import(&dump(&jobs), &options());
    let of = |index: usize| found.entries[index].job.as_ref().expect("is converted");
    let parents = |index: usize| {
        let after = of(index).after.iter().flat_map(|after| after.names());
        after.map(ToString::to_string).collect::<Vec<_>>()
    };
    assert_eq!(parents(0), Vec::<String>::new());
    assert_eq!(parents(1), ["a"]);
    assert_eq!(parents(2), ["a", "b"]);
    let notes = |index: usize| &found.entries[index].notes;
    assert!(says(
        notes(0),
        "left out",
        "child_jobid 9: there is no such job"
    ));
    assert!(says(notes(0), "left out", "it would run after \"b\""));
    assert!(says(notes(2), "changed", "it runs after any of 2 jobs"));
    assert!(says(notes(2), "left out", "it would run after \"c\""));
}

#[test]
fn a_child_of_a_refused_job_loses_it_as_a_parent() {
    let parent: &[(&str, &str)] = &[
        ("job_desc", "parent"),
        ("glue_type", "GLUE_GROOVY"),
        ("child_jobid", "2"),
    ];
    let child: &[(&str, &str)] = &[("job_desc", "child")];
    let found = import(&dump(&[parent, child]), &options());
    let entry = &found.entries[1];
    assert_eq!(entry.job.as_ref().map(|job| &job.after), Ok(&None));
    assert!(says(
        &entry.notes,
        "left out",
        "after \"parent\", which is refused"
    ));
}

#[test]
fn a_stopped_child_still_runs_after_its_parent() {
    let child: &[(&str, &str)] = &[("job_desc", "child"), ("trigger_status", "0")];
    let parent: &[(&str, &str)] = &[("job_desc", "parent"), ("child_jobid", "1")];
    let found = import(&dump(&[child, parent]), &options());
    let entry = &found.entries[0];
    let job = entry.job.as_ref().expect("is converted");
    assert_eq!(job.schedule, Schedule::Manual);
    assert_eq!(job.enabled, None);
    assert!(says(&entry.notes, "changed", "its schedule CRON"));
}

#[test]
fn a_dump_without_jobs_says_which_tables_it_needs() {
    let found = import(&Dump::default(), &options());
    assert!(
        found.left_out[0]
            .1
            .contains("xxl_job_group and xxl_job_info")
    );
}
