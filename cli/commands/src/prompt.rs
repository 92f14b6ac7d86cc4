//! Secrets that the user types or that a file has. They are never arguments, which others on the machine can see.

use std::fs::File;
use std::io::{self, BufRead as _, IsTerminal as _, Read, Write as _};
use std::path::Path;

use cueline_interface::Failure;
use tokio::signal::unix::{SignalKind, signal};

/// The longest secret, in bytes.
const MAX_BYTES: u64 = 64 * 1024;

/// A secret from `file` (`-` is standard input), else from the terminal. `option` is the file's, for messages.
pub(crate) fn secret(prompt: &str, option: &str, file: Option<&Path>) -> Result<String, Failure> {
    match file {
        Some(file) => from_file(option, file),
        None => hidden(prompt, option),
    }
}

/// A new password. On the terminal it is typed twice.
pub(crate) fn new_password(option: &str, file: Option<&Path>) -> Result<String, Failure> {
    let password = secret("New password: ", option, file)?;
    if file.is_none() && hidden("The same again: ", option)? != password {
        return Err(Failure::bad_input("password: the two texts differ"));
    }
    Ok(password)
}

/// A secret in a file, without the end of its line.
pub(crate) fn from_file(option: &str, file: &Path) -> Result<String, Failure> {
    let name = file.display();
    let refuse = |problem: String| Failure::bad_input(format!("{option}: {name}: {problem}"));
    let text = if file == Path::new("-") {
        bounded(io::stdin().lock())
    } else {
        if let Some(warning) = cueline_interface::secret_file::permission_warning(file) {
            cueline_interface::say(&format!("warning: {warning}"));
        }
        File::open(file).and_then(bounded)
    };
    let text = text.map_err(|error| refuse(format!("failed to read: {error}")))?;
    if text.len() as u64 > MAX_BYTES {
        return Err(refuse(format!("has more than {MAX_BYTES} bytes")));
    }
    let secret = text.strip_suffix('\n').unwrap_or(&text);
    let secret = secret.strip_suffix('\r').unwrap_or(secret);
    if secret.is_empty() {
        return Err(refuse("is empty".to_owned()));
    }
    Ok(secret.to_owned())
}

/// One byte more than is allowed, so that a longer text is noticed.
fn bounded(from: impl Read) -> io::Result<String> {
    let mut text = String::new();
    from.take(MAX_BYTES + 1).read_to_string(&mut text)?;
    Ok(text)
}

fn hidden(prompt: &str, option: &str) -> Result<String, Failure> {
    // A script may have a terminal that no person looks at.
    if !io::stdin().is_terminal() {
        return Err(Failure::bad_input(format!(
            "{option}: missing; give {option} FILE, because standard input is no terminal"
        )));
    }
    // Without a listener, Ctrl-C would end the process before the terminal shows what is typed again.
    let mut interrupt = signal(SignalKind::interrupt())
        .map_err(|error| Failure::failed(format!("failed to listen for signals: {error}")))?;
    let typed = rpassword::prompt_password(prompt);
    // From now on Ctrl-C ends the command again. 130 is what shells report after it.
    tokio::spawn(async move {
        if interrupt.recv().await.is_some() {
            std::process::exit(130);
        }
    });
    let typed = typed.map_err(|error| {
        Failure::bad_input(format!(
            "{option}: failed to ask on the terminal: {error}; give {option} FILE"
        ))
    })?;
    if typed.is_empty() {
        return Err(Failure::bad_input(format!(
            "{option}: nothing was typed; type the text, or give {option} FILE"
        )));
    }
    Ok(typed)
}

/// A line that the user types. Without a terminal, `option` has to be given.
pub(crate) fn line(prompt: &str, option: &str) -> Result<String, Failure> {
    let missing = || Failure::bad_input(format!("{option}: missing; give {option} NAME"));
    if !io::stdin().is_terminal() {
        return Err(missing());
    }
    let _ = write!(io::stderr(), "{prompt}");
    let mut text = String::new();
    let read = io::stdin().lock().take(MAX_BYTES).read_line(&mut text);
    read.map_err(|error| Failure::failed(format!("failed to read what was typed: {error}")))?;
    match text.trim() {
        "" => Err(missing()),
        text => Ok(text.to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::from_file;

    #[test]
    fn a_secret_loses_the_end_of_its_line_and_nothing_else() {
        let folder = tempfile::tempdir().expect("a folder");
        let file = folder.path().join("p");
        for (text, secret) in [
            ("a b \n", "a b "),
            ("x\r\n", "x"),
            (" y", " y"),
            ("z\n\n", "z\n"),
        ] {
            std::fs::write(&file, text).expect("written");
            assert_eq!(from_file("--password-file", &file), Ok(secret.to_owned()));
        }
        for text in ["", "\n", &"x".repeat(70_000)] {
            std::fs::write(&file, text).expect("written");
            assert!(from_file("--password-file", &file).is_err());
        }
    }
}
