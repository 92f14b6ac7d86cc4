//! How a script text reaches what runs it. Knows nothing of how processes are started.

use std::ffi::OsString;
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};

use cueline_worker::Failure;
use cueline_worker::model::handler::Interpreter;
use tempfile::TempDir;

/// The longest script that goes on the command line. Linux takes 128 KiB for one argument.
const MAX_INLINE_BYTES: usize = 96 * 1024;

/// What stands where a script's file name would, in `$0` and its like.
const NAME: &str = "cueline-script";

/// How an interpreter takes scripts.
struct Way {
    program: &'static str,
    /// What stands before and after a script's text; `None` when only files are taken.
    inline: Option<Around>,
    /// What stands before and after a script's file.
    file: Around,
    extension: &'static str,
}

type Around = (&'static [&'static str], &'static [&'static str]);

fn way(interpreter: Interpreter) -> Way {
    const PLAIN: Around = (&[], &[]);
    let (program, inline, file, extension): (_, Option<Around>, Around, _) = match interpreter {
        Interpreter::Sh => ("sh", Some((&["-c"], &[NAME])), PLAIN, "sh"),
        Interpreter::Bash => ("bash", Some((&["-c"], &[NAME])), PLAIN, "sh"),
        Interpreter::Python3 => ("python3", Some((&["-c"], &[])), PLAIN, "py"),
        // With its text inline, node has no name before the arguments; one keeps them where a file has them.
        Interpreter::Node => ("node", Some((&["-e"], &[NAME])), PLAIN, "js"),
        // `php -r` refuses the opening tag that every PHP file starts with.
        Interpreter::Php => ("php", None, (&["-f"], &["--"]), "php"),
        Interpreter::Pwsh => {
            let options: Around = (&["-NoProfile", "-NonInteractive", "-File"], &[]);
            ("pwsh", None, options, "ps1")
        }
    };
    Way {
        program,
        inline,
        file,
        extension,
    }
}

/// A script, ready to be run. Its file, if any, goes with this value.
pub(crate) struct Script {
    pub(crate) program: String,
    pub(crate) arguments: Vec<OsString>,
    _file: Option<TempDir>,
}

/// Where the file of a long script is made, and whose it is to be.
pub(crate) struct Place {
    pub(crate) dir: PathBuf,
    pub(crate) owner: Option<(u32, u32)>,
}

/// The script for `shell` when given, run as `SHELL -c SCRIPT` as cron does; else for the interpreter, with `arguments`.
pub(crate) async fn prepare(
    text: &str,
    interpreter: Interpreter,
    shell: Option<&str>,
    arguments: [String; 3],
    place: Place,
) -> Result<Script, Failure> {
    if text.contains('\0') {
        return Err(Failure::new("script: it has a NUL character"));
    }
    let way = way(if shell.is_some() {
        Interpreter::Sh
    } else {
        interpreter
    });
    // A text that begins with '-' would be taken for an option.
    let fits = text.len() <= MAX_INLINE_BYTES && !text.starts_with('-');
    let (around, script, file) = if let Some(around) = way.inline.filter(|_| fits) {
        (around, text.into(), None)
    } else {
        let (dir, path) = written(text.to_owned(), way.extension, place).await?;
        (way.file, path.into(), Some(dir))
    };
    let mut argv: Vec<OsString> = around.0.iter().map(OsString::from).collect();
    argv.push(script);
    if shell.is_none() {
        argv.extend(around.1.iter().map(OsString::from));
        argv.extend(arguments.map(OsString::from));
    }
    Ok(Script {
        program: shell.unwrap_or(way.program).to_owned(),
        arguments: argv,
        _file: file,
    })
}

async fn written(
    text: String,
    extension: &'static str,
    place: Place,
) -> Result<(TempDir, PathBuf), Failure> {
    let dir = place.dir.clone();
    tokio::task::spawn_blocking(move || write(&text, extension, &place))
        .await
        .unwrap_or_else(|e| Err(io::Error::other(e)))
        .map_err(|e| {
            Failure::new(format!(
                "the script could not be written to a file in {}: {e}",
                dir.display()
            ))
        })
}

/// A directory of its own, because interpreters look for modules beside the script: in a shared one anybody could put some.
fn write(text: &str, extension: &str, place: &Place) -> io::Result<(TempDir, PathBuf)> {
    let dir = tempfile::Builder::new()
        .prefix("cueline-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&place.dir)?;
    let path = dir.path().join(format!("{NAME}.{extension}"));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?
        .write_all(text.as_bytes())?;
    if let Some((uid, gid)) = place.owner {
        let give = |path: &Path| chown(path, Some(uid), Some(gid));
        give(&path)?;
        give(dir.path())?;
    }
    Ok((dir, path))
}
