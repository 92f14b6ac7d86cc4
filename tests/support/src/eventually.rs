//! Waits for a condition with a deadline. No test sleeps for a fixed time instead.

use std::fmt::{self, Display};
use std::time::Duration;

use tokio::time::{Instant, sleep};

/// The usual deadline. It is long because everything is slow on a busy machine; a condition that holds ends the wait at
/// once.
pub const SOON: Duration = Duration::from_mins(1);

/// The pause between two looks grows from the first of these to the second.
const PAUSES: [Duration; 2] = [Duration::from_millis(2), Duration::from_millis(50)];

/// Calls `look` until it returns `Ok`, and returns that value.
///
/// `expected` names the awaited condition. `Err` means "not yet" and carries what was seen instead; the failure message
/// contains the last one. Use [`try_eventually`] if a look can fail for good.
///
/// # Errors
///
/// [`NotWithin`] if no look has succeeded within `deadline`. One look always follows the deadline.
///
/// ```
/// # use cueline_test_support::{SOON, eventually};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() {
/// # let mut states = ["queued", "running", "succeeded"].into_iter();
/// # let mut state_of_run = async || states.next().unwrap();
/// eventually("the run succeeds", SOON, async || {
///     match state_of_run().await {
///         "succeeded" => Ok(()),
///         other => Err(format!("it is {other}")),
///     }
/// })
/// .await
/// .unwrap();
/// # }
/// ```
pub async fn eventually<T, S: Display>(
    expected: impl Display,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<T, S>,
) -> Result<T, NotWithin> {
    let mut wait = Wait::new(expected, deadline);
    loop {
        match look().await {
            Ok(found) => return Ok(found),
            Err(seen) => wait.pause(seen).await?,
        }
    }
}

/// [`eventually`] for a look that can fail for good: an outer `Err` ends the wait at once, an inner `Err` means "not
/// yet".
///
/// # Errors
///
/// The first outer `Err`, or [`NotWithin`] if no look has succeeded within `deadline`.
pub async fn try_eventually<T, S: Display, E: From<NotWithin>>(
    expected: impl Display,
    deadline: Duration,
    mut look: impl AsyncFnMut() -> Result<Result<T, S>, E>,
) -> Result<T, E> {
    let found = eventually(expected, deadline, async || match look().await {
        Ok(Ok(found)) => Ok(Ok(found)),
        Ok(Err(seen)) => Err(seen),
        Err(failure) => Ok(Err(failure)),
    });
    found.await?
}

/// [`eventually`] for tests without an async runtime.
///
/// # Errors
///
/// [`NotWithin`] if no look has succeeded within `deadline`.
pub fn eventually_blocking<T, S: Display>(
    expected: impl Display,
    deadline: Duration,
    mut look: impl FnMut() -> Result<T, S>,
) -> Result<T, NotWithin> {
    let mut wait = Wait::new(expected, deadline);
    loop {
        match look() {
            Ok(found) => return Ok(found),
            Err(seen) => wait.pause_blocking(seen)?,
        }
    }
}

/// The pauses between looks, for tests that write the loop themselves. In a spawned task the compiler cannot prove that
/// [`eventually`] is `Send`.
#[derive(Debug)]
pub struct Wait<D> {
    expected: D,
    start: Instant,
    deadline: Duration,
    pause: Duration,
    is_last: bool,
}

impl<D: Display> Wait<D> {
    /// Starts waiting for `expected`.
    pub fn new(expected: D, deadline: Duration) -> Self {
        Self {
            expected,
            start: Instant::now(),
            deadline,
            pause: PAUSES[0],
            is_last: false,
        }
    }

    /// Pauses before the next look.
    ///
    /// # Errors
    ///
    /// [`NotWithin`] if the deadline had passed before the look that saw `seen`.
    pub async fn pause(&mut self, seen: impl Display) -> Result<(), NotWithin> {
        let pause = self.next(seen)?;
        sleep(pause).await;
        self.is_last = self.start.elapsed() >= self.deadline;
        Ok(())
    }

    fn pause_blocking(&mut self, seen: impl Display) -> Result<(), NotWithin> {
        let pause = self.next(seen)?;
        std::thread::sleep(pause);
        self.is_last = self.start.elapsed() >= self.deadline;
        Ok(())
    }

    fn next(&mut self, seen: impl Display) -> Result<Duration, NotWithin> {
        if self.is_last {
            return Err(NotWithin::new(&self.expected, self.deadline, seen));
        }
        let pause = self.pause;
        self.pause = (pause * 3 / 2).min(PAUSES[1]);
        Ok(pause)
    }
}

/// The error of a condition that did not hold in time. It names the condition, the deadline, and what was seen last.
pub struct NotWithin(String);

impl NotWithin {
    fn new(expected: impl Display, deadline: Duration, seen: impl Display) -> Self {
        // An error with a chain of causes prints the chain in this format.
        Self(format!(
            "not within {deadline:?}: {expected}; last seen: {seen:#}"
        ))
    }
}

impl Display for NotWithin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// The same as [`Display`], because `unwrap` prints this form.
impl fmt::Debug for NotWithin {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl std::error::Error for NotWithin {}

#[cfg(test)]
mod tests {
    use super::*;

    const SHORT: Duration = Duration::from_millis(30);

    #[tokio::test]
    async fn the_first_success_ends_the_wait() {
        let mut looks = 0;
        let found = eventually("three looks", SOON, async || {
            looks += 1;
            if looks < 3 { Err(looks) } else { Ok(looks) }
        });
        assert_eq!(found.await.unwrap(), 3);
    }

    #[tokio::test]
    async fn a_failure_says_what_was_expected_and_what_was_seen_last() {
        let mut looks = 0;
        let failure = eventually("it is done", SHORT, async || {
            looks += 1;
            Err::<(), _>(format!("look {looks}"))
        });
        let message = failure.await.unwrap_err().to_string();
        assert_eq!(
            message,
            format!("not within 30ms: it is done; last seen: look {looks}")
        );
    }

    #[tokio::test]
    async fn a_slow_look_is_followed_by_another() {
        let mut looks = 0;
        let found = eventually("the second look", SHORT, async || {
            looks += 1;
            sleep(2 * SHORT).await;
            if looks < 2 { Err("one look") } else { Ok(()) }
        });
        found.await.unwrap();
    }

    #[tokio::test]
    async fn a_failure_for_good_ends_the_wait() {
        let mut looks = 0;
        let failure = try_eventually("never", SOON, async || {
            looks += 1;
            if looks < 3 {
                Ok(Err::<(), _>("not yet"))
            } else {
                Err(Box::<dyn std::error::Error>::from("broken"))
            }
        });
        assert_eq!(failure.await.unwrap_err().to_string(), "broken");
        let late = try_eventually("it is done", SHORT, async || {
            Ok::<_, NotWithin>(Err::<(), _>("nothing"))
        });
        let message = late.await.unwrap_err().to_string();
        assert_eq!(message, "not within 30ms: it is done; last seen: nothing");
    }

    #[test]
    fn without_a_runtime_it_is_the_same() {
        let mut looks = 0;
        let found = eventually_blocking("three looks", SOON, || {
            looks += 1;
            if looks < 3 { Err(looks) } else { Ok(looks) }
        });
        assert_eq!(found.unwrap(), 3);
        let failure = eventually_blocking("it is done", SHORT, || Err::<(), _>("nothing"));
        let message = format!("{:?}", failure.unwrap_err());
        assert_eq!(message, "not within 30ms: it is done; last seen: nothing");
    }
}
