//! The field `valid` of tokens: for how long they are valid.

use cueline_model::DurationMs;

use crate::body::Fields;

/// Ten years. A token without an end is written `never`.
const MAX_VALID: DurationMs = DurationMs::secs(3_650 * 24 * 3_600);
/// The longest text of the field, in bytes.
const MAX_TEXT_BYTES: usize = 1_000;

/// The field `valid` in milliseconds. `None` for a token without an end.
pub(crate) fn valid_ms(fields: &mut Fields, default: DurationMs) -> Option<u64> {
    let text = fields
        .text("valid", MAX_TEXT_BYTES)
        .unwrap_or_else(|| default.to_string());
    if text == "never" {
        return None;
    }
    let range = DurationMs::secs(1)..=MAX_VALID;
    match text.parse::<DurationMs>() {
        Ok(valid) if range.contains(&valid) => Some(valid.as_millis()),
        Ok(_) => {
            fields.record(
                "valid",
                format!(
                    "{text:?} is given; give 1s to {MAX_VALID}, or never for a token without an end"
                ),
            );
            None
        }
        Err(error) => {
            fields.record(
                "valid",
                format!("{error}, or never for a token without an end"),
            );
            None
        }
    }
}
