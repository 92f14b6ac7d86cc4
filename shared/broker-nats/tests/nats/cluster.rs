//! Three servers with three copies of everything: one of them may go at any time.

use std::collections::BTreeSet;
use std::time::Duration;

use cueline_broker::{Driver, QueueId, Settlement};
use cueline_broker_nats::{NatsDriver, NatsOptions, StreamLimits};
use cueline_test_servers::nats::{Nats, Version};
use tokio::time::{Instant, timeout};

use crate::ground::{DEADLINE, SOON, executor, left, messages, numbers, options, until};

fn three_copies() -> NatsOptions {
    NatsOptions {
        limits: StreamLimits {
            replicas: Some(3),
            ..StreamLimits::default()
        },
        ack_wait: Duration::from_secs(3),
        ..options()
    }
}

async fn open(cluster: &[Nats]) -> NatsDriver {
    let servers: Vec<String> = cluster.iter().map(Nats::url).collect();
    let driver = NatsDriver::connect(&servers.join(","), three_copies()).await;
    driver.unwrap()
}

/// Publishes until it is confirmed, whatever fails meanwhile.
async fn confirmed(driver: &NatsDriver, queue: &QueueId, from: usize) {
    let batch = messages(queue, from..from + 50);
    until("it is confirmed", || async {
        let answers = driver.publish(&batch).await.ok()?;
        answers.iter().all(Result::is_ok).then_some(())
    })
    .await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn each_server_in_turn_is_killed_and_nothing_that_was_confirmed_is_lost() {
    const ROUNDS: usize = 60;
    for version in Version::ALL {
        let mut cluster = Nats::cluster(version, 3).unwrap();
        let queue = executor("one");
        let (publisher, fetcher) = (open(&cluster).await, open(&cluster).await);
        // Until the servers have agreed who leads.
        until("the queue is declared", || async {
            publisher.declare(&queue).await.ok()
        })
        .await;

        let publishing = async {
            for round in 0..ROUNDS {
                // One at a time, in the middle of what is under way: a majority is always there, sooner or later.
                let (killed, back) = (round % 20 == 7, round % 20 == 17);
                let server = &mut cluster[round / 20];
                if killed {
                    let publish = confirmed(&publisher, &queue, round * 50);
                    let kill = async { server.kill().unwrap() };
                    tokio::join!(publish, kill);
                    continue;
                }
                if back {
                    server.start_again().unwrap();
                }
                confirmed(&publisher, &queue, round * 50).await;
            }
        };
        let fetching = async {
            let mut seen = vec![false; ROUNDS * 50];
            let give_up = Instant::now() + DEADLINE * 3;
            while seen.contains(&false) {
                let missing = seen.iter().filter(|seen| !**seen).count();
                assert!(Instant::now() < give_up, "{missing} do not come");
                let Ok(came) = fetcher.fetch(&queue, 200, SOON).await else {
                    continue;
                };
                for number in numbers(&came) {
                    seen[number] = true;
                }
                let acks: Vec<_> = came.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
                // An ack that is lost brings its message again.
                let _ = fetcher.settle(&queue, &acks).await;
            }
        };
        let both = async { tokio::join!(publishing, fetching) };
        timeout(DEADLINE * 4, both).await.unwrap();
        until("nothing is left", || async {
            let again = fetcher.fetch(&queue, 200, SOON).await.ok()?;
            let acks: Vec<_> = again.iter().map(|d| (d.receipt, Settlement::Ack)).collect();
            fetcher.settle(&queue, &acks).await.ok()?;
            (left(&fetcher).await == 0).then_some(())
        })
        .await;
    }
}

/// Two of three gone: nothing is confirmed, nothing is lost, and all goes on when one is back.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_a_majority_nothing_is_confirmed_until_there_is_one() {
    let mut cluster = Nats::cluster(Version::V2_12, 3).unwrap();
    let queue = executor("one");
    let driver = open(&cluster).await;
    until("the queue is declared", || async {
        driver.declare(&queue).await.ok()
    })
    .await;
    confirmed(&driver, &queue, 0).await;
    cluster[1].kill().unwrap();
    cluster[2].kill().unwrap();
    let alone = driver.publish(&messages(&queue, 50..100)).await;
    assert!(
        alone.is_err() || alone.as_ref().is_ok_and(|a| a.iter().all(Result::is_err)),
        "{alone:?}"
    );
    cluster[1].start_again().unwrap();
    confirmed(&driver, &queue, 50).await;
    let give_up = Instant::now() + DEADLINE;
    let mut came = BTreeSet::new();
    while came.len() < 100 {
        assert!(Instant::now() < give_up, "{} of 100 came", came.len());
        if let Ok(more) = driver.fetch(&queue, 200, SOON).await {
            came.extend(numbers(&more));
        }
    }
}
