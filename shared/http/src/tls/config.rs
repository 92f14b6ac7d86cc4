//! Makes the TLS configuration of a server from the bytes of its files.

use std::sync::Arc;

use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::server::danger::ClientCertVerifier;
use rustls::{Error, RootCertStore, ServerConfig};

use super::files::{Content, TlsError, TlsFiles};

/// The server speaks no other protocol. A client that offers only others is refused in the handshake.
const HTTP_1_1: &[u8] = b"http/1.1";

/// TLS 1.2 and 1.3 with these certificates.
pub(super) fn server_config(files: &TlsFiles, content: &Content) -> Result<ServerConfig, TlsError> {
    cueline_runtime::tls::install_provider();
    let chain = certificates(&content.certificate);
    let chain = chain.map_err(|problem| files.refuse_certificate(problem))?;
    // The parser's error is left out: it may quote a line of the key.
    let key = PrivateKeyDer::from_pem_slice(&content.key).map_err(|_| {
        let expected = "a PEM file with a PKCS #8, PKCS #1 or SEC 1 key that is not encrypted";
        files.refuse_key(format!("holds no private key; {expected} is expected"))
    })?;
    let verifier = match &content.client_ca {
        None => WebPkiClientVerifier::no_client_auth(),
        Some(pem) => client_verifier(pem).map_err(|problem| files.refuse_client_ca(problem))?,
    };
    let builder = ServerConfig::builder().with_client_cert_verifier(verifier);
    let mut config = builder
        .with_single_cert(chain, key)
        .map_err(|error| match error {
            Error::InconsistentKeys(_) => files.refuse_key(format!(
                "is not the key of the certificate in {}",
                files.certificate.display()
            )),
            Error::InvalidCertificate(_) => {
                files.refuse_certificate(format!("its first certificate is unusable: {error}"))
            }
            _ => files.refuse_key(format!("the key is unusable: {error}")),
        })?;
    config.alpn_protocols = vec![HTTP_1_1.to_vec()];
    Ok(config)
}

/// Accepts clients with a certificate that one of these authorities has signed, and no others.
fn client_verifier(pem: &[u8]) -> Result<Arc<dyn ClientCertVerifier>, String> {
    let mut roots = RootCertStore::empty();
    for certificate in certificates(pem)? {
        roots
            .add(certificate)
            .map_err(|error| format!("a certificate is unusable: {error}"))?;
    }
    WebPkiClientVerifier::builder(Arc::new(roots))
        .build()
        .map_err(|error| error.to_string())
}

fn certificates(pem: &[u8]) -> Result<Vec<CertificateDer<'static>>, String> {
    let found: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    // The parser's error is left out: the file may be that of a key, and the error quotes a line.
    let found = found.map_err(|_| "is damaged; a PEM file is expected".to_owned())?;
    if found.is_empty() {
        let expected = "a PEM file with BEGIN CERTIFICATE is expected";
        return Err(format!("holds no certificate; {expected}"));
    }
    Ok(found)
}
