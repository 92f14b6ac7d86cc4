//! Who may connect, and how: TLS, passwords, tokens and keys.

use std::path::{Path, PathBuf};

use cueline_broker::{Driver, ErrorKind, QueueId};
use cueline_broker_nats::{ClientCertificate, Login, NatsDriver, NatsOptions, Tls};
use cueline_test_servers::nats::{Nats, Version};

use crate::ground::{messages, options, publish, take};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/nats/tls")
        .join(name)
}

/// A server that takes no client without TLS, and with `more` in its `tls` block.
fn secured(more: &str) -> Nats {
    let [certificate, key, authority] =
        ["server.pem", "server.key", "authority.pem"].map(|name| file(name).display().to_string());
    let block = format!(
        "tls {{ cert_file: \"{certificate}\", key_file: \"{key}\", ca_file: \"{authority}\"\n{more} }}"
    );
    Nats::start_with(Version::V2_12, |_| Ok(block)).unwrap()
}

async fn assert_works(address: &str, options: NatsOptions) {
    let driver = NatsDriver::connect(address, options).await.unwrap();
    driver.declare(&QueueId::Results).await.unwrap();
    publish(&driver, &messages(&QueueId::Results, 0..3)).await;
    assert_eq!(take(&driver, &QueueId::Results, 3).await.len(), 3);
    assert!(driver.delete(&QueueId::Results, false).await.unwrap());
}

async fn refused(address: &str, options: NatsOptions) -> ErrorKind {
    let told = NatsDriver::connect(address, options).await.unwrap_err();
    assert!(!told.to_string().contains("secret"), "{told}");
    told.kind()
}

fn trusting(tls: Tls) -> NatsOptions {
    NatsOptions {
        tls: Tls {
            ca_file: Some(file("authority.pem")),
            ..tls
        },
        ..options()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_used_where_either_side_wants_it_and_only_with_a_trusted_server() {
    let server = secured("");
    let encrypted = format!("tls://{}", server.addr());
    assert_works(&encrypted, trusting(Tls::default())).await;
    assert_works(&server.url(), trusting(Tls::default())).await;
    // The system's authorities do not know this one.
    refused(&encrypted, options()).await;

    let plain = Nats::start(Version::V2_12).unwrap();
    let required = Tls {
        required: true,
        ..Tls::default()
    };
    refused(&plain.url(), trusting(required)).await;
    refused(&format!("tls://{}", plain.addr()), trusting(Tls::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_can_come_first_and_with_a_certificate_of_the_client() {
    let server = secured("verify: true");
    let own = Tls {
        client_certificate: Some(ClientCertificate {
            certificate: file("client.pem"),
            key: file("client.key"),
        }),
        ..Tls::default()
    };
    assert_works(&server.url(), trusting(own.clone())).await;
    refused(&server.url(), trusting(Tls::default())).await;

    // A server that says nothing before the handshake cannot be seen to answer by who only listens: both orders are allowed.
    let server = secured("handshake_first: 200ms");
    let first = Tls {
        handshake_first: true,
        ..own
    };
    assert_works(&server.url(), trusting(first)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_are_told_apart_by_password_token_and_key() {
    let address = |server: &Nats, user: &str| format!("nats://{user}{}", server.addr());
    let with = |login| NatsOptions { login, ..options() };
    let password = |password: &str| Login::Password {
        user: "ann".into(),
        password: password.into(),
    };

    let users = "authorization { users: [{ user: ann, password: \"p@ss/secret\" }] }";
    let server = Nats::start_with(Version::V2_12, |_| Ok(users.into())).unwrap();
    assert_works(&address(&server, "ann:p%40ss%2Fsecret@"), options()).await;
    assert_works(&address(&server, ""), with(password("p@ss/secret"))).await;
    for wrong in [with(password("secret")), options()] {
        assert_eq!(
            refused(&address(&server, ""), wrong).await,
            ErrorKind::Permanent
        );
    }
    let wrong = address(&server, "ann:secret@");
    assert_eq!(refused(&wrong, options()).await, ErrorKind::Permanent);

    let token = "authorization { token: \"secret-token\" }";
    let server = Nats::start_with(Version::V2_12, |_| Ok(token.into())).unwrap();
    assert_works(&address(&server, "secret-token@"), options()).await;
    assert_works(
        &address(&server, ""),
        with(Login::Token("secret-token".into())),
    )
    .await;

    let key = nkeys();
    let users = format!("authorization {{ users: [{{ nkey: {} }}] }}", key.public);
    let server = Nats::start_with(Version::V2_12, |_| Ok(users)).unwrap();
    let seed = server.folder().join("seed");
    std::fs::write(&seed, format!("{}\n", key.seed)).unwrap();
    assert_works(&address(&server, ""), with(Login::CredentialsFile(seed))).await;
    let missing = Login::CredentialsFile(server.folder().join("no-such.creds"));
    assert_eq!(
        refused(&address(&server, ""), with(missing)).await,
        ErrorKind::Permanent
    );
}

struct Key {
    seed: &'static str,
    public: &'static str,
}

/// A key pair that protects nothing.
const fn nkeys() -> Key {
    Key {
        seed: "SUAJAZCTYRH2AMKFJ3SSC5JKHGT7ZZVCLCJBJUR7IUXQPYWBO7IFMZDAWA",
        public: "UBM7MZPLDFG6FHWRMLJ7R3V6EANT57DGPHOQDTZWUGEKFC5I47MO5JCX",
    }
}
