//! Golden messages between schedulers and workers.

use cueline_model::{
    AttemptId, Block, DurationMs, ExecutorId, Fence, Heartbeat, OnLost, RunId, Session, StoreId,
    Timestamp,
};

const STORE: StoreId = StoreId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
use cueline_protocol::origin::{EnrolmentClaim, RotationClaim, WorkerKey};
use cueline_protocol::{
    Control, DecodeError, HeartbeatMessage, HeartbeatSender, HoldingsReply, Incarnation,
    JobSnapshot, LeaseTimes, StartRecord, UNREADABLE, VERSION, WorkerProcess, decode,
    decode_reports, encode,
};

fn text<T: serde::Serialize + cueline_protocol::Versioned>(message: &T) -> String {
    String::from_utf8(encode(message)).expect("UTF-8")
}

fn key() -> WorkerKey {
    WorkerKey::from_seed([7; 32])
}

fn process(host: Option<&str>) -> WorkerProcess {
    WorkerProcess {
        host: host.map(str::to_owned),
        pid: 42,
        started_at: Timestamp::from_millis(399),
    }
}

fn incarnation(id: &str, host: Option<&str>) -> Incarnation {
    Incarnation {
        incarnation: id.to_owned(),
        process: process(host),
    }
}

#[test]
fn control_messages() {
    let run = RunId(7);
    let golden = [
        (
            Control::Cancel {
                v: VERSION,
                store: STORE,
                run,
            },
            r#"{"order":"cancel","v":1,"store":"0123456789abcdef0123456789abcdef","run":7}"#,
        ),
        (
            Control::Holdings {
                v: VERSION,
                store: STORE,
                nonce: "00000000000000ff".to_owned(),
                attempts: vec![AttemptId { run, attempt: 2 }],
            },
            r#"{"order":"holdings","v":1,"store":"0123456789abcdef0123456789abcdef","nonce":"00000000000000ff","attempts":[{"run":7,"attempt":2}]}"#,
        ),
        (
            Control::Echo {
                v: VERSION,
                incarnation: "18f-2a".to_owned(),
                number: 3,
            },
            r#"{"order":"echo","v":1,"incarnation":"18f-2a","number":3}"#,
        ),
        (
            Control::NameConflict {
                v: VERSION,
                kept: incarnation("18f-2a", Some("one.example")),
                refused: incarnation("190-2b", None),
            },
            r#"{"order":"name_conflict","v":1,"kept":{"incarnation":"18f-2a","host":"one.example","pid":42,"started_at":399},"refused":{"incarnation":"190-2b","pid":42,"started_at":399}}"#,
        ),
        (
            Control::Enrolled {
                v: VERSION,
                key: key().public().id(),
            },
            r#"{"order":"enrolled","v":1,"key":"fe812c12f3ab4ce6"}"#,
        ),
        (
            Control::NotEnrolled {
                v: VERSION,
                key: key().public().id(),
                reason: "no such token".to_owned(),
            },
            r#"{"order":"not_enrolled","v":1,"key":"fe812c12f3ab4ce6","reason":"no such token"}"#,
        ),
    ];
    for (order, wire) in golden {
        assert_eq!(text(&order), wire);
        assert_eq!(decode::<Control>(wire.as_bytes()).expect("readable"), order);
    }
}

#[test]
fn the_answer_about_holdings() {
    let held = vec![AttemptId {
        run: RunId(7),
        attempt: 2,
    }];
    let reply = |fetched_until| HoldingsReply {
        v: VERSION,
        nonce: "00000000000000ff".to_owned(),
        held: held.clone(),
        fetched_until,
        forgotten_until: fetched_until,
        behind: fetched_until.is_some(),
    };
    for (reply, wire) in [
        (
            reply(None),
            r#"{"v":1,"nonce":"00000000000000ff","held":[{"run":7,"attempt":2}]}"#,
        ),
        (
            reply(Some(Timestamp::from_millis(1_795_286_000_000))),
            r#"{"v":1,"nonce":"00000000000000ff","held":[{"run":7,"attempt":2}],"fetched_until":1795286000000,"forgotten_until":1795286000000,"behind":true}"#,
        ),
    ] {
        assert_eq!(text(&reply), wire);
        assert_eq!(
            decode::<HoldingsReply>(wire.as_bytes()).expect("readable"),
            reply
        );
    }
}

/// One message holds several reports, one per line.
#[test]
fn several_reports_in_one_message() {
    let wire = concat!(
        r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":7,"attempt":1,"group":"billing","executor":"one","event":{"started":{"at":5}}}"#,
        "\n",
        r#"{"v":9,"run":7,"attempt":1,"extra":true}"#,
        "\n",
        r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":8,"attempt":2,"group":"billing","executor":"one","event":{"progress":{"fraction":0.5}}}"#,
    );
    let events: Vec<_> = decode_reports(wire.as_bytes()).collect();
    let [Ok(started), Err(DecodeError::Version(9)), Ok(progress)] = &events[..] else {
        panic!("{events:?}");
    };
    let lines: Vec<&str> = wire.lines().collect();
    assert_eq!([text(started), text(progress)], [lines[0], lines[2]]);
    assert!(matches!(
        decode_reports(b"").collect::<Vec<_>>()[..],
        [Err(DecodeError::Malformed(_))]
    ));
}

#[test]
fn a_heartbeat() {
    let wire = r#"{"v":1,"group":"billing","name":"one","incarnation":"18f-2a","session":1795286000000,"capabilities":["http"],"capacity":256,"held":2,"running":1,"draining":false,"gone":false}"#;
    let mut message = HeartbeatMessage {
        v: VERSION,
        heartbeat: Heartbeat {
            executor: ExecutorId {
                group: "billing".parse().expect("a name"),
                name: "one".parse().expect("a name"),
            },
            incarnation: "18f-2a".to_owned(),
            session: Session(1_795_286_000_000),
            capabilities: vec!["http".to_owned()],
            capacity: 256,
            labels: cueline_model::ExecutorLabels::default(),
            weight: cueline_model::Weight::default(),
            held: 2,
            running: 1,
            draining: false,
            gone: false,
            refusal: None,
        },
        sender: None,
        lease: None,
        enrolment: None,
        rotation: None,
        confirm_key: false,
    };
    assert_eq!(text(&message), wire);
    let read: HeartbeatMessage = decode(wire.as_bytes()).expect("readable");
    assert_eq!(read, message);
    message.sender = Some(HeartbeatSender {
        process: process(Some("one.example")),
        sent_at: Timestamp::from_millis(500),
        number: 9,
    });
    message.lease = Some(LeaseTimes {
        fence_after_ms: 20_000,
        failover_after_ms: 30_000,
    });
    message.enrolment = Some(EnrolmentClaim {
        token: "abababababababab".to_owned(),
        key: key().public(),
        mac: "bWFj".to_owned(),
    });
    message.rotation = Some(RotationClaim {
        key: key().public(),
        by: key().public().id(),
        signature: "c2ln".to_owned(),
    });
    message.confirm_key = true;
    let rest = concat!(
        r#","sender":{"host":"one.example","pid":42,"started_at":399,"sent_at":500,"number":9}"#,
        r#","lease":{"fence_after_ms":20000,"failover_after_ms":30000}"#,
        r#","enrolment":{"token":"abababababababab","key":"6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw=","mac":"bWFj"}"#,
        r#","rotation":{"key":"6kpsY+KcUgq+9VB7Ey7F+ZVHdq6+vnuSQh7qaRRG0iw=","by":"fe812c12f3ab4ce6","signature":"c2ln"},"confirm_key":true}"#,
    );
    let wire = wire.replace('}', rest);
    assert_eq!(text(&message), wire);
    let read: HeartbeatMessage = decode(wire.as_bytes()).expect("readable");
    assert_eq!(read, message);
}

#[test]
fn the_records_of_a_start_log() {
    let golden = [
        (
            StartRecord::Declaration {
                v: VERSION,
                id: "3c".to_owned(),
            },
            r#"{"record":"declaration","v":1,"id":"3c"}"#,
        ),
        (
            StartRecord::Mark {
                v: VERSION,
                declaration: "3c".to_owned(),
                at: Timestamp::from_millis(5),
            },
            r#"{"record":"mark","v":1,"declaration":"3c","at":5}"#,
        ),
        (
            StartRecord::Starts {
                v: VERSION,
                incarnation: "18f-2a".to_owned(),
                session: Session(3),
                number: 2,
                at: Timestamp::from_millis(6),
                store: STORE,
                attempts: vec![AttemptId {
                    run: RunId(7),
                    attempt: 1,
                }],
            },
            r#"{"record":"starts","v":1,"incarnation":"18f-2a","session":3,"number":2,"at":6,"store":"0123456789abcdef0123456789abcdef","attempts":[{"run":7,"attempt":1}]}"#,
        ),
    ];
    for (record, wire) in golden {
        assert_eq!(text(&record), wire);
        assert_eq!(
            decode::<StartRecord>(wire.as_bytes()).expect("readable"),
            record
        );
    }
}

/// What nearly all jobs have is left out.
#[test]
fn the_usual_values_of_a_job_snapshot() {
    let wire =
        r#"{"id":1,"name":"report","version":1,"handler":{"native":"work"},"scope":"executor"}"#;
    let mut part: JobSnapshot = serde_json::from_str(wire).expect("readable");
    assert_eq!((part.block, part.backlog), (Block::Serial, 1_000));
    assert_eq!(
        (part.kill_grace, part.on_lost, part.fence, part.priority),
        (DurationMs::secs(5), OnLost::Fail, Fence::Stop, 5)
    );
    assert_eq!(serde_json::to_string(&part).expect("writable"), wire);
    part.block = Block::Discard;
    part.backlog = 7;
    part.kill_grace = DurationMs::secs(1);
    part.on_lost = OnLost::Rerun;
    part.fence = Fence::Keep;
    part.priority = 9;
    let wire = r#"{"id":1,"name":"report","version":1,"handler":{"native":"work"},"block":"discard","scope":"executor","backlog":7,"kill_grace":"1s","on_lost":"rerun","fence":"keep","priority":9}"#;
    assert_eq!(serde_json::to_string(&part).expect("writable"), wire);
    assert_eq!(
        serde_json::from_str::<JobSnapshot>(wire).expect("readable"),
        part
    );
}

/// Schedulers know by it that another build may read a trigger which its executor has refused.
#[test]
fn errors_of_unreadable_messages_begin_alike() {
    for unreadable in [
        "",
        "{}",
        r#"{"v":1,"order":"dance"}"#,
        r#"{"v":2,"order":"cancel"}"#,
    ] {
        let error = decode::<Control>(unreadable.as_bytes()).expect_err("unreadable");
        assert!(error.to_string().starts_with(UNREADABLE), "{error}");
    }
}
