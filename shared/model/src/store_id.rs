//! The identity of a store.

use std::fmt;
use std::str::FromStr;

use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

/// Identity of a store: a random number that is made and kept with the store, so all its schedulers share it. A run id
/// is unique only together with the store id, because each store counts from the beginning. Written as 32 hexadecimal
/// digits.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct StoreId(pub u128);

impl StoreId {
    /// The first eight digits, which distinguish a small number of stores.
    pub fn short(self) -> String {
        format!("{:08x}", self.0 >> 96)
    }
}

/// A text that is not a store id.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0:?} is not a store id: 32 hexadecimal digits are expected")]
pub struct NoStoreId(String);

impl fmt::Display for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for StoreId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "StoreId({self})")
    }
}

impl FromStr for StoreId {
    type Err = NoStoreId;

    fn from_str(text: &str) -> Result<Self, NoStoreId> {
        let wrong = || NoStoreId(text.chars().take(64).collect());
        if text.len() != 32 || !text.bytes().all(|b| b.is_ascii_hexdigit()) {
            return Err(wrong());
        }
        u128::from_str_radix(text, 16)
            .map(Self)
            .map_err(|_| wrong())
    }
}

impl Serialize for StoreId {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for StoreId {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        text.parse().map_err(D::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_is_written_and_read_as_digits() {
        let id = StoreId(0x00ab_0000_0000_0000_0000_0000_0000_0001);
        let text = "00ab0000000000000000000000000001";
        assert_eq!(id.to_string(), text);
        assert_eq!(text.parse(), Ok(id));
        assert_eq!(id.short(), "00ab0000");
        let json = serde_json::to_string(&id).expect("writable");
        assert_eq!(json, format!("{text:?}"));
        assert_eq!(
            serde_json::from_str::<StoreId>(&json).expect("readable"),
            id
        );
        for wrong in ["", "ab", "+0ab0000000000000000000000000001", "é"] {
            assert!(wrong.parse::<StoreId>().is_err(), "{wrong}");
        }
    }
}
