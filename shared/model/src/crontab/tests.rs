//! Tests on made-up lines; the real files are in `tests/crontabs.rs`.

use super::*;
use crate::decode;

fn read(text: &str) -> Import {
    import(text, &ImportOptions::new("etc/site.crontab").unwrap()).unwrap()
}

fn only(text: &str) -> JobSpec {
    let import = read(text);
    assert_eq!(import.entries.len(), 1, "{import:?}");
    import.entries[0].job.clone().unwrap()
}

fn shell(job: &JobSpec) -> &ShellSpec {
    match &job.handler {
        HandlerSpec::Shell(shell) => shell,
        other => panic!("{other:?}"),
    }
}

#[test]
fn a_variable_counts_for_the_lines_after_it() {
    let import =
        read("* * * * * one\nA=1\n* * * * * two\nA = '2 '\nCRON_TZ=Asia/Tokyo\n0 9 * * * three\n");
    let jobs: Vec<JobSpec> = import.entries.into_iter().map(|e| e.job.unwrap()).collect();
    let a: Vec<Option<&str>> = jobs
        .iter()
        .map(|job| shell(job).process.env.get("A")?.as_text())
        .collect();
    assert_eq!(a, [None, Some("1"), Some("2 ")]);
    let zone = |job: &JobSpec| match &job.schedule {
        Schedule::Cron(cron) => cron.timezone().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(zone(&jobs[1]), "UTC");
    assert_eq!(zone(&jobs[2]), "Asia/Tokyo");
    assert!(!shell(&jobs[2]).process.env.contains_key("CRON_TZ"));
}

#[test]
fn variables_are_read_as_cronie_reads_them() {
    let cases = [
        ("A=b", Some(("A", "b"))),
        ("  A =  b c  ", Some(("A", "b c"))),
        ("A=\" b \"", Some(("A", " b "))),
        ("A='b\"c'", Some(("A", "b\"c"))),
        ("'A B'=c", Some(("A B", "c"))),
        ("A=$B", Some(("A", "$B"))),
        ("A=", Some(("A", ""))),
        ("A=\"b\" c", None),
        ("@daily A=b", None),
        ("* * * * * A=b", None),
        ("=b", None),
        ("A=\"b", None),
        ("A='b", None),
        ("A=b\"", Some(("A", "b\""))),
        ("\"A=b", None),
    ];
    for (text, expected) in cases {
        let found = match line::read(text) {
            line::Line::Variable { name, value } => Some((name, value)),
            _ => None,
        };
        let expected = expected.map(|(name, value)| (name.to_owned(), value.to_owned()));
        assert_eq!(found, expected, "{text}");
    }
}

#[test]
fn a_job_does_what_cron_did() {
    let job = only("SHELL=/bin/bash\nMAILTO=ops\n5 4 * * sun\t  run  'a  b' \n");
    let shell = shell(&job);
    assert_eq!(shell.script, "run  'a  b' ");
    assert_eq!(shell.shell.as_deref(), Some("/bin/bash"));
    assert!(shell.process.clear_env);
    assert_eq!(job.labels["mailto"], "ops");
    assert_eq!(job.block, Block::Parallel(100));
    assert_eq!(job.misfire.policy, MisfirePolicy::Skip);
    assert_eq!(job.description, "imported from etc/site.crontab:3");
    assert_eq!(job.name.as_str(), "site.run-a-b");
    assert_eq!(only("@reboot up").schedule, Schedule::Startup);
    assert_eq!(
        only("RANDOM_DELAY=5\n@daily x").jitter,
        DurationMs::secs(300)
    );
}

#[test]
fn percent_signs_end_the_command() {
    let import = read("* * * * * mail -s 100\\% me%Hello,%50\\% off\n");
    let job = import.entries[0].job.clone().unwrap();
    assert_eq!(shell(&job).script, "mail -s 100% me");
    assert_eq!(shell(&job).process.stdin, Some("Hello,\n50% off\n".into()));
    assert_eq!(import.warnings.len(), 1);
    assert!(import.warnings[0].message.contains('%'));
    let escaped = read("* * * * * date +\\%F\\n");
    assert_eq!(escaped.warnings, []);
    let job = escaped.entries[0].job.clone().unwrap();
    assert_eq!(shell(&job).script, "date +%F\\n");
}

#[test]
fn users_are_told_from_commands() {
    let user_of = |text: &str| shell(&only(text)).process.run_as.clone();
    assert_eq!(user_of("* * * * * root x y").as_deref(), Some("root"));
    assert_eq!(user_of("* * * * * root"), None);
    for command in [
        "env A=1 x",
        "cd /tmp && x",
        "php x.php",
        "source x",
        "alice x",
    ] {
        assert_eq!(user_of(&format!("* * * * * {command}")), None, "{command}");
    }
    let header = "#minute\thour\tmday\tmonth\twday\twho\tcommand\n";
    assert_eq!(
        user_of(&format!("{header}* * * * * alice x")).as_deref(),
        Some("alice")
    );
    for command in [
        "env A=1 x",
        "cd /tmp",
        "php x.php",
        "source x",
        "/bin/x y",
        "X y",
    ] {
        let text = format!("{header}* * * * * {command}");
        assert_eq!(user_of(&text), None, "{command}");
    }
}

#[test]
fn wrong_lines_are_refused_with_their_number() {
    let cases = [
        (
            "61 * * * * x",
            "\"61 * * * *\": minute 61 is out of range 0–59",
        ),
        ("* * * *", "4 words; five time fields"),
        ("* * * * *", "no command"),
        ("@dayly x", "did you mean @daily?"),
        ("@daily", "no command"),
        ("A=\"b", "the variable A has a quote that is never closed"),
        (
            "A=\"b\" c",
            "the variable A has the text \" c\" after its closing quote",
        ),
        ("5~10 * * * * x", "a time that cronie draws at random"),
        ("* * * * * %input", "no command"),
        (
            "CRON_TZ=Europe/Berln\n* * * * * x",
            "did you mean \"Europe/Berlin\"?",
        ),
    ];
    for (text, reason) in cases {
        let import = read(&format!("\n{text}"));
        let last = import.entries.last().unwrap();
        let error = last.job.clone().unwrap_err();
        assert!(error.contains(reason), "{text}: {error}");
        assert!(last.line >= 2);
    }
    let options = ImportOptions {
        user_column: UserColumn::Yes,
        ..ImportOptions::new("x").unwrap()
    };
    for text in ["* * * * * x", "* * * * * cd /tmp", "* * * * * /bin/x y"] {
        let import = import(text, &options).unwrap();
        assert!(import.entries[0].job.is_err(), "{text}");
    }
}

#[test]
fn a_sixth_time_field_is_refused() {
    for sixth in [
        "*", "*/5", "1", "1-5", "0,30", "MON-FRI", "?", "MON", "sun,mon",
    ] {
        let import = read(&format!("* * * * * {sixth} cmd"));
        let error = import.entries[0].job.clone().unwrap_err();
        assert!(error.contains("looks like a sixth one"), "{sixth}: {error}");
    }
    for command in ["sun up", "7z x", "./1", "mon --all", "w"] {
        let text = format!("* * * * * {command}");
        assert_eq!(shell(&only(&text)).script, command, "{command}");
    }
}

#[test]
fn a_file_whose_lines_seem_to_differ_is_refused() {
    let text = "* * * * * root one now\n* * * * * two now\n";
    let mut options = ImportOptions::new("x").unwrap();
    let error = import(text, &options).unwrap_err();
    assert_eq!(
        error,
        MixedColumns {
            with: 1,
            without: 2
        }
    );
    assert!(error.to_string().contains("give --user-column yes"));
    options.user_column = UserColumn::No;
    assert!(import(text, &options).is_ok());
}

#[test]
fn a_pair_of_backslashes_does_not_escape() {
    let script = |text: &str| shell(&only(&format!("* * * * * {text}"))).clone();
    let pair = script(r"echo a\\%in\\%put");
    assert_eq!(pair.script, r"echo a\\");
    assert_eq!(pair.process.stdin, Some("in\\%put\n".into()));
    assert_eq!(script(r"echo a\\\%b").script, r"echo a\\%b");
    assert_eq!(script(r"echo a\b\\c").script, r"echo a\b\\c");
}

#[test]
fn long_steps_match_the_first_value_and_are_noted() {
    let import = read("*/90 * * * * x\n*/15 10-20/25 * * * x\n");
    let expression = |index: usize| match &import.entries[index].job.as_ref().unwrap().schedule {
        Schedule::Cron(cron) => cron.expression().to_owned(),
        other => panic!("{other:?}"),
    };
    assert_eq!(expression(0), "*/60 * * * *");
    assert_eq!(expression(1), "*/15 10-20/24 * * *");
    assert_eq!(import.warnings.len(), 2);
    assert!(
        import.warnings[0]
            .message
            .contains("\"*/90\" is longer than its field")
    );
}

#[test]
fn options_before_the_command_are_cronie_s() {
    let import = read("@daily -n run it\n-@daily other\n");
    let script = |index: usize| {
        shell(import.entries[index].job.as_ref().unwrap())
            .script
            .clone()
    };
    assert_eq!(script(0), "run it");
    assert_eq!(script(1), "other");
    assert_eq!(import.warnings.len(), 1);
    for wrong in ["@daily -x run", "@daily -n -n run", "@daily -n"] {
        assert!(read(wrong).entries[0].job.is_err(), "{wrong}");
    }
}

#[test]
fn names_are_unique_and_jobs_decode_from_what_they_serialise_to() {
    let import = read("* * * * * x\n* * * * * x\n* * * * * x-2\n* * * * * x\n* * * * * $$$\n");
    let mut names = Vec::new();
    for entry in import.entries {
        let job = entry.job.unwrap();
        names.push(job.name.to_string());
        let written: decode::Node = serde_json::to_value(&job).unwrap().into();
        assert_eq!(decode::job(&written), Ok(job));
    }
    assert_eq!(
        names,
        [
            "site.x",
            "site.x-2",
            "site.x-2-2",
            "site.x-3",
            "site.line-5"
        ]
    );
}
