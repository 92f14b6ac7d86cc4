//! The ports of a page, and those that a test uses in their place.

use std::collections::BTreeMap;

/// Pairs of ports: that of the page, and that of the test.
#[derive(Debug, Default)]
pub struct Ports(BTreeMap<u16, u16>);

impl Ports {
    /// Uses `real` in place of the page's port `printed`.
    pub fn set(&mut self, printed: u16, real: u16) {
        self.0.insert(printed, real);
    }

    /// The port that is used in place of the page's. Its own, if no other is set.
    pub fn real(&self, printed: u16) -> u16 {
        self.0.get(&printed).copied().unwrap_or(printed)
    }

    /// A text of the page with the ports of the test.
    pub fn to_real(&self, text: &str) -> String {
        replaced(text, |port| self.0.get(&port).copied())
    }

    /// An output of the test with the ports of the page.
    pub fn to_printed(&self, text: &str) -> String {
        replaced(text, |port| {
            let found = self.0.iter().find(|(_, real)| **real == port);
            found.map(|(printed, _)| *printed)
        })
    }
}

/// Replaces whole numbers only: `78001` is not the port 7800.
fn replaced(text: &str, other: impl Fn(u16) -> Option<u16>) -> String {
    let mut result = String::with_capacity(text.len());
    let mut rest = text;
    while let Some(start) = rest.find(|c: char| c.is_ascii_digit()) {
        let (before, from) = rest.split_at(start);
        let end = from.find(|c: char| !c.is_ascii_digit());
        let (number, after) = from.split_at(end.unwrap_or(from.len()));
        result.push_str(before);
        match number.parse().ok().and_then(&other) {
            Some(port) => result.push_str(&port.to_string()),
            None => result.push_str(number),
        }
        rest = after;
    }
    result.push_str(rest);
    result
}

#[cfg(test)]
mod tests {
    use super::Ports;

    #[test]
    fn ports_are_replaced_as_whole_numbers_in_both_directions() {
        let mut ports = Ports::default();
        ports.set(7800, 21_234);
        ports.set(7801, 7800);
        let page = "http://127.0.0.1:7800 127.0.0.1-7801 78001 17800 (7801)";
        let real = "http://127.0.0.1:21234 127.0.0.1-7800 78001 17800 (7800)";
        assert_eq!(ports.to_real(page), real);
        assert_eq!(ports.to_printed(real), page);
        assert_eq!((ports.real(7800), ports.real(22)), (21_234, 22));
    }
}
