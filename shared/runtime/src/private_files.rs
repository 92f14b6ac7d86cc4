//! Files and directories that other users of the machine can neither read nor enter.
//!
//! Modes are given where a file is created. The umask stays as it is, because the processes of jobs inherit it.

use std::fs::{self, DirBuilder, File, OpenOptions};
use std::io;
use std::os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _};
use std::path::Path;

/// The rights of the group and of all others.
const OTHERS: u32 = 0o077;

/// Creates a directory with mode 0700, and so its missing parents.
///
/// A directory that exists keeps its mode, because it may serve other programs too. If others may enter it, a warning
/// is logged.
///
/// # Errors
///
/// The system's error if the directory can neither be created nor examined.
pub fn create_dir(path: &Path) -> io::Result<()> {
    DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let mode = fs::metadata(path)?.permissions().mode();
    if mode & OTHERS != 0 {
        tracing::warn!(
            directory = %path.display(),
            mode = %format_args!("{:03o}", mode & 0o777),
            "found a directory that other users can enter; run chmod 700 on it"
        );
    }
    Ok(())
}

/// Opens a file for reading and writing. Creates it if it does not exist, and denies access to all other users.
///
/// `SQLite` gives the files beside a database the mode of the database.
///
/// # Errors
///
/// The system's error if the file cannot be opened, or if this user may not change its mode.
pub fn open(path: &Path) -> io::Result<File> {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(false)
        .mode(0o600)
        .open(path)?;
    let mut mode = file.metadata()?.permissions();
    if mode.mode() & OTHERS != 0 {
        mode.set_mode(mode.mode() & 0o700);
        file.set_permissions(mode)?;
    }
    Ok(file)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).expect("it exists").permissions().mode() & 0o777
    }

    #[test]
    fn a_file_that_others_can_read_is_closed_to_them() {
        let folder = std::env::temp_dir().join(format!("cueline-modes-{}", std::process::id()));
        create_dir(&folder.join("inner")).expect("created");
        assert_eq!(mode(&folder), 0o700);
        assert_eq!(mode(&folder.join("inner")), 0o700);

        let file = folder.join("file");
        fs::write(&file, "kept").expect("written");
        fs::set_permissions(&file, fs::Permissions::from_mode(0o664)).expect("changed");
        drop(open(&file).expect("opened"));
        assert_eq!(mode(&file), 0o600);
        assert_eq!(fs::read_to_string(&file).expect("read"), "kept");
        drop(open(&folder.join("new")).expect("created"));
        assert_eq!(mode(&folder.join("new")), 0o600);
        fs::remove_dir_all(&folder).expect("removed");
    }

    #[test]
    fn a_directory_that_exists_keeps_its_mode() {
        let folder = std::env::temp_dir().join(format!("cueline-shared-{}", std::process::id()));
        fs::create_dir(&folder).expect("created");
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755)).expect("changed");
        create_dir(&folder).expect("it is there");
        assert_eq!(mode(&folder), 0o755);
        fs::remove_dir(&folder).expect("removed");
    }
}
