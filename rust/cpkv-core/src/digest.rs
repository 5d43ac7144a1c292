//! One number for a whole state, to compare replicas by.

use std::hash::Hasher;

/// Folds numbers into one, order included. For equality in tests and between ranks, not for
/// secrets.
#[derive(Debug, Default)]
pub(crate) struct Digest(u64);

impl Digest {
    pub(crate) fn add(&mut self, value: u64) {
        // For each value a bijection of the state: rotate, xor, add, odd multiplication, shifted
        // xor. The addition keeps zeros from folding to zero.
        self.0 = (self.0.rotate_left(23) ^ value).wrapping_add(0x9E37_79B9_7F4A_7C15);
        self.0 = self.0.wrapping_mul(0xD6E8_FEB8_6659_FD93);
        self.0 ^= self.0 >> 32;
    }

    /// Adds `None` as different from every raw id.
    pub(crate) fn add_id(&mut self, raw: Option<u32>) {
        self.add(raw.map_or(u64::MAX, u64::from));
    }

    pub(crate) fn finish(&self) -> u64 {
        self.0
    }
}

/// For what derives `Hash`.
impl Hasher for Digest {
    fn write(&mut self, bytes: &[u8]) {
        for &byte in bytes {
            self.add(u64::from(byte));
        }
    }

    fn write_u64(&mut self, value: u64) {
        self.add(value);
    }

    fn finish(&self) -> u64 {
        self.0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn order_and_absence_count() {
        let digest_of = |values: &[Option<u32>]| {
            let mut digest = Digest::default();
            for &value in values {
                digest.add_id(value);
            }
            digest.finish()
        };
        assert_ne!(digest_of(&[Some(1), Some(2)]), digest_of(&[Some(2), Some(1)]));
        assert_ne!(digest_of(&[None, Some(0)]), digest_of(&[Some(0), Some(0)]));
        assert_ne!(digest_of(&[Some(0)]), digest_of(&[Some(0), Some(0)]));
    }
}
