//! The keys of a scheduler: one for each group that has its own, and one for all other groups.

use std::borrow::BorrowMut;
use std::collections::BTreeMap;

use cueline_model::GroupName;

use crate::message::Trigger;
use crate::sign::{SigningKey, sign_all};

/// The keys with which a scheduler signs the triggers of each group.
///
/// A group with a key of its own is out of reach for the holder of another key, if its workers trust that key alone.
#[derive(Debug, Clone)]
pub struct SigningKeys {
    default: SigningKey,
    groups: BTreeMap<GroupName, SigningKey>,
}

impl From<SigningKey> for SigningKeys {
    /// The same key for all groups.
    fn from(default: SigningKey) -> Self {
        Self {
            default,
            groups: BTreeMap::new(),
        }
    }
}

impl SigningKeys {
    /// Signs the triggers of `group` with `key`, in place of the key that it had.
    #[must_use]
    pub fn with_group(mut self, group: GroupName, key: SigningKey) -> Self {
        self.groups.insert(group, key);
        self
    }

    /// The key of a group.
    pub fn of(&self, group: &GroupName) -> &SigningKey {
        self.groups.get(group).unwrap_or(&self.default)
    }

    /// Signs triggers in batches, each with the key of its group. Returns the messages to publish, in the same order.
    pub fn sign_all<T: BorrowMut<Trigger>>(&self, triggers: &mut [T]) -> Vec<Vec<u8>> {
        sign_all(triggers, |trigger| self.of(&trigger.group))
    }
}
