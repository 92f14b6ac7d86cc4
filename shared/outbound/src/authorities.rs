//! The authorities that this machine trusts.

use std::error::Error as _;
use std::io;
use std::sync::{Arc, Mutex, PoisonError};

use nix::errno::Errno;
use rustls::RootCertStore;
use rustls::pki_types::CertificateDer;

use crate::tls_error::TlsSetupError;

/// They are in hundreds of files, so a process reads them for its first `https` request.
static OF_MACHINE: Mutex<Option<Arc<RootCertStore>>> = Mutex::new(None);

/// The authorities of this machine, and `others`. Reads files until it has succeeded once.
pub(crate) fn with(
    others: Vec<CertificateDer<'static>>,
) -> Result<Arc<RootCertStore>, TlsSetupError> {
    let mut roots = of_machine()?;
    for certificate in others {
        let added = Arc::make_mut(&mut roots).add(certificate);
        added.map_err(|error| {
            let why = format!("the certificate of an authority is invalid ({error})");
            TlsSetupError::Unusable(why)
        })?;
    }
    if roots.is_empty() {
        let why = "this machine has no certificates of authorities";
        return Err(TlsSetupError::Unusable(why.to_owned()));
    }
    Ok(roots)
}

fn of_machine() -> Result<Arc<RootCertStore>, TlsSetupError> {
    // One call reads the files, and the others wait for it.
    let mut known = OF_MACHINE.lock().unwrap_or_else(PoisonError::into_inner);
    if let Some(roots) = &*known {
        return Ok(Arc::clone(roots));
    }
    let roots = read()?;
    // A machine without certificates may get some.
    if !roots.is_empty() {
        *known = Some(Arc::clone(&roots));
    }
    Ok(roots)
}

fn read() -> Result<Arc<RootCertStore>, TlsSetupError> {
    let found = rustls_native_certs::load_native_certs();
    // Otherwise the process would trust fewer authorities than the machine, until it ends.
    if let Some(shortage) = found.errors.iter().find_map(shortage) {
        return Err(TlsSetupError::Shortage(shortage));
    }
    for error in found.errors {
        tracing::warn!(%error, "failed to read certificates of authorities");
    }
    let mut roots = RootCertStore::empty();
    let (_, invalid) = roots.add_parsable_certificates(found.certs);
    if invalid > 0 {
        tracing::warn!(invalid, "left out invalid certificates of authorities");
    }
    Ok(Arc::new(roots))
}

/// The lack of descriptors or memory that kept a file from being read.
fn shortage(error: &rustls_native_certs::Error) -> Option<io::Error> {
    let error = error.source()?.downcast_ref::<io::Error>()?;
    let errno = Errno::from_raw(error.raw_os_error()?);
    matches!(errno, Errno::EMFILE | Errno::ENFILE | Errno::ENOMEM).then(|| errno.into())
}
