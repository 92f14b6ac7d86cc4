//! Quartz's misfire instructions.

use serde_json::json;

use super::{QuartzTrigger, TriggerKind};
use crate::import::Draft;

/// The most runs that a job makes up for at once.
const MAX_CATCH_UP: u32 = 10_000;

/// Writes the misfire policy. Quartz itself counts a fire time as missed after a minute.
pub(super) fn read(draft: &mut Draft, trigger: &QuartzTrigger) {
    let policy = match &trigger.kind {
        TriggerKind::Simple { repeats, .. } => simple(draft, trigger.misfire, *repeats),
        _ => match trigger.misfire {
            0 | 1 => "fire_once",
            2 => "skip",
            -1 => "catch_up",
            other => unknown(draft, other),
        },
    };
    let mut misfire = json!({ "policy": policy, "grace": "1m" });
    if policy == "catch_up" {
        misfire["catch_up_limit"] = MAX_CATCH_UP.into();
    }
    draft.set("misfire", misfire);
}

fn simple(draft: &mut Draft, instruction: i64, repeats: i64) -> &'static str {
    match (instruction, repeats) {
        (-1, _) => "catch_up",
        // Quartz's own choice for a trigger without an end, and the instructions to go on with the next time.
        (0, -1) | (4 | 5, _) => "skip",
        (1, _) | (0 | 2 | 3, 0) => "fire_once",
        (0 | 2 | 3, _) => {
            draft.changed(
                "after a missed fire time, Quartz counts the interval from now on; the job fires on its first grid",
            );
            "fire_once"
        }
        (other, _) => unknown(draft, other),
    }
}

fn unknown(draft: &mut Draft, instruction: i64) -> &'static str {
    draft.changed(format!(
        "the misfire instruction {instruction} is unknown; the job runs once for what it missed"
    ));
    "fire_once"
}
