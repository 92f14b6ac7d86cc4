//! XXL-JOB's jobs and scripts, from a dump of its database.

use std::io::Read as _;
use std::path::Path;

use cueline_interface::Failure;
use cueline_model::Timestamp;
use cueline_model::import::xxl::{XxlOptions, import, read};
use cueline_runtime::{Clock as _, SystemClock};

use super::Found;
use crate::import_args::XxlArgs;

/// The largest dump. The three tables of thousands of jobs take a few megabytes; a log of runs takes more.
const MAX_DUMP_BYTES: u64 = 64 * 1024 * 1024;

pub(super) fn read_all(args: &XxlArgs, found: &mut Found) -> Result<(), Failure> {
    found.things = "jobs";
    found.keeps_groups = args.target.group.is_none();
    let place = args.dump.display().to_string();
    let wrong = |message: String| Failure::bad_input(format!("{place}: {message}"));
    let text = read_dump(&args.dump).map_err(wrong)?;
    let dump = read(&text).map_err(wrong)?;
    let options = XxlOptions {
        timezone: found.timezone.clone(),
        now: Timestamp::from_millis(SystemClock.now_ms()),
    };
    let imported = import(&dump, &options);
    let left_out = imported.left_out.into_iter();
    found
        .notes
        .extend(left_out.map(|(place, message)| ("left out", place, message)));
    found.take_all(imported.entries);
    found.take_scripts(imported.scripts)
}

fn read_dump(path: &Path) -> Result<String, String> {
    let failed = |error: std::io::Error| format!("failed to read: {error}");
    let metadata = std::fs::metadata(path).map_err(failed)?;
    if !metadata.is_file() {
        return Err("is not a file".to_owned());
    }
    let mut bytes = Vec::new();
    std::fs::File::open(path)
        .map_err(failed)?
        .take(MAX_DUMP_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(failed)?;
    if bytes.len() as u64 > MAX_DUMP_BYTES {
        return Err(format!(
            "is larger than {MAX_DUMP_BYTES} bytes; dump only the tables xxl_job_group, xxl_job_info and xxl_job_logglue"
        ));
    }
    String::from_utf8(bytes)
        .map_err(|_| "is not UTF-8 text; dump it with --default-character-set=utf8mb4".to_owned())
}
