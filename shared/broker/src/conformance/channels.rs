//! Announcements reach all present listeners.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::{Instant, sleep, timeout};

use super::fixture::{DEADLINE, Fixture};
use crate::address::Channel;
use crate::broker::{Broker, BrokerOptions};
use crate::driver::Driver;
use crate::error::ErrorKind;
use crate::listener::{Announcement, Listener};

super::cases![
    Nothing: announcements_reach_all_listeners_of_their_channel,
    Nothing: announcements_without_a_listener_are_no_error,
    Nothing: a_dropped_listener_does_not_block_others,
    Nothing: a_lagging_listener_loses_the_oldest,
    Nothing: a_request_gets_its_own_answer,
    Nothing: a_request_without_a_listener_gets_none,
    Nothing: a_stored_announcement_reaches_all_listeners_of_its_channel,
    Nothing: announcements_are_stored_without_a_listener_and_by_any_number_at_once,
    SharedByProcesses: an_announcement_is_not_stored_before_the_proofs_are_declared,
    Durable: announcements_are_stored_again_after_a_restart,
];

fn control(executor: &str) -> Channel {
    Channel::Control {
        group: "billing".into(),
        executor: executor.into(),
    }
}

async fn announce(driver: &dyn Driver, channel: &Channel, text: &str) {
    let announcement = Announcement {
        payload: Bytes::from(text.to_owned()),
        reply_to: None,
    };
    driver.announce(channel, announcement).await.unwrap();
}

async fn receive(listener: &mut Listener) -> String {
    let received = timeout(DEADLINE, listener.recv()).await;
    let received = received
        .expect("nothing was received in time")
        .expect("the channel ended");
    String::from_utf8(received.payload.to_vec()).unwrap()
}

async fn announcements_reach_all_listeners_of_their_channel(fixture: Fixture) {
    let driver = fixture.open(&[]).await;
    let mut one = driver.listen(&control("one")).await.unwrap();
    // A driver may announce and listen over two connections, so some of these may still be on their way.
    for _ in 0..1_000 {
        announce(&*driver, &Channel::Heartbeats, "before any listener").await;
    }
    // Once this one has arrived, the broker has passed those on.
    announce(&*driver, &control("one"), "passed on").await;
    assert_eq!(receive(&mut one).await, "passed on");
    let mut all = [
        driver.listen(&Channel::Heartbeats).await.unwrap(),
        driver.listen(&Channel::Heartbeats).await.unwrap(),
    ];
    let mut two = driver.listen(&control("two")).await.unwrap();
    for n in 0..100 {
        announce(&*driver, &Channel::Heartbeats, &format!("beat {n}")).await;
        announce(&*driver, &control("two"), &format!("two {n}")).await;
    }
    announce(&*driver, &control("one"), "one").await;
    for n in 0..100 {
        for listener in &mut all {
            assert_eq!(receive(listener).await, format!("beat {n}"));
        }
        assert_eq!(receive(&mut two).await, format!("two {n}"));
    }
    assert_eq!(receive(&mut one).await, "one");
}

async fn announcements_without_a_listener_are_no_error(fixture: Fixture) {
    let driver = fixture.open(&[]).await;
    for channel in [
        Channel::Heartbeats,
        control("absent"),
        Channel::Replies("absent".into()),
    ] {
        announce(&*driver, &channel, "hello?").await;
    }
}

async fn a_dropped_listener_does_not_block_others(fixture: Fixture) {
    let driver = fixture.open(&[]).await;
    let gone = driver.listen(&Channel::Heartbeats).await.unwrap();
    let mut stays = driver.listen(&Channel::Heartbeats).await.unwrap();
    drop(gone);
    for n in 0..50 {
        announce(&*driver, &Channel::Heartbeats, &n.to_string()).await;
        assert_eq!(receive(&mut stays).await, n.to_string());
    }
}

async fn a_lagging_listener_loses_the_oldest(fixture: Fixture) {
    const COUNT: usize = 100_000;
    let driver = fixture.open(&[]).await;
    let mut lagging = driver.listen(&Channel::Heartbeats).await.unwrap();
    for n in 0..COUNT {
        announce(&*driver, &Channel::Heartbeats, &n.to_string()).await;
    }
    let (mut received, mut last) = (0, None);
    while last != Some(COUNT - 1) {
        let n: usize = receive(&mut lagging).await.parse().unwrap();
        assert!(
            last.is_none_or(|last| n > last),
            "announcement {n} arrived after {last:?}"
        );
        last = Some(n);
        received += 1;
    }
    assert!(
        received < COUNT,
        "the listener kept all announcements: its buffer has no limit"
    );
}

async fn a_request_gets_its_own_answer(fixture: Fixture) {
    let driver = fixture.open(&[]).await;
    let broker = Broker::from_arc(Arc::clone(&driver), BrokerOptions::default());
    let mut questions = broker.listen(&control("one")).await.unwrap();
    let answering = tokio::spawn({
        let broker = broker.clone();
        async move {
            for _ in 0..20 {
                let question = questions.recv().await.unwrap();
                let answer = [b"re: ", &question.payload[..]].concat();
                let reply_to = question.reply_to.unwrap();
                broker.announce(&reply_to, answer.into()).await.unwrap();
            }
        }
    });
    // Concurrent requests: each must get its own answer.
    let asking = (0..20).map(|n| {
        let broker = broker.clone();
        async move {
            let question = Bytes::from(n.to_string());
            let answer = broker.ask(&control("one"), question, DEADLINE).await;
            assert_eq!(answer.unwrap(), Some(Bytes::from(format!("re: {n}"))));
        }
    });
    futures_util::future::join_all(asking).await;
    answering.await.unwrap();
}

async fn a_request_without_a_listener_gets_none(fixture: Fixture) {
    let driver = fixture.open(&[]).await;
    let broker = Broker::from_arc(driver, BrokerOptions::default());
    let answer = broker
        .ask(&control("absent"), Bytes::new(), Duration::from_millis(200))
        .await;
    assert_eq!(answer.unwrap(), None);
}

async fn announce_stored(driver: &dyn Driver, channel: &Channel, text: &str) {
    let payload = Bytes::from(text.to_owned());
    driver.announce_stored(channel, payload).await.unwrap();
}

async fn a_stored_announcement_reaches_all_listeners_of_its_channel(fixture: Fixture) {
    let driver = fixture.open(&[]).await;
    for _ in 0..2 {
        driver.declare_proofs().await.unwrap();
    }
    for channel in [Channel::Heartbeats, Channel::Replies("self".into())] {
        let mut all = [
            driver.listen(&channel).await.unwrap(),
            driver.listen(&channel).await.unwrap(),
        ];
        for n in 0..20 {
            announce_stored(&*driver, &channel, &format!("stored {n}")).await;
            announce(&*driver, &channel, &format!("sent {n}")).await;
        }
        for n in 0..20 {
            for listener in &mut all {
                assert_eq!(receive(listener).await, format!("stored {n}"));
                assert_eq!(receive(listener).await, format!("sent {n}"));
            }
        }
    }
}

async fn announcements_are_stored_without_a_listener_and_by_any_number_at_once(fixture: Fixture) {
    let driver = fixture.open(&[]).await;
    driver.declare_proofs().await.unwrap();
    let announcing = (0..50).map(|n| {
        let driver = Arc::clone(&driver);
        async move { announce_stored(&*driver, &Channel::Heartbeats, &n.to_string()).await }
    });
    futures_util::future::join_all(announcing).await;
}

async fn an_announcement_is_not_stored_before_the_proofs_are_declared(fixture: Fixture) {
    let driver = fixture.open(&[]).await;
    let mut heartbeats = driver.listen(&Channel::Heartbeats).await.unwrap();
    let early = driver.announce_stored(&Channel::Heartbeats, "early".into());
    let error = early.await.unwrap_err();
    // Transient: another process may declare the proofs.
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert_eq!(receive(&mut heartbeats).await, "early");
    driver.declare_proofs().await.unwrap();
    announce_stored(&*driver, &Channel::Heartbeats, "stored").await;
    assert_eq!(receive(&mut heartbeats).await, "stored");
}

/// The proofs themselves may be lost, and are declared again.
async fn announcements_are_stored_again_after_a_restart(fixture: Fixture) {
    let driver = fixture.open(&[]).await;
    driver.declare_proofs().await.unwrap();
    announce_stored(&*driver, &Channel::Heartbeats, "before").await;
    let driver = fixture.restart(driver).await;
    let give_up = Instant::now() + DEADLINE;
    loop {
        let payload = Bytes::from_static(b"after");
        let stored = driver.announce_stored(&Channel::Heartbeats, payload).await;
        let Err(error) = stored else { return };
        assert!(Instant::now() < give_up, "{error}");
        // A product may need some time after its restart.
        let _ = driver.declare_proofs().await;
        sleep(Duration::from_millis(20)).await;
    }
}
