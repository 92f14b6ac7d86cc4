//! Requests over TLS, to a server of this test.

use std::sync::Arc;

use cueline_outbound::{AddressPolicy, OutboundClient, SystemResolver};
use cueline_test_support::Authority;
use reqwest::Url;
use rustls::ServerConfig;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Answers one request after the other, and ends with the test.
async fn server(authority: &Authority) -> Url {
    let (certificate, key) = authority.issue("server");
    let certificate = CertificateDer::from_pem_slice(certificate.as_bytes());
    let key = PrivateKeyDer::from_pem_slice(key.as_bytes());
    let config = ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(
            vec![certificate.expect("a certificate")],
            key.expect("a key"),
        );
    let acceptor = TlsAcceptor::from(Arc::new(config.expect("fits")));
    let listener = TcpListener::bind("127.0.0.1:0").await.expect("a port");
    let port = listener.local_addr().expect("bound").port();
    tokio::spawn(async move {
        loop {
            let (stream, _) = listener.accept().await.expect("a connection");
            // A client that does not trust the certificate ends here.
            let Ok(mut stream) = acceptor.accept(stream).await else {
                continue;
            };
            let read = stream.read(&mut [0; 4_096]).await.expect("a request");
            assert!(read > 0, "it ended");
            let response = b"HTTP/1.1 204 No Content\r\nConnection: close\r\n\r\n";
            stream.write_all(response).await.expect("sent");
            // The client may be gone by then.
            let _ = stream.shutdown().await;
        }
    });
    format!("https://localhost:{port}").parse().expect("a URL")
}

async fn status(url: &Url, trusted: &[&Authority]) -> Result<u16, reqwest::Error> {
    let authorities = trusted
        .iter()
        .map(|authority| CertificateDer::from_pem_slice(authority.pem().as_bytes()))
        .collect::<Result<_, _>>()
        .expect("certificates");
    let policy = Arc::new(AddressPolicy::default());
    let client = OutboundClient::new(Arc::new(SystemResolver), policy, authorities);
    let client = client.get(url).await.expect("a client");
    Ok(client.get(url.clone()).send().await?.status().as_u16())
}

#[tokio::test]
async fn only_certificates_of_a_trusted_authority_are_accepted() {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let (ours, other) = (Authority::new("ours"), Authority::new("other"));
    let url = server(&ours).await;
    assert_eq!(
        status(&url, &[&other, &ours]).await.expect("an answer"),
        204
    );
    // What one client trusts besides the machine's authorities, another one does not.
    let error = status(&url, &[&other]).await.expect_err("refused");
    assert!(error.is_connect(), "{error:?}");
    assert!(format!("{error:?}").contains("UnknownIssuer"), "{error:?}");
}
