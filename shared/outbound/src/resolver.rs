//! Resolves names to permitted addresses.

use std::net::SocketAddr;
use std::sync::Arc;

use reqwest::dns::{Addrs, Name, Resolve, Resolving};

use crate::policy::{AddressPolicy, RefusedAddress};

/// The most addresses of one name that are looked at.
const MAX_ADDRESSES: usize = 64;

/// Resolves names by the system's rules.
#[derive(Debug, Clone, Copy)]
pub struct SystemResolver;

impl Resolve for SystemResolver {
    fn resolve(&self, name: Name) -> Resolving {
        Box::pin(async move {
            let found = tokio::net::lookup_host((name.as_str(), 0)).await?;
            let addresses: Vec<SocketAddr> = found.collect();
            Ok(Box::new(addresses.into_iter()) as Addrs)
        })
    }
}

/// Gives the client only permitted addresses. The client connects to these and asks for no others, so another answer of
/// the name server after the check has no effect.
pub(crate) struct PolicyResolver {
    /// What resolves names.
    pub(crate) names: Arc<dyn Resolve>,
    /// Which addresses are permitted.
    pub(crate) policy: Arc<AddressPolicy>,
}

impl Resolve for PolicyResolver {
    fn resolve(&self, name: Name) -> Resolving {
        let (host, policy) = (name.as_str().to_owned(), Arc::clone(&self.policy));
        let resolving = self.names.resolve(name);
        Box::pin(async move {
            let addresses = resolving.await?.take(MAX_ADDRESSES);
            let permitted = permitted(&host, addresses, &policy)?;
            Ok(Box::new(permitted.into_iter()) as Addrs)
        })
    }
}

/// The permitted ones among the addresses of `host`.
///
/// # Errors
///
/// If all are refused, the refusal of the first.
pub fn permitted(
    host: &str,
    addresses: impl Iterator<Item = SocketAddr>,
    policy: &AddressPolicy,
) -> Result<Vec<SocketAddr>, RefusedAddress> {
    let mut permitted = Vec::new();
    let mut first_refusal = None;
    for address in addresses {
        match policy.check(address.ip()) {
            Ok(()) => permitted.push(address),
            Err(refused) => {
                first_refusal.get_or_insert(refused);
            }
        }
    }
    match first_refusal {
        Some(refused) if permitted.is_empty() => Err(refused.of_host(host)),
        _ => Ok(permitted),
    }
}
