//! Start logs: confirmed records are read in order, by every reader, until newer ones replace them.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use tokio::task::JoinSet;
use tokio::time::Instant;

use super::fixture::{DEADLINE, Fixture, NAMES, executor, messages};
use super::{Fault, Faulty, Operation, kill};
use crate::broker::{Broker, BrokerOptions};
use crate::driver::Driver;
use crate::error::ErrorKind;
use crate::start_log::{MAX_START_RECORD_BYTES, START_LOG_RECORDS, StartLog};

super::cases![
    Nothing: records_are_read_in_the_order_of_appends,
    Nothing: records_of_concurrent_appenders_are_complete,
    Nothing: each_reader_sees_all_records,
    Nothing: a_read_has_what_was_confirmed_before_it_while_others_append,
    Nothing: a_missing_or_empty_log_has_no_records,
    Nothing: a_log_is_empty_until_its_first_record,
    Nothing: an_append_to_a_missing_log_is_a_permanent_error,
    Nothing: logs_are_apart_whatever_their_names,
    Nothing: the_largest_record_is_taken_and_a_larger_one_refused,
    Nothing: the_oldest_records_are_dropped_at_the_bound,
    Nothing: declaring_a_log_again_keeps_its_records,
    Nothing: a_deleted_log_is_empty_and_can_be_declared_again,
    Nothing: calls_for_logs_are_tried_again,
    Nothing: a_missing_queue_is_declared_with_its_executors_log,
    SharedByProcesses: what_one_process_appends_another_reads,
    Durable: confirmed_records_survive_a_restart,
    Durable: a_restart_while_appending_loses_no_confirmed_record,
    Durable: a_killed_appender_loses_no_confirmed_record,
];

fn log(executor: &str) -> StartLog {
    StartLog {
        group: "billing".into(),
        executor: executor.into(),
    }
}

fn record(number: usize) -> Bytes {
    Bytes::from(number.to_string())
}

/// A driver that has declared these logs.
async fn open(fixture: &Fixture, logs: &[StartLog]) -> Arc<dyn Driver> {
    let driver = fixture.open(&[]).await;
    for log in logs {
        driver.declare_log(log).await.unwrap();
    }
    driver
}

/// A broker that retries until the deadline. After a restart, a product may need some time for its logs.
fn patient(driver: &Arc<dyn Driver>) -> Broker {
    let options = BrokerOptions {
        retry_for: DEADLINE,
        first_wait: Duration::from_millis(1),
    };
    Broker::from_arc(Arc::clone(driver), options)
}

async fn append(driver: &dyn Driver, log: &StartLog, numbers: impl IntoIterator<Item = usize>) {
    for number in numbers {
        driver.append(log, record(number)).await.unwrap();
    }
}

fn number(record: &Bytes) -> Option<usize> {
    std::str::from_utf8(record).ok()?.parse().ok()
}

fn numbers(records: &[Bytes]) -> Vec<usize> {
    records
        .iter()
        .map(|record| number(record).unwrap_or_else(|| panic!("not of this suite: {record:?}")))
        .collect()
}

async fn read(driver: &dyn Driver, log: &StartLog) -> Vec<usize> {
    numbers(&driver.read_log(log).await.unwrap())
}

async fn records_are_read_in_the_order_of_appends(fixture: Fixture) {
    let log = log("one");
    let driver = open(&fixture, std::slice::from_ref(&log)).await;
    append(&*driver, &log, 0..10).await;
    // Appenders in turn, each in a task of its own.
    for start in (10..600).step_by(59) {
        let (driver, log) = (Arc::clone(&driver), log.clone());
        let turn = tokio::spawn(async move { append(&*driver, &log, start..start + 59).await });
        turn.await.unwrap();
    }
    assert_eq!(read(&*driver, &log).await, (0..600).collect::<Vec<_>>());
}

async fn records_of_concurrent_appenders_are_complete(fixture: Fixture) {
    const APPENDERS: usize = 8;
    const EACH: usize = 50;
    let log = log("one");
    let driver = open(&fixture, std::slice::from_ref(&log)).await;
    let mut appenders = JoinSet::new();
    for appender in 0..APPENDERS {
        let (driver, log) = (Arc::clone(&driver), log.clone());
        let own = appender * EACH..(appender + 1) * EACH;
        appenders.spawn(async move { append(&*driver, &log, own).await });
    }
    appenders.join_all().await;
    let all = read(&*driver, &log).await;
    for appender in 0..APPENDERS {
        let own: Vec<usize> = all
            .iter()
            .copied()
            .filter(|n| n / EACH == appender)
            .collect();
        let expected: Vec<usize> = (appender * EACH..(appender + 1) * EACH).collect();
        assert_eq!(own, expected);
    }
    assert_eq!(all.len(), APPENDERS * EACH);
}

async fn each_reader_sees_all_records(fixture: Fixture) {
    let log = log("one");
    let driver = open(&fixture, std::slice::from_ref(&log)).await;
    append(&*driver, &log, 0..300).await;
    let all: Vec<usize> = (0..300).collect();
    let (first, second) = tokio::join!(read(&*driver, &log), read(&*driver, &log));
    assert_eq!(first, all);
    assert_eq!(second, all);
    append(&*driver, &log, 300..301).await;
    assert_eq!(read(&*driver, &log).await, (0..301).collect::<Vec<_>>());
}

async fn a_read_has_what_was_confirmed_before_it_while_others_append(fixture: Fixture) {
    const COUNT: usize = 400;
    let log = log("one");
    let driver = open(&fixture, std::slice::from_ref(&log)).await;
    let (confirmed, progress) = tokio::sync::watch::channel(0);
    let appender = tokio::spawn({
        let (driver, log) = (Arc::clone(&driver), log.clone());
        async move {
            for number in 0..COUNT {
                append(&*driver, &log, [number]).await;
                confirmed.send_replace(number + 1);
            }
        }
    });
    loop {
        let before = *progress.borrow();
        let found = read(&*driver, &log).await;
        assert!(found.len() >= before, "{} of {before}", found.len());
        assert_eq!(found, (0..found.len()).collect::<Vec<_>>());
        if before == COUNT {
            break;
        }
    }
    appender.await.unwrap();
}

async fn a_missing_or_empty_log_has_no_records(fixture: Fixture) {
    let log = log("one");
    let driver = open(&fixture, &[]).await;
    assert!(driver.read_log(&log).await.unwrap().is_empty());
    driver.delete_log(&log).await.unwrap();
    driver.declare_log(&log).await.unwrap();
    for _ in 0..2 {
        assert!(driver.read_log(&log).await.unwrap().is_empty());
    }
}

/// Waits until the log is not empty. A product may say so of a log with records if it answers slowly.
async fn wait_for_records(driver: &dyn Driver, log: &StartLog) {
    let deadline = Instant::now() + DEADLINE;
    while driver.is_log_empty(log).await.unwrap() {
        assert!(Instant::now() < deadline, "{log} is still empty");
    }
}

async fn a_log_is_empty_until_its_first_record(fixture: Fixture) {
    let (log, other) = (log("one"), log("two"));
    let driver = open(&fixture, &[]).await;
    assert!(driver.is_log_empty(&log).await.unwrap(), "it is missing");
    for log in [&log, &other] {
        driver.declare_log(log).await.unwrap();
    }
    append(&*driver, &other, [0]).await;
    // What a read leaves in the log does not count.
    assert!(read(&*driver, &log).await.is_empty());
    assert!(driver.is_log_empty(&log).await.unwrap());
    append(&*driver, &log, [1]).await;
    wait_for_records(&*driver, &log).await;
    driver.declare_log(&log).await.unwrap();
    wait_for_records(&*driver, &log).await;
    assert_eq!(read(&*driver, &log).await, [1]);
    driver.delete_log(&log).await.unwrap();
    assert!(driver.is_log_empty(&log).await.unwrap(), "it is deleted");
    driver.declare_log(&log).await.unwrap();
    assert!(driver.is_log_empty(&log).await.unwrap(), "it is new");
    wait_for_records(&*driver, &other).await;
}

async fn an_append_to_a_missing_log_is_a_permanent_error(fixture: Fixture) {
    // No log was declared at this place, because a product may keep all logs together.
    let driver = open(&fixture, &[]).await;
    let log = log("one");
    let error = driver.append(&log, record(0)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permanent, "{error}");
    driver.declare_log(&log).await.unwrap();
    append(&*driver, &log, 1..2).await;
    assert_eq!(read(&*driver, &log).await, [1]);
}

async fn logs_are_apart_whatever_their_names(fixture: Fixture) {
    let logs = NAMES.map(|(group, executor)| StartLog {
        group: group.into(),
        executor: executor.into(),
    });
    let driver = open(&fixture, &logs).await;
    for (n, log) in logs.iter().enumerate() {
        append(&*driver, log, [n, n + 100]).await;
    }
    for (n, log) in logs.iter().enumerate() {
        assert_eq!(read(&*driver, log).await, [n, n + 100], "{log:?}");
    }
    driver.delete_log(&logs[0]).await.unwrap();
    assert!(driver.read_log(&logs[0]).await.unwrap().is_empty());
    for (n, log) in logs.iter().enumerate().skip(1) {
        assert_eq!(read(&*driver, log).await, [n, n + 100], "{log:?}");
    }
}

async fn the_largest_record_is_taken_and_a_larger_one_refused(fixture: Fixture) {
    let log = log("one");
    let driver = open(&fixture, std::slice::from_ref(&log)).await;
    let largest: Bytes = (0..=u8::MAX).cycle().take(MAX_START_RECORD_BYTES).collect();
    let larger = Bytes::from(vec![b'a'; MAX_START_RECORD_BYTES + 1]);
    driver.append(&log, largest.clone()).await.unwrap();
    let refused = driver.append(&log, larger).await.unwrap_err();
    assert_eq!(refused.kind(), ErrorKind::Permanent, "{refused}");
    append(&*driver, &log, [7]).await;
    let records = driver.read_log(&log).await.unwrap();
    assert_eq!(records.len(), 2);
    assert!(records[0] == largest, "the largest came back changed");
    assert_eq!(records[1], record(7));
}

/// Products that count keep exactly [`START_LOG_RECORDS`]. `RabbitMQ` limits bytes and drops whole files. With records
/// of 4 KiB it keeps between a half and all of them.
async fn the_oldest_records_are_dropped_at_the_bound(fixture: Fixture) {
    const AT_ONCE: usize = 100;
    let bound = usize::try_from(START_LOG_RECORDS).unwrap();
    let count = bound + 2 * AT_ONCE;
    let log = log("one");
    let driver = open(&fixture, std::slice::from_ref(&log)).await;
    // Many at once, because one after the other would take long. Only their order within a round is open.
    for start in (0..count).step_by(AT_ONCE) {
        let mut round = JoinSet::new();
        for number in start..start + AT_ONCE {
            let (driver, log) = (Arc::clone(&driver), log.clone());
            let bytes = 4_096;
            let record = Bytes::from(format!("{number:0bytes$}"));
            round.spawn(async move { driver.append(&log, record).await.unwrap() });
        }
        round.join_all().await;
    }
    let kept = read(&*driver, &log).await;
    assert!((bound / 2..=bound).contains(&kept.len()), "{}", kept.len());
    let rounds: Vec<usize> = kept.iter().map(|number| number / AT_ONCE).collect();
    assert!(rounds.is_sorted());
    assert!(rounds[0] > 0, "the oldest record is still there");
    // The bound may lie within the oldest round. All later rounds are complete.
    let kept_once: BTreeSet<usize> = kept.iter().copied().collect();
    assert_eq!(kept_once.len(), kept.len(), "some came twice");
    let newer = (rounds[0] + 1) * AT_ONCE..count;
    assert_eq!(kept_once.range(newer.start..).count(), newer.len());
}

async fn declaring_a_log_again_keeps_its_records(fixture: Fixture) {
    let log = log("one");
    let driver = open(&fixture, std::slice::from_ref(&log)).await;
    append(&*driver, &log, 0..3).await;
    driver.declare_log(&log).await.unwrap();
    append(&*driver, &log, 3..4).await;
    assert_eq!(read(&*driver, &log).await, [0, 1, 2, 3]);
}

async fn a_deleted_log_is_empty_and_can_be_declared_again(fixture: Fixture) {
    let (log, other) = (log("one"), log("two"));
    let driver = open(&fixture, &[log.clone(), other.clone()]).await;
    append(&*driver, &log, 0..5).await;
    append(&*driver, &other, 5..6).await;
    for _ in 0..2 {
        driver.delete_log(&log).await.unwrap();
        assert!(driver.read_log(&log).await.unwrap().is_empty());
    }
    driver.declare_log(&log).await.unwrap();
    append(&*driver, &log, 6..8).await;
    assert_eq!(read(&*driver, &log).await, [6, 7]);
    assert_eq!(read(&*driver, &other).await, [5]);
}

async fn calls_for_logs_are_tried_again(fixture: Fixture) {
    const OPERATIONS: [Operation; 4] = [
        Operation::DeclareLog,
        Operation::Append,
        Operation::ReadLog,
        Operation::DeleteLog,
    ];
    let log = log("one");
    let failing = Arc::new(Faulty::new(fixture.open(&[]).await));
    let faults = failing.faults();
    let driver: Arc<dyn Driver> = failing;
    let broker = patient(&driver);
    for operation in OPERATIONS {
        faults.next(operation, Fault::Before(ErrorKind::Transient), 2);
    }
    // The answer is lost, so the retry stores the record a second time.
    faults.next(Operation::Append, Fault::After(ErrorKind::Transient), 1);
    broker.declare_log(&log).await.unwrap();
    broker.append(&log, record(1)).await.unwrap();
    let records = broker.read_log(&log).await.unwrap();
    assert_eq!(numbers(&records), [1, 1]);
    broker.delete_log(&log).await.unwrap();
    for operation in OPERATIONS {
        let lost = u64::from(operation == Operation::Append);
        assert_eq!(faults.calls(operation), 3 + lost, "{operation:?}");
    }
    faults.next(Operation::Append, Fault::Before(ErrorKind::Permanent), 1);
    let error = broker.append(&log, record(2)).await.unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Permanent);
    assert_eq!(faults.calls(Operation::Append), 5, "it is returned at once");
}

async fn a_missing_queue_is_declared_with_its_executors_log(fixture: Fixture) {
    let (queue, log) = (executor("one"), log("one"));
    let driver = fixture.open(&[]).await;
    let broker = patient(&driver);
    let answers = broker.publish(&messages(&queue, 0..2)).await.unwrap();
    assert_eq!(answers, [Ok(()), Ok(())]);
    append(&*driver, &log, [3]).await;
    assert_eq!(read(&*driver, &log).await, [3]);
}

async fn what_one_process_appends_another_reads(fixture: Fixture) {
    let log = log("one");
    let first = open(&fixture, std::slice::from_ref(&log)).await;
    let second = fixture.open(&[]).await;
    append(&*first, &log, 0..3).await;
    append(&*second, &log, 3..6).await;
    append(&*first, &log, 6..9).await;
    for driver in [&first, &second] {
        assert_eq!(read(&**driver, &log).await, (0..9).collect::<Vec<_>>());
    }
}

async fn confirmed_records_survive_a_restart(fixture: Fixture) {
    let (log, empty) = (log("one"), log("empty"));
    let mut driver = open(&fixture, &[log.clone(), empty.clone()]).await;
    for round in 0..2 {
        let broker = patient(&driver);
        for number in round * 100..(round + 1) * 100 {
            broker.append(&log, record(number)).await.unwrap();
        }
        drop(broker);
        driver = fixture.restart(driver).await;
        let mut records = numbers(&patient(&driver).read_log(&log).await.unwrap());
        // A retry after the restart may have stored a record twice.
        records.dedup();
        assert_eq!(records, (0..(round + 1) * 100).collect::<Vec<_>>());
    }
    let broker = patient(&driver);
    assert!(broker.read_log(&empty).await.unwrap().is_empty());
    broker.append(&empty, record(1)).await.unwrap();
    assert!(!broker.read_log(&empty).await.unwrap().is_empty());
}

async fn a_restart_while_appending_loses_no_confirmed_record(fixture: Fixture) {
    let log = log("one");
    let driver = open(&fixture, std::slice::from_ref(&log)).await;
    let (confirmed, mut progress) = tokio::sync::watch::channel(0);
    let appender = tokio::spawn({
        let (driver, log) = (Arc::clone(&driver), log.clone());
        async move {
            // The bound ends an appender whose broker ends only with its last user.
            for number in 0..300 {
                if driver.append(&log, record(number)).await.is_err() {
                    return;
                }
                confirmed.send_replace(number + 1);
            }
        }
    });
    progress.wait_for(|count| *count >= 50).await.unwrap();
    let driver = fixture.restart(driver).await;
    appender.await.unwrap();
    let confirmed = *progress.borrow();
    let found = numbers(&patient(&driver).read_log(&log).await.unwrap());
    assert!(found.len() >= confirmed, "{} of {confirmed}", found.len());
    assert_eq!(found, (0..found.len()).collect::<Vec<_>>());
}

async fn a_killed_appender_loses_no_confirmed_record(fixture: Fixture) {
    let log = log(kill::APPENDER);
    for at_least in [1, 500] {
        let confirmed = kill::killed_appender(&fixture.place, at_least).await;
        let driver = fixture.open(&[]).await;
        let mut found = numbers(&patient(&driver).read_log(&log).await.unwrap());
        // A retry may have stored a record twice. Each child starts at 0.
        found.dedup();
        let start = found.iter().rposition(|number| *number == 0).unwrap();
        let own = &found[start..];
        assert!(own.len() >= confirmed, "{} of {confirmed}", own.len());
        assert_eq!(own, (0..own.len()).collect::<Vec<_>>());
        fixture.harness.crash(&fixture.place, driver).await;
    }
}
