//! The HTTP clients of requests to other machines.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::Resolve;
use reqwest::{Client, Url, redirect};
use rustls::pki_types::CertificateDer;
use rustls::{ClientConfig, RootCertStore};
use tokio::sync::watch;

use crate::authorities;
use crate::policy::AddressPolicy;
use crate::resolver::PolicyResolver;

/// How long connecting may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// A client, or why there is none.
type Built = Result<Client, String>;

/// Clients that connect only to permitted addresses. They use no proxies of the environment, which would resolve names
/// themselves, and follow no redirects.
///
/// A thread sets up the client of `https`, because that reads the hundreds of certificates of this machine's authorities.
/// It begins at once, not with the first request: later, the process may lack descriptors, and would trust fewer
/// authorities.
#[derive(Clone)]
pub struct OutboundClient {
    policy: Arc<AddressPolicy>,
    plain: Built,
    /// `None` while it is being set up.
    tls: watch::Receiver<Option<Built>>,
}

impl OutboundClient {
    /// `names` resolves names. `authorities` are trusted besides those of this machine.
    pub fn new(
        names: Arc<dyn Resolve>,
        policy: Arc<AddressPolicy>,
        authorities: Vec<CertificateDer<'static>>,
    ) -> Self {
        let resolver = Arc::new(PolicyResolver {
            names,
            policy: Arc::clone(&policy),
        });
        let plain = build(&resolver, RootCertStore::empty().into());
        let (sender, tls) = watch::channel(None);
        let set_up = move || {
            let roots = authorities::with(authorities);
            sender.send_replace(Some(roots.and_then(|roots| build(&resolver, roots))));
        };
        let thread = std::thread::Builder::new().name("certificates".to_owned());
        if let Err(error) = thread.spawn(set_up) {
            tracing::error!(%error, "failed to start the thread that reads the certificates of authorities");
        }
        Self { policy, plain, tls }
    }

    /// The client for requests to `url`. For `https`, it waits until that client is set up.
    ///
    /// # Errors
    ///
    /// When the TLS set-up of this machine could not be used.
    pub async fn get(&self, url: &Url) -> Result<Client, String> {
        if url.scheme() != "https" {
            return self.plain.clone();
        }
        let mut tls = self.tls.clone();
        let built = tls.wait_for(Option::is_some).await;
        let built = built.ok().and_then(|built| built.clone());
        let client =
            built.unwrap_or_else(|| Err("its thread was not started or panicked".to_owned()));
        client.map_err(|why| {
            format!("failed to set up TLS: {why}; repair it and restart this process")
        })
    }
}

fn build(resolver: &Arc<PolicyResolver>, roots: Arc<RootCertStore>) -> Built {
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

impl fmt::Debug for OutboundClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_set_up = self.tls.borrow().is_some();
        f.debug_struct("OutboundClient")
            .field("policy", &self.policy)
            .field("is_set_up", &is_set_up)
            .finish_non_exhaustive()
    }
}
