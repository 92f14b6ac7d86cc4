//! Channels: where messages about alarms go.

use serde::{Deserialize, Serialize};

use super::template::Template;
use crate::name::ChannelName;
use crate::secret::{SecretRef, TextOrSecret};

/// The most recipients of an e-mail.
pub const MAX_RECIPIENTS: usize = 50;

/// Where messages go, and in which form.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct AlarmChannel {
    /// Its name.
    #[serde(flatten, with = "crate::name::written")]
    pub name: ChannelName,
    /// What it is.
    #[serde(flatten)]
    pub kind: ChannelKind,
    /// The language of the messages.
    #[serde(default)]
    pub language: Language,
    /// The title in place of that of the language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub title: Option<Template>,
    /// The text in place of that of the language.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub body: Option<Template>,
}

/// What a channel is.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ChannelKind {
    /// E-mail by SMTP.
    Email(EmailChannel),
    /// A signed request with the events as JSON.
    Webhook(HookChannel),
    /// An incoming webhook of Slack.
    Slack(HookChannel),
    /// A robot of `DingTalk`.
    Dingtalk(HookChannel),
    /// A robot of a `WeCom` group.
    Wecom(HookChannel),
    /// A robot of Feishu.
    Feishu(HookChannel),
}

impl ChannelKind {
    /// Its word.
    pub const fn as_str(&self) -> &'static str {
        match self {
            Self::Email(_) => "email",
            Self::Webhook(_) => "webhook",
            Self::Slack(_) => "slack",
            Self::Dingtalk(_) => "dingtalk",
            Self::Wecom(_) => "wecom",
            Self::Feishu(_) => "feishu",
        }
    }
}

/// How to send e-mail.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct EmailChannel {
    /// The host of the SMTP server.
    pub server: String,
    /// Its port; 587 by default, 465 with `tls`, 25 with `none`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub port: Option<u16>,
    /// How the connection is encrypted.
    #[serde(default)]
    pub tls: SmtpTls,
    /// The user name; without one there is no login.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub user: Option<String>,
    /// The password: always a reference.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub password: Option<SecretRef>,
    /// The sender's address.
    pub from: String,
    /// The recipients' addresses.
    pub to: Vec<String>,
}

impl EmailChannel {
    /// The port of the server.
    pub fn port(&self) -> u16 {
        self.port.unwrap_or(match self.tls {
            SmtpTls::Starttls => 587,
            SmtpTls::Tls => 465,
            SmtpTls::None => 25,
        })
    }
}

/// How a connection to an SMTP server is encrypted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SmtpTls {
    /// STARTTLS, which the server must offer.
    #[default]
    Starttls,
    /// From the first byte on.
    Tls,
    /// Not at all. No password is sent then.
    None,
}

impl SmtpTls {
    /// Each with its word.
    pub const ALL: [(&'static str, Self); 3] = [
        ("starttls", Self::Starttls),
        ("tls", Self::Tls),
        ("none", Self::None),
    ];
}

/// Where to send a request.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct HookChannel {
    /// The URL. Those of chat services let everybody who knows them write, so they are given as secrets.
    pub url: TextOrSecret,
    /// The key of the signature.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub secret: Option<SecretRef>,
}

/// The language of messages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Language {
    /// English.
    #[default]
    En,
    /// Chinese, simplified.
    Zh,
}

impl Language {
    /// Each with its word.
    pub const ALL: [(&'static str, Self); 2] = [("en", Self::En), ("zh", Self::Zh)];
}
