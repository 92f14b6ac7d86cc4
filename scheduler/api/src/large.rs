//! Bounds what large requests cost the scheduler in the same process: memory, and time on the async threads.

use std::sync::Arc;
use std::time::Duration;

use axum::body::HttpBody as _;
use axum::extract::Request;
use axum::http::StatusCode;
use axum::middleware::Next;
use axum::response::Response;
use tokio::sync::Semaphore;

use crate::problem::Problem;

/// The largest body of a request that is not bounded here. All connections together hold at most that much each.
pub const MAX_SMALL_BODY_BYTES: usize = 64 * 1024;

/// Large requests in progress. Each may hold some 100 MB: the body, its values, its definitions, and the response.
const MAX_LARGE_REQUESTS: usize = 2;

/// A large request beyond that waits this long. Afterwards the answer is 503.
const MAX_WAIT: Duration = Duration::from_secs(30);

/// Computations of requests at the same time. The other processors stay with the scheduler.
const MAX_COMPUTATIONS: usize = 1;

/// The places of large requests and of computations.
#[derive(Debug, Clone)]
pub(crate) struct LargeRequests {
    requests: Arc<Semaphore>,
    computations: Arc<Semaphore>,
}

impl LargeRequests {
    pub(crate) fn new() -> Self {
        Self {
            requests: Arc::new(Semaphore::new(MAX_LARGE_REQUESTS)),
            computations: Arc::new(Semaphore::new(MAX_COMPUTATIONS)),
        }
    }

    /// Computes off the async threads, after the computations of other requests. If the request ends meanwhile, the
    /// computation keeps its place until it is done.
    pub(crate) async fn compute<T: Send + 'static>(
        &self,
        computation: impl FnOnce() -> T + Send + 'static,
    ) -> Result<T, Problem> {
        let interrupted = || Problem::unavailable("the request was interrupted; send it again");
        let place = self.computations.clone().acquire_owned().await;
        let place = place.map_err(|_| interrupted())?;
        let computed = tokio::task::spawn_blocking(move || {
            let computed = computation();
            drop(place);
            computed
        });
        computed.await.map_err(|_| interrupted())
    }
}

/// Lets a request with a large body wait until few others are in progress.
pub(crate) async fn admit(
    large: &LargeRequests,
    request: Request,
    next: Next,
) -> Result<Response, Problem> {
    if !is_large(&request) {
        return Ok(next.run(request).await);
    }
    let place = tokio::time::timeout(MAX_WAIT, large.requests.acquire());
    let Ok(Ok(place)) = place.await else {
        return Err(Problem::unavailable(format!(
            "{MAX_LARGE_REQUESTS} other requests with a large body are in progress; send it again later"
        )));
    };
    let response = next.run(request).await;
    drop(place);
    Ok(response)
}

/// Answers 413 to a request with a large body. A declared length is refused before the body is read. The limit of the route
/// ends a body of unknown length.
pub(crate) async fn refuse(request: Request, next: Next) -> Result<Response, Problem> {
    let too_large = || Problem::too_large(MAX_SMALL_BODY_BYTES);
    if request.body().size_hint().lower() > MAX_SMALL_BODY_BYTES as u64 {
        return Err(too_large());
    }
    let response = next.run(request).await;
    if response.status() == StatusCode::PAYLOAD_TOO_LARGE {
        return Err(too_large());
    }
    Ok(response)
}

/// A body of unknown length may be large.
fn is_large(request: &Request) -> bool {
    let most = request.body().size_hint().upper();
    most.is_none_or(|bytes| bytes > MAX_SMALL_BODY_BYTES as u64)
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use super::*;

    #[tokio::test]
    async fn computations_run_one_after_the_other() {
        let large = LargeRequests::new();
        let (first_may_end, waits) = mpsc::channel::<()>();
        let (ended, order) = mpsc::channel();
        let second_ended = ended.clone();
        let first = large.compute(move || {
            let _ = waits.recv();
            ended.send(1)
        });
        let second = large.compute(move || second_ended.send(2));
        let release = async move { first_may_end.send(()) };
        let (first, second, released) = tokio::join!(first, second, release);
        first.expect("computed").expect("sent");
        second.expect("computed").expect("sent");
        released.expect("received");
        assert_eq!(order.iter().collect::<Vec<_>>(), [1, 2]);
    }

    #[tokio::test]
    async fn a_computation_that_panics_gives_its_place_back() {
        let large = LargeRequests::new();
        let panicked = large.compute::<u8>(|| panic!("on purpose")).await;
        let problem = panicked.expect_err("no value");
        assert_eq!(problem.status, 503);
        assert_eq!(large.compute(|| 7).await.expect("computed"), 7);
    }
}
