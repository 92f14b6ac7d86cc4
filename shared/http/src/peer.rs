//! Where a request comes from.

use std::convert::Infallible;
use std::fmt;
use std::net::{IpAddr, Ipv6Addr};

use axum::extract::FromRequestParts;
use axum::http::request::Parts;

/// The other end of a connection.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum PeerAddress {
    /// A client on the network.
    Ip(IpAddr),
    /// A process on this machine, over the Unix socket.
    Socket,
    /// Not known: the client has gone, or another server has accepted the connection.
    Unknown,
}

impl PeerAddress {
    /// A client with this address. An IPv4 address inside an IPv6 one counts as the IPv4 address.
    pub fn of(address: IpAddr) -> Self {
        Self::Ip(address.to_canonical())
    }

    /// The network that one client has for itself: an IPv4 address, or the first 64 bits of an IPv6 address.
    #[must_use]
    pub fn network(self) -> Self {
        match self {
            Self::Ip(IpAddr::V6(address)) => {
                let [a, b, c, d, ..] = address.segments();
                Self::Ip(Ipv6Addr::new(a, b, c, d, 0, 0, 0, 0).into())
            }
            other => other,
        }
    }
}

/// The address, `socket` or `unknown`.
impl fmt::Display for PeerAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Ip(address) => address.fmt(f),
            Self::Socket => f.write_str("socket"),
            Self::Unknown => f.write_str("unknown"),
        }
    }
}

/// The connection of a request. Each request has it as an extension.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer {
    /// The other end.
    pub address: PeerAddress,
    /// Whether the connection has TLS.
    pub has_tls: bool,
}

impl Peer {
    /// Of a request whose connection is not known.
    pub const UNKNOWN: Self = Self {
        address: PeerAddress::Unknown,
        has_tls: false,
    };
}

impl<S: Send + Sync> FromRequestParts<S> for Peer {
    type Rejection = Infallible;

    async fn from_request_parts(parts: &mut Parts, _: &S) -> Result<Self, Infallible> {
        Ok(parts.extensions.get().copied().unwrap_or(Self::UNKNOWN))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer(text: &str) -> PeerAddress {
        PeerAddress::of(text.parse().expect("an address"))
    }

    #[test]
    fn an_address_is_shown_without_its_port_and_in_one_form() {
        assert_eq!(peer("::ffff:10.0.0.1").to_string(), "10.0.0.1");
        assert_eq!(PeerAddress::Socket.to_string(), "socket");
    }

    #[test]
    fn addresses_of_one_ipv6_network_count_as_one() {
        assert_eq!(peer("2001:db8::1").network(), peer("2001:db8::2").network());
        assert_ne!(
            peer("2001:db8::1").network(),
            peer("2001:db8:0:1::1").network()
        );
        assert_ne!(peer("10.0.0.1").network(), peer("10.0.0.2").network());
    }
}
