//! A process without a free descriptor. This binary has one test, because the limit holds for its whole process.
#![cfg(target_os = "linux")]

use std::sync::Arc;

use cueline_outbound::{AddressPolicy, OutboundClient, SystemResolver, TlsSetupError};
use cueline_test_support::Authority;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use rustls::pki_types::CertificateDer;
use rustls::pki_types::pem::PemObject as _;

#[tokio::test]
async fn authorities_that_could_not_be_read_are_read_by_a_later_request() {
    if rustls_native_certs::load_native_certs().certs.is_empty() {
        println!("skipped: this machine has no certificates of authorities to be read");
        return;
    }
    let _ = rustls::crypto::ring::default_provider().install_default();
    let ours = CertificateDer::from_pem_slice(Authority::new("ours").pem().as_bytes());
    let ours = vec![ours.expect("a certificate")];
    let policy = Arc::new(AddressPolicy::default());
    let client = OutboundClient::new(Arc::new(SystemResolver), policy, ours);
    let url = "https://localhost".parse().expect("a URL");

    let (soft, hard) = getrlimit(Resource::RLIMIT_NOFILE).expect("limits");
    setrlimit(Resource::RLIMIT_NOFILE, 0, hard).expect("set");
    let got = client.get(&url).await;
    setrlimit(Resource::RLIMIT_NOFILE, soft, hard).expect("set");
    let error = got.expect_err("no file can be opened");
    assert!(matches!(error, TlsSetupError::Shortage(_)), "{error:?}");
    assert!(error.to_string().contains("Too many open files"), "{error}");

    client.get(&url).await.expect("the files are read again");
}
