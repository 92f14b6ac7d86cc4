//! The files of contexts: `contexts.toml`, and one file with the token of each context.
//!
//! Only their owner can read them. A change is written to a new file, which then replaces the old one, so that no command
//! reads half a file. A lock keeps two commands from changing them at the same time.

use std::fs::File;
use std::io::{self, ErrorKind, Read as _, Write as _};
use std::path::{Path, PathBuf};

use cueline_interface::Failure;
use cueline_runtime::private_files;
use reqwest::Url;
use toml_edit::{DocumentMut, value};

use super::book::Contexts;
use super::name::ContextName;

/// The largest file that is read.
const MAX_BYTES: u64 = 1024 * 1024;

/// The files of a user.
#[derive(Debug, Clone)]
pub(crate) struct ContextFiles {
    folder: PathBuf,
}

impl ContextFiles {
    /// Those of the user who runs this command; `None` for a user without a home.
    pub(crate) fn of_user() -> Option<Self> {
        let absolute = |name: &str| {
            std::env::var_os(name)
                .map(PathBuf::from)
                .filter(|path| path.is_absolute())
        };
        let config = absolute("XDG_CONFIG_HOME")
            .or_else(|| absolute("HOME").map(|home| home.join(".config")));
        config.map(|config| Self::at(config.join("cueline")))
    }

    /// Those in a directory.
    pub(crate) fn at(folder: PathBuf) -> Self {
        Self { folder }
    }

    /// The file with all contexts.
    pub(crate) fn path(&self) -> PathBuf {
        self.folder.join("contexts.toml")
    }

    fn token_path(&self, name: &ContextName) -> PathBuf {
        self.folder.join("tokens").join(format!("{name}.toml"))
    }

    /// Reads all contexts. Without a file there are none.
    pub(crate) fn read(&self) -> Result<Contexts, Failure> {
        let path = self.path();
        match text_of(&path)? {
            None => Ok(Contexts::default()),
            Some(text) => Contexts::parse(&text)
                .map_err(|problem| Failure::bad_input(format!("{}: {problem}", path.display()))),
        }
    }

    /// Changes the contexts and their tokens. If `edit` fails, `contexts.toml` stays as it is.
    pub(crate) fn change<T>(
        &self,
        edit: impl FnOnce(&mut Contexts) -> Result<T, Failure>,
    ) -> Result<T, Failure> {
        let _lock = self
            .lock()
            .map_err(|error| failed("change", &self.folder, &error))?;
        let mut contexts = self.read()?;
        let done = edit(&mut contexts)?;
        write(&self.path(), &contexts.to_text())?;
        Ok(done)
    }

    /// Held until the file is dropped. Another command waits meanwhile.
    fn lock(&self) -> io::Result<File> {
        private_files::create_dir(&self.folder)?;
        let file = private_files::open(&self.folder.join("lock"))?;
        file.lock()?;
        Ok(file)
    }

    /// The token of a context, if it was stored for this address.
    ///
    /// The file has the address too. An edited address in `contexts.toml` therefore never gets the token of another one.
    pub(crate) fn token(&self, name: &ContextName, url: &Url) -> Result<Option<String>, Failure> {
        let path = self.token_path(name);
        let Some(text) = text_of(&path)? else {
            return Ok(None);
        };
        if let Some(warning) = cueline_interface::secret_file::permission_warning(&path) {
            cueline_interface::say(&format!("warning: {warning}"));
        }
        let document = text.parse::<DocumentMut>().ok();
        let entry = |key: &str| document.as_ref()?.get(key)?.as_str().map(str::to_owned);
        match (entry("url"), entry("token")) {
            (Some(stored), Some(token)) => Ok((stored == url.as_str()).then_some(token)),
            // The message must not quote the file, which has a secret.
            _ => Err(Failure::bad_input(format!(
                "{}: has no url and token; log in again",
                path.display()
            ))),
        }
    }

    /// Whether there is a file with a token.
    pub(crate) fn has_token(&self, name: &ContextName) -> bool {
        self.token_path(name).exists()
    }

    /// Stores the token of a context, for this address only.
    pub(crate) fn store_token(
        &self,
        name: &ContextName,
        url: &Url,
        token: &str,
    ) -> Result<(), Failure> {
        let mut document = DocumentMut::new();
        document.insert("url", value(url.as_str()));
        document.insert("token", value(token));
        write(&self.token_path(name), &document.to_string())
    }

    /// Deletes the token of a context. Returns whether there was one.
    pub(crate) fn forget_token(&self, name: &ContextName) -> Result<bool, Failure> {
        let path = self.token_path(name);
        match std::fs::remove_file(&path) {
            Ok(()) => Ok(true),
            Err(error) if error.kind() == ErrorKind::NotFound => Ok(false),
            Err(error) => Err(failed("delete", &path, &error)),
        }
    }

    /// Moves the token of a context to its new name.
    pub(crate) fn rename_token(&self, from: &ContextName, to: &ContextName) -> Result<(), Failure> {
        let path = self.token_path(from);
        match std::fs::rename(&path, self.token_path(to)) {
            Err(error) if error.kind() != ErrorKind::NotFound => {
                Err(failed("rename", &path, &error))
            }
            _ => Ok(()),
        }
    }
}

/// The text of a file; `None` if there is none.
fn text_of(path: &Path) -> Result<Option<String>, Failure> {
    let read = || -> io::Result<String> {
        let mut text = String::new();
        File::open(path)?
            .take(MAX_BYTES)
            .read_to_string(&mut text)?;
        Ok(text)
    };
    match read() {
        Ok(text) => Ok(Some(text)),
        Err(error) if error.kind() == ErrorKind::NotFound => Ok(None),
        Err(error) => Err(failed("read", path, &error)),
    }
}

fn write(path: &Path, text: &str) -> Result<(), Failure> {
    let beside = path.with_extension(format!("{}.new", std::process::id()));
    let written = || -> io::Result<()> {
        private_files::create_dir(path.parent().unwrap_or(Path::new(".")))?;
        let mut file = private_files::open(&beside)?;
        // An earlier process with this id may have left it behind.
        file.set_len(0)?;
        file.write_all(text.as_bytes())?;
        file.sync_all()?;
        std::fs::rename(&beside, path)
    };
    written().map_err(|error| failed("write", path, &error))
}

fn failed(what: &str, path: &Path, error: &io::Error) -> Failure {
    Failure::failed(format!("failed to {what} {}: {error}", path.display()))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt as _;
    use std::path::Path;

    use super::super::book::Context;
    use super::{ContextFiles, ContextName};
    use cueline_interface::Failure;
    use cueline_interface::url::base_url;

    fn name(text: &str) -> ContextName {
        text.parse().expect("a name")
    }

    fn mode(path: &Path) -> u32 {
        let metadata = std::fs::metadata(path).expect("it exists");
        metadata.permissions().mode() & 0o777
    }

    fn context(url: &str) -> Context {
        Context {
            url: url.to_owned(),
            ca_file: None,
            client_cert: None,
            client_key: None,
            namespace: None,
            insecure_http: false,
        }
    }

    #[test]
    fn only_the_owner_can_read_contexts_and_tokens() {
        let home = tempfile::tempdir().expect("a folder");
        let files = ContextFiles::at(home.path().join("cueline"));
        assert!(files.read().expect("no file is no error").all.is_empty());
        let url = base_url("https://a.example").expect("an address");
        files
            .change(|contexts| {
                contexts.all.insert(name("a"), context(url.as_str()));
                files.store_token(&name("a"), &url, "secret")
            })
            .expect("written");
        let folder = home.path().join("cueline");
        for (path, expected) in [
            ("", 0o700),
            ("contexts.toml", 0o600),
            ("tokens", 0o700),
            ("tokens/a.toml", 0o600),
        ] {
            assert_eq!(mode(&folder.join(path)), expected, "{path}");
        }
        let book = std::fs::read_to_string(files.path()).expect("a file");
        assert!(!book.contains("secret"), "{book}");
        assert_eq!(files.read().expect("readable").all.len(), 1);
    }

    #[test]
    fn a_token_is_for_its_own_address_only() {
        let home = tempfile::tempdir().expect("a folder");
        let files = ContextFiles::at(home.path().join("cueline"));
        let (own, other) = (
            base_url("https://a.example").expect("an address"),
            base_url("https://b.example").expect("an address"),
        );
        files
            .store_token(&name("a"), &own, "secret")
            .expect("stored");
        let token = |of: &str, url| files.token(&name(of), url).expect("readable");
        assert_eq!(token("a", &own).as_deref(), Some("secret"));
        assert_eq!(token("a", &other), None);
        assert_eq!(token("b", &own), None);
        files.rename_token(&name("a"), &name("b")).expect("renamed");
        assert_eq!(token("b", &own).as_deref(), Some("secret"));
        assert!(files.forget_token(&name("b")).expect("deleted"));
        assert!(!files.forget_token(&name("b")).expect("nothing to delete"));
    }

    #[test]
    fn a_failed_change_leaves_the_file_as_it_is() {
        let home = tempfile::tempdir().expect("a folder");
        let files = ContextFiles::at(home.path().join("cueline"));
        let failed = files.change(|contexts| {
            contexts
                .all
                .insert(name("a"), context("https://a.example/"));
            Err::<(), _>(Failure::Silent)
        });
        assert_eq!(failed, Err(Failure::Silent));
        assert!(files.read().expect("readable").all.is_empty());
    }
}
