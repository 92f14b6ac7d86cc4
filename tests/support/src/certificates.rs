//! Certificates for tests of TLS.

use std::path::Path;

use rcgen::{BasicConstraints, CertificateParams, DnType, IsCa, Issuer, KeyPair};

/// An authority with a key of its own. It is gone with the test.
pub struct Authority {
    pem: String,
    issuer: Issuer<'static, KeyPair>,
}

impl Authority {
    /// Makes an authority.
    ///
    /// # Panics
    ///
    /// If there are no random bytes.
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.self_signed(&key).expect("a certificate");
        Self {
            pem: certificate.pem(),
            issuer: Issuer::new(params, key),
        }
    }

    /// Its certificate.
    pub fn pem(&self) -> &str {
        &self.pem
    }

    /// A new certificate for 127.0.0.1 and localhost, and its key.
    ///
    /// # Panics
    ///
    /// If there are no random bytes.
    pub fn issue(&self, name: &str) -> (String, String) {
        let names = ["127.0.0.1", "localhost"].map(str::to_owned);
        let mut params = CertificateParams::new(names.to_vec()).expect("names");
        params.distinguished_name.push(DnType::CommonName, name);
        let key = KeyPair::generate().expect("a key");
        let certificate = params.signed_by(&key, &self.issuer).expect("a certificate");
        (certificate.pem(), key.serialize_pem())
    }

    /// Issues a certificate into these files.
    ///
    /// # Panics
    ///
    /// If they cannot be written.
    pub fn issue_to(&self, name: &str, certificate: &Path, key: &Path) {
        let (certificate_pem, key_pem) = self.issue(name);
        std::fs::write(certificate, certificate_pem).expect("written");
        std::fs::write(key, key_pem).expect("written");
    }
}
