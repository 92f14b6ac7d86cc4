//! What every long-running part of Cueline needs: clocks, a way to stop, periodic duties, backoff, private files.

pub mod backoff;
pub mod boot;
pub mod burst_gate;
pub mod clock;
pub mod clock_steps;
pub mod duty;
pub mod lifecycle;
pub mod linger;
pub mod planted;
pub mod private_files;
pub mod private_process;
pub mod telemetry;
pub mod terminal;
pub mod time_histogram;
pub mod tls;

pub use backoff::Backoff;
pub use boot::{BootClock, ManualBootClock, SystemBootClock};
pub use burst_gate::BurstGate;
pub use clock::{Clock, ManualClock, SystemClock};
pub use duty::{Activator, Duty, Next};
pub use lifecycle::{Ended, Lifecycle, Stop};
pub use linger::Linger;
pub use time_histogram::{TimeCounts, TimeHistogram};
