//! Carries out many changes, and counts what became of them.

use cueline_interface::{Failure, Out};
use serde_json::{Value, json};
use tokio::task::JoinSet;

use super::counted;
use super::request::{Change, Changed};
use crate::progress::Progress;

/// Requests at the same time. Each is a transaction of its own, so fires of the scheduler come between them.
const AT_ONCE: usize = 4;

/// The most objects that are named with a reason.
const MAX_REASONS: usize = 20;

/// What became of the changes.
#[derive(Debug, Default)]
pub(super) struct Tally {
    /// Those that were carried out, with the server's answers.
    pub(super) done: Vec<(String, Value)>,
    /// Those whose objects have changed since they were counted, with the reasons.
    pub(super) differed: Vec<(String, String)>,
    /// Those that the server refused, with the reasons.
    pub(super) refused: Vec<(String, String)>,
}

impl Tally {
    /// Sends the changes, a few at a time. What was done stays done if this fails.
    ///
    /// # Errors
    ///
    /// The first failure that is not about one object. The message has the number of those that were done.
    pub(super) async fn carry_out(
        &mut self,
        out: Out,
        what: &str,
        changes: Vec<Change>,
    ) -> Result<Vec<Change>, Failure> {
        let all = changes.len();
        let progress = Progress::bar(out, what, all);
        let mut waiting = changes.into_iter();
        let mut under_way = JoinSet::new();
        let (mut refused, mut ended) = (Vec::new(), 0);
        let mut failed = None;
        loop {
            while failed.is_none() && under_way.len() < AT_ONCE {
                let Some(change) = waiting.next() else { break };
                under_way.spawn(async move { (change.send().await, change) });
            }
            let Some(joined) = under_way.join_next().await else {
                break;
            };
            let (sent, change) = joined.map_err(|error| {
                Failure::failed(format!("failed to wait for a request: {error}"))
            })?;
            ended += 1;
            progress.reached(ended);
            match sent {
                Ok(Changed::Done(answer)) => self.done.push((change.name, answer)),
                Ok(Changed::Differs(why)) => self.differed.push((change.name, why)),
                Ok(Changed::Refused(why)) => {
                    self.refused.push((change.name.clone(), why));
                    refused.push(change);
                }
                Err(failure) => failed = failed.or(Some(failure)),
            }
        }
        match failed {
            None => Ok(refused),
            Some(failure) => {
                let done = self.done.len();
                out.line(&format!("{done} of {all} were done before this failure"))?;
                Err(failure)
            }
        }
    }

    /// Prints the counts. `done` is the past participle: "paused".
    ///
    /// # Errors
    ///
    /// [`Failure::Silent`] if not all were done.
    pub(super) fn print(&self, out: Out, done: &str, what: &str) -> Result<(), Failure> {
        if out.is_json() {
            let reasons = |of: &[(String, String)]| -> Vec<Value> {
                let of = of.iter();
                of.map(|(name, why)| json!({ "name": name, "reason": why }))
                    .collect()
            };
            out.json(&json!({
                "done": self.done.iter().map(|(name, _)| name).collect::<Vec<_>>(),
                "differed": reasons(&self.differed),
                "refused": reasons(&self.refused),
            }))?;
        } else {
            for (kind, of) in [("differs", &self.differed), ("refused", &self.refused)] {
                for (name, why) in of.iter().take(MAX_REASONS) {
                    out.line(&format!("{name}  {kind}: {why}"))?;
                }
                if let Some(others) = of.len().checked_sub(MAX_REASONS).filter(|n| *n > 0) {
                    out.line(&format!("and {others} more"))?;
                }
            }
            out.line(&self.summary(done, what))?;
        }
        if self.differed.is_empty() && self.refused.is_empty() {
            Ok(())
        } else {
            Err(Failure::Silent)
        }
    }

    fn summary(&self, done: &str, what: &str) -> String {
        let mut text = format!("{done} {}", counted(self.done.len(), what));
        for (of, words) in [
            (&self.differed, "have changed since they were counted"),
            (&self.refused, "were refused"),
        ] {
            if !of.is_empty() {
                text = format!("{text}; {} {words}", of.len());
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_summary_has_what_was_not_done() {
        let mut tally = Tally::default();
        tally.done.push(("a".to_owned(), Value::Null));
        assert_eq!(tally.summary("paused", "job"), "paused 1 job");
        tally.differed.push(("b".to_owned(), "x".to_owned()));
        let text = tally.summary("paused", "job");
        assert_eq!(text, "paused 1 job; 1 have changed since they were counted");
    }
}
