use std::sync::atomic::{AtomicU64, AtomicUsize};

use bytes::Bytes;

use std::time::Duration;

use super::*;

fn shared() -> Shared {
    Shared {
        ack_wait: Duration::from_secs(30),
        queue_limit: 100,
        window_messages: 5,
        memory_bytes: 1 << 20,
        held_bytes: AtomicUsize::new(0),
        next_receipt: AtomicU64::new(0),
    }
}

/// A queue with 8 published messages, 5 of them in memory.
fn queue(shared: &Shared) -> Queue {
    let queue = Queue::new(QueueId::Results, 3, 0, 0);
    let ids: Vec<i64> = (0..8).map(|_| queue.reserve(100).unwrap()).collect();
    queue.committed(ids.into_iter().map(message), shared);
    queue
}

fn message(id: i64) -> Message {
    Message {
        id,
        topic: "t".into(),
        payload: Bytes::from_static(b"payload"),
    }
}

fn held(shared: &Shared) -> usize {
    shared.held_bytes.load(Ordering::Relaxed) / message(1).bytes()
}

fn taken(queue: &Queue, max: usize, shared: &Shared) -> Vec<Delivery> {
    match queue.take(max, Instant::now(), shared) {
        Taken::Messages(messages) => messages,
        other => panic!("{other:?}"),
    }
}

#[test]
fn memory_is_counted_while_messages_are_ready_in_it() {
    let shared = shared();
    let queue = queue(&shared);
    assert_eq!(held(&shared), 5);
    let first = taken(&queue, 2, &shared);
    assert_eq!(held(&shared), 3);

    let now = Instant::now();
    let back: Vec<_> = first
        .iter()
        .map(|d| (d.receipt, Settlement::Retry(Duration::ZERO)))
        .collect();
    assert!(queue.settle(&back, now).is_empty());
    let load = queue.load_wanted(8, now).unwrap();
    let Load::Again(ids) = &load else {
        panic!("{load:?}")
    };
    queue.loaded(
        &load,
        ids.iter().copied().map(message).collect(),
        true,
        &shared,
    );
    assert_eq!(held(&shared), 5);
    queue.delete(&shared);
    assert_eq!(held(&shared), 0);
}

#[test]
fn messages_past_the_memory_limit_are_loaded_in_order() {
    let shared = shared();
    let queue = queue(&shared);
    assert_eq!(queue.load_wanted(5, Instant::now()), None);
    assert_eq!(taken(&queue, 8, &shared).len(), 5);
    let (first, _) = id_range(3);
    let load = queue.load_wanted(8, Instant::now()).unwrap();
    let (after, to) = (first + 5, first + 8);
    assert_eq!(load, Load::Fresh { after, to });
    // This message was published during the load, so it comes after the loaded ones.
    let late = queue.reserve(100).unwrap();
    queue.committed(std::iter::once(message(late)), &shared);
    queue.loaded(
        &load,
        (after + 1..=to).map(message).collect(),
        true,
        &shared,
    );
    assert_eq!(taken(&queue, 8, &shared).len(), 3);
    let load = queue.load_wanted(8, Instant::now());
    assert_eq!(
        load,
        Some(Load::Fresh {
            after: to,
            to: late
        })
    );
}
