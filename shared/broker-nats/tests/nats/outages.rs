//! Servers are killed, paused or cut off while a driver is open. Calls fail in time, no confirmed message is lost, and
//! the driver recovers by itself.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use bytes::Bytes;
use cueline_broker::{Announcement, BrokerError, Channel, Driver, ErrorKind, Receipt, Settlement};
use cueline_broker_nats::{NatsDriver, NatsOptions};
use cueline_test_servers::nats::Version;
use cueline_test_servers::proxy::Link;
use cueline_test_support::{SOON, eventually};
use tokio::time::{Instant, timeout};

use crate::fixture::{
    FETCH_WAIT, ack, behind_proxy, connect, connect_with, drain, executor, fetch_all, message,
    message_count, messages, numbers, on_each_version, options, publish, settlements, start,
    wait_for_message_count, with_queue,
};

/// The longest call during an outage: it first waits for a connection or for its own time, and then for a reply. That is
/// two or three seconds, and a busy machine may stand still for ten.
const MAX_CALL: Duration = Duration::from_secs(20);

/// Makes each call that needs a reply, and asserts that it ends in time. Returns how each call ended.
async fn call_all(driver: &NatsDriver, receipt: Receipt) -> [(&'static str, Option<ErrorKind>); 7] {
    async fn timed<T>(
        name: &'static str,
        call: impl Future<Output = Result<T, BrokerError>>,
    ) -> (&'static str, Option<ErrorKind>) {
        let start = Instant::now();
        let ended = timeout(SOON, call)
            .await
            .unwrap_or_else(|_| panic!("{name} hangs"));
        let took = start.elapsed();
        assert!(took < MAX_CALL, "{name} took {took:?}");
        (name, ended.err().map(|e| e.kind()))
    }
    let queue = executor("one");
    let batch = messages(&queue, 500..510);
    let settlements = [(receipt, Settlement::Ack)];
    // Concurrently, because consecutive calls would outlast the outage.
    let ended = tokio::join!(
        timed("publish", driver.publish(&batch)),
        timed("fetch", driver.fetch(&queue, 5, FETCH_WAIT)),
        timed("settle", driver.settle(&queue, &settlements)),
        timed("declare", driver.declare(&queue)),
        timed("delete", driver.delete(&queue, true)),
        timed("stats", driver.stats(&[])),
        timed("listen", driver.listen(&Channel::Heartbeats)),
    );
    ended.into()
}

async fn assert_all_calls_fail(driver: &NatsDriver, receipt: Receipt) {
    for (name, ended) in call_all(driver, receipt).await {
        assert_eq!(ended, Some(ErrorKind::Transient), "{name}");
    }
}

/// Asserts that everything works with the same driver.
async fn assert_works(driver: &NatsDriver) {
    let queue = executor("works");
    eventually("the queue is declared", SOON, async || {
        driver.declare(&queue).await
    })
    .await
    .unwrap();
    let listening = eventually("the driver listens", SOON, async || {
        driver.listen(&Channel::Heartbeats).await
    });
    let mut listener = listening.await.unwrap();
    publish(driver, &messages(&queue, 0..10)).await;
    let all = fetch_all(driver, &queue, 10).await;
    ack(driver, &queue, &all).await;
    // An announcement is lost if a standstill of the machine costs the connection.
    let received = eventually("an announcement is received", SOON, async || {
        let announcement = Announcement {
            payload: Bytes::from("alive"),
            reply_to: None,
        };
        let channel = Channel::Heartbeats;
        let announced = driver.announce(&channel, announcement).await;
        announced.map_err(|e| e.to_string())?;
        let received = timeout(FETCH_WAIT, listener.recv()).await;
        received.map_err(|_| "nothing is received".to_owned())
    });
    assert_eq!(received.await.unwrap().unwrap().payload, "alive");
    // If the answer is late, the next call finds no queue.
    eventually("the queue is deleted", SOON, async || {
        driver.delete(&queue, false).await
    })
    .await
    .unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn over_a_half_open_connection_calls_fail_in_time_and_work_when_it_heals() {
    let server = start(Version::V2_12);
    let (proxy, driver, queue) = behind_proxy(&server, options()).await;
    publish(&driver, &messages(&queue, 0..2)).await;
    let fetched = fetch_all(&driver, &queue, 1).await;

    for link in [
        Link::HalfOpen,
        Link::DeafServer,
        Link::DeafClient,
        Link::Cut,
    ] {
        proxy.set(link);
        assert_all_calls_fail(&driver, fetched[0].receipt).await;
        proxy.heal();
        assert_works(&driver).await;
    }
    proxy.set(Link::Slow(Duration::from_millis(50)));
    assert_works(&driver).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_fetch_fails_in_time_while_the_clients_command_queue_is_full() {
    let server = start(Version::V2_12);
    let slow_to_notice = NatsOptions {
        ping_interval: SOON * 10,
        ..options()
    };
    let (proxy, driver, queue) = behind_proxy(&server, slow_to_notice).await;
    publish(&driver, &messages(&queue, 0..1)).await;
    proxy.set(Link::HalfOpen);
    let padding = Bytes::from(vec![b' '; 500_000]);
    let mut batch = messages(&queue, 1..400);
    for message in &mut batch {
        message.payload = padding.clone();
    }
    let error = driver.publish(&batch).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    let start = Instant::now();
    let fetched = timeout(SOON, driver.fetch(&queue, 1, FETCH_WAIT)).await;
    let error = fetched.expect("the fetch hangs").unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    assert!(start.elapsed() < MAX_CALL, "{:?}", start.elapsed());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn while_a_server_is_paused_calls_fail_in_time_and_work_when_it_resumes() {
    on_each_version(async |version| {
        let server = start(version);
        let (driver, queue) = with_queue(&server, options()).await;
        publish(&driver, &messages(&queue, 0..2)).await;
        let fetched = fetch_all(&driver, &queue, 1).await;
        server.pause().unwrap();
        assert_all_calls_fail(&driver, fetched[0].receipt).await;
        server.resume().unwrap();
        assert_works(&driver).await;
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_restart_the_driver_works_and_its_listeners_continue() {
    on_each_version(async |version| {
        let mut server = start(version);
        let (driver, queue) = with_queue(&server, options()).await;
        let listening = eventually("the driver listens", SOON, async || {
            driver.listen(&Channel::Heartbeats).await
        });
        let mut listener = listening.await.unwrap();
        publish(&driver, &messages(&queue, 0..20)).await;
        for round in 0..2 {
            server.kill().unwrap();
            let error = driver.publish(&messages(&queue, 0..1)).await.unwrap_err();
            assert_eq!(error.kind(), ErrorKind::Transient);
            server.start_again().unwrap();
            assert_works(&driver).await;
            // The announcement that `assert_works` made.
            let received = timeout(SOON, listener.recv()).await.unwrap().unwrap();
            assert_eq!(received.payload, "alive", "round {round}");
        }
        let all = fetch_all(&driver, &queue, 20).await;
        assert_eq!(numbers(&all), (0..20).collect::<Vec<_>>());
    })
    .await;
}

/// Publishes single messages until it is stopped, but at least a hundred. Repeats each one until it is confirmed.
/// Returns their number.
async fn publish_until(driver: &NatsDriver, stop: &AtomicBool, failed: &AtomicBool) -> usize {
    let mut number = 0;
    while number < 100 || !stop.load(Ordering::Relaxed) {
        match driver.publish(&[message(&executor("one"), number)]).await {
            Ok(outcomes) => {
                assert_eq!(outcomes, [Ok(())]);
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

/// If the connection is lost during a write, the client loses the write and reports no error. The message must not
/// count as confirmed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn under_load_a_kill_loses_no_confirmed_message() {
    on_each_version(async |version| {
        let mut server = start(version);
        let (driver, queue) = with_queue(&server, options()).await;
        let driver = Arc::new(driver);
        let (stop, failed) = (
            Arc::new(AtomicBool::new(false)),
            Arc::new(AtomicBool::new(false)),
        );
        let publisher = tokio::spawn({
            let (driver, stop, failed) = (driver.clone(), stop.clone(), failed.clone());
            async move { publish_until(&driver, &stop, &failed).await }
        });
        let mut seen = BTreeSet::new();
        for _ in 0..3 {
            seen.extend(numbers(&fetch_all(&driver, &queue, 50).await));
            failed.store(false, Ordering::Relaxed);
            server.kill().unwrap();
            eventually("a publish fails", SOON, async || {
                let failed = failed.load(Ordering::Relaxed);
                failed.then_some(()).ok_or("none has failed")
            })
            .await
            .unwrap();
            server.start_again().unwrap();
        }
        seen.extend(numbers(&fetch_all(&driver, &queue, 50).await));
        stop.store(true, Ordering::Relaxed);
        let confirmed = publisher.await.unwrap();
        // A fetch without messages does not mean that none is left: the server may be slow.
        eventually("each confirmed message is fetched", SOON, async || {
            if let Ok(rest) = driver.fetch(&queue, 10_000, FETCH_WAIT).await {
                seen.extend(numbers(&rest));
            }
            let lost: Vec<usize> = (0..confirmed).filter(|n| !seen.contains(n)).collect();
            if lost.is_empty() {
                Ok(())
            } else {
                Err(format!("of {confirmed}, these are missing: {lost:?}"))
            }
        })
        .await
        .unwrap();
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_confirmed_just_before_a_kill_is_kept() {
    on_each_version(async |version| {
        let mut server = start(version);
        let (driver, queue) = with_queue(&server, options()).await;
        for round in 0..5 {
            let batch = messages(&queue, round * 1_000..(round + 1) * 1_000);
            publish(&driver, &batch).await;
            server.kill().unwrap();
            server.start_again().unwrap();
        }
        let mut all = numbers(&fetch_all(&driver, &queue, 5_000).await);
        all.sort_unstable();
        assert_eq!(all, (0..5_000).collect::<Vec<_>>());
    })
    .await;
}

/// The server writes a consumer's state to disk some time after it confirmed the acks. The messages acked last may be
/// delivered again. Messages without an ack must be.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn after_a_kill_every_message_without_an_ack_is_delivered_again() {
    on_each_version(async |version| {
        let mut server = start(version);
        let options = NatsOptions {
            ack_wait: Duration::from_secs(2),
            ..options()
        };
        let (driver, queue) = with_queue(&server, options).await;
        publish(&driver, &messages(&queue, 0..3_000)).await;
        let all = fetch_all(&driver, &queue, 2_000).await;
        ack(&driver, &queue, &all[..1_000]).await;
        server.kill().unwrap();
        server.start_again().unwrap();
        let fetching = eventually("a fetch succeeds", SOON, async || {
            driver.fetch(&queue, 3_000, FETCH_WAIT).await
        });
        let mut again = fetching.await.unwrap();
        eventually("the others are fetched", SOON, async || {
            let fetched = numbers(&again);
            match (1_000..3_000).filter(|n| !fetched.contains(n)).count() {
                0 => Ok(()),
                missing => {
                    if let Ok(more) = driver.fetch(&queue, 3_000, FETCH_WAIT).await {
                        again.extend(more);
                    }
                    Err(format!("{missing} are missing"))
                }
            }
        })
        .await
        .unwrap();
        let acked = numbers(&again).into_iter().filter(|n| *n < 1_000).count();
        println!(
            "NATS {}: {acked} of 1,000 acked messages were delivered again",
            version.number()
        );
        ack(&driver, &queue, &again).await;
        // An acked message that the restart brought back may come after all others.
        drain(&driver, &queue).await;
    })
    .await;
}

/// Most acks of a call have no reply of their own. An ack that the server did not process must not count as settled.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn acks_that_are_cut_off_half_way_do_not_count_as_settled() {
    const COUNT: usize = 3_000;
    let server = start(Version::V2_12);
    let short_timeout = NatsOptions {
        request_timeout: Duration::from_millis(300),
        ..options()
    };
    let (proxy, driver, queue) = behind_proxy(&server, short_timeout).await;
    let direct = connect(&server).await;
    let mut cut_off = 0;
    for round in 0..12 {
        let batch = messages(&queue, round * COUNT..(round + 1) * COUNT);
        publish(&direct, &batch).await;
        let all = fetch_all(&driver, &queue, COUNT).await;
        let acks = settlements(&all, &Settlement::Ack);
        let cut = async {
            // The outage starts a little later in each round.
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
            assert_eq!(message_count(&direct).await, 0, "round {round}");
        }
        cut_off += usize::from(ended.is_err());
        proxy.heal();
        eventually("the acks are settled", SOON, async || {
            driver.settle(&queue, &acks).await
        })
        .await
        .unwrap();
        assert_eq!(message_count(&direct).await, 0, "round {round}");
    }
    assert!(cut_off > 0, "no call was cut off, so this tested nothing");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_that_was_stored_without_a_confirmation_is_stored_once_after_a_retry() {
    let server = start(Version::V2_12);
    let (proxy, driver, queue) = behind_proxy(&server, options()).await;
    let direct = connect(&server).await;
    // The driver has now cached the queue, so the next publish needs no lookup.
    publish(&driver, &messages(&queue, 0..1)).await;
    proxy.set(Link::DeafClient);
    let batch = messages(&queue, 1..11);
    let error = driver.publish(&batch).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient);
    // They were stored.
    wait_for_message_count(&direct, 11).await;
    proxy.heal();
    publish(&driver, &batch).await;
    assert_eq!(message_count(&direct).await, 11, "they were stored once");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_server_connecting_fails_or_retries_as_configured() {
    let mut server = start(Version::V2_12);
    server.kill().unwrap();
    let connecting = NatsDriver::connect(&server.url(), options()).await;
    let error = connecting.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");

    let retrying = NatsOptions {
        retry_on_initial_connect: true,
        ..options()
    };
    let driver = connect_with(&server, retrying).await;
    let error = driver.declare(&executor("one")).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Transient, "{error}");
    server.start_again().unwrap();
    assert_works(&driver).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn calls_to_a_closed_driver_fail_and_its_listeners_end() {
    let server = start(Version::V2_12);
    let driver = connect(&server).await;
    let mut listener = driver.listen(&Channel::Heartbeats).await.unwrap();
    driver.close().await;
    assert!(listener.recv().await.is_none());
    let error = driver.stats(&[]).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Closed);
}
