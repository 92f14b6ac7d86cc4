//! Hash trees: one signature of the root covers all leaves, and a short path proves that a leaf belongs to the tree.
//!
//! It is the tree of Certificate Transparency (RFC 9162, section 2.1). Leaves and inner nodes are hashed with different
//! prefixes, so an inner node cannot pass for a leaf.

use sha2::{Digest, Sha256};

/// A SHA-256.
pub(crate) type Hash = [u8; HASH_BYTES];

/// The length of a [`Hash`].
pub(crate) const HASH_BYTES: usize = 32;

const LEAF: [u8; 1] = [0];
const INNER: [u8; 1] = [1];

/// The hash of a leaf, whose content is the concatenation of `parts`.
pub(crate) fn leaf(parts: &[&[u8]]) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(LEAF);
    for part in parts {
        hasher.update(part);
    }
    hasher.finalize().into()
}

fn parent(left: &Hash, right: &Hash) -> Hash {
    let mut hasher = Sha256::new();
    hasher.update(INNER);
    hasher.update(left);
    hasher.update(right);
    hasher.finalize().into()
}

/// A tree with all its levels: the leaves first, the root last.
#[derive(Debug)]
pub(crate) struct Tree(Vec<Vec<Hash>>);

impl Tree {
    /// The tree of these leaves, of which there is at least one.
    pub(crate) fn new(leaves: Vec<Hash>) -> Self {
        let mut levels = vec![leaves];
        while let Some(level) = levels.last().filter(|level| level.len() > 1) {
            let above: Vec<Hash> = level
                .chunks(2)
                .map(|pair| match pair {
                    [left, right] => parent(left, right),
                    // The last node of an odd level moves up as it is.
                    odd => odd[0],
                })
                .collect();
            levels.push(above);
        }
        Self(levels)
    }

    /// The root.
    pub(crate) fn root(&self) -> Hash {
        let top = self.0.last().and_then(|level| level.first());
        top.copied().unwrap_or_default()
    }

    /// The hashes that, with the leaf at `place`, give the root; from the leaf upwards.
    pub(crate) fn path(&self, place: usize) -> impl Iterator<Item = Hash> {
        let levels = self.0.iter().enumerate();
        levels
            .filter_map(move |(height, level)| level.get((place >> height) ^ 1))
            .copied()
    }
}

/// The root of the tree of `size` leaves that has `leaf` at `place`, given its path. `None` if there is no such place or
/// the path has another length.
pub(crate) fn root_by_path(leaf: Hash, place: usize, size: usize, path: &[Hash]) -> Option<Hash> {
    if place >= size {
        return None;
    }
    let (mut node, mut place, mut size) = (leaf, place, size);
    let mut siblings = path.iter();
    while size > 1 {
        let sibling = place ^ 1;
        if sibling < size {
            let beside = siblings.next()?;
            node = if sibling > place {
                parent(&node, beside)
            } else {
                parent(beside, &node)
            };
        }
        place /= 2;
        size = size.div_ceil(2);
    }
    siblings.next().is_none().then_some(node)
}

/// The nodes of a tree that are known to belong to it. They begin with the root.
///
/// A proof makes known what it shows: the nodes on its way, and those beside it. So beside and above each known node, all nodes
/// are known, and a later proof ends at the first known node that it reaches.
#[derive(Debug)]
pub(crate) struct KnownTree(Vec<Vec<Option<Hash>>>);

impl KnownTree {
    /// The tree of `size` leaves with this root.
    pub(crate) fn new(size: usize, root: Hash) -> Self {
        let mut levels = Vec::new();
        let mut width = size;
        while width > 1 {
            levels.push(vec![None; width]);
            width = width.div_ceil(2);
        }
        levels.push(vec![Some(root)]);
        Self(levels)
    }

    /// Whether the tree has `leaf` at `place`, given its path. It is exactly then that [`root_by_path`] gives the root.
    pub(crate) fn has(&mut self, leaf: Hash, place: usize, path: &[Hash]) -> bool {
        let (mut node, mut at, mut is_known) = (leaf, place, false);
        let mut siblings = path.iter();
        let mut shown = Vec::with_capacity(2 * self.0.len());
        for (height, level) in self.0.iter().enumerate() {
            match level.get(at) {
                Some(_) if is_known => {}
                Some(Some(known)) if *known == node => is_known = true,
                Some(None) => shown.push((height, at, node)),
                // The place is none, or another node is there.
                _ => return false,
            }
            let Some(beside) = level.get(at ^ 1) else {
                at /= 2;
                continue;
            };
            let Some(sibling) = siblings.next() else {
                return false;
            };
            if !is_known {
                shown.push((height, at ^ 1, *sibling));
                node = match at % 2 {
                    0 => parent(&node, sibling),
                    _ => parent(sibling, &node),
                };
            } else if *beside != Some(*sibling) {
                return false;
            }
            at /= 2;
        }
        let is_proven = is_known && siblings.next().is_none();
        if is_proven {
            for (height, at, hash) in shown {
                if let Some(node) = self.0.get_mut(height).and_then(|level| level.get_mut(at)) {
                    *node = Some(hash);
                }
            }
        }
        is_proven
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn leaves(count: u8) -> Vec<Hash> {
        (0..count).map(|n| leaf(&[&[n]])).collect()
    }

    #[test]
    fn the_root_of_three_leaves_is_that_of_the_rfc() {
        let all = leaves(3);
        let expected = parent(&parent(&all[0], &all[1]), &all[2]);
        assert_eq!(Tree::new(all).root(), expected);
    }

    #[test]
    fn the_content_of_a_leaf_is_that_of_its_parts_together() {
        assert_eq!(leaf(&[b"ab", b"c"]), leaf(&[b"abc"]));
        assert_ne!(leaf(&[b"abc"]), leaf(&[b"abd"]));
    }

    #[test]
    fn an_inner_node_is_no_leaf() {
        let all = leaves(2);
        assert_ne!(parent(&all[0], &all[1]), leaf(&[&all[0], &all[1]]));
    }

    proptest! {
        #[test]
        fn each_leaf_gives_the_root_by_its_path(count in 1_u8..=70) {
            let all = leaves(count);
            let tree = Tree::new(all.clone());
            for (place, one) in all.iter().enumerate() {
                let path: Vec<Hash> = tree.path(place).collect();
                let found = root_by_path(*one, place, all.len(), &path);
                prop_assert_eq!(found, Some(tree.root()));
            }
        }

        #[test]
        fn a_known_tree_decides_as_the_root_does(
            count in 1_u8..=70,
            proofs in prop::collection::vec((any::<prop::sample::Index>(), any::<prop::sample::Index>(), 0..6_u8), 1..100),
        ) {
            let all = leaves(count);
            let tree = Tree::new(all.clone());
            let mut known = KnownTree::new(all.len(), tree.root());
            for (place, other, change) in proofs {
                let place = place.index(all.len());
                let (mut leaf, mut at) = (all[place], place);
                let mut path: Vec<Hash> = tree.path(place).collect();
                match change {
                    1 => leaf = all[other.index(all.len())],
                    2 => at = other.index(all.len() + 2),
                    3 if !path.is_empty() => {
                        let changed = other.index(path.len());
                        path[changed][0] ^= 1;
                    }
                    4 => path.push(leaf),
                    5 => path.truncate(path.len().saturating_sub(1)),
                    _ => {}
                }
                let expected = root_by_path(leaf, at, all.len(), &path) == Some(tree.root());
                prop_assert_eq!(known.has(leaf, at, &path), expected);
                // A second time, when more may be known.
                prop_assert_eq!(known.has(leaf, at, &path), expected);
            }
        }

        #[test]
        fn no_other_leaf_place_or_path_gives_the_root(
            count in 2_u8..=70,
            place in any::<prop::sample::Index>(),
            other in any::<prop::sample::Index>(),
            bit in 0..256_usize,
        ) {
            let all = leaves(count);
            let (place, other) = (place.index(all.len()), other.index(all.len()));
            let tree = Tree::new(all.clone());
            let root = Some(tree.root());
            let path: Vec<Hash> = tree.path(place).collect();
            let found = |leaf, place, path: &[Hash]| root_by_path(leaf, place, all.len(), path);
            if place != other {
                prop_assert_ne!(found(all[other], place, &path), root);
                prop_assert_ne!(found(all[place], other, &path), root);
            }
            let mut changed = all[place];
            changed[bit / 8] ^= 1 << (bit % 8);
            prop_assert_ne!(found(changed, place, &path), root);
            for at in 0..path.len() {
                let mut changed = path.clone();
                changed[at][bit / 8] ^= 1 << (bit % 8);
                prop_assert_ne!(found(all[place], place, &changed), root);
            }
            prop_assert_eq!(found(all[place], place, &path[1..]), None);
            let longer = [&path[..], &[all[place]]].concat();
            prop_assert_eq!(found(all[place], place, &longer), None);
            prop_assert_eq!(found(all[place], all.len(), &path), None);
        }
    }
}
