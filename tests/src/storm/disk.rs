//! A disk of its own for some processes: a small file system in memory that a test can fill.
//!
//! A holder process mounts it in a mount namespace of its own, which only processes that enter it see. So the files
//! outlive each of these processes. They never outlive the test: the holder reads from a pipe, and the pipe closes when
//! the test ends, however it ends. The holder then kills what is left in the namespace, and the namespace ends with its
//! last process.

use std::fs::File;
use std::io::{self, BufRead as _, BufReader, ErrorKind, Read as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use anyhow::{Context as _, Result, bail};
use nix::unistd::geteuid;
use tokio::task::spawn_blocking;

/// Mounts a file system on `$1` with the options `$2`. At the end of its input, kills the other processes of its
/// namespace. A process may start another one before it is killed, so the holder looks several times.
const HOLD: &str = r#"
mount -t tmpfs -o "$2" tmpfs "$1" || exit 1
echo mounted
cat >/dev/null
own=$(readlink /proc/self/ns/mnt)
for round in 1 2 3 4 5 6 7 8 9 10; do
    left=
    for id in $(ls -l /proc/[0-9]*/ns/mnt 2>/dev/null | grep -F "$own" | cut -d/ -f3); do
        if [ "$id" != $$ ] && kill -KILL "$id" 2>/dev/null; then left=1; fi
    done
    [ -n "$left" ] || break
done
"#;

/// What the holder prints once the file system is mounted.
const MOUNTED: &str = "mounted";

/// Executes the program `$2` with the other arguments in the folder `$1`.
const ENTER: &str = r#"cd "$1" && shift && exec "$@""#;

/// The file that takes all room.
const FILLER: &str = "filler";

/// A file system in a mount namespace. Dropping it kills all processes in the namespace.
#[derive(Debug)]
pub struct Disk {
    holder: Child,
    path: PathBuf,
    kib: u32,
}

impl Disk {
    /// Mounts a file system of `kib` KiB on the absolute `path`, which it creates. Returns the reason if that is not
    /// possible here.
    pub fn mount(path: &Path, kib: u32) -> Result<Result<Self, String>> {
        std::fs::create_dir_all(path)?;
        let spawned = Command::new("unshare")
            .args(namespaces().unshare)
            // Others may unmount their file systems meanwhile. That must work in this namespace, too.
            .args(["--propagation", "slave", "--", "sh", "-c", HOLD, "sh"])
            .arg(path)
            .arg(format!("size={kib}k,mode=0700"))
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            // Ctrl-C ends the test first.
            .process_group(0)
            .spawn();
        let mut holder = match spawned {
            Ok(holder) => holder,
            Err(error) => return Ok(Err(format!("failed to start unshare: {error}"))),
        };
        let stdout = holder.stdout.take().context("the holder has no output")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        if line.trim_end() != MOUNTED {
            let ended = holder.wait_with_output()?;
            let message = String::from_utf8_lossy(&ended.stderr);
            let message: Vec<&str> = message.split_whitespace().collect();
            return Ok(Err(format!(
                "no file system can be mounted in a new namespace, {}: {}",
                ended.status,
                message.join(" ")
            )));
        }
        Ok(Ok(Self {
            holder,
            path: path.to_owned(),
            kib,
        }))
    }

    /// A program and its first arguments. Followed by a command, it executes that command in `folder`, in a namespace
    /// with this disk and under the same process id.
    pub fn launcher(&self, folder: &Path) -> (&'static str, Vec<String>) {
        let mut args = vec!["--target".to_owned(), self.holder.id().to_string()];
        let entered = namespaces().nsenter.iter();
        // A process that enters a mount namespace starts in its root. A working directory that was opened outside would
        // lead to the files outside.
        let more = entered.chain(&["--", "sh", "-c", ENTER, "sh"]);
        args.extend(more.map(|arg| (*arg).to_owned()));
        args.push(folder.display().to_string());
        ("nsenter", args)
    }

    /// Takes all room.
    pub async fn fill(&self) -> Result<()> {
        let (path, most) = (self.filler(), u64::from(self.kib) * 2 * 1_024);
        let filled = spawn_blocking(move || write_until_full(&path, most)).await?;
        filled.context("failed to fill a disk")
    }

    /// Gives the room back.
    pub fn make_room(&self) -> Result<()> {
        std::fs::remove_file(self.filler()).context("failed to make room on a disk")
    }

    /// Copies its files to the folder of the same name outside the namespace, where they outlive it.
    pub fn copy_out(&self) -> Result<()> {
        for file in std::fs::read_dir(self.seen_from_outside())? {
            let file = file?;
            if file.file_type()?.is_file() && file.file_name() != FILLER {
                std::fs::copy(file.path(), self.path.join(file.file_name()))?;
            }
        }
        Ok(())
    }

    fn filler(&self) -> PathBuf {
        self.seen_from_outside().join(FILLER)
    }

    /// The path by which processes outside the namespace reach the disk.
    fn seen_from_outside(&self) -> PathBuf {
        let root = PathBuf::from(format!("/proc/{}/root", self.holder.id()));
        root.join(self.path.strip_prefix("/").unwrap_or(&self.path))
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        // The end of its input ends the holder.
        drop(self.holder.stdin.take());
        let _ = self.holder.wait();
    }
}

/// Arguments for a mount namespace.
struct Namespaces {
    unshare: &'static [&'static str],
    nsenter: &'static [&'static str],
}

/// Only root may mount without a user namespace.
fn namespaces() -> Namespaces {
    if geteuid().is_root() {
        return Namespaces {
            unshare: &["--mount"],
            nsenter: &["--mount"],
        };
    }
    Namespaces {
        unshare: &["--user", "--map-root-user", "--mount"],
        nsenter: &["--user", "--preserve-credentials", "--mount"],
    }
}

/// Writes until the disk is full, and at most `most` bytes.
fn write_until_full(path: &Path, most: u64) -> Result<()> {
    let mut filler = File::create(path)?;
    match io::copy(&mut io::repeat(0).take(most), &mut filler) {
        Err(error) if error.kind() == ErrorKind::StorageFull => Ok(()),
        Err(error) => Err(error.into()),
        Ok(written) => bail!("it is not full after {written} bytes"),
    }
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt as _;

    use cueline_test_support::{SOON, eventually};
    use nix::sys::signal::Signal;

    use super::*;
    use crate::Process;

    #[tokio::test]
    async fn a_disk_outlives_no_test_and_refuses_writes_while_it_is_full() -> Result<()> {
        let folder = tempfile::tempdir()?;
        let path = folder.path().join("small");
        let disk = match Disk::mount(&path, 1_024)? {
            Ok(disk) => disk,
            Err(why) => {
                println!("skipped: {why}");
                return Ok(());
            }
        };
        let (program, args) = disk.launcher(folder.path());
        let script = "echo $$ >small/id && exec sleep 600";
        let process = Process::new("sleeper", "sh".into(), &["-c", script], folder.path());
        let mut process = process.launched_by(program, args);
        process.start()?;
        let inside = disk.seen_from_outside();
        let id = eventually("the process has written its id", SOON, async || {
            let id = std::fs::read_to_string(inside.join("id")).map_err(|e| e.to_string())?;
            if id.ends_with('\n') { Ok(id) } else { Err(id) }
        })
        .await?;
        assert_eq!(id.trim(), process.pid()?.to_string());
        assert!(!path.join("id").exists(), "only its namespace has the disk");

        disk.fill().await?;
        let refused = std::fs::write(inside.join("more"), [0_u8; 8_192]);
        let refused = refused.map_err(|error| error.kind());
        assert_eq!(refused, Err(ErrorKind::StorageFull));
        disk.make_room()?;
        std::fs::write(inside.join("more"), [0_u8; 8_192])?;
        disk.copy_out()?;
        assert_eq!(std::fs::read(path.join("more"))?.len(), 8_192);

        // The holder sees the same when the test is killed: its input ends.
        drop(disk);
        let status = process.wait().await?;
        assert_eq!(status.signal(), Some(Signal::SIGKILL as i32));
        Ok(())
    }
}
