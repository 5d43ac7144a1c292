//! What a page of a key is: plain tokens, or EAGLE/MTP pairs of a token and its successor.
//!
//! Pairs are never materialised. Element `i` of a pair key is `(t[i], t[i + 1])`, so `n` raw tokens
//! make `n - 1` elements and a prefix of `k` elements is equal exactly when the first `k + 1` raw
//! tokens are. Everything in this crate counts in pages; this file is the one place where raw
//! tokens become pages.

use crate::ids::{Pages, Tokens};

/// The kind of key that the tree is built on.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum KeyKind {
    /// Element `i` is token `i`.
    Token,
    /// Element `i` is token `i` together with token `i + 1` (EAGLE/MTP drafts).
    Pair,
}

/// The kind of key and the size of a page.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct KeyShape {
    kind: KeyKind,
    page_tokens: u32,
}

impl KeyShape {
    /// Describes keys of `kind` in pages of `page_tokens` elements; `None` for an empty page.
    #[must_use]
    pub const fn new(kind: KeyKind, page_tokens: u32) -> Option<Self> {
        if page_tokens == 0 { None } else { Some(Self { kind, page_tokens }) }
    }

    /// The kind of key.
    #[must_use]
    pub const fn kind(self) -> KeyKind {
        self.kind
    }

    /// Tokens in one page.
    #[must_use]
    pub const fn page_tokens(self) -> usize {
        self.page_tokens as usize
    }

    /// Raw tokens that a key needs beyond the tokens of its pages: the last pair's successor.
    #[must_use]
    pub const fn successor_tokens(self) -> usize {
        match self.kind {
            KeyKind::Token => 0,
            KeyKind::Pair => 1,
        }
    }

    /// Whole pages in a key of `tokens` raw tokens: `n / P`, or `(n - 1) / P` with pairs.
    ///
    /// Saturates at `u32::MAX - 1` pages, which no pool can hold.
    #[must_use]
    pub fn pages_in(self, tokens: Tokens) -> Pages {
        let elements = tokens.0.saturating_sub(self.successor_tokens());
        let pages = elements / self.page_tokens();
        Pages(u32::try_from(pages).unwrap_or(u32::MAX).min(u32::MAX - 1))
    }

    /// Whole pages of plain tokens in `tokens`; what a limit on the length of a hit allows.
    #[must_use]
    pub fn pages_within(self, tokens: Tokens) -> Pages {
        let pages = tokens.0 / self.page_tokens();
        Pages(u32::try_from(pages).unwrap_or(u32::MAX).min(u32::MAX - 1))
    }

    /// Tokens that `pages` hold.
    #[must_use]
    pub const fn tokens_of(self, pages: Pages) -> Tokens {
        Tokens(pages.0 as usize * self.page_tokens())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_raw_tokens() {
        let token = KeyShape::new(KeyKind::Token, 64).expect("positive");
        let pair = KeyShape::new(KeyKind::Pair, 64).expect("positive");
        let raw = [0, 1, 63, 64, 65, 128, 129];
        assert_eq!(raw.map(|n| token.pages_in(Tokens(n)).0), [0, 0, 0, 1, 1, 2, 2]);
        assert_eq!(raw.map(|n| pair.pages_in(Tokens(n)).0), [0, 0, 0, 0, 1, 1, 2]);
        assert_eq!(raw.map(|n| pair.pages_within(Tokens(n)).0), [0, 0, 0, 1, 1, 2, 2]);
    }

    #[test]
    fn an_empty_page_is_no_page() {
        assert_eq!(KeyShape::new(KeyKind::Token, 0), None);
    }
}
