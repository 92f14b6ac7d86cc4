//! After each heartbeat that the broker has stored, a worker sends itself a numbered message, an echo. Its return
//! proves the lease.

use std::collections::VecDeque;

use super::proof::LeaseProof;

/// The most outstanding echoes. At the limit the oldest one is forgotten.
pub(super) const MAX_OUTSTANDING: usize = 64;

/// Numbers echoes, and remembers when their heartbeats were sent.
#[derive(Debug, Default)]
pub(super) struct Echoes {
    last_sent: u64,
    last_returned: u64,
    outstanding: VecDeque<(u64, LeaseProof)>,
}

impl Echoes {
    /// Registers an echo and returns its number. Its return proves the lease as of `proof`.
    pub(super) fn register(&mut self, proof: LeaseProof) -> u64 {
        self.last_sent += 1;
        self.outstanding.push_back((self.last_sent, proof));
        if self.outstanding.len() > MAX_OUTSTANDING {
            self.outstanding.pop_front();
        }
        self.last_sent
    }

    /// The proof of a returned echo, or `None` if it is not outstanding. On success older echoes are dropped too.
    pub(super) fn returned(&mut self, number: u64) -> Option<LeaseProof> {
        let index = self.outstanding.iter().position(|(n, _)| *n == number)?;
        let (_, proof) = self.outstanding.drain(..=index).next_back()?;
        self.last_returned = number;
        Some(proof)
    }

    /// Whether the newest echo has returned. Also true before the first echo is sent.
    pub(super) fn is_newest_returned(&self) -> bool {
        self.last_returned == self.last_sent
    }

    #[cfg(test)]
    pub(super) fn outstanding(&self) -> usize {
        self.outstanding.len()
    }
}
