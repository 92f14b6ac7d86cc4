//! TLS: the driver checks the server's certificate, and sends its own if the server asks for it.

use std::path::{Path, PathBuf};
use std::time::Duration;

use cueline_broker::{Driver, QueueId};
use cueline_broker_rabbitmq::{ClientCertificate, RabbitDriver, RabbitOptions};
use cueline_test_servers::free_port;
use cueline_test_servers::rabbitmq::Rabbit;

use crate::fixture::{messages, own_server_slot, publish, take};

fn file(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/rabbitmq/tls")
        .join(name)
}

/// A server with a TLS port for clients with a certificate.
fn secured() -> (Rabbit, String) {
    let port = free_port().unwrap();
    let conf = format!(
        "listeners.ssl.1 = 127.0.0.1:{port}\n\
         ssl_options.cacertfile = {}\n\
         ssl_options.certfile = {}\n\
         ssl_options.keyfile = {}\n\
         ssl_options.verify = verify_peer\n\
         ssl_options.fail_if_no_peer_cert = true\n",
        file("authority.pem").display(),
        file("server.pem").display(),
        file("server.key").display(),
    );
    let server = Rabbit::start_with(&conf).unwrap();
    (server, format!("amqps://guest:guest@127.0.0.1:{port}/%2f"))
}

#[tokio::test(flavor = "multi_thread")]
async fn driver_and_server_check_each_other() {
    let _slot = own_server_slot().await;
    let (_server, url) = tokio::task::spawn_blocking(secured).await.unwrap();
    let good = RabbitOptions {
        request_timeout: Duration::from_secs(20),
        ca_file: Some(file("authority.pem")),
        client_certificate: Some(ClientCertificate {
            certificate: file("client.pem"),
            key: file("client.key"),
        }),
        ..RabbitOptions::default()
    };
    let driver = RabbitDriver::open(&url, good.clone()).await.unwrap();
    driver.declare(&QueueId::Results).await.unwrap();
    publish(&driver, &messages(&QueueId::Results, 0..3)).await;
    assert_eq!(take(&driver, &QueueId::Results, 3).await.len(), 3);

    let unknown_authority = RabbitOptions {
        ca_file: None,
        ..good.clone()
    };
    let no_certificate = RabbitOptions {
        client_certificate: None,
        ..good.clone()
    };
    for bad in [unknown_authority, no_certificate] {
        let bad = RabbitOptions {
            request_timeout: Duration::from_secs(5),
            ..bad
        };
        // The server may refuse at once or cut the connection later. Either way no call succeeds.
        if let Ok(driver) = RabbitDriver::open(&url, bad).await {
            assert!(driver.declare(&QueueId::Results).await.is_err());
        }
    }
    let missing = RabbitOptions {
        ca_file: Some(file("no-such.pem")),
        ..good
    };
    let error = RabbitDriver::open(&url, missing).await.unwrap_err();
    assert!(error.to_string().contains("no-such.pem"), "{error}");
}
