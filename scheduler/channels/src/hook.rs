//! Sends requests: webhooks, and the messages of chat services.

use std::net::IpAddr;
use std::sync::Arc;

use cueline_model::AlarmChannel;
use cueline_model::alarm::{AlarmMessage, ChannelKind, HookChannel};
use cueline_outbound::{AddressPolicy, OutboundClient, RefusedAddress, SystemResolver};
use cueline_runtime::Clock;
use reqwest::header::{CONTENT_TYPE, HeaderValue};
use reqwest::{Response, Url};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::{self, PemObject as _};
use serde_json::Value;

use crate::answers::judge;
use crate::secrets::Secrets;
use crate::signatures::{dingtalk_sign, webhook_signature};
use crate::{Outgoing, Refused, formats};

/// How much of an answer is read.
const MAX_ANSWER_BYTES: usize = 2_000;

#[derive(Debug, Clone)]
pub(crate) struct Hooks {
    client: OutboundClient,
    policy: Arc<AddressPolicy>,
    clock: Arc<dyn Clock>,
}

impl Hooks {
    pub(crate) fn new(
        policy: &Arc<AddressPolicy>,
        authorities: Option<&str>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, pem::Error> {
        let authorities =
            CertificateDer::pem_slice_iter(authorities.unwrap_or_default().as_bytes());
        let authorities = authorities.collect::<Result<_, _>>()?;
        let names = Arc::new(SystemResolver);
        Ok(Self {
            client: OutboundClient::new(names, Arc::clone(policy), authorities),
            policy: Arc::clone(policy),
            clock,
        })
    }

    pub(crate) async fn send(
        &self,
        channel: &AlarmChannel,
        kind: &ChannelKind,
        outgoing: Outgoing<'_>,
        message: &AlarmMessage,
        secrets: &mut Secrets<'_>,
    ) -> Result<String, Refused> {
        let (ChannelKind::Webhook(hook)
        | ChannelKind::Slack(hook)
        | ChannelKind::Dingtalk(hook)
        | ChannelKind::Wecom(hook)
        | ChannelKind::Feishu(hook)) = kind
        else {
            return Err(Refused::for_good("no request for this kind of channel"));
        };
        let (mut url, secret) = target(hook, secrets).await?;
        self.check_literal(&url)?;
        let now_ms = self.clock.now_ms();
        let seconds = now_ms.div_euclid(1_000);
        let body: Value = match kind {
            ChannelKind::Slack(_) => formats::slack(message),
            ChannelKind::Dingtalk(_) => formats::dingtalk(message),
            ChannelKind::Wecom(_) => formats::wecom(message),
            ChannelKind::Feishu(_) => {
                formats::feishu(message, secret.as_deref().map(|secret| (secret, seconds)))
            }
            ChannelKind::Email(_) | ChannelKind::Webhook(_) => {
                formats::webhook(channel, outgoing, message)
            }
        };
        if let (ChannelKind::Dingtalk(_), Some(secret)) = (kind, &secret) {
            url.query_pairs_mut()
                .append_pair("timestamp", &now_ms.to_string())
                .append_pair("sign", &dingtalk_sign(secret, now_ms));
        }
        let body = body.to_string();
        let client = self.client.get(&url).await;
        let client = client.map_err(|error| Refused::for_now(error.to_string()))?;
        let mut request = client.post(url).header(
            CONTENT_TYPE,
            HeaderValue::from_static("application/json; charset=utf-8"),
        );
        if let ChannelKind::Webhook(_) = kind {
            request = request
                .header("Cueline-Delivery", outgoing.batch)
                .header("Cueline-Timestamp", seconds);
            if let Some(secret) = &secret {
                let signature = webhook_signature(secret, seconds, body.as_bytes());
                request = request.header("Cueline-Signature", signature);
            }
        }
        let response = request.body(body).send().await.map_err(failed)?;
        let status = response.status().as_u16();
        let (answer, is_whole) = read(response).await;
        let shown = if is_whole {
            secrets.hide(&answer)
        } else {
            secrets.hide_in_beginning(&answer)
        };
        judge(kind, status, &shown)
    }

    /// The client resolves only names. It connects to an address in a URL without asking the resolver.
    fn check_literal(&self, url: &Url) -> Result<(), Refused> {
        let host = url.host_str().unwrap_or_default();
        let Ok(address) = host.trim_matches(['[', ']']).parse::<IpAddr>() else {
            return Ok(());
        };
        let checked = self.policy.check(address);
        checked.map_err(|refused| Refused::for_good(refused.to_string()))
    }
}

async fn target(
    hook: &HookChannel,
    secrets: &mut Secrets<'_>,
) -> Result<(Url, Option<String>), Refused> {
    let text = secrets.url(&hook.url).await?;
    // The text may be a secret, so the message does not have it.
    let url = text.parse::<Url>().ok();
    let url = url.filter(|url| matches!(url.scheme(), "http" | "https"));
    let url = url.ok_or_else(|| Refused::for_good("the URL is no absolute http or https URL"))?;
    let secret = match &hook.secret {
        Some(reference) => Some(secrets.value(reference).await?),
        None => None,
    };
    Ok((url, secret))
}

/// The first part of an answer, and whether it is the whole answer. An error while reading it is ignored, because the status
/// is known.
async fn read(mut response: Response) -> (String, bool) {
    let mut bytes = Vec::new();
    let is_whole = loop {
        match response.chunk().await {
            Ok(Some(chunk)) => {
                let room = MAX_ANSWER_BYTES.saturating_sub(bytes.len());
                bytes.extend(chunk.iter().take(room));
                if bytes.len() >= MAX_ANSWER_BYTES {
                    break false;
                }
            }
            Ok(None) => break true,
            Err(_) => break false,
        }
    };
    let text = String::from_utf8_lossy(&bytes);
    // A character that was cut.
    let text = if is_whole {
        text.into_owned()
    } else {
        text.trim_end_matches('\u{fffd}').to_owned()
    };
    (text, is_whole)
}

/// Why no answer came, without the URL, which may be a secret.
fn failed(error: reqwest::Error) -> Refused {
    let error = error.without_url();
    let mut texts: Vec<String> = Vec::new();
    let mut next: Option<&(dyn std::error::Error + 'static)> = Some(&error);
    while let Some(cause) = next {
        let io = cause.downcast_ref::<std::io::Error>();
        if let Some(refused) = cause.downcast_ref::<RefusedAddress>() {
            return Refused::for_good(refused.to_string());
        }
        let text = cause.to_string();
        if texts.last() != Some(&text) {
            texts.push(text);
        }
        // `source` of an I/O error skips the error that it wraps.
        next = match io.and_then(std::io::Error::get_ref) {
            Some(wrapped) => Some(wrapped),
            None => cause.source(),
        };
    }
    Refused::for_now(texts.join(": "))
}
