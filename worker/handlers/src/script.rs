//! Passes a script's text to its interpreter. It knows nothing of how processes are started.

use std::ffi::{OsStr, OsString};
use std::fs::{OpenOptions, Permissions};
use std::io::{self, Write};
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use cueline_worker::model::handler::Interpreter;
use cueline_worker::{Context, Failure};
use tempfile::TempDir;

use crate::program;
use crate::shortage::{self, Patience, Shortage};

/// The longest script that is passed on the command line. Linux allows 128 KiB for one argument.
const MAX_INLINE_BYTES: usize = 96 * 1024;

/// Stands for the script's file name, in `$0` for example.
const NAME: &str = "cueline-script";

/// How an interpreter is called.
struct Call {
    program: &'static str,
    /// The arguments before and after a script's text; `None` for an interpreter that needs a file.
    inline: Option<BeforeAndAfter>,
    /// The arguments before and after a script's file.
    file: BeforeAndAfter,
    extension: &'static str,
}

type BeforeAndAfter = (&'static [&'static str], &'static [&'static str]);

fn call_of(interpreter: Interpreter) -> Call {
    const PLAIN: BeforeAndAfter = (&[], &[]);
    let (program, inline, file, extension): (_, Option<BeforeAndAfter>, BeforeAndAfter, _) =
        match interpreter {
            Interpreter::Sh => ("sh", Some((&["-c"], &[NAME])), PLAIN, "sh"),
            Interpreter::Bash => ("bash", Some((&["-c"], &[NAME])), PLAIN, "sh"),
            Interpreter::Python3 => ("python3", Some((&["-c"], &[])), PLAIN, "py"),
            // With an inline script, node has no file name before the arguments. The stand-in keeps their positions.
            Interpreter::Node => ("node", Some((&["-e"], &[NAME])), PLAIN, "js"),
            // `php -r` refuses the opening tag that every PHP file starts with.
            Interpreter::Php => ("php", None, (&["-f"], &["--"]), "php"),
            Interpreter::Pwsh => {
                let options: BeforeAndAfter = (&["-NoProfile", "-NonInteractive", "-File"], &[]);
                ("pwsh", None, options, "ps1")
            }
        };
    Call {
        program,
        inline,
        file,
        extension,
    }
}

/// The interpreters whose programs are in a search path.
pub(crate) fn interpreters(path: &OsStr) -> Vec<Interpreter> {
    let all = Interpreter::ALL.into_iter().map(|(_, one)| one);
    let is_found = |one: &Interpreter| program::find(call_of(*one).program, path).is_ok();
    all.filter(is_found).collect()
}

/// A script that is ready to run. Its file, if there is one, is deleted when this is dropped.
pub(crate) struct Script {
    pub(crate) program: String,
    pub(crate) arguments: Vec<OsString>,
    _file: Option<TempDir>,
}

/// The directory and the owner of a long script's file.
pub(crate) struct ScriptLocation {
    pub(crate) dir: PathBuf,
    pub(crate) owner: Option<(u32, u32)>,
}

/// Prepares a script. With a `shell` it runs as in cron, `SHELL -c SCRIPT`. Otherwise the interpreter runs it with
/// `arguments`.
pub(crate) async fn prepare(
    text: &str,
    interpreter: Interpreter,
    shell: Option<&str>,
    arguments: [String; 3],
    location: ScriptLocation,
    cx: &Context,
) -> Result<Script, Failure> {
    if text.contains('\0') {
        return Err(Failure::new("script: it has a NUL character"));
    }
    let call = call_of(if shell.is_some() {
        Interpreter::Sh
    } else {
        interpreter
    });
    // The interpreter would parse a text that begins with '-' as an option.
    let fits = text.len() <= MAX_INLINE_BYTES && !text.starts_with('-');
    let (around, script, file) = if let Some(around) = call.inline.filter(|_| fits) {
        (around, text.into(), None)
    } else {
        let (dir, path) = write_file(text, call.extension, location, cx).await?;
        (call.file, path.into(), Some(dir))
    };
    let mut argv: Vec<OsString> = around.0.iter().map(OsString::from).collect();
    argv.push(script);
    if shell.is_none() {
        argv.extend(around.1.iter().map(OsString::from));
        argv.extend(arguments.map(OsString::from));
    }
    Ok(Script {
        program: shell.unwrap_or(call.program).to_owned(),
        arguments: argv,
        _file: file,
    })
}

/// Writes the file. While the machine lacks descriptors or memory, it tries again for a while.
async fn write_file(
    text: &str,
    extension: &'static str,
    location: ScriptLocation,
    cx: &Context,
) -> Result<(TempDir, PathBuf), Failure> {
    let dir = location.dir.clone();
    let failed = |why: String| {
        let dir = dir.display();
        Failure::new(format!(
            "failed to write the script to a file in {dir}: {why}"
        ))
    };
    let (text, location): (Arc<str>, _) = (text.into(), Arc::new(location));
    let mut patience = Patience::new();
    loop {
        let (text, location) = (text.clone(), location.clone());
        let written = tokio::task::spawn_blocking(move || write(&text, extension, &location))
            .await
            .unwrap_or_else(|e| Err(io::Error::other(e)));
        let error = match written {
            Ok(file) => return Ok(file),
            Err(error) => error,
        };
        let Some(shortage) = Shortage::of(&error) else {
            return Err(failed(error.to_string()));
        };
        if !patience.wait(shortage, cx).await {
            return Err(failed(shortage::waited(shortage)));
        }
        if let Some(reason) = cx.stop_reason() {
            return Err(Failure::new(format!("not started ({reason:?})")));
        }
    }
}

/// Writes the script into a directory of its own. Interpreters look for modules beside a script, and other users could
/// put modules into a shared directory.
fn write(text: &str, extension: &str, location: &ScriptLocation) -> io::Result<(TempDir, PathBuf)> {
    let dir = tempfile::Builder::new()
        .prefix("cueline-")
        .permissions(Permissions::from_mode(0o700))
        .tempdir_in(&location.dir)?;
    let path = dir.path().join(format!("{NAME}.{extension}"));
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&path)?
        .write_all(text.as_bytes())?;
    if let Some((uid, gid)) = location.owner {
        let give = |path: &Path| chown(path, Some(uid), Some(gid));
        give(&path)?;
        give(dir.path())?;
    }
    Ok((dir, path))
}
