//! Servers that are killed, paused and cut off, under a driver that stays open: calls fail in time, nothing confirmed is lost, and
//! everything works again by itself.

use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use crate::ground::{
    DEADLINE, SOON, ack, executor, left, message, messages, numbers, open, options, publish, take,
    until, with,
};
use bytes::Bytes;
use cueline_broker::{Announcement, BrokerError, Channel, Driver, ErrorKind, Receipt, Settlement};
use cueline_broker_nats::{NatsDriver, NatsOptions};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_servers::proxy::{Link, Proxy};
use tokio::time::{Instant, timeout};

/// A call that meets an outage waits for a connection and then for an answer, or for its time and then for an answer.
const BOUND: Duration = Duration::from_secs(4);

fn address(addr: SocketAddr) -> String {
    format!("nats://{addr}")
}

/// Calls everything that needs an answer; how each ended, and that it did so in time.
async fn call_all(driver: &NatsDriver, receipt: Receipt) -> Vec<(&'static str, Option<ErrorKind>)> {
    async fn timed<T>(
        name: &'static str,
        call: impl Future<Output = Result<T, BrokerError>>,
    ) -> (&'static str, Option<ErrorKind>) {
        let start = Instant::now();
        let ended = timeout(DEADLINE, call)
            .await
            .unwrap_or_else(|_| panic!("{name} hangs"));
        assert!(start.elapsed() < BOUND, "{name} took {:?}", start.elapsed());
        (name, ended.err().map(|e| e.kind()))
    }
    let queue = executor("one");
    let batch = messages(&queue, 500..510);
    let settlements = [(receipt, Settlement::Ack)];
    // At the same time: one after the other they would wait together for longer than the outage.
    let ended = tokio::join!(
        timed("publish", driver.publish(&batch)),
        timed("fetch", driver.fetch(&queue, 5, SOON)),
        timed("settle", driver.settle(&queue, &settlements)),
        timed("declare", driver.declare(&queue)),
        timed("delete", driver.delete(&queue, true)),
        timed("stats", driver.stats(&[])),
        timed("listen", driver.listen(&Channel::Heartbeats)),
    );
    <[_; 7]>::from(ended).to_vec()
}

async fn assert_all_transient(driver: &NatsDriver, receipt: Receipt) {
    for (name, ended) in call_all(driver, receipt).await {
        assert_eq!(ended, Some(ErrorKind::Transient), "{name}");
    }
}

/// Everything works, with the driver that was there all the time.
async fn assert_works(driver: &NatsDriver) {
    let queue = executor("works");
    until("the queue is declared", || async {
        driver.declare(&queue).await.ok()
    })
    .await;
    let mut listener = until("it listens", || async {
        driver.listen(&Channel::Heartbeats).await.ok()
    })
    .await;
    until("it publishes", || async {
        driver.publish(&messages(&queue, 0..10)).await.ok()
    })
    .await;
    let all = take(driver, &queue, 10).await;
    ack(driver, &queue, &all).await;
    announce(driver, "alive").await;
    let heard = timeout(DEADLINE, listener.recv()).await.unwrap().unwrap();
    assert_eq!(heard.payload, "alive");
    assert!(driver.delete(&queue, false).await.unwrap());
}

async fn announce(driver: &NatsDriver, text: &'static str) {
    let announcement = Announcement {
        payload: Bytes::from(text),
        reply_to: None,
    };
    driver
        .announce(&Channel::Heartbeats, announcement)
        .await
        .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_half_open_connection_calls_fail_in_time_and_work_when_it_heals() {
    let server = Nats::start(Version::V2_12).unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    let queue = executor("one");
    let driver = with(&address(proxy.addr()), std::slice::from_ref(&queue)).await;
    publish(&driver, &messages(&queue, 0..2)).await;
    let held = take(&driver, &queue, 1).await;

    for link in [
        Link::HalfOpen,
        Link::DeafServer,
        Link::DeafClient,
        Link::Cut,
    ] {
        proxy.set(link);
        assert_all_transient(&driver, held[0].receipt).await;
        proxy.heal();
        assert_works(&driver).await;
    }
    proxy.set(Link::Slow(Duration::from_millis(50)));
    assert_works(&driver).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_ends_in_time_while_the_clients_queue_is_full() {
    let server = Nats::start(Version::V2_12).unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    let slow_to_notice = NatsOptions {
        ping_interval: DEADLINE * 10,
        ..options()
    };
    let address = address(proxy.addr());
    let driver = NatsDriver::connect(&address, slow_to_notice).await.unwrap();
    let queue = executor("one");
    driver.declare(&queue).await.unwrap();
    publish(&driver, &messages(&queue, 0..1)).await;
    proxy.set(Link::HalfOpen);
    let padding = Bytes::from(vec![b' '; 500_000]);
    let mut batch = messages(&queue, 1..400);
    for message in &mut batch {
        message.payload = padding.clone();
    }
    let told = driver.publish(&batch).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
    let start = Instant::now();
    let fetched = timeout(DEADLINE, driver.fetch(&queue, 1, SOON)).await;
    let told = fetched.expect("it hangs").unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
    assert!(start.elapsed() < BOUND, "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_paused_server_is_waited_for_in_time_and_used_when_it_goes_on() {
    for version in Version::ALL {
        let server = Nats::start(version).unwrap();
        let queue = executor("one");
        let driver = with(&server.url(), std::slice::from_ref(&queue)).await;
        publish(&driver, &messages(&queue, 0..2)).await;
        let held = take(&driver, &queue, 1).await;
        server.pause().unwrap();
        assert_all_transient(&driver, held[0].receipt).await;
        server.resume().unwrap();
        assert_works(&driver).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_server_restarted_while_idle_is_used_again_and_listeners_hear_on() {
    for version in Version::ALL {
        let mut server = Nats::start(version).unwrap();
        let queue = executor("one");
        let driver = with(&server.url(), std::slice::from_ref(&queue)).await;
        let mut listener = driver.listen(&Channel::Heartbeats).await.unwrap();
        publish(&driver, &messages(&queue, 0..20)).await;
        for round in 0..2 {
            server.kill().unwrap();
            let told = driver.publish(&messages(&queue, 0..1)).await.unwrap_err();
            assert_eq!(told.kind(), ErrorKind::Transient);
            server.start_again().unwrap();
            assert_works(&driver).await;
            // What `assert_works` said.
            let heard = timeout(DEADLINE, listener.recv()).await.unwrap().unwrap();
            assert_eq!(heard.payload, "alive", "round {round}");
        }
        let all = take(&driver, &queue, 20).await;
        assert_eq!(numbers(&all), (0..20).collect::<Vec<_>>());
    }
}

/// Publishes single messages until told to stop, and at least a hundred, each until it is confirmed, as `Broker` does; how many.
async fn publish_on(driver: &NatsDriver, stop: &AtomicBool, failed: &AtomicBool) -> usize {
    let mut number = 0;
    while number < 100 || !stop.load(Ordering::Relaxed) {
        match driver.publish(&[message(&executor("one"), number)]).await {
            Ok(answers) => {
                assert_eq!(answers, [Ok(())]);
                number += 1;
            }
            Err(e) => {
                assert_eq!(e.kind(), ErrorKind::Transient, "{e}");
                failed.store(true, Ordering::Relaxed);
            }
        }
    }
    number
}

/// A write in flight when the connection breaks is lost without a word by the client; none of them may count as confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_a_killed_server_loses_nothing_that_was_confirmed() {
    for version in Version::ALL {
        let mut server = Nats::start(version).unwrap();
        let queue = executor("one");
        let driver = Arc::new(with(&server.url(), std::slice::from_ref(&queue)).await);
        let (stop, failed) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let publisher = tokio::spawn({
            let (driver, stop, failed) = (driver.clone(), stop.clone(), failed.clone());
            async move { publish_on(&driver, &stop, &failed).await }
        });
        let mut seen = Vec::new();
        for _ in 0..3 {
            let more = take(&driver, &queue, 50).await;
            seen.extend(numbers(&more));
            failed.store(false, Ordering::Relaxed);
            server.kill().unwrap();
            until("a publish failed", || async {
                failed.load(Ordering::Relaxed).then_some(())
            })
            .await;
            server.start_again().unwrap();
        }
        seen.extend(numbers(&take(&driver, &queue, 50).await));
        stop.store(true, Ordering::Relaxed);
        let confirmed = publisher.await.unwrap();
        let mut rest = driver.fetch(&queue, 10_000, SOON).await.unwrap();
        while !rest.is_empty() {
            seen.extend(numbers(&rest));
            rest = driver.fetch(&queue, 10_000, SOON).await.unwrap();
        }
        seen.sort_unstable();
        seen.dedup();
        let lost: Vec<usize> = (0..confirmed)
            .filter(|n| seen.binary_search(n).is_err())
            .collect();
        assert!(
            lost.is_empty(),
            "of {confirmed} confirmed messages: {lost:?}"
        );
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_confirmed_just_before_a_kill_is_there() {
    for version in Version::ALL {
        let mut server = Nats::start(version).unwrap();
        let queue = executor("one");
        let driver = with(&server.url(), std::slice::from_ref(&queue)).await;
        for round in 0..5 {
            publish(
                &driver,
                &messages(&queue, round * 1_000..(round + 1) * 1_000),
            )
            .await;
            server.kill().unwrap();
            server.start_again().unwrap();
        }
        let mut all = numbers(&take(&driver, &queue, 5_000).await);
        all.sort_unstable();
        assert_eq!(all, (0..5_000).collect::<Vec<_>>());
    }
}

/// Consumers' state reaches the disk some time after acks are confirmed. What may come back is what was acked last; what was not
/// acked has to.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_only_what_was_acked_last_may_come_back() {
    for version in Version::ALL {
        let mut server = Nats::start(version).unwrap();
        let queue = executor("one");
        let mut options = options();
        options.ack_wait = Duration::from_secs(2);
        let driver = NatsDriver::connect(&server.url(), options).await.unwrap();
        driver.declare(&queue).await.unwrap();
        publish(&driver, &messages(&queue, 0..3_000)).await;
        let all = take(&driver, &queue, 2_000).await;
        ack(&driver, &queue, &all[..1_000]).await;
        server.kill().unwrap();
        server.start_again().unwrap();
        let mut back = until("it fetches", || async {
            driver.fetch(&queue, 3_000, SOON).await.ok()
        })
        .await;
        let give_up = Instant::now() + DEADLINE;
        let missing = |back: &[usize]| (1_000..3_000).filter(|n| !back.contains(n)).count();
        while missing(&numbers(&back)) > 0 {
            assert!(
                Instant::now() < give_up,
                "{} do not come",
                missing(&numbers(&back))
            );
            back.extend(driver.fetch(&queue, 3_000, SOON).await.unwrap());
        }
        let again = numbers(&back).into_iter().filter(|n| *n < 1_000).count();
        println!(
            "NATS {}: {again} of 1,000 acked messages came back",
            version.number()
        );
        ack(&driver, &queue, &back).await;
        until("the queue is empty", || async {
            (left(&driver).await == 0).then_some(())
        })
        .await;
    }
}

/// Most acks of a call are not answered one by one: none of them may count as settled that the server never saw.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_that_are_cut_off_half_way_are_not_taken_for_settled() {
    let server = Nats::start(Version::V2_12).unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    let queue = executor("one");
    let driver = with(&address(proxy.addr()), std::slice::from_ref(&queue)).await;
    let beside = open(&server.url()).await;
    let mut cut_off = 0;
    for round in 0..12 {
        publish(
            &beside,
            &messages(&queue, round * 3_000..(round + 1) * 3_000),
        )
        .await;
        let all = take(&driver, &queue, 3_000).await;
        let acks: Vec<_> = all.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
        let cut = async {
            // Somewhere on the way: each round a little later.
            for _ in 0..round * 20 {
                tokio::task::yield_now().await;
            }
            proxy.set(if round % 2 == 0 {
                Link::Cut
            } else {
                Link::DeafServer
            });
        };
        let (ended, ()) = tokio::join!(driver.settle(&queue, &acks), cut);
        if ended.is_ok() {
            assert_eq!(left(&beside).await, 0, "round {round}");
        }
        cut_off += usize::from(ended.is_err());
        proxy.heal();
        until("they are settled", || async {
            driver.settle(&queue, &acks).await.ok()
        })
        .await;
        assert_eq!(left(&beside).await, 0, "round {round}");
    }
    assert!(cut_off > 0, "nothing was cut off: this showed nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_was_published_and_not_confirmed_is_there_once_after_another_try() {
    let server = Nats::start(Version::V2_12).unwrap();
    let proxy = Proxy::start(server.addr()).unwrap();
    let queue = executor("one");
    let driver = with(&address(proxy.addr()), std::slice::from_ref(&queue)).await;
    let beside = open(&server.url()).await;
    // The queue is known, so that the publish does not have to ask.
    publish(&driver, &messages(&queue, 0..1)).await;
    proxy.set(Link::DeafClient);
    let told = driver.publish(&messages(&queue, 1..11)).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient);
    assert_eq!(left(&beside).await, 11, "they arrived");
    proxy.heal();
    let again = until("it is published", || async {
        driver.publish(&messages(&queue, 1..11)).await.ok()
    })
    .await;
    assert_eq!(again, vec![Ok(()); 10]);
    assert_eq!(left(&beside).await, 11, "they are there once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_connecting_fails_or_waits_as_configured() {
    let mut server = Nats::start(Version::V2_12).unwrap();
    server.kill().unwrap();
    let told = NatsDriver::connect(&server.url(), options())
        .await
        .unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");

    let patient = NatsOptions {
        retry_on_initial_connect: true,
        ..options()
    };
    let driver = NatsDriver::connect(&server.url(), patient).await.unwrap();
    let told = driver.declare(&executor("one")).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Transient, "{told}");
    server.start_again().unwrap();
    assert_works(&driver).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_closed_driver_says_so_and_ends_its_connection() {
    let server = Nats::start(Version::V2_12).unwrap();
    let driver = open(&server.url()).await;
    let mut listener = driver.listen(&Channel::Heartbeats).await.unwrap();
    driver.close().await;
    assert!(listener.recv().await.is_none());
    let told = driver.stats(&[]).await.unwrap_err();
    assert_eq!(told.kind(), ErrorKind::Closed);
}
