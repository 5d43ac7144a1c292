//! Models of the protocols over atomics of `cpkv-core`, run by `make loom`.
//!
//! The sources are the product's own, included by path; their atomics are loom's. Each file of
//! models covers one file of protocols. A test named `without_…` is a *negative control*: the model
//! with one ordering weakened, or two accesses exchanged, in which loom has to find what goes
//! wrong. Bodies are plain cells where a read that is not ordered must be found as such, and
//! relaxed atomics, as in the product, where the value that is read must be right.

#![cfg(all(loom, test))]

#[path = "../../cpkv-core/src/agreement/protocol/mod.rs"]
mod protocol;
#[path = "../../cpkv-core/src/agreement/sync.rs"]
mod sync;

mod ack_words;
mod cell;
mod entries;
mod reports;
mod states;
mod table;
mod weakened;
