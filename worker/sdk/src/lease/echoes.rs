//! Echoes that have not returned yet.

use std::collections::VecDeque;

use super::proof::LeaseProof;

/// The most echoes that are awaited. At the limit the oldest one is forgotten.
pub(super) const MAX_AWAITED: usize = 64;

/// Numbers echoes, and remembers when their heartbeats were sent.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    last_sent: u64,
    last_returned: u64,
    awaited: VecDeque<(u64, LeaseProof)>,
}

impl Echoes {
    /// The number of the next echo. Its return proves the lease as of `proof`.
    pub(super) fn send(&mut self, proof: LeaseProof) -> u64 {
        self.last_sent += 1;
        self.awaited.push_back((self.last_sent, proof));
        if self.awaited.len() > MAX_AWAITED {
            self.awaited.pop_front();
        }
        self.last_sent
    }

    /// What this echo proves. Nothing if it is not awaited; older echoes are no longer awaited then.
    pub(super) fn returned(&mut self, number: u64) -> Option<LeaseProof> {
        let place = self.awaited.iter().position(|(n, _)| *n == number)?;
        let (_, proof) = self.awaited.drain(..=place).next_back()?;
        self.last_returned = number;
        Some(proof)
    }

    /// Whether the newest echo has returned.
    pub(super) fn is_newest_returned(&self) -> bool {
        self.last_returned == self.last_sent
    }

    #[cfg(test)]
    pub(super) fn awaited(&self) -> usize {
        self.awaited.len()
    }
}
