//! E-mail, to a server that speaks SMTP with STARTTLS.

use std::sync::Arc;

use cueline_channels::ChannelOptions;
use cueline_outbound::{AddressPolicy, parse_network};
use cueline_test_support::Authority;
use serde_json::{Value, json};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, AsyncWriteExt as _, BufReader};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::oneshot;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::ServerConfig;
use tokio_rustls::rustls::pki_types::pem::PemObject as _;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};

use crate::fixture::{channel, channels, secrets, send};

/// What a server has received.
#[derive(Debug, Default)]
struct Received {
    /// The commands, without those of the message.
    commands: Vec<String>,
    /// How many commands came before the encryption.
    in_clear: usize,
    message: String,
}

struct Server {
    port: u16,
    received: oneshot::Receiver<Received>,
}

/// A server for one connection. Without `acceptor` it does not offer STARTTLS. `answer` answers the message.
async fn server(acceptor: Option<TlsAcceptor>, answer: &'static str) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("is bound").port();
    let (give, received) = oneshot::channel();
    tokio::spawn(async move {
        let (stream, _) = listener.accept().await.expect("a connection");
        let _ = give.send(converse(stream, acceptor, answer).await);
    });
    Server { port, received }
}

async fn converse(stream: TcpStream, acceptor: Option<TlsAcceptor>, answer: &str) -> Received {
    let mut received = Received::default();
    let mut stream = BufReader::new(stream);
    reply(&mut stream, "220 mail.example.com ESMTP").await;
    let offer = acceptor.is_some();
    if !session(&mut stream, offer, answer, &mut received).await {
        return received;
    }
    received.in_clear = received.commands.len();
    let acceptor = acceptor.expect("was offered");
    let encrypted = acceptor.accept(stream.into_inner()).await;
    if let Ok(encrypted) = encrypted {
        session(&mut BufReader::new(encrypted), false, answer, &mut received).await;
    }
    received
}

/// Answers commands. Returns whether the client asks for encryption.
async fn session<S: AsyncRead + AsyncWrite + Unpin>(
    stream: &mut BufReader<S>,
    offer: bool,
    answer: &str,
    received: &mut Received,
) -> bool {
    loop {
        let mut line = String::new();
        match stream.read_line(&mut line).await {
            Ok(0) | Err(_) => return false,
            Ok(_) => {}
        }
        let line = line.trim_end().to_owned();
        let word = line.split(' ').next().unwrap_or_default().to_uppercase();
        received.commands.push(line);
        match word.as_str() {
            "EHLO" if offer => reply(stream, "250-mail.example.com\r\n250 STARTTLS").await,
            "EHLO" => reply(stream, "250-mail.example.com\r\n250 AUTH PLAIN LOGIN").await,
            "STARTTLS" => {
                reply(stream, "220 go ahead").await;
                return true;
            }
            "AUTH" => reply(stream, "235 welcome").await,
            "DATA" => {
                reply(stream, "354 go ahead").await;
                loop {
                    let mut line = String::new();
                    stream.read_line(&mut line).await.expect("reads");
                    if line == ".\r\n" {
                        break;
                    }
                    received.message.push_str(&line);
                }
                reply(stream, answer).await;
            }
            "QUIT" => {
                reply(stream, "221 bye").await;
                return false;
            }
            _ => reply(stream, "250 ok").await,
        }
    }
}

async fn reply<S: AsyncRead + AsyncWrite + Unpin>(stream: &mut BufReader<S>, text: &str) {
    let text = format!("{text}\r\n");
    let _ = stream.write_all(text.as_bytes()).await;
    let _ = stream.flush().await;
}

fn acceptor(authority: &Authority) -> TlsAcceptor {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (certificate, key) = authority.issue("mail");
    let certificate =
        CertificateDer::from_pem_slice(certificate.as_bytes()).expect("a certificate");
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes()).expect("a key");
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key);
    TlsAcceptor::from(Arc::new(config.expect("fits")))
}

fn mail(server: &str, port: u16, rest: &Value) -> cueline_model::AlarmChannel {
    let mut email = json!({
        "server": server, "port": port, "from": "cueline@example.com", "to": ["ops@example.com", "dev@example.com"],
    });
    for (key, value) in rest.as_object().expect("fields") {
        email[key] = value.clone();
    }
    channel(json!({ "name": "mail", "email": email, "language": "zh" }))
}

#[tokio::test]
async fn a_message_is_sent_with_starttls_and_a_password() {
    let authority = Authority::new("test");
    let server = server(Some(acceptor(&authority)), "250 queued as 4711").await;
    let dir = secrets(&[("smtp", "hunter22")]);
    let options = ChannelOptions {
        secrets_dir: Some(dir.path().to_owned()),
        authorities: Some(authority.pem().to_owned()),
        ..ChannelOptions::default()
    };
    let login = json!({ "user": "cueline", "password": { "secret": "smtp" } });
    let channel = mail("localhost", server.port, &login);
    let answer = send(&channels(options), &channel).await;
    assert_eq!(answer.as_deref(), Ok("250 queued as 4711"));
    let received = server.received.await.expect("a conversation");
    let in_clear = &received.commands[..received.in_clear];
    let words: Vec<&str> = in_clear
        .iter()
        .map(|c| c.split(' ').next().expect("a word"))
        .collect();
    assert_eq!(words, ["EHLO", "STARTTLS"], "nothing else is sent in clear");
    let commands = received.commands[received.in_clear..].join("\n");
    for command in [
        "AUTH PLAIN",
        "MAIL FROM:<cueline@example.com>",
        "RCPT TO:<ops@example.com>",
        "RCPT TO:<dev@example.com>",
    ] {
        assert!(commands.contains(command), "{commands}");
    }
    assert!(
        received.message.contains("Message-ID: <alarm-7-"),
        "{}",
        received.message
    );
    // A subject that is not ASCII is encoded.
    assert!(
        received.message.contains("Subject: "),
        "{}",
        received.message
    );
    assert!(
        received.message.contains("=?utf-8?b?"),
        "{}",
        received.message
    );
}

#[tokio::test]
async fn a_server_without_starttls_or_with_a_foreign_certificate_gets_nothing() {
    let bare = server(None, "250 queued").await;
    let channel = mail("localhost", bare.port, &json!({}));
    let refused = send(&channels(ChannelOptions::default()), &channel).await;
    assert!(!refused.expect_err("is refused").is_permanent);
    let received = bare.received.await.expect("a conversation");
    assert!(received.message.is_empty());
    assert!(
        !received.commands.iter().any(|c| c.starts_with("MAIL")),
        "{received:?}"
    );

    let foreign = server(Some(acceptor(&Authority::new("somebody"))), "250 queued").await;
    let options = ChannelOptions {
        authorities: Some(Authority::new("ours").pem().to_owned()),
        ..ChannelOptions::default()
    };
    let channel = mail("localhost", foreign.port, &json!({}));
    let refused = send(&channels(options), &channel).await;
    assert!(
        refused
            .expect_err("is refused")
            .answer
            .contains("certificate")
    );
    let received = foreign.received.await.expect("a conversation");
    assert!(received.message.is_empty());
}

#[tokio::test]
async fn a_refusal_for_good_is_told_from_one_for_now() {
    for (answer, is_permanent) in [("554 no such list", true), ("451 try later", false)] {
        let server = server(None, answer).await;
        let channel = mail("127.0.0.1", server.port, &json!({ "tls": "none" }));
        let refused = send(&channels(ChannelOptions::default()), &channel).await;
        let refused = refused.expect_err("is refused");
        assert_eq!(refused.is_permanent, is_permanent, "{refused:?}");
        assert!(refused.answer.contains(&answer[4..]), "{refused:?}");
    }
}

#[tokio::test]
async fn the_address_policy_is_for_mail_too() {
    let options = ChannelOptions {
        policy: AddressPolicy::new(
            [],
            ["127.0.0.0/8", "::1"].map(|text| parse_network(text).expect("a network")),
        ),
        ..ChannelOptions::default()
    };
    let channel = mail("localhost", 9, &json!({ "tls": "none" }));
    let refused = send(&channels(options), &channel)
        .await
        .expect_err("is refused");
    assert!(
        refused.is_permanent && refused.answer.contains("http_deny"),
        "{refused:?}"
    );
}
