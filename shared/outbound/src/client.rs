//! The HTTP client of requests to other machines.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use reqwest::dns::Resolve;
use reqwest::{Certificate, Client, redirect};
use tokio::sync::watch;

use crate::policy::AddressPolicy;
use crate::resolver::PolicyResolver;

/// How long connecting may take.
pub const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// The client, or why there is none. `None` while it is being set up.
type SetUp = Option<Result<Client, String>>;

/// A client that connects only to permitted addresses. It uses no proxies of the environment, which would resolve names
/// themselves, and follows no redirects.
///
/// A thread sets it up, because that reads the hundreds of certificates of this machine's authorities. It begins at once, not
/// with the first request: later, the process may lack descriptors, and would trust fewer authorities.
#[derive(Clone)]
pub struct OutboundClient {
    policy: Arc<AddressPolicy>,
    set_up: watch::Receiver<SetUp>,
}

impl OutboundClient {
    /// `names` resolves names. `authorities` are trusted besides those of this machine.
    pub fn new(
        names: Arc<dyn Resolve>,
        policy: Arc<AddressPolicy>,
        authorities: Vec<Certificate>,
    ) -> Self {
        let (sender, set_up) = watch::channel(None);
        let resolver = PolicyResolver {
            names,
            policy: Arc::clone(&policy),
        };
        let build = move || sender.send_replace(Some(build(resolver, authorities)));
        let thread = std::thread::Builder::new().name("certificates".to_owned());
        if let Err(error) = thread.spawn(build) {
            tracing::error!(%error, "failed to start the thread that reads the certificates of authorities");
        }
        Self { policy, set_up }
    }

    /// The client. Waits until it is set up.
    ///
    /// # Errors
    ///
    /// When the TLS set-up of this machine could not be used.
    pub async fn get(&self) -> Result<Client, String> {
        let mut set_up = self.set_up.clone();
        let done = set_up.wait_for(Option::is_some).await;
        let done = done.ok().and_then(|done| done.clone());
        let client =
            done.unwrap_or_else(|| Err("its thread was not started or panicked".to_owned()));
        client.map_err(|why| {
            format!("failed to set up TLS: {why}; repair it and restart this process")
        })
    }
}

fn build(resolver: PolicyResolver, authorities: Vec<Certificate>) -> Result<Client, String> {
    let client = Client::builder()
        .no_proxy()
        .dns_resolver(Arc::new(resolver))
        .redirect(redirect::Policy::none())
        .connect_timeout(CONNECT_TIMEOUT)
        .user_agent(concat!("cueline/", env!("CARGO_PKG_VERSION")))
        .tls_certs_merge(authorities)
        .build();
    client.map_err(|error| {
        let why = std::error::Error::source(&error).map(ToString::to_string);
        why.unwrap_or_else(|| error.to_string())
    })
}

impl fmt::Debug for OutboundClient {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let is_set_up = self.set_up.borrow().is_some();
        f.debug_struct("OutboundClient")
            .field("policy", &self.policy)
            .field("is_set_up", &is_set_up)
            .finish_non_exhaustive()
    }
}
