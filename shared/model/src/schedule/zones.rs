//! Time zones by name, shared by all schedules and calendars of the process.
//!
//! A [`Zone`] is a slot with the present rules of one zone. [`refresh`] reads the rules of all zones in use again, so a
//! changed time-zone database takes effect without a restart and without parsing any definition again.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::{Arc, Mutex, PoisonError, RwLock};

use jiff::tz::TimeZone;
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::nearest::nearest;

/// The zones in use. There are as many as known names are in use, about 600 at most.
static IN_USE: Mutex<BTreeMap<String, Zone>> = Mutex::new(BTreeMap::new());

/// The name of a time zone that this machine does not know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UnknownZone(String);

impl UnknownZone {
    fn new(name: &str) -> Self {
        Self(name.to_owned())
    }

    /// The name as given.
    pub fn name(&self) -> &str {
        &self.0
    }

    /// The message with the known name that was probably meant. The search compares hundreds of names, which takes about a
    /// millisecond.
    pub fn with_suggestion(&self) -> String {
        let names: Vec<String> = jiff::tz::db().available().map(|n| n.to_string()).collect();
        let hint = nearest(&self.0, names.iter().map(String::as_str))
            .map_or_else(String::new, |near| format!("; did you mean {near:?}?"));
        self.message(&hint)
    }

    fn message(&self, hint: &str) -> String {
        let shown: String = self.0.chars().take(80).collect();
        format!(
            "unknown time zone {shown:?}{hint} (an IANA name such as \"Europe/Berlin\" or \"UTC\" is expected)"
        )
    }
}

impl fmt::Display for UnknownZone {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.message(""))
    }
}

/// A time zone. Clones share its rules.
#[derive(Debug, Clone)]
pub struct Zone(Arc<Slot>);

#[derive(Debug)]
struct Slot {
    name: String,
    rules: RwLock<TimeZone>,
}

/// Two zones are equal if they have the same name.
impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.0.name == other.0.name
    }
}

impl Eq for Zone {}

/// The rules of a zone at one moment, as a number that changes with them.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ZoneDigest {
    /// The IANA name.
    pub name: String,
    /// A hash of the offsets from 1970 to 2100.
    pub digest: i64,
}

impl Zone {
    /// The zone of this IANA name.
    ///
    /// # Errors
    ///
    /// If this machine does not know the name.
    pub fn get(name: &str) -> Result<Self, UnknownZone> {
        let rules = TimeZone::get(name).map_err(|_| UnknownZone::new(name))?;
        let name = rules.iana_name().unwrap_or(name).to_owned();
        let mut in_use = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
        let zone = in_use.entry(name.clone()).or_insert_with(|| {
            let rules = RwLock::new(rules);
            Self(Arc::new(Slot { name, rules }))
        });
        Ok(zone.clone())
    }

    /// UTC.
    pub fn utc() -> Self {
        let rules = RwLock::new(TimeZone::UTC);
        let name = "UTC".to_owned();
        Self::get(&name).unwrap_or_else(|_| Self(Arc::new(Slot { name, rules })))
    }

    /// The IANA name.
    pub fn name(&self) -> &str {
        &self.0.name
    }

    /// Whether this is UTC, whose rules never change.
    pub fn is_utc(&self) -> bool {
        self.0.name == "UTC"
    }

    /// The present rules.
    pub fn rules(&self) -> TimeZone {
        let rules = self.0.rules.read().unwrap_or_else(PoisonError::into_inner);
        rules.clone()
    }

    fn digest(&self) -> ZoneDigest {
        ZoneDigest {
            name: self.0.name.clone(),
            digest: digest(&self.rules()),
        }
    }
}

impl Serialize for Zone {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.serialize_str(self.name())
    }
}

impl<'de> Deserialize<'de> for Zone {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let name = std::borrow::Cow::<'de, str>::deserialize(deserializer)?;
        Self::get(&name).map_err(serde::de::Error::custom)
    }
}

/// Reads the rules of all zones in use, and of `others`, from the machine's database. Returns their digests, sorted by name.
///
/// A zone that the database does not have any more keeps its rules. This reads a small file for each zone, and nothing if
/// there is no zone but UTC.
pub fn refresh(others: &[String]) -> Vec<ZoneDigest> {
    if others.is_empty() && in_use().is_empty() {
        return Vec::new();
    }
    jiff::tz::db().reset();
    for name in others {
        // An unknown name is of a machine with a newer database. No schedule of this process uses it.
        let _ = Zone::get(name);
    }
    let zones = in_use();
    for zone in &zones {
        if let Ok(rules) = TimeZone::get(zone.name()) {
            let mut present = zone.0.rules.write().unwrap_or_else(PoisonError::into_inner);
            *present = rules;
        }
    }
    zones.iter().map(Zone::digest).collect()
}

/// The zones in use whose rules may change, sorted by name.
fn in_use() -> Vec<Zone> {
    let all = IN_USE.lock().unwrap_or_else(PoisonError::into_inner);
    all.values()
        .filter(|zone| !zone.is_utc())
        .cloned()
        .collect()
}

/// FNV-1a over the changes of the clocks. The result is the same on every machine with the same rules.
fn digest(rules: &TimeZone) -> i64 {
    const PRIME: u64 = 0x0000_0100_0000_01b3;
    const YEAR_2100: i64 = 4_102_444_800;
    let mut hash: u64 = 0xcbf2_9ce4_8422_2325;
    let mut add = |value: i64| {
        for byte in value.to_le_bytes() {
            hash = (hash ^ u64::from(byte)).wrapping_mul(PRIME);
        }
    };
    add(i64::from(
        rules.to_offset(jiff::Timestamp::UNIX_EPOCH).seconds(),
    ));
    for change in rules.following(jiff::Timestamp::UNIX_EPOCH) {
        let at = change.timestamp().as_second();
        if at > YEAR_2100 {
            break;
        }
        add(at);
        add(i64::from(change.offset().seconds()));
    }
    hash.cast_signed()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn one_name_is_one_zone() {
        let a = Zone::get("Europe/Berlin").expect("a known zone");
        let b = Zone::get("europe/berlin").expect("a known zone");
        assert_eq!((a.name(), &a), ("Europe/Berlin", &b));
        assert!(Arc::ptr_eq(&a.0, &b.0));
        assert!(Zone::get("Europe/Nowhere").is_err());
    }

    #[test]
    fn other_rules_have_another_digest() {
        let of = |name: &str| digest(&TimeZone::get(name).expect("a known zone"));
        assert_eq!(of("Europe/Berlin"), of("Europe/Berlin"));
        assert_ne!(of("Europe/Berlin"), of("Europe/Lisbon"));
        assert_ne!(of("Asia/Tokyo"), of("Asia/Shanghai"));
    }

    #[test]
    fn a_refresh_covers_the_zones_in_use_and_the_given_ones() {
        Zone::get("Europe/Oslo").expect("a known zone");
        let others = ["America/Lima".to_owned(), "Moon/Base".to_owned()];
        let names: Vec<String> = refresh(&others).into_iter().map(|zone| zone.name).collect();
        for name in ["Europe/Oslo", "America/Lima"] {
            assert!(names.iter().any(|n| n == name), "{name} in {names:?}");
        }
        assert!(
            !names.iter().any(|n| n == "UTC" || n == "Moon/Base"),
            "{names:?}"
        );
    }
}
