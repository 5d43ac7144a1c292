//! Names of pages for the world outside: routers, and other servers.
//!
//! A page's hash depends on its namespace, the kind of key, the page size, and all tokens up to its
//! end (with pair keys on the one after it too). It is the same in every process. It names a page and
//! nothing more: whether two pages are the same is decided by their tokens.

use super::children::fold;
use crate::key::{KeyKind, KeyShape};

/// Odd constants with evenly spread bits: the first 64 bits of the fractional parts of the square
/// roots of 2, 3 and 5, made odd.
const SEEDS: [u64; 3] = [0x6A09_E667_F3BC_C909, 0xBB67_AE85_84CA_A73B, 0x3C6E_F372_FE94_F82B];

/// What the first page of a namespace has as its parent.
pub(crate) fn root_hash(shape: KeyShape, namespace: Option<&[u8]>) -> u64 {
    let kind = match shape.kind() {
        KeyKind::Token => 1,
        KeyKind::Pair => 2,
    };
    let mut hash = fold(SEEDS[0] ^ kind, SEEDS[1] ^ shape.page_tokens() as u64);
    // The default namespace is none that has a name, not even an empty one.
    let name = namespace.map_or(&[][..], |name| name);
    hash = fold(hash ^ u64::from(namespace.is_some()), SEEDS[2] ^ name.len() as u64);
    for chunk in name.chunks(8) {
        let mut word = [0; 8];
        word[..chunk.len()].copy_from_slice(chunk);
        hash = fold(hash ^ u64::from_le_bytes(word), SEEDS[1]);
    }
    hash
}

/// The hash of a page behind one with the hash `parent`.
pub(crate) fn page_hash(parent: u64, tokens: impl Iterator<Item = i64>) -> u64 {
    tokens.fold(fold(parent ^ SEEDS[0], SEEDS[2]), |hash, token| {
        fold(hash ^ token.cast_unsigned(), SEEDS[1]) ^ hash.rotate_left(32)
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_depends_on_everything() {
        let shape = |kind, page_tokens| KeyShape::new(kind, page_tokens).expect("positive");
        let mut names = vec![
            root_hash(shape(KeyKind::Token, 64), None),
            root_hash(shape(KeyKind::Pair, 64), None),
            root_hash(shape(KeyKind::Token, 16), None),
            root_hash(shape(KeyKind::Token, 64), Some(b"")),
            root_hash(shape(KeyKind::Token, 64), Some(b"a")),
            root_hash(shape(KeyKind::Token, 64), Some(b"a\0")),
        ];
        for tokens in [&[0_i64, 0][..], &[0, 0, 0], &[1, 0], &[0, 1], &[-1, 0], &[1 << 32, 0]] {
            names.push(page_hash(7, tokens.iter().copied()));
        }
        names.push(page_hash(8, [0, 0].into_iter()));
        let count = names.len();
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), count);
    }
}
