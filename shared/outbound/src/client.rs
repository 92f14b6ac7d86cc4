//! The HTTP clients of requests to other machines.

use std::fmt;
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use reqwest::dns::Resolve;
use reqwest::{Client, Url, redirect};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::OnceCell;

use crate::authorities;
use crate::policy::AddressPolicy;
use crate::resolver::PolicyResolver;
use crate::tls_error::TlsSetupError;

/// How long connecting may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Clients that connect only to permitted addresses. They use no proxies of the environment, which would resolve names
/// themselves, and follow no redirects.
///
/// Each client is set up for its first request. That of `https` reads the certificates of this machine's authorities.
#[derive(Debug, Clone)]
pub struct OutboundClient {
    plain: Arc<PlainClient>,
    tls: Arc<TlsClient>,
}

impl OutboundClient {
    /// `names` resolves names. `authorities` are trusted besides those of this machine.
    pub fn new(
        names: Arc<dyn Resolve>,
        policy: Arc<AddressPolicy>,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Self {
        let resolver = Arc::new(PolicyResolver { names, policy });
        Self {
            plain: Arc::new(PlainClient {
                resolver: Arc::clone(&resolver),
                client: OnceLock::new(),
            }),
            tls: Arc::new(TlsClient {
                resolver,
                authorities,
                client: OnceCell::new(),
            }),
        }
    }

    /// The client for requests to `url`. For `https`, it waits until that client is set up.
    ///
    /// # Errors
    ///
    /// When TLS could not be set up. The next call tries again.
    pub async fn get(&self, url: &Url) -> Result<Client, TlsSetupError> {
        if url.scheme() != "https" {
            return self.plain.get().map_err(TlsSetupError::Unusable);
        }
        let set_up = || async {
            let tls = Arc::clone(&self.tls);
            let built = tokio::task::spawn_blocking(move || tls.set_up()).await;
            built.unwrap_or_else(|error| Err(TlsSetupError::Unusable(error.to_string())))
        };
        self.tls.client.get_or_try_init(set_up).await.cloned()
    }
}

/// Without authorities, it trusts no server of `https`.
struct PlainClient {
    resolver: Arc<PolicyResolver>,
    client: OnceLock<Client>,
}

impl PlainClient {
    fn get(&self) -> Result<Client, String> {
        if let Some(client) = self.client.get() {
            return Ok(client.clone());
        }
        // Of two that are set up at once, one is kept. A failure is not kept.
        let client = build(&self.resolver, RootCertStore::empty().into())?;
        Ok(self.client.get_or_init(|| client).clone())
    }
}

impl fmt::Debug for PlainClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("PlainClient")
            .field("is_set_up", &self.client.get().is_some())
            .finish_non_exhaustive()
    }
}

struct TlsClient {
    resolver: Arc<PolicyResolver>,
    /// Besides those of this machine.
    authorities: Vec<CertificateDer<'static>>,
    client: OnceCell<Client>,
}

impl TlsClient {
    fn set_up(&self) -> Result<Client, TlsSetupError> {
        let roots = authorities::with(self.authorities.clone())?;
        build(&self.resolver, roots).map_err(TlsSetupError::Unusable)
    }
}

impl fmt::Debug for TlsClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("TlsClient")
            .field("is_set_up", &self.client.initialized())
            .finish_non_exhaustive()
    }
}

fn build(resolver: &Arc<PolicyResolver>, roots: Arc<RootCertStore>) -> Result<Client, String> {
    let mut tls = ClientConfig::builder()
        .with_root_certificates(roots)
        .with_no_client_auth();
    tls.alpn_protocols = vec![b"http/1.1".to_vec()];
    let client = Client::builder()
        .no_proxy()
        .dns_resolver(Arc::clone(resolver))
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("cueline/", env!("CARGO_PKG_VERSION")))
        .tls_backend_preconfigured(tls)
        .build();
    client.map_err(|error| {
        let why = std::error::Error::source(&error).map(ToString::to_string);
        why.unwrap_or_else(|| error.to_string())
    })
}
