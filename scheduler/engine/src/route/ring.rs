//! The hash ring of `consistent_hash`.
//!
//! Hash and virtual nodes are those of XXL-JOB, so that a job that moves from there stays on its executor. The hash is
//! the first four bytes of MD5 as a little-endian number. Each executor has 100 nodes named `SHARD-{address}-NODE-{i}`.

use std::collections::BTreeMap;

use md5::{Digest, Md5};

use super::Candidate;

const VIRTUAL_NODES: u32 = 100;

/// Executors on a ring, as positions in the list of candidates.
#[derive(Debug)]
pub(super) struct Ring {
    points: BTreeMap<u32, usize>,
}

fn hash(text: &str) -> u32 {
    let digest = Md5::digest(text.as_bytes());
    u32::from_le_bytes([digest[0], digest[1], digest[2], digest[3]])
}

impl Ring {
    pub(super) fn new(candidates: &[Candidate]) -> Self {
        Self::of_names(candidates.iter().map(|candidate| candidate.name.as_str()))
    }

    fn of_names<'a>(names: impl Iterator<Item = &'a str>) -> Self {
        let points = names
            .enumerate()
            .flat_map(|(index, name)| {
                (0..VIRTUAL_NODES).map(move |i| (hash(&format!("SHARD-{name}-NODE-{i}")), index))
            })
            .collect();
        Self { points }
    }

    /// The executor at the first point at or after the key's hash. Wraps around at the end of the ring.
    pub(super) fn find(&self, key: &str) -> Option<usize> {
        let at_or_after = self.points.range(hash(key)..).next();
        at_or_after
            .or_else(|| self.points.first_key_value())
            .map(|(_, index)| *index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ring(n: usize) -> Ring {
        let names: Vec<String> = (1..=n).map(|i| format!("worker-{i}")).collect();
        Ring::of_names(names.iter().map(String::as_str))
    }

    #[test]
    fn the_hash_is_md5_little_endian() {
        // MD5("1") = c4ca4238 a0b92382 0dcc509a 6f75849b
        assert_eq!(hash("1"), 0x3842_cac4);
    }

    // Computed with Python's hashlib:
    //
    //     def h(text): return int.from_bytes(hashlib.md5(text.encode()).digest()[:4], "little")
    //     ring = {h(f"SHARD-{a}-NODE-{i}"): a for a in addresses for i in range(100)}
    //     at_or_after = [key for key in sorted(ring) if key >= h(str(job))]
    //     found = ring[at_or_after[0] if at_or_after else min(ring)]
    #[test]
    fn jobs_are_where_xxl_job_has_them() {
        let addresses = [
            "http://10.0.0.1:9999/",
            "http://10.0.0.2:9999/",
            "http://10.0.0.3:9999/",
        ];
        let by_address = [
            (1, 2),
            (2, 2),
            (3, 0),
            (4, 2),
            (5, 0),
            (10, 0),
            (42, 1),
            (100, 2),
            (1000, 2),
            (65536, 2),
            (2_147_483_647, 1),
            (769, 0),
        ];
        let names = ["worker-1", "worker-2", "worker-3"];
        let by_name = [
            (1, 1),
            (2, 2),
            (3, 0),
            (4, 2),
            (5, 0),
            (10, 0),
            (42, 0),
            (100, 1),
            (1000, 1),
            (65536, 1),
            (2_147_483_647, 2),
            (769, 0),
        ];
        // The last job of each wraps around.
        for (of, expected) in [(addresses, by_address), (names, by_name)] {
            let ring = Ring::of_names(of.into_iter());
            for (job, index) in expected {
                assert_eq!(
                    ring.find(&job.to_string()),
                    Some(index),
                    "job {job} on {of:?}"
                );
            }
            let (wrapping, _) = expected[expected.len() - 1];
            let last = ring.points.last_key_value().expect("points");
            assert!(hash(&wrapping.to_string()) > *last.0);
        }
    }

    #[test]
    fn losing_an_executor_moves_only_its_own_jobs() {
        let (all, fewer) = (ring(5), ring(4));
        for job in 0..1_000 {
            let before = all.find(&job.to_string()).unwrap();
            if before != 4 {
                assert_eq!(fewer.find(&job.to_string()), Some(before));
            }
        }
    }

    #[test]
    fn jobs_are_spread() {
        let ring = ring(4);
        let mut counts = BTreeMap::<_, u32>::new();
        for job in 0..4_000 {
            *counts
                .entry(ring.find(&job.to_string()).unwrap())
                .or_default() += 1;
        }
        assert!(
            counts.values().all(|n| (600..1_500).contains(n)),
            "{counts:?}"
        );
    }

    #[test]
    fn an_empty_ring_has_no_executor() {
        assert_eq!(ring(0).find("1"), None);
    }
}
