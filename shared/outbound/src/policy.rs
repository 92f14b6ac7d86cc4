//! Which addresses HTTP jobs and alarms may reach. Pure.

use std::fmt;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{IpNet, Ipv4Net, Ipv6Net};

/// A network with its usual name.
type Named = (IpNet, &'static str);

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> IpNet {
    IpNet::V4(Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix))
}

const fn v6(first: u16, second: u16, third: u16, last: u16, prefix: u8) -> IpNet {
    let address = Ipv6Addr::new(first, second, third, 0, 0, 0, 0, last);
    IpNet::V6(Ipv6Net::new_assert(address, prefix))
}

/// What is no address of one machine. A system may take some of these for itself.
static UNUSABLE: [Named; 5] = [
    (v4(0, 0, 0, 0, 8), "unspecified"),
    (v6(0, 0, 0, 0, 128), "unspecified"),
    (v4(224, 0, 0, 0, 4), "multicast"),
    (v6(0xff00, 0, 0, 0, 8), "multicast"),
    (v4(255, 255, 255, 255, 32), "broadcast"),
];

/// Services on these addresses give out the credentials of a machine to every process on it.
static RESERVED: [Named; 7] = [
    (
        v4(169, 254, 0, 0, 16),
        "link-local and cloud metadata addresses",
    ),
    (v6(0xfe80, 0, 0, 0, 10), "link-local addresses"),
    (v6(0xfd00, 0xec2, 0, 0, 32), "AWS metadata addresses"),
    (
        v6(0xfd20, 0xce, 0, 0x254, 128),
        "the Google Cloud metadata address",
    ),
    (
        v4(100, 100, 100, 200, 32),
        "the Alibaba Cloud metadata address",
    ),
    (v4(192, 0, 0, 192, 32), "the Oracle Cloud metadata address"),
    (v4(168, 63, 129, 16, 32), "the Azure platform address"),
];

/// Which addresses HTTP jobs and alarms may reach.
///
/// Unspecified, multicast and broadcast addresses are always refused. After that, the first of these rules decides:
///
/// 1. An address in a network of `deny` is refused.
/// 2. Link-local and cloud metadata addresses are refused unless `allow` names the address, or a network among them
///    that contains it. `0.0.0.0/0` does not permit them.
/// 3. With an empty `allow`, every other address is permitted. Otherwise those in a network of `allow` are.
///
/// An IPv4-mapped IPv6 address counts as its IPv4 address. A NAT64 (`64:ff9b::/96`) or 6to4 (`2002::/16`) address is also
/// refused if the first two rules refuse the IPv4 address in it.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct AddressPolicy {
    allow: Vec<IpNet>,
    deny: Vec<IpNet>,
}

impl AddressPolicy {
    /// A policy with these networks. Empty lists permit all but link-local and metadata addresses.
    pub fn new(
        allow: impl IntoIterator<Item = IpNet>,
        deny: impl IntoIterator<Item = IpNet>,
    ) -> Self {
        Self {
            allow: allow.into_iter().map(canonical).collect(),
            deny: deny.into_iter().map(canonical).collect(),
        }
    }

    /// Whether the address may be reached.
    ///
    /// # Errors
    ///
    /// [`RefusedAddress`] names the rule that refuses it.
    pub fn check(&self, address: IpAddr) -> Result<(), RefusedAddress> {
        let address = address.to_canonical();
        let refused = |effective, rule| RefusedAddress {
            address,
            effective,
            host: None,
            rule,
        };
        for effective in [Some(address), carried_v4(address)].into_iter().flatten() {
            if let Some(rule) = self.denied_by(effective) {
                return Err(refused(effective, rule));
            }
        }
        if self.allow.is_empty() || contains(&self.allow, address).is_some() {
            return Ok(());
        }
        Err(refused(address, Rule::NotAllowed))
    }

    fn denied_by(&self, address: IpAddr) -> Option<Rule> {
        if let Some((_, name)) = UNUSABLE.iter().find(|(net, _)| net.contains(&address)) {
            return Some(Rule::Unusable(name));
        }
        if let Some(net) = contains(&self.deny, address) {
            return Some(Rule::Denied(net));
        }
        let (net, name) = RESERVED.iter().find(|(net, _)| net.contains(&address))?;
        let is_named = |allowed: &IpNet| net.contains(allowed) && allowed.contains(&address);
        let rule = Rule::Reserved(*net, name);
        (!self.allow.iter().any(is_named)).then_some(rule)
    }
}

fn contains(nets: &[IpNet], address: IpAddr) -> Option<IpNet> {
    nets.iter().find(|net| net.contains(&address)).copied()
}

/// The network as addresses are compared with it: without host bits, and IPv4 instead of IPv4-mapped IPv6.
fn canonical(net: IpNet) -> IpNet {
    if let IpNet::V6(v6) = net
        && let Some(prefix) = v6.prefix_len().checked_sub(96)
        && let Some(address) = v6.addr().to_ipv4_mapped()
    {
        return IpNet::V4(Ipv4Net::new_assert(address, prefix)).trunc();
    }
    net.trunc()
}

/// The IPv4 address that a NAT64 gateway (RFC 6052) or a 6to4 router (RFC 3056) makes of an IPv6 address.
fn carried_v4(address: IpAddr) -> Option<IpAddr> {
    let IpAddr::V6(address) = address else {
        return None;
    };
    let ([0x64, 0xff9b, 0, 0, 0, 0, high, low] | [0x2002, high, low, ..]) = address.segments()
    else {
        return None;
    };
    let bits = (u32::from(high) << 16) | u32::from(low);
    Some(Ipv4Addr::from_bits(bits).into())
}

/// An address that [`AddressPolicy`] refuses. The message names the address, the rule and the setting.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RefusedAddress {
    address: IpAddr,
    /// The address that the rule is about. It differs from `address` if that one carries it.
    effective: IpAddr,
    /// The name that was resolved to the address.
    host: Option<String>,
    rule: Rule,
}

impl RefusedAddress {
    /// Adds the name that was resolved to the address.
    #[must_use]
    pub fn of_host(mut self, host: &str) -> Self {
        self.host = Some(host.to_owned());
        self
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Rule {
    Unusable(&'static str),
    Denied(IpNet),
    Reserved(IpNet, &'static str),
    NotAllowed,
}

impl std::error::Error for RefusedAddress {}

impl fmt::Display for RefusedAddress {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "address {}", self.address)?;
        if self.effective != self.address {
            write!(f, " (it carries {})", self.effective)?;
        }
        if let Some(host) = &self.host {
            write!(f, " of {host}")?;
        }
        match self.rule {
            Rule::Unusable(name) => {
                write!(f, " is refused: it is {name}, and no setting permits that")
            }
            Rule::Denied(net) => write!(f, " is refused: http_deny of this process has {net}"),
            Rule::Reserved(net, name) => write!(
                f,
                " is refused: {net} has {name}; http_allow of this process must name the address to permit it"
            ),
            Rule::NotAllowed => write!(
                f,
                " is refused: no network in http_allow of this process contains it"
            ),
        }
    }
}

/// Parses a network such as `10.0.0.0/8`, or one address.
///
/// # Errors
///
/// What was given and what is expected, for a message about a setting.
pub fn parse_network(text: &str) -> Result<IpNet, String> {
    if let Ok(address) = text.parse::<IpAddr>() {
        return Ok(IpNet::from(address));
    }
    let net: IpNet = text.parse().map_err(|_| {
        format!(
            "{text:?} given; a network such as 10.0.0.0/8 or fd00::/8, or one address is expected"
        )
    })?;
    if net.trunc() != net {
        return Err(format!(
            "{text:?} given: the address has bits beyond the prefix; {} is expected",
            net.trunc()
        ));
    }
    Ok(net)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn policy(allow: &[&str], deny: &[&str]) -> AddressPolicy {
        let nets = |texts: &[&str]| -> Vec<IpNet> {
            let nets = texts.iter().map(|text| parse_network(text));
            nets.collect::<Result<_, _>>().expect("networks")
        };
        AddressPolicy::new(nets(allow), nets(deny))
    }

    fn refusal(policy: &AddressPolicy, address: &str) -> Option<String> {
        let address = address.parse().expect("an address");
        policy
            .check(address)
            .err()
            .map(|refused| refused.to_string())
    }

    #[test]
    fn internal_addresses_are_permitted_by_default() {
        for address in [
            "127.0.0.1",
            "::1",
            "10.1.2.3",
            "192.168.0.1",
            "100.100.100.201",
            "93.184.216.34",
            "fd00::1",
            "2001:db8::1",
            "::ffff:10.0.0.1",
            "64:ff9b::a00:1",
        ] {
            assert_eq!(
                refusal(&AddressPolicy::default(), address),
                None,
                "{address}"
            );
        }
    }

    #[test]
    fn metadata_and_link_local_addresses_are_refused_by_default() {
        for address in [
            "169.254.169.254",
            "169.254.170.2",
            "::ffff:169.254.169.254",
            "64:ff9b::a9fe:a9fe",
            "2002:a9fe:a9fe::1",
            "fe80::1",
            "fd00:ec2::254",
            "fd20:ce::254",
            "100.100.100.200",
            "192.0.0.192",
            "168.63.129.16",
        ] {
            for policy in [
                AddressPolicy::default(),
                policy(&["0.0.0.0/0", "::/0"], &[]),
            ] {
                let text = refusal(&policy, address).expect("refused");
                assert!(text.contains("http_allow of this process"), "{text}");
            }
        }
        assert_eq!(
            refusal(&AddressPolicy::default(), "64:ff9b::a9fe:a9fe").as_deref(),
            Some(
                "address 64:ff9b::a9fe:a9fe (it carries 169.254.169.254) is refused: 169.254.0.0/16 has link-local and \
                 cloud metadata addresses; http_allow of this process must name the address to permit it"
            )
        );
    }

    #[test]
    fn no_setting_permits_what_is_no_address_of_a_machine() {
        let all = policy(&["0.0.0.0/0", "::/0", "0.0.0.0", "::", "224.0.0.1"], &[]);
        for address in [
            "0.0.0.0",
            "0.1.2.3",
            "::",
            "::ffff:0.0.0.0",
            "224.0.0.1",
            "ff02::1",
            "255.255.255.255",
        ] {
            let text = refusal(&all, address).expect("refused");
            assert!(text.ends_with("no setting permits that"), "{text}");
        }
    }

    #[test]
    fn deny_goes_before_allow() {
        let policy = policy(&["10.0.0.0/8", "169.254.10.0/24"], &["10.9.0.0/16"]);
        assert_eq!(refusal(&policy, "10.1.0.1"), None);
        assert_eq!(refusal(&policy, "::ffff:10.1.0.1"), None);
        assert_eq!(refusal(&policy, "169.254.10.7"), None);
        for (address, reason) in [
            ("10.9.0.1", "http_deny of this process has 10.9.0.0/16"),
            (
                "::ffff:10.9.0.1",
                "http_deny of this process has 10.9.0.0/16",
            ),
            (
                "64:ff9b::a09:1",
                "http_deny of this process has 10.9.0.0/16",
            ),
            ("11.0.0.1", "no network in http_allow of this process"),
            ("::1", "no network in http_allow of this process"),
            ("169.254.11.1", "169.254.0.0/16 has link-local"),
        ] {
            let text = refusal(&policy, address).expect("refused");
            assert!(text.contains(reason), "{address}: {text}");
        }
    }

    #[test]
    fn a_mapped_network_is_its_ipv4_network() {
        let policy = policy(&[], &["::ffff:10.0.0.0/104"]);
        assert!(refusal(&policy, "10.1.2.3").is_some());
        assert_eq!(refusal(&policy, "11.1.2.3"), None);
    }

    #[test]
    fn networks_are_parsed() {
        for (text, net) in [
            ("10.0.0.0/8", "10.0.0.0/8"),
            ("10.0.0.1", "10.0.0.1/32"),
            ("::1", "::1/128"),
            ("fd00::/8", "fd00::/8"),
        ] {
            assert_eq!(
                parse_network(text).map(|net| net.to_string()),
                Ok(net.into())
            );
        }
        for (text, expected) in [
            ("10.0.0.1/8", "10.0.0.0/8 is expected"),
            ("10.0.0.0/33", "a network such as 10.0.0.0/8"),
            ("db.internal", "a network such as 10.0.0.0/8"),
            ("10.0.0.0-10.0.0.9", "a network such as 10.0.0.0/8"),
            ("", "a network such as 10.0.0.0/8"),
        ] {
            let error = parse_network(text).expect_err("refused");
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
