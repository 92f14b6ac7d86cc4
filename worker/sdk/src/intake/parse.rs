//! Parses and verifies a trigger.

use std::fmt;
use std::sync::Arc;

use bytes::Bytes;
use cueline_model::HandlerSpec;
use cueline_protocol::{Trigger, decode, without_signature};

use crate::handler::Handler;
use crate::settings::Settings;

/// A genuine trigger for this executor.
pub(crate) struct ParsedTrigger {
    pub(crate) trigger: Trigger,
    /// The message for the journal, without its signature: nothing looks at it again, and half of the message is signature.
    pub(crate) payload: Bytes,
    /// The handler, or why the worker has none for this trigger.
    pub(crate) handler: Result<Arc<dyn Handler>, String>,
}

impl fmt::Debug for ParsedTrigger {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("ParsedTrigger").field(&self.trigger).finish()
    }
}

/// Parses and verifies a message from the executor's queue. The error says why it is a dead letter.
pub(super) fn parse(payload: Bytes, settings: &Settings) -> Result<ParsedTrigger, String> {
    let mut parsed = parse_stored(payload, settings)?;
    let trigger = &parsed.trigger;
    let is_native = matches!(trigger.job.handler, HandlerSpec::Native(_));
    if is_native && settings.unverified_native {
        return Ok(parsed);
    }
    let verified = settings.trust.verify(&parsed.payload, trigger);
    verified.map_err(|e| format!("failed to accept the trigger: {e}"))?;
    if let Some(unsigned) = without_signature(&parsed.payload, trigger) {
        parsed.payload = unsigned.into();
        parsed.trigger.signature = None;
    }
    Ok(parsed)
}

/// Parses a trigger that was verified before it was journalled.
pub(crate) fn parse_stored(payload: Bytes, settings: &Settings) -> Result<ParsedTrigger, String> {
    let trigger: Trigger = decode(&payload).map_err(|e| e.to_string())?;
    // A trigger for another executor would run twice. The journal has such triggers if the worker was renamed: the
    // failover of the old name does not see their starts.
    let own = &settings.executor;
    if trigger.group != own.group || trigger.executor != own.name {
        return Err(format!(
            "failed to accept the trigger: it is for executor {}/{}, this is {own}",
            trigger.group, trigger.executor
        ));
    }
    Ok(ParsedTrigger {
        handler: settings.handlers.resolve(&trigger.job.handler),
        trigger,
        payload,
    })
}
