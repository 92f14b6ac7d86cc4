//! The choice of `any`: an executor that has room, or none.
//!
//! A run of such a job stays in the store until an executor has room for it. So the first one with room gets it, as from a
//! queue of the whole group, and from then on it is an attempt like each other one.

use super::Candidate;
use super::least_loaded::choose as least_loaded;

/// The attempts that a candidate may get now.
pub(super) fn room(candidate: &Candidate, load: u64) -> u64 {
    u64::from(candidate.capacity).saturating_sub(load)
}

/// Of the candidates with room, the one whose attempts are the smallest part of its capacity. `None` if all are full.
pub(super) fn choose(candidates: &[Candidate], loads: &[u64], turn: u64) -> Option<usize> {
    let load = |index: usize| loads.get(index).copied().unwrap_or(0);
    let with_room: Vec<usize> = (0..candidates.len())
        .filter(|index| room(&candidates[*index], load(*index)) > 0)
        .collect();
    if with_room.is_empty() {
        return None;
    }
    let some: Vec<Candidate> = with_room.iter().map(|n| candidates[*n].clone()).collect();
    let of_some: Vec<u64> = with_room.iter().map(|n| load(*n)).collect();
    with_room.get(least_loaded(&some, &of_some, turn)).copied()
}

#[cfg(test)]
mod tests {
    use cueline_model::Weight;
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_chosen_one_has_room_and_none_is_chosen_only_if_all_are_full(
            executors in proptest::collection::vec((0..6_u64, 0..6_u32), 0..6), turn in 0..100_u64,
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
            let has_room = |n: usize| loads[n] < u64::from(candidates[n].capacity);
            let chosen = choose(&candidates, &loads, turn);
            prop_assert_eq!(chosen.is_some(), (0..loads.len()).any(has_room));
            if let Some(chosen) = chosen {
                prop_assert!(has_room(chosen));
                let part = |n: usize| loads[n] * 60 / u64::from(candidates[n].capacity);
                prop_assert!((0..loads.len()).filter(|n| has_room(*n)).all(|n| part(chosen) <= part(n)));
            }
        }
    }
}
