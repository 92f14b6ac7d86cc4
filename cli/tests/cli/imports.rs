//! Imports from Quartz, systemd and XXL-JOB, without a server.

use crate::command::Home;

const JOBS_XML: &str = include_str!("imports/quartz_jobs.xml");

#[test]
fn a_job_file_of_quartz_is_reported_and_written_as_a_job_file() {
    let home = Home::new();
    home.write("jobs.xml", JOBS_XML);
    let args = [
        "import",
        "quartz",
        "--xml",
        "jobs.xml",
        "--tz",
        "Europe/Berlin",
    ];
    let handler = ["--handler", "com.acme.PollJob=poll"];
    let ended = home.run(&[&args[..], &handler, &["--dry-run"]].concat());
    assert_eq!(ended.status, 2, "{ended:#?}");
    for line in [
        "jobs.xml:18: job billing.close-books  0 30 2 ? * MON-FRI, America/New_York  native com.acme.CloseBooksJob",
        "jobs.xml:32: job poll.every-10-s  every 10 s  native poll",
        "nothing was applied: dry run",
    ] {
        assert!(ended.stdout.contains(line), "{line}: {ended:#?}");
    }
    for line in [
        "left out: jobs.xml:3: <pre-processing-commands>: an import deletes nothing",
        "changed: jobs.xml:18: the file does not say whether runs may overlap",
        "refused: jobs.xml:41: day-of-week \"MON#1,FRI\"",
        "1 of 3 triggers were refused",
    ] {
        assert!(ended.stderr.contains(line), "{line}: {ended:#?}");
    }
    let written = home.run(&[&args[..], &handler, &["--write", "jobs.toml"]].concat());
    assert!(
        written.stdout.ends_with("2 jobs written to jobs.toml\n"),
        "{written:#?}"
    );
    let text = std::fs::read_to_string(home.path().join("jobs.toml")).expect("a job file");
    assert!(text.contains("params = '{\"region\":\"EU\"}'"), "{text}");
    assert!(text.contains("on_lost = \"rerun\""), "{text}");
}

#[test]
fn a_timer_is_imported_with_the_service_and_the_drop_ins_beside_it() {
    let home = Home::new();
    home.write(
        "backup.timer",
        "[Unit]\nDescription=Backup\n[Timer]\nOnCalendar=Mon..Fri 02:30\nPersistent=yes\n[Install]\nWantedBy=timers.target\n",
    );
    home.write(
        "backup.service",
        "[Service]\nType=oneshot\nUser=backup\nExecStart=/usr/local/bin/backup --all\nNice=10\n",
    );
    std::fs::create_dir(home.path().join("backup.timer.d")).expect("made");
    home.write(
        "backup.timer.d/late.conf",
        "[Timer]\nOnCalendar=\nOnCalendar=Sun 04:00\n",
    );
    let ended = home.run(&[
        "import",
        "systemd",
        "backup.timer",
        "--tz",
        "UTC",
        "--dry-run",
    ]);
    assert_eq!(ended.status, 0, "{ended:#?}");
    let line =
        "backup.timer: job backup  0 0 4 ? * SUN · discard  command: /usr/local/bin/backup --all";
    assert!(ended.stdout.contains(line), "{ended:#?}");
    let note = "left out: backup.timer: settings without a counterpart: Nice";
    assert!(ended.stderr.contains(note), "{ended:#?}");
    home.write("lonely.timer", "[Timer]\nOnCalendar=daily\n");
    let ended = home.run(&[
        "import",
        "systemd",
        "lonely.timer",
        "--tz",
        "UTC",
        "--dry-run",
    ]);
    assert_eq!(ended.status, 2, "{ended:#?}");
    assert!(
        ended
            .stderr
            .contains("its service lonely.service is missing"),
        "{ended:#?}"
    );
}

const DUMP: &str = include_str!("imports/xxl.sql");

#[test]
fn a_dump_of_xxl_job_is_reported_and_written_as_a_job_file() {
    let home = Home::new();
    home.write("xxl.sql", DUMP);
    let args = [
        "import",
        "xxl",
        "--dump",
        "xxl.sql",
        "--tz",
        "Asia/Shanghai",
    ];
    let ended = home.run(&[&args[..], &["--dry-run"]].concat());
    assert_eq!(ended.status, 2, "{ended:#?}");
    for line in [
        "job 1: job report  0 30 2 * * ?, Asia/Shanghai  native reportHandler",
        "job 2: job 月报-clean-up  ",
        "script 月报-clean-up  bash  3 lines",
        "nothing was applied: dry run",
    ] {
        assert!(ended.stdout.contains(line), "{line}: {ended:#?}");
    }
    for line in [
        "left out: job 1: the alarm by e-mail to ops@example.com",
        "changed: job 2: the description \"月报 clean-up\" becomes the name",
        "refused: job 3: GLUE_GROOVY",
        "1 of 3 jobs were refused",
    ] {
        assert!(ended.stderr.contains(line), "{line}: {ended:#?}");
    }
    let written = home.run(&[&args[..], &["--write", "jobs.toml"]].concat());
    assert_eq!(written.status, 2, "{written:#?}");
    let text = std::fs::read_to_string(home.path().join("jobs.toml")).expect("a job file");
    for part in [
        "group = \"billing-executor\"",
        "scope = \"executor\"",
        "script = { name = \"月报-clean-up\" }",
        "echo \"it's $1; shard $2 of $3\"",
        "all = [\"report\"]",
    ] {
        assert!(text.contains(part), "{part}: {text}");
    }
    let one_group = home.run(&[&args[..], &["--dry-run", "--group", "all", "-o", "json"]].concat());
    let found: serde_json::Value = serde_json::from_str(&one_group.stdout).expect("JSON");
    assert_eq!(found["jobs"][0]["group"], "all", "{one_group:#?}");
    assert_eq!(found["scripts"][0]["language"], "bash", "{one_group:#?}");
}

#[test]
fn wrong_dumps_are_refused_with_what_is_expected() {
    let home = Home::new();
    home.write("cut.sql", &DUMP[..DUMP.floor_char_boundary(DUMP.len() / 2)]);
    home.write("other.sql", "INSERT INTO xxl_job_info VALUES (1);");
    home.write("empty.sql", "SELECT 1;");
    for (file, status, words) in [
        ("none.sql", 2, "none.sql: failed to read"),
        ("cut.sql", 2, "the dump is cut off"),
        (
            "other.sql",
            2,
            "other.sql: line 1: the columns of xxl_job_info are not known",
        ),
        (
            "empty.sql",
            0,
            "left out: xxl_job_info: the dump has no jobs",
        ),
    ] {
        let ended = home.run(&["import", "xxl", "--dump", file, "--dry-run"]);
        assert_eq!(ended.status, status, "{file}: {ended:#?}");
        assert!(ended.stderr.contains(words), "{file}: {ended:#?}");
    }
}

#[test]
fn wrong_sources_are_refused_with_what_is_expected() {
    let home = Home::new();
    home.write("jobs.xml", JOBS_XML);
    home.write("other.xml", "<beans/>");
    home.write("broken.xml", "<job-scheduling-data>");
    home.write(
        "entity.xml",
        "<!DOCTYPE a [<!ENTITY b \"c\">]><job-scheduling-data/>",
    );
    let quartz = |more: &[&str]| home.run(&[&["import", "quartz", "--dry-run"], more].concat());
    let cases: [(&[&str], &str); 9] = [
        (&[], "--jdbc"),
        (&["--xml", "jobs.xml", "--jdbc", "x"], "cannot be used with"),
        (
            &["--jdbc", "jdbc:mysql://db/quartz"],
            "only PostgreSQL is read",
        ),
        (
            &["--jdbc", "jdbc:postgresql://db/quartz", "--prefix", "Q;"],
            "--prefix \"Q;\"",
        ),
        (&["--xml", "none.xml"], "none.xml: failed to read"),
        (&["--xml", "other.xml"], "<job-scheduling-data> is expected"),
        (&["--xml", "broken.xml"], "is no XML"),
        (&["--xml", "entity.xml"], "is no XML"),
        (
            &["--xml", "jobs.xml", "--handler", "A"],
            "CLASS=HANDLER is expected",
        ),
    ];
    for (args, words) in cases {
        let ended = quartz(args);
        assert_eq!(ended.status, 2, "{args:?}: {ended:#?}");
        assert!(ended.stderr.contains(words), "{args:?}: {ended:#?}");
    }
    let written = home.run(&[
        "import",
        "quartz",
        "--xml",
        "jobs.xml",
        "--write",
        "jobs.yaml",
    ]);
    assert!(
        written.stderr.contains("ends with .toml is expected"),
        "{written:#?}"
    );
}
