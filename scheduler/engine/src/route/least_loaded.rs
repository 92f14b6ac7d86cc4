//! The choice of `least_loaded`: the executor with the fewest attempts for its capacity.

use super::Candidate;

/// The candidate whose attempts are the smallest part of its capacity. `turn` chooses among equals, so that quick runs
/// do not all go to the first one.
pub(super) fn choose(candidates: &[Candidate], loads: &[u64], turn: u64) -> usize {
    let part = |index: usize| {
        let load = u128::from(loads.get(index).copied().unwrap_or(0));
        (load, u128::from(candidates[index].capacity.max(1)))
    };
    let mut least: Vec<usize> = Vec::new();
    for index in 0..candidates.len() {
        let ordering = least.first().map(|first| {
            let ((load, capacity), (least_load, least_capacity)) = (part(index), part(*first));
            (load * least_capacity).cmp(&(least_load * capacity))
        });
        match ordering {
            Some(std::cmp::Ordering::Greater) => {}
            Some(std::cmp::Ordering::Equal) => least.push(index),
            Some(std::cmp::Ordering::Less) | None => least = vec![index],
        }
    }
    let nth = usize::try_from(turn % (least.len().max(1) as u64)).unwrap_or(0);
    least.get(nth).copied().unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use cueline_model::Weight;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_other_candidate_is_loaded_less_and_equals_take_turns(
            executors in proptest::collection::vec((0..50_u64, 0..9_u32), 1..6), turn in 0..1_000_u64,
        ) {
            let candidates: Vec<Candidate> = executors
                .iter()
                .enumerate()
                .map(|(n, (_, capacity))| Candidate {
                    name: format!("e{n}").parse().expect("a name"),
                    weight: Weight::default(),
                    capacity: *capacity,
                })
                .collect();
            let loads: Vec<u64> = executors.iter().map(|(load, _)| *load).collect();
            // All capacities divide 840.
            let load_of_840 = |n: usize| loads[n] * 840 / u64::from(candidates[n].capacity.max(1));
            let least = (0..loads.len()).map(load_of_840).min().unwrap();
            let equals: Vec<usize> = (0..loads.len()).filter(|n| load_of_840(*n) == least).collect();
            let expected = equals[usize::try_from(turn).unwrap() % equals.len()];
            prop_assert_eq!(choose(&candidates, &loads, turn), expected);
        }
    }
}
