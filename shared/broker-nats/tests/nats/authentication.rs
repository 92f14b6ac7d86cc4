//! Authentication and encryption: TLS, passwords, tokens, NKEYs and credentials files.

use std::path::{Path, PathBuf};

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cueline_broker::{Driver, ErrorKind, QueueId};
use cueline_broker_nats::{ClientCertificate, Login, NatsDriver, NatsOptions, Tls};
use cueline_test_servers::nats::{Nats, Version};
use cueline_test_support::{SOON, eventually};
use nkeys::KeyPair;
use serde_json::{Value, json};

use crate::fixture::{connect_to, fetch_all, messages, on_each_version, patient, publish, start};

fn start_with(version: Version, config: &str) -> Nats {
    Nats::start_with(version, |_| Ok(config.to_owned())).unwrap()
}

async fn assert_works(address: &str, options: NatsOptions) {
    let driver = connect_to(address, options).await;
    driver.declare(&QueueId::Results).await.unwrap();
    publish(&driver, &messages(&QueueId::Results, 0..3)).await;
    let fetched = fetch_all(&driver, &QueueId::Results, 3).await;
    assert_eq!(fetched.len(), 3);
    assert!(driver.delete(&QueueId::Results, false).await.unwrap());
}

/// Connects and expects a refusal. Returns the kind and the message of the error, which must hold no secret.
async fn assert_refused(address: &str, options: NatsOptions) -> (ErrorKind, String) {
    let error = NatsDriver::connect(address, options).await.unwrap_err();
    let message = error.to_string();
    assert!(!message.contains("secret"), "{message}");
    (error.kind(), message)
}

/// The server gives a client two seconds. A standstill of the machine may end a login before the refusal.
async fn assert_refused_for_good(address: &str, options: NatsOptions) -> String {
    let refused = eventually("a refusal for good", SOON, async || {
        match assert_refused(address, options.clone()).await {
            (ErrorKind::Permanent, message) => Ok(message),
            (_, message) => Err(message),
        }
    });
    refused.await.unwrap()
}

fn with_login(login: Login) -> NatsOptions {
    NatsOptions { login, ..patient() }
}

fn with_file(server: &Nats, name: &str, text: &str) -> NatsOptions {
    let path = server.folder().join(name);
    std::fs::write(&path, text).unwrap();
    with_login(Login::CredentialsFile(path))
}

fn tls_file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/nats/tls")
        .join(name)
}

/// A server that requires TLS, with more settings in its `tls` block.
fn start_with_tls(more: &str) -> Nats {
    let [certificate, key, authority] = ["server.pem", "server.key", "authority.pem"]
        .map(|name| tls_file(name).display().to_string());
    let block = format!(
        "tls {{ cert_file: \"{certificate}\", key_file: \"{key}\", ca_file: \"{authority}\"\n{more} }}"
    );
    start_with(Version::V2_12, &block)
}

fn trusting(tls: Tls) -> NatsOptions {
    NatsOptions {
        tls: Tls {
            ca_file: Some(tls_file("authority.pem")),
            ..tls
        },
        ..patient()
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_is_used_where_either_side_requires_it_and_only_with_a_trusted_server() {
    let server = start_with_tls("");
    let encrypted = format!("tls://{}", server.addr());
    assert_works(&encrypted, trusting(Tls::default())).await;
    assert_works(&server.url(), trusting(Tls::default())).await;
    // The system's authorities did not sign this certificate.
    assert_refused(&encrypted, patient()).await;

    let plain = start(Version::V2_12);
    let required = Tls {
        required: true,
        ..Tls::default()
    };
    assert_refused(&plain.url(), trusting(required)).await;
    let encrypted = format!("tls://{}", plain.addr());
    assert_refused(&encrypted, trusting(Tls::default())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn tls_works_with_a_client_certificate_and_with_the_handshake_first() {
    let server = start_with_tls("verify: true");
    let own = Tls {
        client_certificate: Some(ClientCertificate {
            certificate: tls_file("client.pem"),
            key: tls_file("client.key"),
        }),
        ..Tls::default()
    };
    assert_works(&server.url(), trusting(own.clone())).await;
    assert_refused(&server.url(), trusting(Tls::default())).await;

    // With a delay the server accepts both orders. Without one, the test could not wait for the server's greeting.
    let server = start_with_tls("handshake_first: 200ms");
    let handshake_first = Tls {
        handshake_first: true,
        ..own
    };
    assert_works(&server.url(), trusting(handshake_first)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_user_is_authenticated_by_password_token_or_nkey() {
    let address = |server: &Nats, user: &str| format!("nats://{user}{}", server.addr());
    let with_password = |password: &str| {
        with_login(Login::Password {
            user: "ann".into(),
            password: password.into(),
        })
    };

    let users = "authorization { users: [{ user: ann, password: \"p@ss/secret\" }] }";
    let server = start_with(Version::V2_12, users);
    assert_works(&address(&server, "ann:p%40ss%2Fsecret@"), patient()).await;
    assert_works(&server.url(), with_password("p@ss/secret")).await;
    for wrong in [with_password("secret"), patient()] {
        assert_refused_for_good(&server.url(), wrong).await;
    }
    assert_refused_for_good(&address(&server, "ann:secret@"), patient()).await;

    let token = "authorization { token: \"secret-token\" }";
    let server = start_with(Version::V2_12, token);
    assert_works(&address(&server, "secret-token@"), patient()).await;
    let login = with_login(Login::Token("secret-token".into()));
    assert_works(&server.url(), login).await;

    let key = KeyPair::new_user();
    let users = format!(
        "authorization {{ users: [{{ nkey: {} }}] }}",
        key.public_key()
    );
    let server = start_with(Version::V2_12, &users);
    let seed = format!("{}\n", key.seed().unwrap());
    assert_works(&server.url(), with_file(&server, "seed", &seed)).await;
    let missing = Login::CredentialsFile(server.folder().join("missing.creds"));
    assert_refused_for_good(&server.url(), with_login(missing)).await;
}

/// The claims of `issuer` about `subject`, signed: a JWT as NATS reads it, see
/// <https://docs.nats.io/running-a-nats-service/nats_admin/security/jwt>.
fn jwt(issuer: &KeyPair, subject: &KeyPair, nats: &Value) -> String {
    let claims = json!({
        "jti": subject.public_key(),
        "iat": 1_700_000_000,
        "iss": issuer.public_key(),
        "sub": subject.public_key(),
        "name": "test",
        "nats": nats,
    });
    let header = json!({ "typ": "JWT", "alg": "ed25519-nkey" });
    let part = |json: &Value| URL_SAFE_NO_PAD.encode(json.to_string());
    let signed = format!("{}.{}", part(&header), part(&claims));
    let signature = issuer.sign(signed.as_bytes()).unwrap();
    format!("{signed}.{}", URL_SAFE_NO_PAD.encode(signature))
}

fn account_jwt(operator: &KeyPair, account: &KeyPair, jetstream: i64) -> String {
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": jetstream, "disk_storage": jetstream, "streams": jetstream, "consumer": jetstream,
    });
    let claims = json!({ "limits": limits, "type": "account", "version": 2 });
    jwt(operator, account, &claims)
}

/// The text of a credentials file, as `nsc` writes it.
fn credentials(issuer: &KeyPair, user: &KeyPair) -> String {
    let claims = json!({
        "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2,
    });
    format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        jwt(issuer, user, &claims),
        user.seed().unwrap()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credentials_file_gives_access_to_its_account_only_if_the_operator_knows_it() {
    on_each_version(async |version| {
        let operator = KeyPair::new_operator();
        let (system, own) = (KeyPair::new_account(), KeyPair::new_account());
        let operator_claims = json!({ "type": "operator", "version": 2 });
        let config = format!(
            "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}",
            jwt(&operator, &operator, &operator_claims),
            system.public_key(),
            system.public_key(),
            account_jwt(&operator, &system, 0),
            own.public_key(),
            account_jwt(&operator, &own, -1),
        );
        let server = start_with(version, &config);
        let (url, user) = (server.url(), KeyPair::new_user());
        let known = credentials(&own, &user);
        assert_works(&url, with_file(&server, "known.creds", &known)).await;
        let unknown = credentials(&KeyPair::new_account(), &user);
        let unknown = with_file(&server, "unknown.creds", &unknown);
        for wrong in [unknown, patient()] {
            assert_refused_for_good(&url, wrong).await;
        }
        let garbage = with_file(&server, "garbage.creds", "no credentials");
        let message = assert_refused_for_good(&url, garbage).await;
        assert!(message.contains("garbage.creds"), "{message}");
    })
    .await;
}
