//! Channels, a message, and a clock that stands still.

use std::sync::Arc;

use cueline_channels::{ChannelOptions, Channels, Outgoing, Refused};
use cueline_model::alarm::{AlarmFacts, ConditionKind, MessageEvent};
use cueline_model::{AlarmChannel, Namespace, RuleName, RunId, Timestamp, decode};
use cueline_runtime::Clock;
use serde_json::Value;

/// The time of all signatures, in milliseconds.
pub(crate) const NOW_MS: i64 = 1_700_000_000_123;

#[derive(Debug)]
struct Stopped;

impl Clock for Stopped {
    fn now_ms(&self) -> i64 {
        NOW_MS
    }

    fn now_us(&self) -> i64 {
        NOW_MS * 1_000
    }
}

pub(crate) fn channels(options: ChannelOptions) -> Channels {
    Channels::new(options, Arc::new(Stopped)).expect("a client")
}

/// A directory with these secrets, which only this user may read.
pub(crate) fn secrets(values: &[(&str, &str)]) -> tempfile::TempDir {
    use std::os::unix::fs::PermissionsExt as _;
    let dir = tempfile::tempdir().expect("a directory");
    for (name, value) in values {
        let path = dir.path().join(name);
        std::fs::write(&path, value).expect("is written");
        let mode = std::fs::Permissions::from_mode(0o600);
        std::fs::set_permissions(&path, mode).expect("is protected");
    }
    dir
}

pub(crate) fn channel(json: Value) -> AlarmChannel {
    let node = decode::Node::from(json);
    decode::alarm_channel(&node, &Namespace::default()).expect("a channel")
}

/// Sends a message about one failure.
pub(crate) async fn send(channels: &Channels, channel: &AlarmChannel) -> Result<String, Refused> {
    let rule: RuleName = "backups".parse().expect("a name");
    let event = MessageEvent {
        at: Timestamp::from_millis(NOW_MS),
        kind: ConditionKind::Failed,
        facts: AlarmFacts {
            job: Some("nightly-backup".parse().expect("a name")),
            run: Some(RunId(42)),
            message: "exit status 1".to_owned(),
            ..AlarmFacts::default()
        },
    };
    let outgoing = Outgoing {
        batch: 7,
        rule: &rule,
        count: 1,
        events: &[event],
    };
    channels.send(channel, outgoing).await
}
