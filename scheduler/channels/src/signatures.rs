//! Signatures of requests. Pure.

use std::fmt::Write as _;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hmac::{Hmac, KeyInit as _, Mac as _};
use sha2::Sha256;

/// The HMAC-SHA256 of `data`. It accepts keys of any length.
fn hmac_sha256(key: &[u8], data: &[&[u8]]) -> Vec<u8> {
    let Ok(mut mac) = Hmac::<Sha256>::new_from_slice(key) else {
        return Vec::new();
    };
    for part in data {
        mac.update(part);
    }
    mac.finalize().into_bytes().to_vec()
}

/// The value of the header `Cueline-Signature`: `v1=` and the HMAC-SHA256, in hexadecimal digits, of the header
/// `Cueline-Timestamp`, a dot and the body.
pub fn webhook_signature(secret: &str, timestamp: i64, body: &[u8]) -> String {
    let timestamp = timestamp.to_string();
    let mac = hmac_sha256(secret.as_bytes(), &[timestamp.as_bytes(), b".", body]);
    let mut signature = "v1=".to_owned();
    for byte in mac {
        // Writing to a text cannot fail.
        let _ = write!(signature, "{byte:02x}");
    }
    signature
}

/// The parameter `sign` of `DingTalk`, before its percent-encoding. The time is in milliseconds.
/// <https://open.dingtalk.com/document/orgapp/customize-robot-security-settings>
pub(crate) fn dingtalk_sign(secret: &str, timestamp_ms: i64) -> String {
    let text = format!("{timestamp_ms}\n{secret}");
    STANDARD.encode(hmac_sha256(secret.as_bytes(), &[text.as_bytes()]))
}

/// The field `sign` of Feishu: the key is the text, and nothing is signed. The time is in seconds.
/// <https://open.feishu.cn/document/client-docs/bot-v3/add-custom-bot>
pub(crate) fn feishu_sign(secret: &str, timestamp_s: i64) -> String {
    let key = format!("{timestamp_s}\n{secret}");
    STANDARD.encode(hmac_sha256(key.as_bytes(), &[]))
}

#[cfg(test)]
mod tests {
    use super::*;

    // The expected values were computed with Python's hmac module.
    #[test]
    fn signatures_are_those_of_other_implementations() {
        assert_eq!(
            webhook_signature("topsecret", 1_700_000_000, b"{\"a\":1}"),
            "v1=6a939b0c71853d606167625a15168ee9188c6a511c773ef4f42d307f3849e50f"
        );
        assert_eq!(
            dingtalk_sign("SECabc", 1_700_000_000_123),
            "IqXBU/aLfwMA3S/tDcfRmHx5vWHw9Y1aOgFLBr1Ti9w="
        );
        assert_eq!(
            feishu_sign("feishusecret", 1_700_000_000),
            "5Wc8F8b2vZlNjoVFpK6BAaovMobglP4Rm1FzmEq/rCU="
        );
    }
}
