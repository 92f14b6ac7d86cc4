//! The choice of `weighted`: in turn, each executor as often as its weight says.
//!
//! The turns repeat a cycle with one place for each unit of weight. The k-th of an executor's w places is at (k + ½) / w
//! of the cycle, so an executor's turns are spread over it. The position in the cycle is the number of the run, which the
//! store counts, so the cycle is exact with several scheduler nodes.

use super::Candidate;

/// Positions of candidates, in the order of their turns.
#[derive(Debug)]
pub(super) struct Cycle(Vec<usize>);

impl Cycle {
    pub(super) fn new(candidates: &[Candidate]) -> Self {
        let mut places: Vec<(u32, u32, usize)> = candidates
            .iter()
            .enumerate()
            .flat_map(|(index, candidate)| {
                let weight = u32::from(candidate.weight.get());
                (0..weight).map(move |k| (2 * k + 1, weight, index))
            })
            .collect();
        places.sort_unstable_by(|(k, weight, index), (other_k, other_weight, other_index)| {
            (k * other_weight, index).cmp(&(other_k * weight, other_index))
        });
        Self(places.into_iter().map(|(_, _, index)| index).collect())
    }

    /// The position of the candidate that has this turn.
    pub(super) fn at(&self, turn: u64) -> usize {
        let place = turn % (self.0.len().max(1) as u64);
        let place = usize::try_from(place).unwrap_or(0);
        self.0.get(place).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use cueline_model::Weight;
    use proptest::prelude::*;

    use super::*;

    fn cycle(weights: &[i64]) -> Cycle {
        let candidates: Vec<Candidate> = weights
            .iter()
            .enumerate()
            .map(|(n, weight)| Candidate {
                name: format!("e{n}").parse().expect("a name"),
                weight: Weight::clamped(*weight),
                capacity: 1,
            })
            .collect();
        Cycle::new(&candidates)
    }

    #[test]
    fn turns_are_spread() {
        let of = |weights: &[i64], turns| -> Vec<usize> {
            let cycle = cycle(weights);
            (0..turns).map(|turn| cycle.at(turn)).collect()
        };
        assert_eq!(of(&[1, 1, 1], 4), [0, 1, 2, 0]);
        assert_eq!(of(&[3, 1], 8), [0, 0, 1, 0, 0, 0, 1, 0]);
        assert_eq!(of(&[5, 1, 1], 7), [0, 0, 0, 1, 2, 0, 0]);
    }

    proptest! {
        /// Any window of the length of the cycle has each executor as often as its weight, and at no time an executor is
        /// ahead or behind by more than half a turn and its share of half a turn of each other one.
        #[test]
        fn each_executor_gets_its_share(weights in proptest::collection::vec(1..=100_i64, 1..6), start in 0..10_000_u64) {
            let total: i64 = weights.iter().sum();
            let cycle = cycle(&weights);
            let mut counts = vec![0_i64; weights.len()];
            for turn in start..start + total.unsigned_abs() {
                counts[cycle.at(turn)] += 1;
            }
            prop_assert_eq!(&counts, &weights);
            let mut counts = vec![0_i64; weights.len()];
            for turn in 0..total {
                counts[cycle.at(turn.unsigned_abs())] += 1;
                for (count, weight) in counts.iter().zip(&weights) {
                    // In units of 1 / (2 × total) turns.
                    let ahead = (2 * count * total - 2 * (turn + 1) * weight).abs();
                    let others = i64::try_from(weights.len()).unwrap() + 1;
                    prop_assert!(ahead <= total + others * weight, "{counts:?} of {weights:?}");
                }
            }
        }
    }
}
