//! What separates equal tokens that must not share KV: adapter, cache salt, tenant.
//!
//! A namespace is a byte string that is compared whole. Whoever builds one of several parts has to
//! tag the parts and delimit their lengths; [`Namespace::from_parts`] does.

use std::sync::Arc;

/// A namespace. The default one is different from every named one, the empty name included.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub struct Namespace(Option<Arc<[u8]>>);

impl Namespace {
    /// The namespace of `parts`, each a tag and a value. Equal only to the same parts in the same
    /// order: every part is written as the lengths of tag and value, then both.
    ///
    /// Without parts this is the default namespace.
    ///
    /// ```
    /// use cpkv_core::Namespace;
    /// let salted = Namespace::from_parts([("salt", b"ab".as_slice()), ("extra", b"c")]);
    /// let other = Namespace::from_parts([("salt", b"a".as_slice()), ("extra", b"bc")]);
    /// assert_ne!(salted, other);
    /// assert_eq!(Namespace::from_parts([]), Namespace::default());
    /// ```
    #[must_use]
    pub fn from_parts<'a>(parts: impl IntoIterator<Item = (&'a str, &'a [u8])>) -> Self {
        let mut bytes = Vec::new();
        for (tag, value) in parts {
            for length in [tag.len(), value.len()] {
                bytes.extend_from_slice(&(length as u64).to_le_bytes());
            }
            bytes.extend_from_slice(tag.as_bytes());
            bytes.extend_from_slice(value);
        }
        Self((!bytes.is_empty()).then(|| bytes.into()))
    }

    /// The name, or `None` for the default namespace.
    pub(crate) fn name(&self) -> Option<&Arc<[u8]>> {
        self.0.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parts_do_not_run_into_each_other() {
        let namespaces = [
            Namespace::default(),
            Namespace::from_parts([("adapter", b"x".as_slice())]),
            Namespace::from_parts([("salt", b"x".as_slice())]),
            Namespace::from_parts([("salt", b"".as_slice())]),
            Namespace::from_parts([("", b"".as_slice())]),
            Namespace::from_parts([("sal", b"tx".as_slice())]),
            Namespace::from_parts([("salt", b"ab".as_slice()), ("extra", b"c")]),
            Namespace::from_parts([("salt", b"a".as_slice()), ("extra", b"bc")]),
            Namespace::from_parts([("extra", b"bc".as_slice()), ("salt", b"a")]),
        ];
        for (index, namespace) in namespaces.iter().enumerate() {
            assert!(!namespaces[..index].contains(namespace), "{namespace:?}");
        }
    }
}
