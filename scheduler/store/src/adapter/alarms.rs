//! Alarms: rules, channels and silences, in one table. Pure, but for the cache.

use std::sync::{Arc, Mutex, PoisonError};

use cueline_model::alarm::Stored;
use cueline_model::{
    AlarmBook, AlarmChannel, AlarmRule, AlarmSilence, ChannelName, Namespace, Timestamp,
};

use super::convert::corrupt;
use crate::{
    AlarmDefinition, AlarmName, Change, ErrorKind, MAX_CHANNELS_OF_NAMESPACE,
    MAX_RULES_OF_NAMESPACE, MAX_SILENCES_OF_NAMESPACE, Precondition, Revision, StoreError,
};

/// The codes of definitions in stores.
pub const RULE: i64 = 1;
/// A channel.
pub const CHANNEL: i64 = 2;
/// A silence.
pub const SILENCE: i64 = 3;

/// A definition as stored: id, kind, name, version, JSON. Silences have an empty name.
pub type DefinitionRow = (i64, i64, String, i64, String);

/// Keeps the definitions, which change rarely.
#[derive(Debug, Default)]
pub struct BookCache(Mutex<Option<Arc<AlarmBook>>>);

impl BookCache {
    /// The cached definitions, if they have this revision.
    pub fn exactly(&self, revision: i64) -> Option<Arc<AlarmBook>> {
        let cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        cached.clone().filter(|book| book.revision == revision)
    }

    /// Keeps committed definitions.
    pub fn keep(&self, book: &Arc<AlarmBook>) {
        let mut cached = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *cached = Some(Arc::clone(book));
    }

    /// Forgets the definitions, because the database may issue their revisions again.
    pub fn clear(&self) {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// Reads definitions. One that this program cannot read is left out. It stops nothing else.
pub fn parse_book(revision: i64, rows: Vec<DefinitionRow>) -> AlarmBook {
    let mut book = AlarmBook {
        revision,
        ..AlarmBook::default()
    };
    for (id, kind, name, version, text) in rows {
        let read = match kind {
            RULE => push(&mut book.rules, id, version, &text),
            CHANNEL => push(&mut book.channels, id, version, &text),
            SILENCE => push(&mut book.silences, id, version, &text),
            _ => Ok(()),
        };
        if let Err(error) = read {
            tracing::error!(id, name, %error, "failed to read an alarm definition; it has no effect at this node. Upgrade the node, or write the definition again");
        }
    }
    book
}

fn push<T: serde::de::DeserializeOwned>(
    list: &mut Vec<Stored<T>>,
    id: i64,
    version: i64,
    text: &str,
) -> Result<(), serde_json::Error> {
    let spec = serde_json::from_str(text)?;
    list.push(Stored { id, version, spec });
    Ok(())
}

/// The change of one definition.
#[derive(Debug)]
pub struct DefinitionChange {
    /// Its kind.
    pub kind: i64,
    /// Its qualified name.
    pub name: String,
    /// Its namespace.
    pub namespace: Namespace,
    /// Its text.
    pub text: String,
    /// It before: id, version and text.
    pub before: Option<(i64, i64, String)>,
    /// What happens.
    pub change: Change,
}

fn key(name: &AlarmName) -> (i64, &str, Namespace) {
    match name {
        AlarmName::Rule(name) => (RULE, name.as_str(), name.namespace()),
        AlarmName::Channel(name) => (CHANNEL, name.as_str(), name.namespace()),
    }
}

fn find(rows: &[DefinitionRow], kind: i64, name: &str) -> Option<(i64, i64, String)> {
    let mut rows = rows.iter();
    let row = rows.find(|row| row.1 == kind && row.2 == name)?;
    Some((row.0, row.3, row.4.clone()))
}

fn revision((id, version, _): &(i64, i64, String)) -> Revision {
    Revision {
        id: *id,
        version: *version,
    }
}

/// Decides what the change of a definition does.
///
/// # Errors
///
/// As [`AlarmStore::put_alarm`](crate::AlarmStore::put_alarm).
pub fn change_definition(
    definition: &AlarmDefinition,
    rows: &[DefinitionRow],
    condition: &Precondition,
) -> Result<DefinitionChange, StoreError> {
    let (name, text, most) = match definition {
        AlarmDefinition::Rule(rule) => {
            require_channels(rule, rows)?;
            let name = AlarmName::Rule(rule.name.clone());
            (name, serde_json::to_string(rule), MAX_RULES_OF_NAMESPACE)
        }
        AlarmDefinition::Channel(channel) => {
            let name = AlarmName::Channel(channel.name.clone());
            (
                name,
                serde_json::to_string(channel),
                MAX_CHANNELS_OF_NAMESPACE,
            )
        }
    };
    let text = text.map_err(|e| corrupt("failed to write an alarm definition", e))?;
    let (kind, name, namespace) = key(&name);
    let before = find(rows, kind, name);
    let what = if kind == RULE {
        "change the alarm rule"
    } else {
        "change the alarm channel"
    };
    condition.require(what, name, before.as_ref().map(revision))?;
    let change = match &before {
        None => {
            let present = rows.iter().filter(|row| row.1 == kind);
            let present = present.filter(|row| is_in(&row.2, &namespace)).count();
            if present >= most {
                return Err(StoreError::new(
                    ErrorKind::Conflict,
                    format!(
                        "failed to {what}: namespace {namespace} has {present}; at most {most} are kept. Delete some"
                    ),
                ));
            }
            Change::Created
        }
        Some((_, _, old)) if means_the_same(definition, old) => Change::Unchanged,
        Some(_) => Change::Updated,
    };
    Ok(DefinitionChange {
        kind,
        name: name.to_owned(),
        namespace,
        text,
        before,
        change,
    })
}

fn means_the_same(definition: &AlarmDefinition, old: &str) -> bool {
    match definition {
        AlarmDefinition::Rule(rule) => {
            serde_json::from_str::<AlarmRule>(old).is_ok_and(|old| old == *rule)
        }
        AlarmDefinition::Channel(channel) => {
            serde_json::from_str::<AlarmChannel>(old).is_ok_and(|old| old == *channel)
        }
    }
}

fn is_in(name: &str, namespace: &Namespace) -> bool {
    name.parse::<ChannelName>()
        .is_ok_and(|name| name.is_in(namespace))
}

/// The channels of a rule must exist.
fn require_channels(rule: &AlarmRule, rows: &[DefinitionRow]) -> Result<(), StoreError> {
    let namespace = rule.name.namespace();
    for channel in &rule.channels {
        let known = ChannelName::in_namespace(&namespace, channel)
            .ok()
            .and_then(|name| find(rows, CHANNEL, name.as_str()));
        if known.is_none() {
            return Err(StoreError::new(
                ErrorKind::Conflict,
                format!(
                    "failed to change the alarm rule: there is no alarm channel {channel:?}; create it first"
                ),
            ));
        }
    }
    Ok(())
}

/// The definition to delete: id and text.
///
/// # Errors
///
/// As [`AlarmStore::delete_alarm`](crate::AlarmStore::delete_alarm).
pub fn definition_to_delete(
    name: &AlarmName,
    rows: &[DefinitionRow],
    condition: &Precondition,
) -> Result<(i64, String), StoreError> {
    let (kind, text, namespace) = key(name);
    let what = if kind == RULE {
        "alarm rule"
    } else {
        "alarm channel"
    };
    let found = find(rows, kind, text);
    let Some(found) = found else {
        let message = format!("there is no {what} {text:?}");
        return Err(StoreError::new(ErrorKind::NotFound, message));
    };
    condition.require(&format!("delete the {what}"), text, Some(revision(&found)))?;
    if let AlarmName::Channel(channel) = name {
        let rules = rows.iter().filter(|row| row.1 == RULE);
        let rules = rules.filter_map(|row| serde_json::from_str::<AlarmRule>(&row.4).ok());
        let users: Vec<String> = rules
            .filter(|rule| rule.name.is_in(&namespace))
            .filter(|rule| rule.channels.iter().any(|own| own == channel.local()))
            .map(|rule| rule.name.local().to_owned())
            .collect();
        if !users.is_empty() {
            let users = users.join(", ");
            return Err(StoreError::new(
                ErrorKind::Conflict,
                format!("failed to delete the alarm channel: it is used by the rules {users}"),
            ));
        }
    }
    Ok((found.0, found.2))
}

/// The namespace and the text of a definition's name, and the word for it in the audit log.
pub fn audit_name(name: &AlarmName) -> (&'static str, &str, Namespace) {
    let (kind, text, namespace) = key(name);
    (audit_word(kind), text, namespace)
}

/// The word for a kind in the audit log.
pub const fn audit_word(kind: i64) -> &'static str {
    match kind {
        RULE => "alarm_rule",
        CHANNEL => "alarm_channel",
        _ => "alarm_silence",
    }
}

/// The silences to delete before another one is added: those of the namespace that are over, if there is no room.
///
/// # Errors
///
/// [`ErrorKind::Conflict`] if there is no room without them.
pub fn room_for_silence(
    book: &AlarmBook,
    namespace: &Namespace,
    now: Timestamp,
) -> Result<Vec<i64>, StoreError> {
    let own = || {
        book.silences
            .iter()
            .filter(|s| s.spec.namespace == *namespace)
    };
    if own().count() < MAX_SILENCES_OF_NAMESPACE {
        return Ok(Vec::new());
    }
    let over: Vec<i64> = own()
        .filter(|s| s.spec.until <= now)
        .map(|s| s.id)
        .collect();
    if over.is_empty() {
        return Err(StoreError::new(
            ErrorKind::Conflict,
            format!(
                "failed to begin the silence: namespace {namespace} has {MAX_SILENCES_OF_NAMESPACE} that are not over; end some"
            ),
        ));
    }
    Ok(over)
}

/// The silence of a namespace that a person ends.
///
/// # Errors
///
/// [`ErrorKind::NotFound`] if there is none.
pub fn silence_to_end<'a>(
    book: &'a AlarmBook,
    namespace: &Namespace,
    id: i64,
) -> Result<&'a AlarmSilence, StoreError> {
    let mut silences = book.silences.iter();
    let found = silences.find(|s| s.id == id && s.spec.namespace == *namespace);
    found.map(|silence| &silence.spec).ok_or_else(|| {
        let message = format!("there is no silence {id}");
        StoreError::new(ErrorKind::NotFound, message)
    })
}
