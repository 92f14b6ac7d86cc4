//! Time since boot. This clock cannot be set, and it continues while the machine sleeps or the process is paused.
//! Leases therefore use it.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

/// Tells how long the machine has been running.
pub trait BootClock: Send + Sync + std::fmt::Debug + 'static {
    /// Milliseconds since a fixed point of this boot. They never decrease.
    fn up_ms(&self) -> i64;

    /// An id that differs after each boot; empty if the system does not report one.
    fn boot_id(&self) -> String;
}

/// The machine's clock: `CLOCK_BOOTTIME` on Linux, which counts while the machine sleeps, see
/// <https://man7.org/linux/man-pages/man2/clock_gettime.2.html>. Other systems use the monotonic clock, which may stop
/// during sleep. Neither counts the time for which a host stops a virtual machine.
#[derive(Debug, Clone, Copy, Default)]
pub struct SystemBootClock;

impl BootClock for SystemBootClock {
    #[cfg(target_os = "linux")]
    fn up_ms(&self) -> i64 {
        use nix::sys::time::TimeValLike as _;
        use nix::time::{ClockId, clock_gettime};
        // This fails only if the kernel lacks the clock, so the result is always the same.
        clock_gettime(ClockId::CLOCK_BOOTTIME)
            .or_else(|_| clock_gettime(ClockId::CLOCK_MONOTONIC))
            .map_or(0, |up| up.num_milliseconds())
    }

    #[cfg(not(target_os = "linux"))]
    #[expect(
        clippy::disallowed_methods,
        reason = "this is where the time comes from"
    )]
    fn up_ms(&self) -> i64 {
        static START: std::sync::OnceLock<std::time::Instant> = std::sync::OnceLock::new();
        let up = START.get_or_init(std::time::Instant::now).elapsed();
        i64::try_from(up.as_millis()).unwrap_or(i64::MAX)
    }

    /// From `/proc` on Linux.
    fn boot_id(&self) -> String {
        let text = std::fs::read_to_string("/proc/sys/kernel/random/boot_id");
        text.unwrap_or_default().trim().to_owned()
    }
}

/// A clock that a test moves. Clones show the same time.
#[derive(Debug, Clone, Default)]
pub struct ManualBootClock(Arc<AtomicI64>);

impl ManualBootClock {
    /// Advances the time.
    pub fn advance(&self, by: Duration) {
        let by_ms = i64::try_from(by.as_millis()).unwrap_or(i64::MAX);
        self.0.fetch_add(by_ms, Ordering::SeqCst);
    }
}

impl BootClock for ManualBootClock {
    fn up_ms(&self) -> i64 {
        self.0.load(Ordering::SeqCst)
    }

    fn boot_id(&self) -> String {
        "manual".to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_uptime_is_positive_and_the_boot_id_is_known() {
        let (first, second) = (SystemBootClock.up_ms(), SystemBootClock.up_ms());
        assert!(first > 0 && second >= first, "{first} {second}");
        #[cfg(target_os = "linux")]
        {
            assert_eq!(SystemBootClock.boot_id().len(), 36);
            // The first number in /proc/uptime shows the same clock, in seconds.
            let text = std::fs::read_to_string("/proc/uptime").expect("readable");
            let word = text.split_whitespace().next().expect("a number");
            let uptime: f64 = word.parse().expect("a number");
            let up = Duration::from_millis(first.unsigned_abs()).as_secs_f64();
            assert!((uptime - up).abs() < 60.0, "{uptime} {up}");
        }
    }
}
