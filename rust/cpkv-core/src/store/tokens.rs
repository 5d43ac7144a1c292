//! A run of token ids, four bytes each where they fit.
//!
//! Any `i64` is a legal token id. Ids of 0 to `u32::MAX` are kept in 32 bits; a run with any other
//! id (padding values of images, say) keeps all of its ids in 64. Two ids are never folded into
//! one: both forms compare by their full 64-bit value.

use std::ops::Range;

/// Tokens compared at a time without a branch; several vector registers full.
const STRIDE: usize = 32;

/// An immutable run of token ids, except that its end can be cut off.
#[derive(Clone, Debug)]
pub(crate) enum TokenRun {
    Compact(Vec<u32>),
    Wide(Vec<i64>),
}

impl TokenRun {
    /// Copies `tokens`, in 32 bits each if all of them fit.
    pub(crate) fn from_tokens(tokens: &[i64]) -> Self {
        match narrow(tokens) {
            Some(compact) => Self::Compact(compact),
            None => Self::Wide(tokens.to_vec()),
        }
    }

    /// Copies the `ranges` of `source`, one after another; compact again if what is left fits.
    pub(crate) fn gather(source: &Self, ranges: impl Iterator<Item = Range<usize>> + Clone) -> Self {
        match source {
            Self::Compact(tokens) => Self::Compact(concatenate(tokens, ranges)),
            Self::Wide(tokens) => {
                let kept = concatenate(tokens, ranges);
                narrow(&kept).map_or(Self::Wide(kept), Self::Compact)
            }
        }
    }

    /// Copies a part of each of two runs, one after the other.
    pub(crate) fn joined(front: (&Self, Range<usize>), back: (&Self, Range<usize>)) -> Self {
        if let ((Self::Compact(first), before), (Self::Compact(second), after)) = (&front, &back) {
            return Self::Compact([&first[before.clone()], &second[after.clone()]].concat());
        }
        let tokens: Vec<i64> =
            [front, back].into_iter().flat_map(|(run, range)| range.map(|index| run.get(index))).collect();
        Self::from_tokens(&tokens)
    }

    /// The token id at `index`.
    pub(crate) fn get(&self, index: usize) -> i64 {
        match self {
            Self::Compact(tokens) => i64::from(tokens[index]),
            Self::Wide(tokens) => tokens[index],
        }
    }

    /// How many tokens of `query` equal those from `start`, looking at no more than `most`.
    pub(crate) fn equal_prefix(&self, start: usize, most: usize, query: &[i64]) -> usize {
        match self {
            Self::Compact(tokens) => equal_prefix(&tokens[start..start + most], query),
            Self::Wide(tokens) => equal_prefix(&tokens[start..start + most], query),
        }
    }

    /// Keeps the first `length` tokens and gives the rest of the memory back; compact again if
    /// what is left fits.
    pub(crate) fn truncate(&mut self, length: usize) {
        match self {
            Self::Compact(tokens) => {
                tokens.truncate(length);
                tokens.shrink_to_fit();
            }
            Self::Wide(tokens) => {
                if let Some(compact) = narrow(&tokens[..length]) {
                    *self = Self::Compact(compact);
                } else {
                    tokens.truncate(length);
                    tokens.shrink_to_fit();
                }
            }
        }
    }

    /// Bytes allocated on the heap.
    pub(crate) fn heap_bytes(&self) -> usize {
        match self {
            Self::Compact(tokens) => tokens.capacity() * size_of::<u32>(),
            Self::Wide(tokens) => tokens.capacity() * size_of::<i64>(),
        }
    }
}

/// The `ranges` of `source`, one after another.
fn concatenate<T: Copy>(source: &[T], ranges: impl Iterator<Item = Range<usize>> + Clone) -> Vec<T> {
    let mut joined = Vec::with_capacity(ranges.clone().map(|range| range.len()).sum());
    ranges.for_each(|range| joined.extend_from_slice(&source[range]));
    joined
}

/// `tokens` in 32 bits each, or `None` if one of them does not fit.
///
/// One pass, so that the tokens are read from memory once.
fn narrow(tokens: &[i64]) -> Option<Vec<u32>> {
    let mut high_bits = 0;
    #[expect(clippy::cast_possible_truncation, reason = "the high bits are collected and decide")]
    let compact = tokens
        .iter()
        .map(|&token| {
            high_bits |= token.cast_unsigned() >> u32::BITS;
            token.cast_unsigned() as u32
        })
        .collect();
    (high_bits == 0).then_some(compact)
}

/// How many tokens `stored` and `query` have in common from the start.
fn equal_prefix<T: Copy + Into<i64>>(stored: &[T], query: &[i64]) -> usize {
    let length = stored.len().min(query.len());
    let (stored, query) = (&stored[..length], &query[..length]);
    let mut equal = 0;
    for (ours, theirs) in stored.chunks_exact(STRIDE).zip(query.chunks_exact(STRIDE)) {
        let mut difference = 0;
        for index in 0..STRIDE {
            difference |= ours[index].into() ^ theirs[index];
        }
        if difference != 0 {
            break;
        }
        equal += STRIDE;
    }
    let rest = stored[equal..].iter().zip(&query[equal..]);
    equal + rest.take_while(|&(&ours, &theirs)| ours.into() == theirs).count()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ids_that_fit_are_compact_and_others_stay_apart() {
        let compact = TokenRun::from_tokens(&[0, 1, i64::from(u32::MAX)]);
        assert!(matches!(compact, TokenRun::Compact(_)));
        for odd in [-1, i64::MIN, i64::MAX, 1 << 32, (1 << 32) + 7] {
            let wide = TokenRun::from_tokens(&[7, odd]);
            assert!(matches!(wide, TokenRun::Wide(_)), "{odd}");
            assert_eq!((wide.get(0), wide.get(1)), (7, odd));
            // The low 32 bits of `1 << 32 + 7` are those of 7: they must not count as equal.
            assert_eq!(compact.equal_prefix(0, 3, &[0, odd]), 1, "{odd}");
            assert_eq!(wide.equal_prefix(0, 2, &[7, odd]), 2, "{odd}");
        }
    }

    #[test]
    fn equal_prefix_finds_every_first_difference() {
        let tokens: Vec<i64> = (0..100).collect();
        let run = TokenRun::from_tokens(&tokens);
        for differs in 0..100 {
            let mut query = tokens.clone();
            query[differs] = -1;
            assert_eq!(run.equal_prefix(0, 100, &query), differs);
            assert_eq!(run.equal_prefix(0, 100, &tokens[..differs]), differs);
            assert_eq!(run.equal_prefix(differs, 100 - differs, &tokens[differs..]), 100 - differs);
            assert_eq!(run.equal_prefix(0, differs, &tokens), differs);
        }
    }

    #[test]
    fn runs_are_joined_in_their_order_and_as_compact_as_can_be() {
        let (compact, wide) = (TokenRun::from_tokens(&[1, 2, 3]), TokenRun::from_tokens(&[4, -5, 6]));
        let all = |run: &TokenRun, length| (0..length).map(|index| run.get(index)).collect::<Vec<_>>();
        let joined = TokenRun::joined((&compact, 1..3), (&wide, 0..2));
        assert!(matches!(joined, TokenRun::Wide(_)));
        assert_eq!(all(&joined, 4), [2, 3, 4, -5]);
        let joined = TokenRun::joined((&wide, 2..3), (&compact, 0..3));
        assert!(matches!(joined, TokenRun::Compact(_)));
        assert_eq!(all(&joined, 4), [6, 1, 2, 3]);
        let joined = TokenRun::joined((&compact, 2..3), (&compact, 0..1));
        assert!(matches!(joined, TokenRun::Compact(_)));
        assert_eq!(all(&joined, 2), [3, 1]);
    }

    #[test]
    fn what_is_kept_is_compact_again_when_it_can() {
        let wide = TokenRun::from_tokens(&[1, -5, 3, 4]);
        let kept = TokenRun::gather(&wide, [0..1, 2..4].into_iter());
        assert!(matches!(kept, TokenRun::Compact(_)));
        assert_eq!([kept.get(0), kept.get(1), kept.get(2)], [1, 3, 4]);
        let mut run = TokenRun::from_tokens(&[1, 2, -5, 4]);
        run.truncate(3);
        assert!(matches!(run, TokenRun::Wide(_)));
        run.truncate(2);
        assert!(matches!(run, TokenRun::Compact(_)));
        assert_eq!([run.get(0), run.get(1)], [1, 2]);
    }
}
