//! Crontabs: a job for each line, or the reason why there is none.

use cueline_interface::{Failure, jobfile};
use cueline_model::crontab::{self, ImportOptions};

use super::Found;
use crate::import_args::{CrontabArgs, UserColumn};

/// Reads the files.
pub(super) fn read_all(args: &CrontabArgs, found: &mut Found) -> Result<(), Failure> {
    for file in &args.files {
        let text = jobfile::read_text(file).map_err(Failure::bad_input)?;
        let options = ImportOptions {
            source: file.to_string_lossy().into_owned(),
            timezone: found.timezone.clone(),
            group: found.group.clone(),
            user_column: match args.user_column {
                UserColumn::Auto => crontab::UserColumn::Auto,
                UserColumn::Yes => crontab::UserColumn::Yes,
                UserColumn::No => crontab::UserColumn::No,
            },
        };
        let place = |line: u32| format!("{}:{line}", file.display());
        let import = match crontab::import(&text, &options) {
            Ok(import) => import,
            Err(error) => {
                let place = file.display().to_string();
                found.take(place, Err(error.to_string()));
                continue;
            }
        };
        for entry in import.entries {
            found.take(place(entry.line), entry.job);
        }
        let warnings = import.warnings.into_iter();
        found
            .notes
            .extend(warnings.map(|w| ("warning", place(w.line), w.message)));
    }
    Ok(())
}
