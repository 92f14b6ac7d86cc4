//! Timers of systemd with their services and drop-ins.

use std::collections::HashSet;
use std::path::{Path, PathBuf};

use cueline_interface::{Failure, jobfile};
use cueline_model::import::systemd::{SystemdOptions, UnitFile, import, services};

use super::Found;
use crate::import_args::SystemdArgs;

/// Reads the files, and each service beside its timer.
pub(super) fn read_all(args: &SystemdArgs, found: &mut Found) -> Result<(), Failure> {
    found.things = "timers";
    let mut units = Vec::new();
    let mut names = HashSet::new();
    for path in &args.files {
        units.push(read(path)?);
        names.extend(units.last().map(|unit| unit.name.clone()));
    }
    for (index, path) in args.files.iter().enumerate() {
        for service in services(&units[index]) {
            let beside = path.with_file_name(&service);
            if beside.is_file() && names.insert(service) {
                units.push(read(&beside)?);
            }
        }
    }
    let options = SystemdOptions {
        timezone: found.timezone.clone(),
        group: found.group.clone(),
    };
    found.take_all(import(&units, &options));
    Ok(())
}

/// A unit with the text of its drop-ins (`NAME.d/*.conf`) behind its own.
fn read(path: &Path) -> Result<UnitFile, Failure> {
    let mut text = jobfile::read_text(path).map_err(Failure::bad_input)?;
    let mut folder = path.as_os_str().to_owned();
    folder.push(".d");
    if let Ok(entries) = std::fs::read_dir(&folder) {
        let mut drop_ins: Vec<PathBuf> = entries
            .filter_map(Result::ok)
            .map(|entry| entry.path())
            .filter(|path| path.extension().is_some_and(|ext| ext == "conf"))
            .collect();
        drop_ins.sort();
        for drop_in in drop_ins {
            text.push('\n');
            text.push_str(&jobfile::read_text(&drop_in).map_err(Failure::bad_input)?);
        }
    }
    let name = path.file_name().unwrap_or_default();
    Ok(UnitFile {
        name: name.to_string_lossy().into_owned(),
        place: path.display().to_string(),
        text,
    })
}
