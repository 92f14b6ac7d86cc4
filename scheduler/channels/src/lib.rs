//! Sends the messages of alarms: by SMTP, as signed requests, and in the formats of chat services.
//!
//! It knows channels and messages, and neither stores nor the engine. Connections go only to addresses that the
//! [`AddressPolicy`] permits. Values of secrets are read for each message, from the files and variables of this process, and
//! are in no answer.

#![warn(clippy::missing_errors_doc)]

mod answers;
mod email;
mod formats;
mod hook;
mod secrets;
mod signatures;

use std::path::PathBuf;
use std::sync::Arc;

use cueline_model::alarm::{ChannelKind, MessageEvent, render};
use cueline_model::{AlarmChannel, RuleName};
use cueline_outbound::AddressPolicy;
use cueline_runtime::Clock;

pub use signatures::webhook_signature;

/// What is sent.
#[derive(Debug, Clone, Copy)]
pub struct Outgoing<'a> {
    /// Identifies the message: one that is sent again has the same.
    pub batch: i64,
    /// The rule.
    pub rule: &'a RuleName,
    /// How many events it is about.
    pub count: u64,
    /// The first of them.
    pub events: &'a [MessageEvent],
}

/// Why a channel has not accepted a message.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Refused {
    /// What it answered, or why it was not reached.
    pub answer: String,
    /// Whether the same message would be refused again.
    pub is_permanent: bool,
}

impl Refused {
    fn for_now(answer: impl Into<String>) -> Self {
        Self {
            answer: answer.into(),
            is_permanent: false,
        }
    }

    fn for_good(answer: impl Into<String>) -> Self {
        Self {
            answer: answer.into(),
            is_permanent: true,
        }
    }
}

/// Why [`Channels::new`] failed.
#[derive(Debug, thiserror::Error)]
#[error("failed to set up the client of alarms")]
pub struct ChannelsError(#[from] rustls::pki_types::pem::Error);

/// The settings of [`Channels`].
#[derive(Debug, Clone, Default)]
pub struct ChannelOptions {
    /// Which addresses may be reached. By default all but link-local and metadata addresses.
    pub policy: AddressPolicy,
    /// A directory with one file for each secret.
    pub secrets_dir: Option<PathBuf>,
    /// Certificates of authorities, in PEM, besides those of the system.
    pub authorities: Option<String>,
}

/// Sends messages.
#[derive(Debug, Clone)]
pub struct Channels {
    hooks: hook::Hooks,
    mail: email::Mail,
    secrets_dir: Option<PathBuf>,
}

impl Channels {
    /// Prepares connections. `clock` dates signatures.
    ///
    /// # Errors
    ///
    /// When an authority is no certificate.
    pub fn new(options: ChannelOptions, clock: Arc<dyn Clock>) -> Result<Self, ChannelsError> {
        // Only the first call has an effect.
        let _ = rustls::crypto::ring::default_provider().install_default();
        let ChannelOptions {
            policy,
            secrets_dir,
            authorities,
        } = options;
        let policy = Arc::new(policy);
        Ok(Self {
            hooks: hook::Hooks::new(&policy, authorities.as_deref(), clock)?,
            mail: email::Mail {
                policy,
                authorities,
            },
            secrets_dir,
        })
    }

    /// Sends a message, and returns the answer. The caller bounds the time.
    ///
    /// # Errors
    ///
    /// [`Refused`] if the channel has not accepted it.
    pub async fn send(
        &self,
        channel: &AlarmChannel,
        outgoing: Outgoing<'_>,
    ) -> Result<String, Refused> {
        let message = render(outgoing.rule, channel, outgoing.count, outgoing.events);
        let mut secrets = secrets::Secrets::new(self.secrets_dir.as_deref());
        let sent = match &channel.kind {
            ChannelKind::Email(email) => {
                self.mail
                    .send(email, outgoing, &message, &mut secrets)
                    .await
            }
            kind => {
                let hooks = &self.hooks;
                hooks
                    .send(channel, kind, outgoing, &message, &mut secrets)
                    .await
            }
        };
        match sent {
            Ok(answer) => Ok(secrets.hide(&answer)),
            Err(refused) => Err(Refused {
                answer: secrets.hide(&refused.answer),
                ..refused
            }),
        }
    }
}
