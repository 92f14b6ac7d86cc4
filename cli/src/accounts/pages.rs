//! Reads lists of the API that come in pages.

use serde_json::Value;

use crate::client::Api;
use crate::failure::Failure;

/// Entries in one request.
const PAGE: u32 = 1_000;
/// The most requests for one list.
const MAX_PAGES: u32 = 1_000;

/// All entries of a list, as the last page with the entries of all.
///
/// # Errors
///
/// The server's, and a failure if the list has more than a million entries.
pub(super) async fn all(api: &Api, path: &str, key: &str) -> Result<Value, Failure> {
    let mut entries = Vec::new();
    let mut after: Option<String> = None;
    for _ in 0..MAX_PAGES {
        let mut query = vec![("limit", PAGE.to_string())];
        query.extend(after.map(|after| ("after", after)));
        let mut page = api.get(&[path], &query).await?;
        if let Some(Value::Array(found)) = page.get_mut(key).map(Value::take) {
            entries.extend(found);
        }
        after = page.get("next").and_then(Value::as_str).map(str::to_owned);
        if after.is_none() {
            page[key] = Value::Array(entries);
            return Ok(page);
        }
    }
    Err(Failure::failed(format!(
        "failed to read all {key}: there are more than {MAX_PAGES} pages"
    )))
}
