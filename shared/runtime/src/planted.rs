//! Planted bugs: each switches one safeguard off, to show that the storms notice.
//!
//! A bug may need a condition that no fault of the storms brings about. Storms pass under the condition alone.
//!
//! Only a build with the feature `planted-bugs` has them, which nothing but `infra/dev/planted-bugs` makes. In every
//! other build [`planted!`](crate::planted!) is the constant `false`.

/// Names the bug to switch on, or several names with commas. Read by builds with the feature only.
pub const VARIABLE: &str = "CUELINE_PLANTED_BUG";

/// Whether this build has planted bugs.
pub const ENABLED: bool = cfg!(feature = "planted-bugs");

/// All planted bugs.
pub const BUGS: [&str; 11] = [
    // A worker acts on decisions that are not on disk.
    "no_journal_write",
    // A trigger is acked before it is on disk.
    "ack_before_journal",
    // A run is published although its job was paused, edited or deleted.
    "no_version_check",
    // A worker that is cut off from the broker continues.
    "no_fence",
    // A failover does not wait for results that are on their way.
    "failover_without_quiet",
    // The lane of a group is ignored.
    "lane_per_executor",
    // A trigger goes to two executors.
    "doubled_publish",
    // A worker forgets the outcome of an attempt.
    "lost_result",
    // A run in a `cover` lane starts before the covered one has ended.
    "cover_before_end",
    // A lane starts the newest waiting run first.
    "order_swapped",
    // Some fire times get no run.
    "ledger_gap",
];

/// Conditions under which a bug shows.
pub const CONDITIONS: [&str; 1] = [
    // Schedulers leave the results in the queue for most of the time.
    "slow_results",
];

/// Whether this bug is switched on.
#[cfg(feature = "planted-bugs")]
#[macro_export]
macro_rules! planted {
    ($bug:literal) => {
        $crate::planted::is_planted($bug)
    };
}

/// Whether this bug is switched on: never, because this build has none.
#[cfg(not(feature = "planted-bugs"))]
#[macro_export]
macro_rules! planted {
    ($bug:literal) => {
        false
    };
}

/// Whether the environment names this bug or condition.
///
/// # Panics
///
/// If the environment names an unknown bug. A storm without a bug would prove nothing.
#[cfg(feature = "planted-bugs")]
pub fn is_planted(bug: &str) -> bool {
    static PLANTED: std::sync::OnceLock<Vec<String>> = std::sync::OnceLock::new();
    let planted = PLANTED.get_or_init(|| {
        let names = std::env::var(VARIABLE).unwrap_or_default();
        let names = names.split(',').filter(|name| !name.is_empty());
        let known = |name: &str| BUGS.contains(&name) || CONDITIONS.contains(&name);
        let check = |name: &&str| {
            assert!(
                known(name),
                "{VARIABLE}={name} is not one of {BUGS:?}, {CONDITIONS:?}"
            );
        };
        names.inspect(check).map(str::to_owned).collect()
    });
    planted.iter().any(|name| name == bug)
}
