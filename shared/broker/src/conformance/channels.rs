//! Announcements reach all present listeners.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::time::timeout;

use super::fixture::{DEADLINE, Fixture};
use crate::address::Channel;
use crate::broker::{Broker, BrokerOptions};
use crate::driver::Driver;
use crate::listener::{Announcement, Listener};

super::cases![
    Nothing: announcements_reach_all_listeners_of_their_channel,
    Nothing: announcements_without_a_listener_are_no_error,
    Nothing: a_dropped_listener_does_not_block_others,
    Nothing: a_lagging_listener_loses_the_oldest,
    Nothing: a_request_gets_its_own_answer,
    Nothing: a_request_without_a_listener_gets_none,
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
    announce(&*driver, &Channel::Heartbeats, "before any listener").await;
    let mut all = [
        driver.listen(&Channel::Heartbeats).await.unwrap(),
        driver.listen(&Channel::Heartbeats).await.unwrap(),
    ];
    let mut one = driver.listen(&control("one")).await.unwrap();
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
