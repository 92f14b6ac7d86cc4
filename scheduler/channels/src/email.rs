//! Sends e-mail.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use cueline_model::alarm::{AlarmMessage, EmailChannel, SmtpTls};
use cueline_outbound::{AddressPolicy, permitted};
use lettre::message::header::ContentType;
use lettre::message::{Mailbox, Message};
use lettre::transport::smtp::authentication::Credentials;
use lettre::transport::smtp::client::{Certificate, Tls, TlsParameters};
use lettre::{AsyncSmtpTransport, AsyncTransport as _, Tokio1Executor};

use crate::secrets::Secrets;
use crate::{Outgoing, Refused};

/// How long one command may take.
const COMMAND_TIMEOUT: Duration = Duration::from_secs(15);

#[derive(Debug, Clone)]
pub(crate) struct Mail {
    pub(crate) policy: Arc<AddressPolicy>,
    pub(crate) authorities: Option<String>,
}

impl Mail {
    pub(crate) async fn send(
        &self,
        email: &EmailChannel,
        outgoing: Outgoing<'_>,
        message: &AlarmMessage,
        secrets: &mut Secrets<'_>,
    ) -> Result<String, Refused> {
        let mail = compose(email, outgoing, message)?;
        let address = self.resolve(email).await?;
        // The library connects to the checked address, and the certificate has to be for the name.
        let mut transport =
            AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(address.ip().to_string())
                .port(address.port())
                .timeout(Some(COMMAND_TIMEOUT))
                .tls(self.tls(email).await?);
        if let (Some(user), Some(password)) = (&email.user, &email.password) {
            let password = secrets.value(password).await?;
            transport = transport.credentials(Credentials::new(user.clone(), password));
        }
        let answered = transport.build().send(mail).await;
        let response = answered.map_err(|error| refused(&error))?;
        let lines: Vec<&str> = response.message().collect();
        Ok(format!("{} {}", response.code(), lines.join(" ")))
    }

    async fn resolve(&self, email: &EmailChannel) -> Result<SocketAddr, Refused> {
        let host = email.server.as_str();
        let found = tokio::net::lookup_host((host, email.port())).await;
        let found = found.map_err(|e| Refused::for_now(format!("host not found: {host} ({e})")))?;
        let addresses = permitted(host, found, &self.policy);
        let addresses = addresses.map_err(|refused| Refused::for_good(refused.to_string()))?;
        let first = addresses.first().copied();
        first.ok_or_else(|| Refused::for_now(format!("host not found: {host}")))
    }

    async fn tls(&self, email: &EmailChannel) -> Result<Tls, Refused> {
        if email.tls == SmtpTls::None {
            return Ok(Tls::None);
        }
        let (domain, authorities) = (email.server.clone(), self.authorities.clone());
        // It reads the authorities of the system from files.
        let built = tokio::task::spawn_blocking(move || {
            let mut parameters = TlsParameters::builder(domain);
            if let Some(pem) = authorities {
                parameters =
                    parameters.add_root_certificate(Certificate::from_pem(pem.as_bytes())?);
            }
            parameters.build()
        });
        let built = built.await.map_err(|e| Refused::for_now(e.to_string()))?;
        let parameters = built.map_err(|e| Refused::for_now(format!("TLS cannot be used: {e}")))?;
        Ok(match email.tls {
            SmtpTls::Tls => Tls::Wrapper(parameters),
            SmtpTls::Starttls | SmtpTls::None => Tls::Required(parameters),
        })
    }
}

fn compose(
    email: &EmailChannel,
    outgoing: Outgoing<'_>,
    message: &AlarmMessage,
) -> Result<Message, Refused> {
    let mailbox = |address: &str| {
        let parsed = address.parse::<Mailbox>();
        parsed.map_err(|e| Refused::for_good(format!("{address:?} is no address: {e}")))
    };
    let mut mail = Message::builder()
        .from(mailbox(&email.from)?)
        .subject(message.title.as_str())
        // A message that is sent again is known by it.
        .message_id(Some(format!(
            "<alarm-{}-{}@cueline>",
            outgoing.batch,
            outgoing
                .events
                .first()
                .map_or(0, |event| event.at.as_millis())
        )))
        .header(ContentType::TEXT_PLAIN);
    for address in &email.to {
        mail = mail.to(mailbox(address)?);
    }
    let composed = mail.body(message.body.clone());
    composed.map_err(|e| Refused::for_good(format!("the message cannot be written: {e}")))
}

fn refused(error: &lettre::transport::smtp::Error) -> Refused {
    let mut texts = vec![error.to_string()];
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        let text = cause.to_string();
        if !texts.iter().any(|known| known.contains(&text)) {
            texts.push(text);
        }
        next = cause.source();
    }
    let answer = texts.join(": ");
    if error.is_permanent() {
        Refused::for_good(answer)
    } else {
        Refused::for_now(answer)
    }
}
