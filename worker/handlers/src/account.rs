//! The user that a process runs as, from the system's user database.

use std::path::PathBuf;

use cueline_worker::Failure;
use nix::unistd::{User, geteuid, getuid};

/// The user of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) home: PathBuf,
    /// User and group to switch to; `None` for the worker's own.
    pub(crate) switch: Option<(u32, u32)>,
}

/// Looks up `user`, or the worker's own user. The look-up may wait for a directory service, so it runs on a blocking
/// thread.
pub(crate) async fn resolve(user: Option<String>) -> Result<Account, Failure> {
    tokio::task::spawn_blocking(move || match user {
        Some(name) => named(&name),
        None => own(),
    })
    .await
    .map_err(|e| Failure::new(format!("user: the look-up was interrupted: {e}")))?
}

fn own() -> Result<Account, Failure> {
    let uid = getuid();
    let found = User::from_uid(uid)
        .map_err(|e| Failure::new(format!("user: failed to look up user id {uid}: {e}")))?;
    // Containers may run under a user id that is in no database. Such a user has no name and no home.
    Ok(found.map_or_else(
        || Account {
            name: uid.to_string(),
            home: PathBuf::from("/"),
            switch: None,
        },
        |user| Account {
            name: user.name,
            home: user.dir,
            switch: None,
        },
    ))
}

fn named(name: &str) -> Result<Account, Failure> {
    let user = User::from_name(name)
        .map_err(|e| Failure::new(format!("user: failed to look up {name:?}: {e}")))?
        .ok_or_else(|| Failure::new(format!("user: {name:?} does not exist on this machine")))?;
    let own = geteuid();
    if user.uid != own && !own.is_root() {
        return Err(Failure::new(format!(
            "user: this worker runs as user id {own} and may not run a process as {name:?}; only root may"
        )));
    }
    Ok(Account {
        switch: (user.uid != own).then(|| (user.uid.as_raw(), user.gid.as_raw())),
        name: user.name,
        home: user.dir,
    })
}
