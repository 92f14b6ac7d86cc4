//! Golden messages: what is on the wire between schedulers and workers of different versions.

use cueline_model::{Fence, RunId};
use cueline_protocol::{
    Control, DecodeError, Holding, JobPart, VERSION, decode, decode_events, encode,
};

fn text<T: serde::Serialize + cueline_protocol::Versioned>(message: &T) -> String {
    String::from_utf8(encode(message)).expect("UTF-8")
}

#[test]
fn orders() {
    let run = RunId(7);
    let golden = [
        (
            Control::Cancel {
                v: VERSION,
                store: None,
                run,
            },
            r#"{"order":"cancel","v":1,"run":7}"#,
        ),
        (
            Control::Holdings {
                v: VERSION,
                store: None,
                runs: vec![Holding { run, attempt: 2 }],
            },
            r#"{"order":"holdings","v":1,"runs":[{"run":7,"attempt":2}]}"#,
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

/// Executors report several things in one message, a line each.
#[test]
fn reports_in_one_message() {
    let wire = concat!(
        r#"{"v":1,"run":7,"attempt":1,"executor":"one","event":{"started":{"at":5}}}"#,
        "\n",
        r#"{"v":9,"run":7,"attempt":1,"news":true}"#,
        "\n",
        r#"{"v":1,"run":8,"attempt":2,"executor":"one","event":{"progress":{"fraction":0.5}}}"#,
    );
    let events: Vec<_> = decode_events(wire.as_bytes()).collect();
    let [Ok(started), Err(DecodeError::Version(9)), Ok(progress)] = &events[..] else {
        panic!("{events:?}");
    };
    let lines: Vec<&str> = wire.lines().collect();
    assert_eq!([text(started), text(progress)], [lines[0], lines[2]]);
    assert!(matches!(
        decode_events(b"").collect::<Vec<_>>()[..],
        [Err(DecodeError::Malformed(_))]
    ));
}

/// A job part that says nothing of a fence is as it was before there was one.
#[test]
fn the_fence_of_a_job_part() {
    let wire = r#"{"id":1,"name":"report","version":1,"handler":{"native":"work"},"block":"serial","scope":"executor","backlog":1000,"kill_grace":"5s","on_lost":"fail","priority":5}"#;
    let mut part: JobPart = serde_json::from_str(wire).expect("readable");
    assert_eq!(part.fence, Fence::Stop);
    assert_eq!(serde_json::to_string(&part).expect("writable"), wire);
    part.fence = Fence::Keep;
    let wire = wire.replace(r#""fail","#, r#""fail","fence":"keep","#);
    assert_eq!(serde_json::to_string(&part).expect("writable"), wire);
    assert_eq!(
        serde_json::from_str::<JobPart>(&wire).expect("readable"),
        part
    );
}
