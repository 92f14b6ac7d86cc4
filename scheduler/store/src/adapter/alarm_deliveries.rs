//! Messages of alarms: which have no room, which are sent next, and what their attempts make of them. Pure.

use std::collections::BTreeMap;

use cueline_model::alarm::{ConditionKind, MessageEvent};
use cueline_model::{AlarmBook, ChannelName, JobName, Timestamp};

use super::alarm_events::Collected;
use super::convert::{corrupt, parse_name, to_i64, to_u32, to_u64, without_nul};
use crate::{
    AfterSend, AlarmDelivery, ClaimedDelivery, DeliveryState, ErrorKind, MAX_ANSWER_BYTES,
    MAX_CLAIMED_OF_CHANNEL, MAX_FAILING, MAX_FAILING_OF_NAMESPACE, MAX_MORE_TESTS,
    MAX_SENDING_OF_NAMESPACE, MAX_WAITING_OF_CHANNEL, SendInProgress, SendOutcome, StoreError,
};

/// How many messages of a channel wait: channel, number.
pub type WaitingOfChannelRow = (String, i64);

/// Marks the deliveries that have no room beside those of their channels that wait. Returns how many they are.
pub fn refuse_beyond_bound(collected: &mut Collected, waiting: Vec<WaitingOfChannelRow>) -> usize {
    let mut waiting: BTreeMap<String, i64> = waiting.into_iter().collect();
    let most = to_i64(MAX_WAITING_OF_CHANNEL);
    let mut refused = 0;
    for (_, _, _, channel, _, why) in &mut collected.deliveries {
        let waiting = waiting.entry(channel.clone()).or_default();
        if *waiting < most {
            *waiting += 1;
        } else {
            refused += 1;
            *why = format!("not sent: {most} messages of the channel wait");
        }
    }
    refused
}

/// Checks that there is room for one more test of a channel.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] if too many of its messages wait.
pub fn room_for_test(
    channel: &ChannelName,
    waiting: &[WaitingOfChannelRow],
) -> Result<(), StoreError> {
    let waiting = waiting.first().map_or(0, |row| row.1);
    if waiting < to_i64(MAX_WAITING_OF_CHANNEL + MAX_MORE_TESTS) {
        return Ok(());
    }
    let message = format!(
        "{waiting} messages of alarm channel {:?} wait; try again when some of them have been sent or given up",
        channel.local()
    );
    Err(StoreError::new(ErrorKind::Conflict, message))
}

/// The most due deliveries that are looked at for one claim.
pub const MAX_LOOKED_AT: i64 = 1_000;

/// What the answer of a delivery that is given up by its age begins with. The last answer follows.
pub const GIVEN_UP: &str = "given up 2 h after it was written; the last answer: ";

/// A due delivery: id, namespace, channel, whether a message of the channel is to be sent again.
pub type DueRow = (i64, String, String, bool);

/// The sends of a namespace, and those of them to channels with a message that is to be sent again.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    all: usize,
    failing: usize,
}

impl Places {
    fn take(&mut self, is_failing: bool) {
        self.all += 1;
        self.failing += usize::from(is_failing);
    }

    const fn has_room(self, is_failing: bool) -> bool {
        self.all < MAX_SENDING_OF_NAMESPACE
            && (!is_failing || self.failing < MAX_FAILING_OF_NAMESPACE)
    }
}

/// Chooses the deliveries that are sent now. `due` is in the order in which they are wanted.
pub fn choose_deliveries(due: &[DueRow], sending: &[SendInProgress], limit: usize) -> Vec<i64> {
    let mut of_namespace: BTreeMap<String, Places> = BTreeMap::new();
    let mut failing = 0;
    for send in sending {
        let namespace = send.channel.namespace().to_string();
        of_namespace
            .entry(namespace)
            .or_default()
            .take(send.is_failing);
        failing += usize::from(send.is_failing);
    }
    let mut of_channel: BTreeMap<&str, usize> = BTreeMap::new();
    let mut chosen = Vec::new();
    for (id, namespace, channel, is_failing) in due {
        if chosen.len() >= limit {
            break;
        }
        let most = if *is_failing {
            1
        } else {
            MAX_CLAIMED_OF_CHANNEL
        };
        let in_channel = of_channel.entry(channel).or_default();
        let places = of_namespace.entry(namespace.clone()).or_default();
        let has_room = !*is_failing || failing < MAX_FAILING;
        if has_room && *in_channel < most && places.has_room(*is_failing) {
            *in_channel += 1;
            places.take(*is_failing);
            failing += usize::from(*is_failing);
            chosen.push(*id);
        }
    }
    chosen
}

/// What an attempt makes of its delivery: the code of its state, its next attempt, its end.
pub fn settled(outcome: &SendOutcome, now: Timestamp) -> (i64, Option<i64>, Option<i64>) {
    let now_ms = now.as_millis();
    let (state, next_at, ended_at) = match outcome.then {
        AfterSend::Delivered => (DeliveryState::Delivered, None, Some(now_ms)),
        AfterSend::Again(wait_ms) => {
            let next_at = now.plus_ms(wait_ms).as_millis();
            (DeliveryState::Pending, Some(next_at), None)
        }
        AfterSend::GiveUp => (DeliveryState::Failed, None, Some(now_ms)),
    };
    (i64::from(state as u8), next_at, ended_at)
}

/// A claimed delivery: id, attempt, batch, rule, channel, number of events.
pub type ClaimedRow = (i64, i64, i64, String, String, i64);

/// An event of a message: batch, time, kind, facts.
pub type MessageRow = (i64, i64, String, String);

/// The deliveries of these rows. A delivery that cannot be read is left out. `due` says whether their channels fail.
pub fn claimed_deliveries(
    book: &AlarmBook,
    due: &[DueRow],
    rows: Vec<ClaimedRow>,
    events: &[MessageRow],
) -> Vec<ClaimedDelivery> {
    rows.into_iter()
        .filter_map(|(id, attempt, batch, rule, channel, count)| {
            let channel_name: ChannelName = channel.parse().ok()?;
            let of_batch = events.iter().filter(|row| row.0 == batch);
            Some(ClaimedDelivery {
                id,
                attempt: to_u32(attempt),
                batch,
                rule: rule.parse().ok()?,
                channel: book.channel(&channel_name).map(|c| c.spec.clone()),
                channel_name,
                is_failing: due.iter().any(|row| row.0 == id && row.3),
                count: to_u64(count),
                events: of_batch
                    .map(|(_, at, kind, facts)| MessageEvent {
                        at: Timestamp::from_millis(*at),
                        kind: ConditionKind::from_word(kind).unwrap_or(ConditionKind::Failed),
                        facts: serde_json::from_str(facts).unwrap_or_default(),
                    })
                    .collect(),
            })
        })
        .collect()
}

/// An answer as it is kept.
pub fn kept_answer(answer: &str) -> String {
    let mut end = answer.len().min(MAX_ANSWER_BYTES);
    while !answer.is_char_boundary(end) {
        end -= 1;
    }
    without_nul(&answer[..end]).into_owned()
}

/// A stored delivery: id, batch, rule, channel, events, creation, state, attempts, next time, end, answer.
pub type DeliveryRow = (
    i64,
    i64,
    String,
    String,
    i64,
    i64,
    i64,
    i64,
    Option<i64>,
    Option<i64>,
    String,
);

/// The delivery of a row.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if this program cannot read it.
pub fn delivery(row: DeliveryRow) -> Result<AlarmDelivery, StoreError> {
    let (id, batch, rule, channel, events, created_at, state, attempts, next_at, ended_at, answer) =
        row;
    Ok(AlarmDelivery {
        id,
        batch,
        rule: parse_name(&rule)?,
        channel: parse_name(&channel)?,
        events: to_u64(events),
        created_at: Timestamp::from_millis(created_at),
        state: DeliveryState::from_code(state),
        attempts: to_u32(attempts),
        next_at: next_at.map(Timestamp::from_millis),
        ended_at: ended_at.map(Timestamp::from_millis),
        answer,
    })
}

/// The name under which test messages are listed.
///
/// # Errors
///
/// [`ErrorKind::Broken`](crate::ErrorKind::Broken) if the namespace has no room for it.
pub fn test_rule(channel: &ChannelName) -> Result<String, StoreError> {
    let name = JobName::in_namespace(&channel.namespace(), "test");
    let name = name.map_err(|e| corrupt("failed to name the test message", e))?;
    Ok(name.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn due(id: i64, channel: &str, is_failing: bool) -> DueRow {
        let name: ChannelName = channel.parse().expect("a name");
        let namespace = name.namespace().to_string();
        (id, namespace, channel.to_owned(), is_failing)
    }

    fn sending(channel: &str, is_failing: bool) -> SendInProgress {
        SendInProgress {
            channel: channel.parse().expect("a name"),
            is_failing,
        }
    }

    #[test]
    fn dead_channels_leave_places_to_others() {
        // Dead channels of one or many namespaces, with messages that are older than those of one that works.
        for (namespaces, places_of_dead) in [(1, 8), (2, 16), (30, 16)] {
            let mut rows: Vec<DueRow> = (0..300)
                .map(|n| due(n, &format!("n{}/c{}", n % namespaces, n % 60), true))
                .collect();
            rows.extend((300..310).map(|n| due(n, "n0/ops", false)));
            let chosen = choose_deliveries(&rows, &[], 32);
            let of_ops = chosen.iter().filter(|id| **id >= 300).count();
            assert_eq!((of_ops, chosen.len()), (4, 4 + places_of_dead));
        }
    }

    #[test]
    fn sends_in_progress_count_for_their_namespace() {
        let rows: Vec<DueRow> = (0..40)
            .map(|n| due(n, &format!("a/c{n}"), n % 2 == 0))
            .collect();
        for (healthy, failing, places) in [(0, 0, 16), (3, 0, 13), (0, 8, 8), (16, 0, 0)] {
            let busy = [sending("a/x", false), sending("a/y", true)];
            let mut in_progress = vec![busy[0].clone(); healthy];
            in_progress.extend(vec![busy[1].clone(); failing]);
            let chosen = choose_deliveries(&rows, &in_progress, 32);
            assert_eq!(chosen.len(), places, "{healthy} {failing}");
            let of_failing = chosen.iter().filter(|id| **id % 2 == 0).count();
            assert!(of_failing + failing <= MAX_FAILING_OF_NAMESPACE);
        }
        assert_eq!(choose_deliveries(&rows, &[], 2), [0, 1]);
    }
}
