//! Canaille, an OpenID Connect provider, with its data in memory: a few users, each in one group, and one client.

use std::fs;
use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result};
use tempfile::TempDir;

use crate::port::free_port;
use crate::process::Guarded;

/// The release that `infra/dev/servers canaille` makes available.
const VERSION: &str = "0.3.6";
/// Python has to load many modules.
const START_WITHIN: Duration = Duration::from_mins(2);
/// A program that is no test may take the port between the search and the start.
const PORTS_TO_TRY: usize = 3;

/// The login name of a user, who is in the group `cueline-operators`. `canaille.py` has the others.
pub const USER: &str = "alice";
/// The password of each user.
pub const PASSWORD: &str = "correct horse battery";
/// The id of the client.
pub const CLIENT_ID: &str = "cueline";
/// The client's secret.
pub const CLIENT_SECRET: &str = "TheSecretOfTheClient";

/// A provider on a free port. Dropping it kills the process.
#[derive(Debug)]
pub struct Canaille {
    port: u16,
    _process: Guarded,
    _dir: TempDir,
}

impl Canaille {
    /// The folder of its Python modules, in `target/servers` or in the folder that `CUELINE_TEST_CANAILLE` names.
    ///
    /// # Errors
    ///
    /// When they are not there, with words about how to get them.
    pub fn modules() -> Result<PathBuf> {
        let folder = std::env::var_os("CUELINE_TEST_CANAILLE").map_or_else(
            || Path::new(env!("CARGO_MANIFEST_DIR")).join("../../target/servers"),
            PathBuf::from,
        );
        let modules = folder.join(format!("canaille-{VERSION}"));
        anyhow::ensure!(
            modules.join("canaille").is_dir(),
            "there is no Canaille {VERSION} at {}; `infra/dev/servers canaille` puts it there",
            modules.display()
        );
        Ok(modules)
    }

    /// Starts a provider whose client may send browsers back to `redirect_url`, and waits until it answers.
    ///
    /// # Errors
    ///
    /// When it is not installed, or does not start. The error has its log.
    pub fn start(redirect_url: &str) -> Result<Self> {
        let modules = Self::modules()?;
        let mut tried = 0;
        loop {
            tried += 1;
            match Self::start_on(free_port()?, &modules, redirect_url) {
                Err(_) if tried < PORTS_TO_TRY => {}
                started => return started,
            }
        }
    }

    fn start_on(port: u16, modules: &Path, redirect_url: &str) -> Result<Self> {
        let dir = tempfile::tempdir()?;
        // Not called `canaille.py`, which would hide the module of this name.
        let script = dir.path().join("provider.py");
        fs::write(&script, include_str!("canaille.py"))?;
        let mut command = Command::new("python3");
        command
            .arg(script)
            .arg(port.to_string())
            .arg(redirect_url)
            .current_dir(dir.path())
            .env("PYTHONPATH", modules);
        let log = dir.path().join("log");
        let mut process = Guarded::start(&command, &log)?;
        let address = SocketAddr::from(([127, 0, 0, 1], port));
        let started = process.wait_until("Canaille answers", START_WITHIN, || answers(address));
        started.with_context(|| fs::read_to_string(&log).unwrap_or_default())?;
        Ok(Self {
            port,
            _process: process,
            _dir: dir,
        })
    }

    /// Its issuer.
    pub fn issuer(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }
}

/// Whether it tells where its endpoints are.
fn answers(address: SocketAddr) -> bool {
    let ask = || -> std::io::Result<String> {
        let mut stream = TcpStream::connect_timeout(&address, Duration::from_secs(1))?;
        stream.set_read_timeout(Some(Duration::from_secs(5)))?;
        let path = "/.well-known/openid-configuration";
        write!(stream, "GET {path} HTTP/1.0\r\nHost: {address}\r\n\r\n")?;
        let mut head = [0; 15];
        stream.read_exact(&mut head)?;
        Ok(String::from_utf8_lossy(&head).into_owned())
    };
    ask().is_ok_and(|head| head.starts_with("HTTP/1.0 200"))
}
