//! What the answer to a request means. Pure.

use cueline_model::alarm::ChannelKind;
use serde_json::Value;

use crate::Refused;

/// Codes of chat services that say "later": too many messages, or the service is busy. `DingTalk`: -1, 130101, 410100; `WeCom`:
/// -1, 45009; Feishu: 11232.
const LATER: [i64; 5] = [-1, 130_101, 410_100, 45_009, 11_232];

/// Whether the channel has accepted the message.
pub(crate) fn judge(kind: &ChannelKind, status: u16, body: &str) -> Result<String, Refused> {
    let answer = format!("{status} {}", body.trim());
    let answer = answer.trim_end().to_owned();
    match status {
        200..=299 => {}
        300..=399 => {
            return Err(Refused::for_good(format!(
                "{answer}: redirects are not followed"
            )));
        }
        408 | 425 | 429 | 500.. => return Err(Refused::for_now(answer)),
        _ => return Err(Refused::for_good(answer)),
    }
    match code(kind, body) {
        None | Some(0) => Ok(answer),
        Some(code) if LATER.contains(&code) => Err(Refused::for_now(answer)),
        Some(_) => Err(Refused::for_good(answer)),
    }
}

/// Chat services answer with status 200, and their own code in the body.
fn code(kind: &ChannelKind, body: &str) -> Option<i64> {
    let keys: &[&str] = match kind {
        ChannelKind::Dingtalk(_) | ChannelKind::Wecom(_) => &["errcode"],
        ChannelKind::Feishu(_) => &["code", "StatusCode"],
        ChannelKind::Email(_) | ChannelKind::Webhook(_) | ChannelKind::Slack(_) => return None,
    };
    let Ok(body) = serde_json::from_str::<Value>(body) else {
        return None;
    };
    keys.iter().find_map(|key| body.get(key)?.as_i64())
}

#[cfg(test)]
mod tests {
    use cueline_model::alarm::HookChannel;

    use super::*;

    #[test]
    fn answers_are_judged_by_status_and_code() {
        let hook = HookChannel {
            url: "https://example.com".into(),
            secret: None,
        };
        let webhook = ChannelKind::Webhook(hook.clone());
        let dingtalk = ChannelKind::Dingtalk(hook.clone());
        let wecom = ChannelKind::Wecom(hook.clone());
        let feishu = ChannelKind::Feishu(hook);
        for (kind, status, body, accepted, permanent) in [
            (&webhook, 204, "", true, false),
            (&webhook, 200, "{\"errcode\":1}", true, false),
            (&webhook, 302, "", false, true),
            (&webhook, 404, "gone", false, true),
            (&webhook, 408, "", false, false),
            (&webhook, 429, "", false, false),
            (&webhook, 503, "", false, false),
            (
                &dingtalk,
                200,
                "{\"errcode\":0,\"errmsg\":\"ok\"}",
                true,
                false,
            ),
            (
                &dingtalk,
                200,
                "{\"errcode\":310000,\"errmsg\":\"sign not match\"}",
                false,
                true,
            ),
            (&dingtalk, 200, "{\"errcode\":130101}", false, false),
            (&wecom, 200, "{\"errcode\":93000}", false, true),
            (&wecom, 200, "{\"errcode\":45009}", false, false),
            (&feishu, 200, "{\"StatusCode\":0,\"code\":0}", true, false),
            (
                &feishu,
                200,
                "{\"code\":19021,\"msg\":\"sign match fail\"}",
                false,
                true,
            ),
            (&feishu, 200, "{\"code\":11232}", false, false),
        ] {
            let judged = judge(kind, status, body);
            assert_eq!(judged.is_ok(), accepted, "{status} {body}");
            let is_permanent = judged.is_err_and(|refused| refused.is_permanent);
            assert_eq!(is_permanent, permanent, "{status} {body}");
        }
        assert_eq!(
            judge(&webhook, 200, " ok\n"),
            Ok("200  ok".to_owned().replace("  ", " "))
        );
    }
}
