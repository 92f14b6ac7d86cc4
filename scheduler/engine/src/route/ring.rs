//! The hash ring of `consistent_hash`.
//!
//! Hash and virtual nodes are those of XXL-JOB, so that a job that moves from there stays on its executor. The hash is
//! the first four bytes of MD5 as a little-endian number. Each executor has 100 nodes named `SHARD-{address}-NODE-{i}`.

use std::collections::BTreeMap;

use cueline_model::ExecutorName;
use md5::{Digest, Md5};

const VIRTUAL_NODES: u32 = 100;

/// Executors on a ring.
#[derive(Debug)]
pub(super) struct Ring {
    points: BTreeMap<u32, ExecutorName>,
}

fn hash(text: &str) -> u32 {
    let digest = Md5::digest(text.as_bytes());
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

impl Ring {
    pub(super) fn new(executors: &[ExecutorName]) -> Self {
        let points = executors
            .iter()
            .flat_map(|name| {
                (0..VIRTUAL_NODES)
                    .map(move |i| (hash(&format!("SHARD-{name}-NODE-{i}")), name.clone()))
            })
            .collect();
        Self { points }
    }

    /// The executor at the first point at or after the key's hash. Wraps around at the end of the ring.
    pub(super) fn find(&self, key: &str) -> Option<&ExecutorName> {
        let at_or_after = self.points.range(hash(key)..).next();
        at_or_after
            .or_else(|| self.points.first_key_value())
            .map(|(_, name)| name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(n: usize) -> Vec<ExecutorName> {
        (1..=n)
            .map(|i| format!("worker-{i}").parse().expect("a name"))
            .collect()
    }

    #[test]
    fn the_hash_is_md5_little_endian() {
        // MD5("1") = c4ca4238 a0b92382 0dcc509a 6f75849b
        assert_eq!(hash("1"), 0x3842_cac4);
    }

    #[test]
    fn losing_an_executor_moves_only_its_own_jobs() {
        let (all, fewer) = (Ring::new(&names(5)), Ring::new(&names(4)));
        for job in 0..1_000 {
            let before = all.find(&job.to_string()).unwrap();
            if before.as_str() != "worker-5" {
                assert_eq!(fewer.find(&job.to_string()), Some(before));
            }
        }
    }

    #[test]
    fn jobs_are_spread() {
        let ring = Ring::new(&names(4));
        let mut counts = BTreeMap::<_, u32>::new();
        for job in 0..4_000 {
            *counts
                .entry(ring.find(&job.to_string()).unwrap().clone())
                .or_default() += 1;
        }
        assert!(
            counts.values().all(|n| (600..1_500).contains(n)),
            "{counts:?}"
        );
    }

    #[test]
    fn an_empty_ring_has_no_executor() {
        assert_eq!(Ring::new(&[]).find("1"), None);
    }
}
