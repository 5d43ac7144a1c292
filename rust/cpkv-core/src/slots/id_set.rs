//! A set of logical ids as a bit map that grows with the largest.

use std::ops::Range;

use super::Run;

/// A set of logical page or slot ids.
#[derive(Debug, Default)]
pub(crate) struct IdSet {
    words: Vec<u64>,
}

impl IdSet {
    /// The set of `ids`.
    pub(crate) fn of(ids: impl Iterator<Item = u32>) -> Self {
        let mut set = Self::default();
        for id in ids {
            set.insert(id);
        }
        set
    }

    /// Adds an id; false if it is in already.
    pub(crate) fn insert(&mut self, id: u32) -> bool {
        let (word, bit) = place(id);
        if word >= self.words.len() {
            self.words.resize(word + 1, 0);
        }
        let before = self.words[word];
        self.words[word] = before | bit;
        before & bit == 0
    }

    /// Adds the ids of a run, a word at a time.
    pub(crate) fn insert_run(&mut self, run: Run) {
        let words = run.slots().end.div_ceil(64) as usize;
        if words > self.words.len() {
            self.words.resize(words, 0);
        }
        for (word, mask) in words_of(run) {
            self.words[word] |= mask;
        }
    }

    /// Adds the ids of a run if none of them is in; false, and nothing has changed, otherwise.
    pub(crate) fn insert_new_run(&mut self, run: Run) -> bool {
        let is_new = words_of(run).all(|(word, mask)| self.words.get(word).is_none_or(|word| word & mask == 0));
        if is_new {
            self.insert_run(run);
        }
        is_new
    }

    /// Takes the ids of a run out if all of them are in; false, and nothing has changed, otherwise.
    pub(crate) fn remove_run(&mut self, run: Run) -> bool {
        let is_in = words_of(run).all(|(word, mask)| self.words.get(word).is_some_and(|word| word & mask == mask));
        if is_in {
            for (word, mask) in words_of(run) {
                self.words[word] &= !mask;
            }
        }
        is_in
    }

    /// Takes an id out; false if it is not in.
    pub(crate) fn remove(&mut self, id: u32) -> bool {
        let (word, bit) = place(id);
        let Some(before) = self.words.get(word).copied() else { return false };
        self.words[word] = before & !bit;
        before & bit != 0
    }

    pub(crate) fn contains(&self, id: u32) -> bool {
        let (word, bit) = place(id);
        self.words.get(word).is_some_and(|word| word & bit != 0)
    }

    pub(crate) fn len(&self) -> u32 {
        self.words.iter().map(|word| word.count_ones()).sum()
    }

    /// The ids in ascending order.
    pub(crate) fn iter(&self) -> impl Iterator<Item = u32> {
        let bits = |(index, &word): (u32, &u64)| {
            (0..64).filter(move |bit| word >> bit & 1 == 1).map(move |bit| index * 64 + bit)
        };
        (0..).zip(&self.words).flat_map(bits)
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.words.capacity() * size_of::<u64>()
    }
}

/// The words that a run has bits in, and which.
fn words_of(run: Run) -> impl Iterator<Item = (usize, u64)> {
    let Range { start, end } = run.slots();
    let mut first = start;
    std::iter::from_fn(move || {
        let (word, bit) = (first as usize / 64, first % 64);
        let len = (64 - bit).min(end - first);
        first += len;
        (len > 0).then(|| (word, Run { first: bit, len }.mask()))
    })
}

fn place(id: u32) -> (usize, u64) {
    (id as usize / 64, 1 << (id % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn adds_and_removes_once() {
        let mut set = IdSet::default();
        assert!(!set.remove(70));
        assert!(set.insert(70) && !set.insert(70) && set.insert(6));
        assert_eq!(set.len(), 2);
        assert_eq!(set.iter().collect::<Vec<_>>(), [6, 70]);
        assert!(set.contains(6) && !set.contains(7) && !set.contains(1 << 20));
        assert!(set.remove(70) && !set.remove(70));
        assert_eq!(set.len(), 1);
    }

    #[test]
    fn a_run_is_its_ids() {
        for (first, len) in [(0, 1), (3, 61), (63, 2), (10, 200), (64, 64)] {
            let mut set = IdSet::default();
            set.insert_run(Run { first, len });
            assert!(set.iter().eq(first..first + len), "{first} {len}");
            // All of it or nothing, wherever the one that differs is.
            for odd in first..first + len {
                assert!(set.remove(odd) && !set.remove_run(Run { first, len }));
                assert_eq!(set.len(), len - 1);
                assert!(set.insert(odd));
            }
            assert!(!set.insert_new_run(Run { first, len }) && set.remove_run(Run { first, len }));
            assert_eq!(set.len(), 0);
            for odd in first..first + len {
                assert!(set.insert(odd) && !set.insert_new_run(Run { first, len }));
                assert!(set.iter().eq([odd]) && set.remove(odd));
            }
            assert!(set.insert_new_run(Run { first, len }));
            assert!(set.iter().eq(first..first + len), "{first} {len}");
        }
    }
}
