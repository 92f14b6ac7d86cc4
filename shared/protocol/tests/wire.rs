//! Golden messages between schedulers and workers.

use cueline_model::{AttemptId, ExecutorId, Fence, Heartbeat, RunId, StoreId};

const STORE: StoreId = StoreId(0x0123_4567_89ab_cdef_0123_4567_89ab_cdef);
use cueline_protocol::{
    Control, DecodeError, HeartbeatMessage, JobSnapshot, VERSION, decode, decode_reports, encode,
};

fn text<T: serde::Serialize + cueline_protocol::Versioned>(message: &T) -> String {
    String::from_utf8(encode(message)).expect("UTF-8")
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
                attempts: vec![AttemptId { run, attempt: 2 }],
            },
            r#"{"order":"holdings","v":1,"store":"0123456789abcdef0123456789abcdef","attempts":[{"run":7,"attempt":2}]}"#,
        ),
        (
            Control::Echo {
                v: VERSION,
                incarnation: "18f-2a".to_owned(),
                number: 3,
            },
            r#"{"order":"echo","v":1,"incarnation":"18f-2a","number":3}"#,
        ),
    ];
    for (order, wire) in golden {
        assert_eq!(text(&order), wire);
        assert_eq!(decode::<Control>(wire.as_bytes()).expect("readable"), order);
    }
}

/// One message holds several reports, one per line.
#[test]
fn several_reports_in_one_message() {
    let wire = concat!(
        r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":7,"attempt":1,"executor":"one","event":{"started":{"at":5}}}"#,
        "\n",
        r#"{"v":9,"run":7,"attempt":1,"extra":true}"#,
        "\n",
        r#"{"v":1,"store":"0123456789abcdef0123456789abcdef","run":8,"attempt":2,"executor":"one","event":{"progress":{"fraction":0.5}}}"#,
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
    let wire = r#"{"v":1,"group":"billing","name":"one","incarnation":"18f-2a","capabilities":["http"],"capacity":256,"held":2,"running":1,"draining":false,"gone":false}"#;
    let message = HeartbeatMessage {
        v: VERSION,
        heartbeat: Heartbeat {
            executor: ExecutorId {
                group: "billing".parse().expect("a name"),
                name: "one".parse().expect("a name"),
            },
            incarnation: "18f-2a".to_owned(),
            capabilities: vec!["http".to_owned()],
            capacity: 256,
            held: 2,
            running: 1,
            draining: false,
            gone: false,
        },
    };
    assert_eq!(text(&message), wire);
    let read: HeartbeatMessage = decode(wire.as_bytes()).expect("readable");
    assert_eq!(read, message);
}

/// The default fence is left out.
#[test]
fn the_fence_of_a_job_snapshot() {
    let wire = r#"{"id":1,"name":"report","version":1,"handler":{"native":"work"},"block":"serial","scope":"executor","backlog":1000,"kill_grace":"5s","on_lost":"fail","priority":5}"#;
    let mut part: JobSnapshot = serde_json::from_str(wire).expect("readable");
    assert_eq!(part.fence, Fence::Stop);
    assert_eq!(serde_json::to_string(&part).expect("writable"), wire);
    part.fence = Fence::Keep;
    let wire = wire.replace(r#""fail","#, r#""fail","fence":"keep","#);
    assert_eq!(serde_json::to_string(&part).expect("writable"), wire);
    assert_eq!(
        serde_json::from_str::<JobSnapshot>(&wire).expect("readable"),
        part
    );
}
