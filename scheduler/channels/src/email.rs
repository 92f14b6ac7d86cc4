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
use tokio::time::Instant;

use crate::secrets::Secrets;
use crate::{Outgoing, Refused};

/// How long all addresses of a server may take: less than a send may, so that the error is known.
const ALL_TIMEOUT: Duration = Duration::from_secs(18);

/// The most addresses of a server that are tried, so that each has some seconds.
const MAX_ADDRESSES: usize = 4;

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
        let addresses = self.resolve(email).await?;
        let tls = self.tls(email).await?;
        let credentials = match (&email.user, &email.password) {
            (Some(user), Some(password)) => {
                let password = secrets.value(password).await?;
                Some(Credentials::new(user.clone(), password))
            }
            _ => None,
        };
        send_to_first(&addresses, &tls, credentials.as_ref(), &mail).await
    }

    async fn resolve(&self, email: &EmailChannel) -> Result<Vec<SocketAddr>, Refused> {
        let host = email.server.as_str();
        let found = tokio::net::lookup_host((host, email.port())).await;
        let found = found.map_err(|e| Refused::for_now(format!("host not found: {host} ({e})")))?;
        let addresses = permitted(host, found, &self.policy);
        let addresses = addresses.map_err(|refused| Refused::for_good(refused.to_string()))?;
        if addresses.is_empty() {
            return Err(Refused::for_now(format!("host not found: {host}")));
        }
        Ok(addresses)
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

/// Sends a message to the first address that answers. The addresses that are left share the time that is left.
async fn send_to_first(
    addresses: &[SocketAddr],
    tls: &Tls,
    credentials: Option<&Credentials>,
    mail: &Message,
) -> Result<String, Refused> {
    let deadline = Instant::now() + ALL_TIMEOUT;
    let tried = &addresses[..addresses.len().min(MAX_ADDRESSES)];
    let mut unreached = Vec::new();
    for (place, address) in tried.iter().enumerate() {
        let left = u32::try_from(tried.len() - place).unwrap_or(1);
        let time = deadline.saturating_duration_since(Instant::now()) / left;
        // The library connects to the checked address, and the certificate has to be for the name.
        let mut transport =
            AsyncSmtpTransport::<Tokio1Executor>::builder_dangerous(address.ip().to_string())
                .port(address.port())
                .timeout(Some(time))
                .tls(tls.clone());
        if let Some(credentials) = credentials {
            transport = transport.credentials(credentials.clone());
        }
        let answered = tokio::time::timeout(time, transport.build().send(mail.clone())).await;
        match answered {
            Ok(Ok(response)) => {
                let lines: Vec<&str> = response.message().collect();
                return Ok(format!("{} {}", response.code(), lines.join(" ")));
            }
            Ok(Err(error)) if is_answer(&error) => return Err(refused(&error)),
            Ok(Err(error)) => unreached.push(format!("{address}: {}", refused(&error).answer)),
            Err(_) => unreached.push(format!("{address}: no answer within {time:.1?}")),
        }
    }
    Err(Refused::for_now(unreached.join("; ")))
}

/// Whether the server has answered, so that another address of it would answer the same.
fn is_answer(error: &lettre::transport::smtp::Error) -> bool {
    error.is_permanent()
        || error.is_transient()
        || error.is_response()
        || error.is_client()
        || error.is_tls()
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

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncBufReadExt as _, AsyncWriteExt as _, BufReader};
    use tokio::net::TcpListener;

    use super::*;

    /// A server for one message.
    async fn accept(listener: TcpListener) {
        let (stream, _) = listener.accept().await.expect("a connection");
        let mut stream = BufReader::new(stream);
        stream
            .write_all(b"220 mail ESMTP\r\n")
            .await
            .expect("writes");
        let mut is_text = false;
        let mut line = String::new();
        while stream.read_line(&mut line).await.is_ok_and(|read| read > 0) {
            let answer = match line.trim_end() {
                "." => "250 queued\r\n",
                "DATA" => "354 go ahead\r\n",
                _ if is_text => "",
                _ => "250 ok\r\n",
            };
            is_text = line.trim_end() == "DATA" || (is_text && line.trim_end() != ".");
            stream.write_all(answer.as_bytes()).await.expect("writes");
            line.clear();
        }
    }

    #[tokio::test]
    async fn a_message_goes_to_the_first_address_that_answers() {
        let closed = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let closed_address = closed.local_addr().expect("is bound");
        drop(closed);
        let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
        let address = listener.local_addr().expect("is bound");
        tokio::spawn(accept(listener));
        let mail = Message::builder()
            .from("cueline@example.com".parse().expect("an address"))
            .to("ops@example.com".parse().expect("an address"))
            .body("it failed".to_owned())
            .expect("a message");
        let send = async |addresses: &[SocketAddr]| {
            send_to_first(addresses, &Tls::None, None, &mail).await
        };
        let answer = send(&[closed_address, address]).await;
        assert_eq!(answer.as_deref(), Ok("250 queued"));
        let refused = send(&[closed_address; 2]).await.expect_err("is refused");
        assert!(!refused.is_permanent);
        assert_eq!(
            refused.answer.matches("127.0.0.1").count(),
            2,
            "{refused:?}"
        );
    }
}
