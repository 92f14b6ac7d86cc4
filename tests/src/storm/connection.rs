//! A member's connections to one server or to all servers of a cluster, through proxies that a fault can disturb.

use std::net::SocketAddr;
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use anyhow::{Context as _, Result};
use cueline_test_servers::proxy::{Link, Proxy};
use tokio::time::sleep;

/// A member's connections to one server, or to one cluster. Faults may overlap, so each adds its link and removes only
/// that one.
#[derive(Debug)]
pub struct Connection {
    proxies: Vec<Proxy>,
    links: Mutex<Vec<Link>>,
}

impl Connection {
    /// Puts a proxy in front of each server. The address for the member names all of them, separated by commas.
    pub fn with_proxies(urls: &[String]) -> Result<(Arc<Self>, String)> {
        let (mut proxies, mut behind) = (Vec::new(), Vec::new());
        for url in urls {
            let proxy = Proxy::start(server_of(url)?)?;
            behind.push(replaced(url, &proxy)?);
            proxies.push(proxy);
        }
        Ok((Self::through(proxies), behind.join(",")))
    }

    /// Puts one proxy in front of all servers, as a load balancer. `first` is the server of the first connection.
    pub fn with_balancer(urls: &[String], first: usize) -> Result<(Arc<Self>, String)> {
        let url = urls.first().context("a cluster has a server")?;
        let mut servers: Vec<SocketAddr> = urls
            .iter()
            .map(|url| server_of(url))
            .collect::<Result<_>>()?;
        servers.rotate_left(first % urls.len());
        let proxy = Proxy::balancing(servers)?;
        let behind = replaced(url, &proxy)?;
        Ok((Self::through(vec![proxy]), behind))
    }

    fn through(proxies: Vec<Proxy>) -> Arc<Self> {
        Arc::new(Self {
            proxies,
            links: Mutex::default(),
        })
    }

    /// Begins a fault.
    fn disturb(&self, link: Link) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        links.push(link);
        self.set(link);
    }

    /// Ends a fault that began with this link. The connection heals when no other fault is left.
    fn heal(&self, link: Link) {
        let mut links = self.links.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(at) = links.iter().position(|active| *active == link) {
            links.remove(at);
        }
        self.set(links.last().copied().unwrap_or(Link::Whole));
    }

    fn set(&self, link: Link) {
        for proxy in &self.proxies {
            proxy.set(link);
        }
    }
}

/// Disturbs connections for this time.
pub async fn disconnect(connections: &[Arc<Connection>], duration: Duration, link: Link) {
    for connection in connections {
        connection.disturb(link);
    }
    sleep(duration).await;
    for connection in connections {
        connection.heal(link);
    }
}

/// The address with the server replaced by the proxy.
fn replaced(url: &str, proxy: &Proxy) -> Result<String> {
    Ok(url.replacen(host_and_port(url)?, &proxy.addr().to_string(), 1))
}

fn host_and_port(url: &str) -> Result<&str> {
    let rest = url.split_once("://").context("an address has a scheme")?.1;
    let authority = rest.split(['/', '?']).next().unwrap_or(rest);
    Ok(authority
        .rsplit_once('@')
        .map_or(authority, |(_, host)| host))
}

fn server_of(url: &str) -> Result<SocketAddr> {
    let addr = host_and_port(url)?.replace("localhost", "127.0.0.1");
    addr.parse()
        .with_context(|| format!("not an address: {addr}"))
}
