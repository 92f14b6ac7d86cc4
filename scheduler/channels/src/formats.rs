//! The bodies of requests, for each kind of channel. Pure.

use cueline_model::AlarmChannel;
use cueline_model::alarm::{AlarmMessage, MessageEvent};
use serde_json::{Value, json};

use crate::Outgoing;
use crate::signatures::feishu_sign;

/// The longest text of a `WeCom` message, in bytes. <https://developer.work.weixin.qq.com/document/path/91770>
const MAX_WECOM_BYTES: usize = 2_048;

/// The body of a webhook. Fields are only ever added to version 1.
pub(crate) fn webhook(
    channel: &AlarmChannel,
    outgoing: Outgoing<'_>,
    message: &AlarmMessage,
) -> Value {
    let event = |event: &MessageEvent| {
        let facts = &event.facts;
        json!({
            "at": event.at.to_string(),
            "condition": event.kind,
            "job": facts.job,
            "group": facts.group,
            "run": facts.run,
            "state": facts.state,
            "count": facts.count,
            "since": facts.since.map(|since| since.to_string()),
            "message": facts.message,
        })
    };
    let events: Vec<Value> = outgoing.events.iter().map(event).collect();
    json!({
        "version": 1,
        "delivery": outgoing.batch,
        "namespace": outgoing.rule.namespace(),
        "rule": outgoing.rule.local(),
        "channel": channel.name.local(),
        "count": outgoing.count,
        "title": message.title,
        "text": message.body,
        "events": events,
    })
}

/// Slack reads `<`, `>` and `&` as its own marks. <https://docs.slack.dev/messaging/formatting-message-text>
pub(crate) fn slack(message: &AlarmMessage) -> Value {
    let escaped = |text: &str| {
        text.replace('&', "&amp;")
            .replace('<', "&lt;")
            .replace('>', "&gt;")
    };
    let text = format!("*{}*\n{}", escaped(&message.title), escaped(&message.body));
    json!({ "text": text })
}

pub(crate) fn dingtalk(message: &AlarmMessage) -> Value {
    json!({ "msgtype": "text", "text": { "content": plain(message) } })
}

pub(crate) fn wecom(message: &AlarmMessage) -> Value {
    let mut text = plain(message);
    if text.len() > MAX_WECOM_BYTES {
        let mut end = MAX_WECOM_BYTES - '…'.len_utf8();
        while !text.is_char_boundary(end) {
            end -= 1;
        }
        text.truncate(end);
        text.push('…');
    }
    json!({ "msgtype": "text", "text": { "content": text } })
}

/// With a secret, the body has a time and a signature. `<at …>` would notify people.
pub(crate) fn feishu(message: &AlarmMessage, signed: Option<(&str, i64)>) -> Value {
    let text = plain(message).replace("<at", "< at");
    let mut body = json!({ "msg_type": "text", "content": { "text": text } });
    if let Some((secret, timestamp_s)) = signed {
        body["timestamp"] = timestamp_s.to_string().into();
        body["sign"] = feishu_sign(secret, timestamp_s).into();
    }
    body
}

fn plain(message: &AlarmMessage) -> String {
    format!("{}\n{}", message.title, message.body)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn message(body: &str) -> AlarmMessage {
        AlarmMessage {
            title: "Title".to_owned(),
            body: body.to_owned(),
        }
    }

    #[test]
    fn each_service_has_its_format() {
        let said = message("a < b & <!channel>");
        assert_eq!(
            slack(&said),
            json!({ "text": "*Title*\na &lt; b &amp; &lt;!channel&gt;" })
        );
        let text = json!({ "msgtype": "text", "text": { "content": "Title\na < b & <!channel>" } });
        assert_eq!(dingtalk(&said), text);
        assert_eq!(wecom(&said), text);
        assert_eq!(
            feishu(&message("<at user_id=\"all\">"), None),
            json!({ "msg_type": "text", "content": { "text": "Title\n< at user_id=\"all\">" } })
        );
        let signed = feishu(&said, Some(("secret", 7)));
        assert_eq!(signed["timestamp"], "7");
        assert_eq!(signed["sign"], feishu_sign("secret", 7));
    }

    #[test]
    fn long_texts_of_wecom_are_cut_at_a_character() {
        let body = wecom(&message(&"告".repeat(2_000)));
        let text = body["text"]["content"].as_str().expect("a text");
        assert!(text.len() <= MAX_WECOM_BYTES && text.ends_with("告…"));
    }
}
