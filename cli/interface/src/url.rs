//! Addresses of servers. Pure.

use std::net::IpAddr;

use reqwest::Url;

use crate::failure::Failure;

/// Parses a server's address.
pub fn base_url(text: &str) -> Result<Url, Failure> {
    let refuse = |why: &str| {
        Failure::bad_input(format!(
            "url: {text:?} {why}; write it as http://127.0.0.1:7800"
        ))
    };
    let url = Url::parse(text).map_err(|error| refuse(&format!("is not an address ({error})")))?;
    if !matches!(url.scheme(), "http" | "https") || !url.has_host() {
        return Err(refuse("is neither http nor https"));
    }
    if url.query().is_some() || url.fragment().is_some() {
        return Err(refuse("has a query or a fragment"));
    }
    Ok(url)
}

/// Whether the address is one of this machine.
pub fn is_loopback(url: &Url) -> bool {
    match url.host_str() {
        Some("localhost") => true,
        Some(host) => host
            .trim_matches(['[', ']'])
            .parse::<IpAddr>()
            .is_ok_and(|ip| ip.is_loopback()),
        None => false,
    }
}

/// Whether others on the way to the server could read what is sent to it.
pub fn is_readable_on_the_way(url: &Url) -> bool {
    url.scheme() != "https" && !is_loopback(url)
}

#[cfg(test)]
mod tests {
    use super::{base_url, is_readable_on_the_way};

    #[test]
    fn http_to_another_machine_is_readable_on_the_way() {
        for (url, is_readable) in [
            ("https://a.example", false),
            ("http://127.0.0.1:7800", false),
            ("http://[::1]:7800", false),
            ("http://localhost", false),
            ("http://a.example", true),
            ("http://localhost.example", true),
            ("http://127.0.0.1.example", true),
            ("http://10.0.0.1", true),
        ] {
            let url = base_url(url).expect("an address");
            assert_eq!(is_readable_on_the_way(&url), is_readable, "{url}");
        }
    }
}
