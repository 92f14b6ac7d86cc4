//! Decentralized authentication: an operator vouches for accounts, an account for its users, and a credentials file says who one is.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use cueline_broker::{Driver, ErrorKind, QueueId};
use cueline_broker_nats::{Login, NatsDriver, NatsOptions};
use cueline_test_servers::nats::{Nats, Version};
use nkeys::KeyPair;
use serde_json::{Value, json};

use crate::ground::{messages, options, publish, take};

/// What `issuer` says of `subject`, signed: a JWT as NATS reads it, see <https://docs.nats.io/running-a-nats-service/nats_admin/security/jwt>.
fn vouched(issuer: &KeyPair, subject: &KeyPair, nats: &Value) -> String {
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

fn account(operator: &KeyPair, account: &KeyPair, jetstream: i64) -> String {
    let limits = json!({
        "subs": -1, "data": -1, "payload": -1, "imports": -1, "exports": -1, "wildcards": true, "conn": -1, "leaf": -1,
        "mem_storage": jetstream, "disk_storage": jetstream, "streams": jetstream, "consumer": jetstream,
    });
    let claims = json!({ "limits": limits, "type": "account", "version": 2 });
    vouched(operator, account, &claims)
}

/// A credentials file, as `nsc` writes it.
fn credentials(issuer: &KeyPair, user: &KeyPair) -> String {
    let claims = json!({
        "pub": {}, "sub": {}, "subs": -1, "data": -1, "payload": -1, "type": "user", "version": 2,
    });
    format!(
        "-----BEGIN NATS USER JWT-----\n{}\n------END NATS USER JWT------\n\n\
         -----BEGIN USER NKEY SEED-----\n{}\n------END USER NKEY SEED------\n",
        vouched(issuer, user, &claims),
        user.seed().unwrap()
    )
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_credentials_file_opens_its_account_and_a_stranger_stays_outside() {
    for version in Version::ALL {
        let (operator, system, own) = (
            KeyPair::new_operator(),
            KeyPair::new_account(),
            KeyPair::new_account(),
        );
        let operator_claims = json!({ "type": "operator", "version": 2 });
        let config = format!(
            "operator: {}\nsystem_account: {}\nresolver: MEMORY\nresolver_preload: {{ {}: {}, {}: {} }}",
            vouched(&operator, &operator, &operator_claims),
            system.public_key(),
            system.public_key(),
            account(&operator, &system, 0),
            own.public_key(),
            account(&operator, &own, -1),
        );
        let server = Nats::start_with(version, |_| Ok(config)).unwrap();
        let with = |name: &str, text: String| {
            let path = server.folder().join(name);
            std::fs::write(&path, text).unwrap();
            NatsOptions {
                login: Login::CredentialsFile(path),
                ..options()
            }
        };

        let good = with("good.creds", credentials(&own, &KeyPair::new_user()));
        let driver = NatsDriver::connect(&server.url(), good).await.unwrap();
        driver.declare(&QueueId::Results).await.unwrap();
        publish(&driver, &messages(&QueueId::Results, 0..3)).await;
        assert_eq!(take(&driver, &QueueId::Results, 3).await.len(), 3);

        // Vouched for by an account that the operator does not know, and by nobody.
        let stranger = credentials(&KeyPair::new_account(), &KeyPair::new_user());
        for options in [with("stranger.creds", stranger), options()] {
            let told = NatsDriver::connect(&server.url(), options)
                .await
                .unwrap_err();
            assert_eq!(told.kind(), ErrorKind::Permanent, "{told}");
        }
        let garbage = with("garbage.creds", "no credentials".into());
        let told = NatsDriver::connect(&server.url(), garbage)
            .await
            .unwrap_err();
        assert_eq!(told.kind(), ErrorKind::Permanent, "{told}");
        assert!(told.to_string().contains("garbage.creds"), "{told}");
    }
}
