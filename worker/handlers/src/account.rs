//! The user that a process runs as, from the system's user database, and whether the worker allows this user.

use std::path::PathBuf;
use std::sync::Arc;

use cueline_worker::{Context, Failure};
use nix::errno::Errno;
use nix::unistd::{User, geteuid, getuid};

use crate::shortage::{self, Patience, Shortage};

/// The name of the user who may switch to others.
const ROOT: &str = "root";

/// The user of a process.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) name: String,
    pub(crate) home: PathBuf,
    /// User and group to switch to; `None` for the worker's own.
    pub(crate) switch: Option<(u32, u32)>,
}

/// The users that jobs may run as.
///
/// While it is empty, they run as the worker's own user. A list limits all jobs of a worker that runs as root: they run
/// as root only if the list has `root`. Otherwise a job could have all rights by naming no user.
#[derive(Debug, Clone, Default)]
pub(crate) struct AllowedUsers(Arc<[String]>);

impl AllowedUsers {
    pub(crate) fn new(names: impl IntoIterator<Item = String>) -> Self {
        Self(names.into_iter().collect())
    }

    /// Refuses a job that names no user, or the worker's own, if it may not run as that user.
    fn check_own(&self, worker_is_root: bool) -> Result<(), Failure> {
        if worker_is_root && !self.0.is_empty() && !self.has(ROOT) {
            return Err(Failure::new(format!(
                "run_as: this worker does not run jobs as root; name one of the users of its allow_run_as ({})",
                self.0.join(", ")
            )));
        }
        Ok(())
    }

    /// Refuses another user that is not in the list, or that the worker cannot switch to.
    fn check_other(&self, name: &str, worker_is_root: bool) -> Result<(), Failure> {
        if !self.has(name) {
            return Err(Failure::new(format!(
                "run_as: this worker does not run jobs as {name:?}; its setting allow_run_as must have that user"
            )));
        }
        if !worker_is_root {
            return Err(Failure::new(format!(
                "run_as: this worker runs as user id {} and may not run a process as {name:?}; only root may",
                geteuid()
            )));
        }
        Ok(())
    }

    fn has(&self, name: &str) -> bool {
        self.0.iter().any(|allowed| allowed == name)
    }
}

/// Whether the worker can switch to other users and drop its own groups. Capabilities alone do not count: processes of
/// the worker's own user would inherit them.
fn is_root() -> bool {
    getuid().is_root() && geteuid().is_root()
}

/// Refuses a job that names no user if it may not run as the worker's own.
pub(crate) fn check_unnamed(allowed: &AllowedUsers) -> Result<(), Failure> {
    allowed.check_own(is_root())
}

/// Why a user has no account here.
enum Unresolved {
    /// The user database could not be read.
    Database(String, Errno),
    Refused(Failure),
}

impl From<Failure> for Unresolved {
    fn from(failure: Failure) -> Self {
        Self::Refused(failure)
    }
}

/// Looks up `user`, or the worker's own user. The look-up may wait for a directory service, so it runs on a blocking
/// thread. While the machine lacks descriptors or memory, it is tried again for a while.
pub(crate) async fn resolve(
    user: Option<String>,
    allowed: AllowedUsers,
    cx: &Context,
) -> Result<Account, Failure> {
    let mut patience = Patience::new();
    loop {
        let (wanted, allowed) = (user.clone(), allowed.clone());
        let found = tokio::task::spawn_blocking(move || match wanted {
            Some(name) => named(&name, &allowed),
            None => own(),
        });
        let found = found
            .await
            .map_err(|e| Failure::new(format!("run_as: the look-up was interrupted: {e}")))?;
        let (whom, errno) = match found {
            Ok(account) => return Ok(account),
            Err(Unresolved::Refused(failure)) => return Err(failure),
            Err(Unresolved::Database(whom, errno)) => (whom, errno),
        };
        let failed = |why: &str| Failure::new(format!("run_as: failed to look up {whom}: {why}"));
        let Some(shortage) = Shortage::of(&errno.into()) else {
            return Err(failed(&errno.to_string()));
        };
        if !patience.wait(shortage, cx).await {
            return Err(failed(&shortage::waited(shortage)));
        }
        if let Some(reason) = cx.stop_reason() {
            return Err(Failure::new(format!("not started ({reason:?})")));
        }
    }
}

fn own() -> Result<Account, Unresolved> {
    let uid = getuid();
    let found = User::from_uid(uid)
        .map_err(|errno| Unresolved::Database(format!("user id {uid}"), errno))?;
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

fn named(name: &str, allowed: &AllowedUsers) -> Result<Account, Unresolved> {
    let user = User::from_name(name)
        .map_err(|errno| Unresolved::Database(format!("{name:?}"), errno))?
        .ok_or_else(|| Failure::new(format!("run_as: {name:?} does not exist on this machine")))?;
    let is_own = user.uid == geteuid();
    if is_own {
        allowed.check_own(is_root())?;
    } else {
        allowed.check_other(name, is_root())?;
    }
    Ok(Account {
        switch: (!is_own).then(|| (user.uid.as_raw(), user.gid.as_raw())),
        name: user.name,
        home: user.dir,
    })
}

#[cfg(test)]
mod tests {
    use super::AllowedUsers;

    fn list(names: &[&str]) -> AllowedUsers {
        AllowedUsers::new(names.iter().map(ToString::to_string))
    }

    #[test]
    fn other_users_need_the_list_and_root() {
        assert!(list(&["deploy"]).check_other("deploy", true).is_ok());
        for (allowed, worker_is_root, why) in [
            (&[] as &[&str], true, "allow_run_as"),
            (&["www-data"][..], true, "allow_run_as"),
            (&["deploy"][..], false, "only root may"),
        ] {
            let refused = list(allowed).check_other("deploy", worker_is_root);
            let refused = refused.expect_err("it is refused");
            assert!(refused.message.starts_with("run_as: "), "{refused:?}");
            assert!(refused.message.contains(why), "{refused:?}");
        }
    }

    #[test]
    fn a_list_keeps_the_jobs_of_a_worker_of_root_from_being_root() {
        assert!(list(&[]).check_own(true).is_ok());
        assert!(list(&["deploy", "root"]).check_own(true).is_ok());
        assert!(list(&["deploy"]).check_own(false).is_ok());
        let refused = list(&["deploy"]).check_own(true);
        let refused = refused.expect_err("it is refused");
        assert!(refused.message.contains("(deploy)"), "{refused:?}");
    }
}
