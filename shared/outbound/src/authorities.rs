//! The authorities that this machine trusts.

use std::sync::{Arc, LazyLock};

use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

/// Read once by a process, because they are in hundreds of files.
static OF_MACHINE: LazyLock<Arc<RootCertStore>> = LazyLock::new(read);

/// The authorities of this machine, and `others`. Reads files when it is called for the first time.
///
/// # Errors
///
/// When one of `others` is no certificate, or when there is no authority at all.
pub(crate) fn with(others: Vec<CertificateDer<'static>>) -> Result<Arc<RootCertStore>, String> {
    let mut roots = Arc::clone(&OF_MACHINE);
    for certificate in others {
        let added = Arc::make_mut(&mut roots).add(certificate);
        added.map_err(|error| format!("the certificate of an authority is invalid ({error})"))?;
    }
    if roots.is_empty() {
        return Err("this machine has no certificates of authorities".to_owned());
    }
    Ok(roots)
}

fn read() -> Arc<RootCertStore> {
    let found = rustls_native_certs::load_native_certs();
    for error in found.errors {
        tracing::warn!(%error, "failed to read certificates of authorities");
    }
    let mut roots = RootCertStore::empty();
    let (_, invalid) = roots.add_parsable_certificates(found.certs);
    if invalid > 0 {
        tracing::warn!(invalid, "left out invalid certificates of authorities");
    }
    Arc::new(roots)
}
