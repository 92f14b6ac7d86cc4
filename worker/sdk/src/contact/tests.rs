//! The fence by a clock that the test moves.

use std::sync::Arc;
use std::time::Duration;

use cueline_protocol::Control;
use cueline_runtime::{BootClock, ManualBootClock};
use tokio::sync::watch;

use super::{Contact, Lease, Limits, Moment, Obeyed, Reach, State};
use crate::journal::LastContact;

const FENCE: Duration = Duration::from_secs(20);

/// One that was never in contact.
pub(crate) fn contact(boot: &ManualBootClock) -> Contact {
    let state = State {
        fenced: true,
        forfeited: true,
        back: false,
        proven: None,
        dead_by_ms: i64::MIN,
    };
    Contact {
        limits: Some(Limits {
            fence_after: FENCE,
            failover_after: Duration::from_secs(30),
        }),
        lease: None,
        boot: Arc::new(boot.clone()),
        boot_id: boot.boot_id(),
        incarnation: "this".to_owned(),
        state: watch::Sender::new(state),
        echoes: std::sync::Mutex::default(),
        beat: tokio::sync::Notify::new(),
    }
}

/// One that has just been in contact.
pub(crate) fn live(boot: &ManualBootClock) -> Contact {
    let contact = contact(boot);
    let echo = number(&contact);
    contact.hear("this", echo);
    assert!(contact.lift(Obeyed::GivenBack));
    contact
}

fn number(contact: &Contact) -> u64 {
    match contact.next_echo(0) {
        Some(Control::Echo { number, .. }) => number,
        other => panic!("{other:?}"),
    }
}

const fn secs(n: u64) -> Duration {
    Duration::from_secs(n)
}

#[test]
fn nothing_is_started_before_the_first_echo() {
    let boot = ManualBootClock::default();
    let contact = contact(&boot);
    assert!(contact.is_fenced());
    assert!(!contact.lift(Obeyed::GivenBack));
    let echo = number(&contact);
    contact.hear("that", echo);
    contact.hear("this", echo + 1);
    assert!(
        !contact.lift(Obeyed::GivenBack),
        "an echo of another start, or of no beat"
    );
    contact.hear("this", echo);
    assert!(contact.lift(Obeyed::GivenBack));
    assert!(!contact.is_fenced());
}

#[test]
fn contact_is_as_old_as_the_beat_whose_echo_came_back() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    boot.advance(secs(10));
    let echo = number(&contact);
    boot.advance(secs(9));
    contact.hear("this", echo);
    boot.advance(secs(11));
    assert!(!contact.is_fenced(), "20 s after that beat was sent");
    boot.advance(Duration::from_millis(1));
    assert!(contact.is_fenced());
    contact.hear("this", echo);
    assert!(
        !contact.lift(Obeyed::GivenBack),
        "the same echo again proves nothing"
    );
}

#[test]
fn an_echo_that_is_too_old_to_start_anything_by_is_not_told_of() {
    let boot = ManualBootClock::default();
    let told = Arc::new(std::sync::Mutex::new(Vec::new()));
    let heard = Arc::clone(&told);
    let contact = Contact {
        lease: Some(Lease(Arc::new(move |reach| {
            heard.lock().expect("lock").push(reach);
        }))),
        ..contact(&boot)
    };
    let first = number(&contact);
    contact.hear("this", first);
    assert!(contact.lift(Obeyed::GivenBack));
    boot.advance(secs(5));
    let kept_back = number(&contact);
    boot.advance(secs(FENCE.as_secs() + 5));
    assert!(contact.is_fenced());
    let newest = number(&contact);
    // The broker goes on, and sends what it had.
    contact.hear("this", kept_back);
    let first = Reach {
        proven_ms: 0,
        ends_by_ms: 28_000,
    };
    assert_eq!(*told.lock().expect("lock"), [first]);
    contact.hear("this", newest);
    let newest = Reach {
        proven_ms: 30_000,
        ends_by_ms: 58_000,
    };
    assert_eq!(*told.lock().expect("lock"), [first, newest]);
    assert!(contact.lift(Obeyed::GivenBack));
}

#[test]
fn one_lost_echo_does_no_harm() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    boot.advance(secs(15));
    let lost = number(&contact);
    assert!(!contact.is_answered());
    let next = number(&contact);
    contact.hear("this", next);
    assert!(contact.is_answered());
    boot.advance(secs(15));
    assert!(!contact.is_fenced());
    contact.hear("this", lost);
    boot.advance(secs(6));
    assert!(contact.is_fenced());
}

#[test]
fn an_echo_right_after_a_pause_does_not_hide_the_pause() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    boot.advance(secs(60));
    let echo = number(&contact);
    contact.hear("this", echo);
    assert!(contact.is_fenced(), "until the core has heeded it");
    assert_eq!(contact.left(), Duration::ZERO);
    assert!(contact.lift(Obeyed::GivenBack));
    assert!(!contact.is_fenced());
}

/// Without contact for so long, and then the echo of a beat that is sent then.
fn back_after(boot: &ManualBootClock, contact: &Contact, away: Duration) {
    boot.advance(away);
    assert!(contact.is_fenced());
    let echo = number(contact);
    contact.hear("this", echo);
}

#[test]
fn what_waits_is_kept_where_contact_is_back_before_others_may_have_it() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    back_after(&boot, &contact, Duration::from_millis(23_999));
    assert!(!contact.is_forfeited());
    assert!(
        !contact.lift(Obeyed::Not),
        "what runs has to be told to stop"
    );
    assert!(contact.lift(Obeyed::Stopped));
    back_after(&boot, &contact, secs(24));
    assert!(contact.is_forfeited());
    assert!(!contact.lift(Obeyed::Stopped), "it may be others'");
    assert!(contact.lift(Obeyed::GivenBack));
    assert!(!contact.is_forfeited());
}

#[test]
fn what_is_forfeited_stays_so_even_if_a_beat_turns_out_to_have_been_in_time() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    boot.advance(secs(23));
    let echo = number(&contact);
    boot.advance(secs(1));
    contact.hear("this", echo);
    assert!(contact.is_forfeited(), "although the beat was in time");
    back_after(&boot, &contact, secs(1));
    assert!(contact.is_forfeited());
    assert!(!contact.lift(Obeyed::Stopped));
}

#[test]
fn late_echoes_put_off_what_they_prove_and_no_more() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    boot.advance(secs(2));
    let late = number(&contact);
    boot.advance(secs(21));
    contact.hear("this", late);
    assert!(!contact.lift(Obeyed::Stopped), "21 s old");
    boot.advance(Duration::from_millis(2_999));
    assert!(!contact.is_forfeited(), "23.999 s after that beat");
    boot.advance(Duration::from_millis(1));
    assert!(contact.is_forfeited());
}

#[test]
fn the_journal_is_not_told_of_contact_while_the_fence_is_down() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    back_after(&boot, &contact, secs(60));
    assert!(contact.unrecorded().is_none());
    assert!(contact.lift(Obeyed::GivenBack));
    assert!(contact.unrecorded().is_some());
}

#[test]
fn what_is_stopped_has_ended_before_the_failover() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    boot.advance(secs(21));
    assert!(contact.is_fenced());
    assert_eq!(contact.left(), secs(7));
}

#[tokio::test]
async fn the_last_instant_comes_even_if_contact_does() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    boot.advance(secs(21));
    assert!(contact.is_fenced());
    let mut last = std::pin::pin!(contact.dead_by());
    assert!(futures_util::poll!(last.as_mut()).is_pending());
    let echo = number(&contact);
    contact.hear("this", echo);
    assert!(contact.lift(Obeyed::GivenBack));
    boot.advance(secs(7));
    last.await;
}

#[test]
fn contact_is_resumed_with_the_age_that_it_has() {
    let last = |at_ms, up_ms, boot_id: &str| LastContact {
        at_ms,
        up_ms,
        boot_id: boot_id.to_owned(),
    };
    let cases = [
        (Some(last(90_000, 40_000, "manual")), true),
        (Some(last(80_000, 40_000, "manual")), true),
        (Some(last(79_999, 40_000, "manual")), false),
        (Some(last(90_000, 29_999, "manual")), false),
        (Some(last(90_000, 1, "before")), true),
        (Some(last(79_999, 1, "before")), false),
        (Some(last(100_001, 40_000, "manual")), false),
        (Some(last(90_000, 50_001, "manual")), false),
        (None, false),
    ];
    for (last, ours) in cases {
        let boot = ManualBootClock::default();
        boot.advance(secs(50));
        let contact = contact(&boot);
        assert_eq!(contact.resume(last.as_ref(), 100_000), ours, "{last:?}");
        assert_eq!(contact.is_fenced(), !ours, "{last:?}");
        boot.advance(secs(11));
        let younger = last.as_ref().is_some_and(|l| l.at_ms > 90_000);
        assert!(contact.is_fenced() || younger, "{last:?} is not new again");
    }
}

#[test]
fn the_journal_is_told_once_a_second() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    assert!(contact.unrecorded().is_some());
    for (wait_ms, told) in [(999, false), (1, true), (0, false)] {
        boot.advance(Duration::from_millis(wait_ms));
        let echo = number(&contact);
        contact.hear("this", echo);
        assert_eq!(contact.unrecorded().is_some(), told, "{wait_ms}");
    }
}

#[test]
fn echoes_that_are_waited_for_are_bounded() {
    let boot = ManualBootClock::default();
    let contact = live(&boot);
    let first = number(&contact);
    for _ in 0..super::MAX_AWAITED {
        number(&contact);
    }
    assert_eq!(contact.lock().awaited.len(), super::MAX_AWAITED);
    contact.hear("this", first);
    let proven = contact.state.borrow().proven.map(|m: Moment| m.up_ms);
    assert_eq!(proven, Some(0));
}
