//! The TLS provider of the process.

/// Makes `ring` the provider of all TLS connections of this process. Call it before building an HTTP client. Further
/// calls change nothing.
pub fn install_provider() {
    // An error means that a provider is installed already.
    let _ = rustls::crypto::ring::default_provider().install_default();
}
