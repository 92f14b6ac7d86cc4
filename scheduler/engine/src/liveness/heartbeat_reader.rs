//! Reads heartbeats, and verifies that their executors have sent them just now.

use std::sync::Arc;

use cueline_broker::Announcement;
use cueline_model::{Heartbeat, Timestamp};
use cueline_protocol::origin::Purpose;
use cueline_protocol::{HeartbeatMessage, decode};
use tokio::time::Instant;

use crate::origin::claims::Claims;
use crate::origin::forged::Forged;
use crate::origin::forged_messages::{ForgedKind, ForgedMessages};
use crate::origin::heartbeat_order::{Arrival, HeartbeatOrder};
use crate::origin::origins::{Opened, Origins};

pub(crate) struct HeartbeatReader {
    pub(crate) origins: Origins,
    pub(crate) forged: Arc<ForgedMessages>,
    /// Claims of executors whose keys are not enrolled.
    pub(crate) claims: Arc<Claims>,
    pub(crate) order: HeartbeatOrder,
}

impl HeartbeatReader {
    /// The heartbeat in this message. `None` if it does not count. Its claims are kept.
    pub(crate) fn read(
        &mut self,
        announcement: &Announcement,
        now: Timestamp,
    ) -> Option<HeartbeatMessage> {
        let opened = self
            .origins
            .open(Purpose::Heartbeat, &announcement.payload, now);
        let verified = match opened {
            Ok(opened) => self.verify(&opened, now),
            Err(forged) => self.refuse(forged, announcement),
        };
        verified.unwrap_or_else(|forged| {
            self.forged.note(ForgedKind::Heartbeat, &forged);
            None
        })
    }

    /// Remembers a process whose last heartbeat is in the store, and recent.
    pub(crate) fn add_known(&mut self, heartbeat: &Heartbeat) {
        let (executor, incarnation) = (&heartbeat.executor, &heartbeat.incarnation);
        self.order.add_known(executor, incarnation, Instant::now());
    }

    /// A key that does not count may have a claim. One that is not known is no forgery before its claim was looked at.
    fn refuse(
        &self,
        forged: Forged,
        announcement: &Announcement,
    ) -> Result<Option<HeartbeatMessage>, Forged> {
        let (Forged::NotEnrolled { executor, key } | Forged::Revoked { executor, key }) = &forged
        else {
            return Err(forged);
        };
        let (executor, key, payload) = (executor.clone(), key.clone(), &announcement.payload);
        self.claims.add_unverified(executor, key, payload);
        // Another node may have enrolled or allowed it. Its next heartbeat counts then.
        self.origins.want_keys();
        if matches!(forged, Forged::NotEnrolled { .. }) {
            return Ok(None);
        }
        Err(forged)
    }

    fn verify(
        &mut self,
        opened: &Opened<'_>,
        now: Timestamp,
    ) -> Result<Option<HeartbeatMessage>, Forged> {
        let mut message = match decode::<HeartbeatMessage>(opened.body) {
            Ok(message) => message,
            Err(e) => {
                tracing::warn!(error = %e, "ignored a heartbeat that cannot be read; check the version of its worker");
                return Ok(None);
            }
        };
        let heartbeat = &message.heartbeat;
        opened.check_names(&heartbeat.executor)?;
        let (Some(executor), Some(key)) = (&opened.executor, &opened.key) else {
            return Ok(Some(message));
        };
        let (incarnation, sender) = (&heartbeat.incarnation, message.sender.as_ref());
        let at = Arrival {
            time: now,
            instant: Instant::now(),
        };
        if !self.order.is_new(executor, incarnation, sender, at)? {
            return Ok(None);
        }
        let rotation = message.rotation.take();
        let enrolment = message.enrolment.as_ref();
        let is_asked = message.confirm_key || enrolment.is_some_and(|claim| claim.key.id() == *key);
        self.claims.add_verified(executor, key, is_asked, rotation);
        Ok(Some(message))
    }
}
