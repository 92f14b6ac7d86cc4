//! Checks the TLS settings of an API: which of them need others, and whether the files can be used.

use std::path::PathBuf;

use cueline_http::{Tls, TlsFile, TlsFiles};

use super::settings::Settings;
use super::values;

const CERTIFICATE: &str = "tls_cert";
const KEY: &str = "tls_key";
const CLIENT_CA: &str = "tls_client_ca";

pub(super) fn check_tls(settings: &mut Settings) {
    let given = |key: &str| settings.is_given(key);
    match (given(CERTIFICATE), given(KEY), given(CLIENT_CA)) {
        (true, true, _) => check_files(settings),
        (true, false, _) => settings.require(KEY, "the private key of tls_cert"),
        (false, true, _) => settings.require(CERTIFICATE, "the certificate of tls_key"),
        // Without TLS, no client would be asked for a certificate.
        (false, false, true) => settings.require(CERTIFICATE, "tls_client_ca needs it"),
        (false, false, false) => {}
    }
}

/// Reads the files as the server will.
fn check_files(settings: &mut Settings) {
    // The parser of the setting reports a file that is missing.
    let found = |key: &str| {
        let text = settings.text(key)?;
        Some(values::file(text))
    };
    let Some(Ok(certificate)) = found(CERTIFICATE) else {
        return;
    };
    let Some(Ok(key)) = found(KEY) else {
        return;
    };
    let client_ca: Option<PathBuf> = match found(CLIENT_CA).transpose() {
        Ok(client_ca) => client_ca,
        Err(_) => return,
    };
    let files = TlsFiles {
        certificate,
        key,
        client_ca,
    };
    if let Err(error) = Tls::open(files) {
        let setting = match error.file() {
            TlsFile::Certificate => CERTIFICATE,
            TlsFile::Key => KEY,
            TlsFile::ClientCa => CLIENT_CA,
        };
        settings.refuse(setting, &error.to_string());
    }
}
