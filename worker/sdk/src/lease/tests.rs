//! The lease, on a clock that the test moves. It ends 20 s after its proof; the failover is after 30 s.

use std::sync::{Arc, Mutex};
use std::time::Duration;

use cueline_model::Session;
use cueline_protocol::Control;
use cueline_runtime::{BootClock, ManualBootClock};
use futures_util::FutureExt as _;

use super::echoes::MAX_OUTSTANDING;
use super::{BrokerLease, FenceStage, LeaseDeadline, LeaseTimings, OnLeaseRenewed};
use crate::journal::LeaseRecord;

const TIMINGS: LeaseTimings = LeaseTimings {
    fence_after: secs(20),
    failover_after: secs(30),
    heartbeat_every: secs(5),
};

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

fn lease(clock: &ManualBootClock, on_renewed: Option<OnLeaseRenewed>) -> BrokerLease {
    lease_from(clock, on_renewed, Session(1))
}

fn lease_from(
    clock: &ManualBootClock,
    on_renewed: Option<OnLeaseRenewed>,
    first_session: Session,
) -> BrokerLease {
    let clock: Arc<dyn BootClock> = Arc::new(clock.clone());
    BrokerLease::new(
        Some(TIMINGS),
        on_renewed,
        clock,
        "this".to_owned(),
        first_session,
    )
}

/// A lease that was never proven.
pub(crate) fn unproven(clock: &ManualBootClock) -> BrokerLease {
    lease(clock, None)
}

/// A lease that has just been proven.
pub(crate) fn proven(clock: &ManualBootClock) -> BrokerLease {
    let lease = unproven(clock);
    renew(&lease);
    assert!(lease.lift_fence(FenceStage::WaitingReturned, 0));
    lease
}

fn send_echo(lease: &BrokerLease) -> u64 {
    match lease.next_echo(0) {
        Some(Control::Echo { number, .. }) => number,
        other => panic!("{other:?}"),
    }
}

/// A heartbeat whose echo returns at once.
fn renew(lease: &BrokerLease) {
    let echo = send_echo(lease);
    lease.echo_returned("this", echo);
}

#[test]
fn nothing_is_started_before_the_first_echo() {
    let clock = ManualBootClock::default();
    let lease = unproven(&clock);
    assert!(lease.is_fenced());
    assert!(!lease.lift_fence(FenceStage::WaitingReturned, 0));
    let echo = send_echo(&lease);
    lease.echo_returned("that", echo);
    lease.echo_returned("this", echo + 1);
    assert!(
        !lease.lift_fence(FenceStage::WaitingReturned, 0),
        "echoes of another incarnation, and of no heartbeat"
    );
    lease.echo_returned("this", echo);
    assert!(lease.lift_fence(FenceStage::WaitingReturned, 0));
    assert!(!lease.is_fenced());
}

#[test]
fn the_lease_is_as_old_as_the_heartbeat_whose_echo_returned() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    clock.advance(secs(10));
    let echo = send_echo(&lease);
    clock.advance(secs(9));
    lease.echo_returned("this", echo);
    clock.advance(secs(11));
    assert!(!lease.is_fenced(), "20 s after that heartbeat was sent");
    clock.advance(Duration::from_millis(1));
    assert!(lease.is_fenced());
    lease.echo_returned("this", echo);
    assert!(
        !lease.lift_fence(FenceStage::WaitingReturned, 0),
        "the same echo proves nothing a second time"
    );
}

#[test]
fn a_lease_that_has_ended_already_is_not_announced() {
    let clock = ManualBootClock::default();
    let announced = Arc::new(Mutex::new(Vec::new()));
    let on_renewed = {
        let announced = Arc::clone(&announced);
        OnLeaseRenewed::new(move |deadline| announced.lock().expect("lock").push(deadline))
    };
    let lease = lease(&clock, Some(on_renewed));
    renew(&lease);
    assert!(lease.lift_fence(FenceStage::WaitingReturned, 0));
    clock.advance(secs(5));
    let delayed = send_echo(&lease);
    clock.advance(secs(25));
    assert!(lease.is_fenced());
    let newest = send_echo(&lease);
    // The broker goes on after a standstill, and delivers the older echo first.
    lease.echo_returned("this", delayed);
    let first = LeaseDeadline {
        proven_ms: 0,
        end_by_ms: 28_000,
    };
    assert_eq!(*announced.lock().expect("lock"), [first]);
    lease.echo_returned("this", newest);
    let second = LeaseDeadline {
        proven_ms: 30_000,
        end_by_ms: 58_000,
    };
    assert_eq!(*announced.lock().expect("lock"), [first, second]);
    assert!(lease.lift_fence(FenceStage::WaitingReturned, 0));
}

#[test]
fn one_lost_echo_does_not_end_the_lease() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    clock.advance(secs(15));
    let lost = send_echo(&lease);
    assert!(!lease.is_newest_echo_returned());
    renew(&lease);
    assert!(lease.is_newest_echo_returned());
    clock.advance(secs(15));
    assert!(!lease.is_fenced());
    lease.echo_returned("this", lost);
    clock.advance(secs(6));
    assert!(lease.is_fenced());
}

#[test]
fn an_echo_right_after_a_pause_does_not_hide_the_pause() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    clock.advance(secs(60));
    renew(&lease);
    assert!(lease.is_fenced(), "until the event loop has acted on it");
    assert_eq!(lease.time_left(), Duration::ZERO);
    assert!(lease.lift_fence(FenceStage::WaitingReturned, 0));
    assert!(!lease.is_fenced());
}

#[test]
fn half_way_to_its_end_the_lease_is_overdue_until_the_next_proof() {
    let clock = ManualBootClock::default();
    let lease = unproven(&clock);
    assert!(lease.is_overdue());
    renew(&lease);
    assert!(lease.lift_fence(FenceStage::WaitingReturned, 0));
    clock.advance(Duration::from_millis(9_999));
    assert!(!lease.is_overdue());
    let echo = send_echo(&lease);
    clock.advance(Duration::from_millis(1));
    assert!(lease.is_overdue() && !lease.is_fenced());
    clock.advance(secs(9));
    lease.echo_returned("this", echo);
    assert!(!lease.is_overdue(), "as old as that heartbeat");
    clock.advance(secs(1));
    assert!(lease.is_overdue());
}

/// A broker that takes all its time for each heartbeat must not make the lease overdue between two of them.
#[test]
fn rare_heartbeats_make_the_lease_overdue_later() {
    let overdue_after = |every| {
        let timings = LeaseTimings {
            heartbeat_every: every,
            ..TIMINGS
        };
        timings.overdue_after()
    };
    assert_eq!(overdue_after(secs(1)), secs(10));
    assert_eq!(overdue_after(secs(5)), secs(10));
    assert_eq!(overdue_after(secs(9)), secs(14));
}

#[tokio::test]
async fn a_proof_ends_the_wait_for_a_renewal() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    lease.renewed().now_or_never().expect("not overdue");
    let old = send_echo(&lease);
    clock.advance(secs(10));
    let mut renewed = std::pin::pin!(lease.renewed());
    assert!(renewed.as_mut().now_or_never().is_none());
    lease.echo_returned("this", old);
    assert!(renewed.as_mut().now_or_never().is_none(), "10 s old");
    renew(&lease);
    renewed.now_or_never().expect("renewed");
}

#[test]
fn a_lease_that_is_resumed_in_its_second_half_is_overdue() {
    let clock = ManualBootClock::default();
    clock.advance(secs(50));
    for (age, overdue) in [(9_999, false), (10_000, true)] {
        let lease = unproven(&clock);
        let last = LeaseRecord {
            wall_ms: 100_000 - age,
            boot_ms: 50_000 - age,
            boot_id: clock.boot_id(),
            session: Session(1),
        };
        assert!(lease.resume(Some(&last), 100_000));
        assert_eq!(lease.is_overdue(), overdue, "{age} ms");
    }
}

#[test]
fn without_a_lease_nothing_is_overdue() {
    let clock = ManualBootClock::default();
    let lease = BrokerLease::new(
        None,
        None,
        Arc::new(clock.clone()),
        "this".to_owned(),
        Session(1),
    );
    clock.advance(secs(1_000));
    assert!(!lease.is_overdue());
}

/// The lease is missing for this long, and then renewed.
fn renew_after(clock: &ManualBootClock, lease: &BrokerLease, missing: Duration) {
    clock.advance(missing);
    assert!(lease.is_fenced());
    renew(lease);
}

#[test]
fn waiting_attempts_stay_if_the_lease_is_renewed_in_time() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    renew_after(&clock, &lease, Duration::from_millis(23_999));
    assert!(!lease.must_return_waiting());
    assert!(
        !lease.lift_fence(FenceStage::NotHandled, 0),
        "running attempts have to be stopped first"
    );
    assert!(lease.lift_fence(FenceStage::Stopped, 0));
    renew_after(&clock, &lease, secs(24));
    assert!(lease.must_return_waiting());
    assert!(
        !lease.lift_fence(FenceStage::Stopped, 0),
        "waiting attempts have to be returned first"
    );
    assert!(lease.lift_fence(FenceStage::WaitingReturned, 0));
    assert!(!lease.must_return_waiting());
}

#[test]
fn waiting_attempts_are_returned_even_if_a_late_echo_proves_an_earlier_heartbeat() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    clock.advance(secs(23));
    let echo = send_echo(&lease);
    clock.advance(secs(1));
    lease.echo_returned("this", echo);
    assert!(
        lease.must_return_waiting(),
        "the heartbeat was in time, its echo was not"
    );
    renew_after(&clock, &lease, secs(1));
    assert!(lease.must_return_waiting());
    assert!(!lease.lift_fence(FenceStage::Stopped, 0));
}

#[test]
fn a_late_echo_extends_the_lease_only_from_its_heartbeat() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    clock.advance(secs(2));
    let late = send_echo(&lease);
    clock.advance(secs(21));
    lease.echo_returned("this", late);
    assert!(!lease.lift_fence(FenceStage::Stopped, 0), "it is 21 s old");
    clock.advance(Duration::from_millis(2_999));
    assert!(
        !lease.must_return_waiting(),
        "23.999 s after that heartbeat"
    );
    clock.advance(Duration::from_millis(1));
    assert!(lease.must_return_waiting());
}

#[test]
fn a_fenced_worker_records_no_lease() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    renew_after(&clock, &lease, secs(60));
    assert!(lease.take_unrecorded().is_none());
    assert!(lease.lift_fence(FenceStage::WaitingReturned, 0));
    assert!(lease.take_unrecorded().is_some());
}

#[test]
fn fenced_attempts_end_2_s_before_the_failover() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    clock.advance(secs(21));
    assert!(lease.is_fenced());
    assert_eq!(lease.time_left(), secs(7));
}

#[tokio::test]
async fn fenced_attempts_must_end_even_if_the_lease_is_renewed() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    clock.advance(secs(21));
    assert!(lease.is_fenced());
    let mut end = std::pin::pin!(lease.must_end());
    assert!(futures_util::poll!(end.as_mut()).is_pending());
    renew(&lease);
    assert!(lease.lift_fence(FenceStage::WaitingReturned, 0));
    clock.advance(secs(7));
    end.await;
}

#[test]
fn a_resumed_lease_is_as_old_as_its_record() {
    let record = |wall_ms, boot_ms, boot_id: &str| LeaseRecord {
        wall_ms,
        boot_ms,
        boot_id: boot_id.to_owned(),
        session: Session(70_000),
    };
    let cases = [
        (Some(record(90_000, 40_000, "manual")), true),
        (Some(record(80_000, 40_000, "manual")), true),
        (Some(record(79_999, 40_000, "manual")), false),
        (Some(record(90_000, 29_999, "manual")), false),
        (Some(record(90_000, 1, "before")), true),
        (Some(record(79_999, 1, "before")), false),
        (Some(record(100_001, 40_000, "manual")), false),
        (Some(record(90_000, 50_001, "manual")), false),
        (None, false),
    ];
    for (record, resumed) in cases {
        let clock = ManualBootClock::default();
        clock.advance(secs(50));
        let lease = unproven(&clock);
        assert_eq!(
            lease.resume(record.as_ref(), 100_000),
            resumed,
            "{record:?}"
        );
        assert_eq!(lease.is_fenced(), !resumed, "{record:?}");
        let session = match (&record, resumed) {
            (Some(_), true) => 70_000,
            (Some(_), false) => 100_000,
            (None, _) => 1,
        };
        assert_eq!(lease.session(), Session(session), "{record:?}");
        clock.advance(secs(11));
        let younger = record.as_ref().is_some_and(|r| r.wall_ms > 90_000);
        assert!(lease.is_fenced() || younger, "{record:?} is not new again");
    }
}

#[test]
fn a_session_begins_after_waiting_attempts_were_returned() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    let first = lease.session();
    clock.advance(secs(21));
    assert!(lease.is_fenced());
    renew(&lease);
    assert!(lease.lift_fence(FenceStage::Stopped, 50));
    assert_eq!(lease.session(), first, "nothing was returned");
    for (wall_ms, session) in [(60, 60), (40, 61)] {
        clock.advance(secs(30));
        assert!(lease.must_return_waiting());
        renew(&lease);
        assert!(lease.lift_fence(FenceStage::WaitingReturned, wall_ms));
        assert_eq!(lease.session(), Session(session));
    }
}

/// Schedulers know the number of the process start. The clock stands, or goes back.
#[test]
fn a_session_exceeds_that_of_the_process_start() {
    let record = |wall_ms| LeaseRecord {
        wall_ms,
        boot_ms: 40_000,
        boot_id: "manual".to_owned(),
        session: Session(70_000),
    };
    let started = || {
        let clock = ManualBootClock::default();
        clock.advance(secs(50));
        let lease = lease_from(&clock, None, Session(100_000));
        (clock, lease)
    };
    for wall_ms in [100_000, 99_000] {
        let (_, lease) = started();
        assert!(!lease.resume(Some(&record(70_000)), wall_ms));
        assert_eq!(lease.session(), Session(100_001), "{wall_ms}");

        let (clock, lease) = started();
        assert!(lease.resume(Some(&record(90_000)), wall_ms));
        assert_eq!(lease.session(), Session(70_000));
        for session in [100_001, 100_002] {
            renew_after(&clock, &lease, secs(30));
            assert!(lease.lift_fence(FenceStage::WaitingReturned, wall_ms));
            assert_eq!(lease.session(), Session(session), "{wall_ms}");
        }
    }
}

/// Until its first proof, schedulers may have received a heartbeat of the process and failed it over.
#[test]
fn a_session_begins_with_a_first_proof_that_is_late() {
    for (after, session) in [(Duration::from_millis(23_999), 1), (secs(24), 50)] {
        let clock = ManualBootClock::default();
        clock.advance(secs(7));
        let lease = unproven(&clock);
        clock.advance(after);
        renew(&lease);
        assert!(lease.lift_fence(FenceStage::WaitingReturned, 50));
        assert_eq!(lease.session(), Session(session), "{after:?}");
    }
}

#[test]
fn the_lease_is_recorded_once_a_second() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    assert!(lease.take_unrecorded().is_some());
    for (wait_ms, recorded) in [(999, false), (1, true), (0, false)] {
        clock.advance(Duration::from_millis(wait_ms));
        renew(&lease);
        assert_eq!(lease.take_unrecorded().is_some(), recorded, "{wait_ms}");
    }
}

#[test]
fn outstanding_echoes_are_bounded() {
    let clock = ManualBootClock::default();
    let lease = proven(&clock);
    clock.advance(secs(1));
    let first = send_echo(&lease);
    for _ in 0..MAX_OUTSTANDING {
        send_echo(&lease);
    }
    assert_eq!(lease.outstanding_echoes(), MAX_OUTSTANDING);
    lease.echo_returned("this", first);
    assert_eq!(lease.proven_ms(), Some(0), "the oldest echo was forgotten");
}
