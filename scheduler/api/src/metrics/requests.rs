//! Counts the requests to the API by route and status.

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use axum::http::StatusCode;
use cueline_http::metrics::{Family, Sample};

/// The most pairs of route and status that are counted apart. There are fewer; further ones would count as [`OTHER`].
const MAX_PAIRS: usize = 1_000;
/// The route of requests to paths that do not exist.
const OTHER: &str = "other";

/// The requests since the start.
#[derive(Debug, Clone, Default)]
pub(crate) struct RequestCounts(Arc<Mutex<BTreeMap<(String, u16), u64>>>);

impl RequestCounts {
    /// Counts a request that was answered. `route` is `None` if there is no such path.
    pub(crate) fn add(&self, route: Option<&str>, status: StatusCode) {
        let mut counts = self.lock();
        let mut key = (route.unwrap_or(OTHER).to_owned(), status.as_u16());
        if counts.len() >= MAX_PAIRS && !counts.contains_key(&key) {
            OTHER.clone_into(&mut key.0);
        }
        *counts.entry(key).or_default() += 1;
    }

    pub(crate) fn families(&self) -> [Family; 4] {
        let counts = self.lock();
        let with_status = |wanted: StatusCode| {
            let found = counts
                .iter()
                .filter(|((_, status), _)| *status == wanted.as_u16());
            Sample::only(found.map(|(_, count)| *count).sum())
        };
        let samples = counts.iter().map(|((route, status), count)| {
            let status = status.to_string();
            let labels = [("route", route.as_str()), ("status", status.as_str())];
            Sample::with(&labels, *count)
        });
        [
            Family::counter(
                "api_requests",
                "Requests to the API that were answered.",
                samples.collect(),
            ),
            Family::counter(
                "api_refused_logins",
                "Requests to the API without a valid token or session, and refused logins.",
                with_status(StatusCode::UNAUTHORIZED),
            ),
            Family::counter(
                "api_forbidden_requests",
                "Requests to the API that were refused because the caller has no right to them.",
                with_status(StatusCode::FORBIDDEN),
            ),
            Family::counter(
                "api_throttled_requests",
                "Requests to the API that were refused because a password was tried too often.",
                with_status(StatusCode::TOO_MANY_REQUESTS),
            ),
        ]
    }

    fn lock(&self) -> MutexGuard<'_, BTreeMap<(String, u16), u64>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_number_of_pairs_is_bounded() {
        let counts = RequestCounts::default();
        for n in 0..2_000 {
            counts.add(Some(&format!("/{n}")), StatusCode::OK);
        }
        counts.add(Some("/0"), StatusCode::OK);
        let counts = counts.lock();
        assert_eq!(counts.len(), MAX_PAIRS + 1);
        let of = |route: &str| counts.get(&(route.to_owned(), 200)).copied();
        assert_eq!((of("/0"), of(OTHER)), (Some(2), Some(1_000)));
    }
}
