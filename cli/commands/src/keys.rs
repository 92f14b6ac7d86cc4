//! `cueline key …` and `cueline token new`: the secrets of a cluster.
//!
//! A key is one line with a prefix, so that the two halves cannot be confused: `cueline-secret-key:…` signs, and
//! `cueline-public-key:…` verifies.

use std::fs::OpenOptions;
use std::io::{ErrorKind, Write as _};
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

use clap::{Args, Subcommand};
use cueline_interface::{Failure, Out, cell, secret_file};
use cueline_protocol::{PUBLIC_KEY_PREFIX, SigningKey, VerifyingKeys};
use rand::TryRng as _;
use serde_json::json;

const SECRET: &str = "cueline-secret-key:";
const PUBLIC: &str = PUBLIC_KEY_PREFIX;

/// `cueline key …`
#[derive(Debug, Subcommand)]
pub(crate) enum KeyCommand {
    /// Create a signing key, and print its public half
    New(NewKeyArgs),
    /// Print the public half of a signing key
    Public(KeyFileArg),
    /// List the keys in files, secret or public
    List(KeyFilesArg),
}

/// `cueline key new`
#[derive(Debug, Args)]
pub(crate) struct NewKeyArgs {
    /// Where to write the secret key; an existing file is not overwritten
    #[arg(long, value_name = "FILE", default_value = "signing.key")]
    pub(crate) out: PathBuf,
}

/// A file with a signing key.
#[derive(Debug, Args)]
pub(crate) struct KeyFileArg {
    /// A file that `cueline key new` made, or a standalone server's signing.key
    #[arg(value_name = "FILE")]
    pub(crate) file: PathBuf,
}

/// Files with keys.
#[derive(Debug, Args)]
pub(crate) struct KeyFilesArg {
    /// Files with secret or public keys
    #[arg(value_name = "FILE", required = true)]
    pub(crate) files: Vec<PathBuf>,
}

/// `cueline token new`
#[derive(Debug, Args)]
pub(crate) struct NewTokenArgs {
    /// Where to write it; printed by default. An existing file is not overwritten
    #[arg(long, value_name = "FILE")]
    pub(crate) out: Option<PathBuf>,
}

pub(crate) fn run(out: Out, command: &KeyCommand) -> Result<(), Failure> {
    match command {
        KeyCommand::New(args) => new_key(out, &args.out),
        KeyCommand::Public(args) => {
            let public = public_of(&args.file)?;
            print_public(out, &args.file, &public)
        }
        KeyCommand::List(args) => list(out, &args.files),
    }
}

/// Creates an admin token.
pub(crate) fn token(out: Out, args: &NewTokenArgs) -> Result<(), Failure> {
    let token = new_token()?;
    let Some(path) = &args.out else {
        if out.is_json() {
            return out.json(&json!({ "token": token }));
        }
        return out.line(&token);
    };
    write_secret(path, &token)?;
    if out.is_json() {
        return out.json(&json!({ "file": path }));
    }
    out.line(&format!(
        "{} has the token; only its owner can read it",
        path.display()
    ))
}

pub(crate) fn new_token() -> Result<String, Failure> {
    Ok(hex(&random::<32>()?))
}

/// Creates a signing key, and the content of its file.
pub(crate) fn new_secret() -> Result<(SigningKey, String), Failure> {
    let key = SigningKey::from_seed(random()?);
    let text = format!("{SECRET}{}", key.to_base64());
    Ok((key, text))
}

fn new_key(out: Out, path: &Path) -> Result<(), Failure> {
    let (key, text) = new_secret()?;
    write_secret(path, &text)?;
    print_public(out, path, &public_text(&key))
}

fn print_public(out: Out, path: &Path, public: &str) -> Result<(), Failure> {
    if out.is_json() {
        return out.json(&json!({ "file": path, "public": public }));
    }
    out.line(public)
}

fn public_of(path: &Path) -> Result<String, Failure> {
    let text = secret_file::read(path).map_err(Failure::bad_input)?;
    let key = secret_from_text(&text)
        .map_err(|problem| Failure::bad_input(format!("{}: {problem}", path.display())))?;
    Ok(public_text(&key))
}

fn list(out: Out, files: &[PathBuf]) -> Result<(), Failure> {
    let (mut found, mut problems) = (Vec::new(), Vec::new());
    for path in files {
        match keys_in(path) {
            Ok(keys) => found.extend(keys.into_iter().map(|(kind, key)| (path, kind, key))),
            Err(problem) => problems.push(problem),
        }
    }
    if !problems.is_empty() {
        return Err(Failure::BadInput {
            messages: problems,
            summary: None,
        });
    }
    if out.is_json() {
        let keys: Vec<_> = found
            .iter()
            .map(|(file, kind, public)| json!({ "file": file, "kind": kind, "public": public }))
            .collect();
        return out.json(&json!({ "keys": keys }));
    }
    let mut table = out.table(&["PUBLIC KEY", "KIND", "FILE"]);
    for (path, kind, public) in found {
        table.add_row(vec![
            cell(public, None),
            cell(kind, None),
            cell(path.display().to_string(), None),
        ]);
    }
    out.print_table(&table, "no keys")
}

fn keys_in(path: &Path) -> Result<Vec<(&'static str, String)>, String> {
    let text = secret_file::read(path)?;
    if !text.contains(PUBLIC) {
        let key =
            secret_from_text(&text).map_err(|problem| format!("{}: {problem}", path.display()))?;
        return Ok(vec![("secret", public_text(&key))]);
    }
    let keys = public_lines(path, &text)?;
    Ok(keys
        .into_iter()
        .map(|key| ("public", format!("{PUBLIC}{key}")))
        .collect())
}

/// A signing key's public half, with its prefix.
pub fn public_text(key: &SigningKey) -> String {
    format!("{PUBLIC}{}", key.public_base64())
}

/// Parses the signing key in a file's text: a line with the prefix, or the bare key of a standalone server.
pub fn secret_from_text(text: &str) -> Result<SigningKey, String> {
    if text.contains(PUBLIC) {
        return Err(
            "is a public key, which cannot sign; give the secret key, in the file that `cueline key new` made"
                .to_owned(),
        );
    }
    let text = text.trim();
    SigningKey::from_base64(text.strip_prefix(SECRET).unwrap_or(text)).map_err(|_| {
        format!(
            "is not a signing key; a line {SECRET}… is expected, as `cueline key new` writes it"
        )
    })
}

/// The public keys of an argument, each without its prefix. The argument is a key, or a file with keys.
pub fn public_from_argument(text: &str) -> Result<Vec<String>, String> {
    if text.starts_with(SECRET) {
        return Err(format!(
            "is a secret key, which workers must not have; give its public half, {PUBLIC}…, that `cueline key public FILE` prints"
        ));
    }
    if text.starts_with(PUBLIC) {
        return public_key(text).map(|key| vec![key]);
    }
    let path = Path::new(text);
    let content = secret_file::read(path).map_err(|problem| {
        format!("{problem}; a public key {PUBLIC}… or a file with some is expected")
    })?;
    public_lines(path, &content)
}

/// Parses one key per line. `#` begins a comment.
fn public_lines(path: &Path, text: &str) -> Result<Vec<String>, String> {
    let mut keys = Vec::new();
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default().trim();
        if line.is_empty() {
            continue;
        }
        let key = public_key(line).map_err(|e| format!("{}:{}: {e}", path.display(), index + 1))?;
        keys.push(key);
    }
    Ok(keys)
}

fn public_key(line: &str) -> Result<String, String> {
    if line.starts_with(SECRET) {
        // The message must not repeat the secret key.
        return Err(
            "is a secret key, which workers must not have; give what `cueline key public FILE` prints"
                .to_owned(),
        );
    }
    let key = line
        .strip_prefix(PUBLIC)
        .filter(|key| VerifyingKeys::from_base64([*key]).is_ok());
    key.map(|key| key.trim().to_owned()).ok_or_else(|| {
        format!("is not a public key; a line {PUBLIC}… is expected, as `cueline key public FILE` prints it")
    })
}

/// Writes a secret into a new file that only its owner can read.
pub(crate) fn write_secret(path: &Path, text: &str) -> Result<(), Failure> {
    let file = OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(path);
    let written = file.and_then(|mut file| {
        writeln!(file, "{text}")?;
        file.sync_all()
    });
    written.map_err(|error| match error.kind() {
        ErrorKind::AlreadyExists => Failure::bad_input(format!(
            "--out: {} exists; name another file, or move it away first",
            path.display()
        )),
        _ => Failure::failed(format!("failed to write {}: {error}", path.display())),
    })
}

/// Random bytes for a secret.
pub(crate) fn random<const N: usize>() -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    rand::rngs::SysRng
        .try_fill_bytes(&mut bytes)
        .map_err(|error| {
            Failure::failed(format!(
                "failed to get random bytes from the system: {error}"
            ))
        })?;
    Ok(bytes)
}

/// A random idempotency key.
pub(crate) fn random_key() -> Result<String, Failure> {
    Ok(hex(&random::<16>()?))
}

fn hex(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    bytes.iter().fold(String::new(), |mut text, byte| {
        // Writing to a text cannot fail.
        let _ = write!(text, "{byte:02x}");
        text
    })
}
