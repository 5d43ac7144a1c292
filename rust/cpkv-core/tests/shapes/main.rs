//! Promises in every shape that a cache can have: both keys, pages of 1, 4 and 64 tokens, 1, 2 and 4 lanes,
//! pages that cpkv allocates and pages of an engine. One file for each thing that is promised.

#![expect(clippy::unwrap_used, reason = "test code")]

#[path = "../engine/mod.rs"]
mod engine;
#[path = "../lab/mod.rs"]
mod lab;

mod aborted;
mod accounting;
mod chunks;
mod decode;
mod deep_trees;
mod fronts;
mod idle;
mod keys;
mod locks;
mod many_at_once;
mod namespaces;
mod owners;
mod partial;
mod pinned;
mod recount;
mod restored;
mod room;
mod splits;
mod uses;

use cpkv_core::PoolOwner;
use lab::{Shape, shapes};

/// The shapes of the lab, with pages of both owners.
fn every_shape() -> Vec<Shape> {
    let owners = [PoolOwner::Cpkv, PoolOwner::Engine];
    shapes().into_iter().flat_map(|shape| owners.map(|owner| Shape { owner, ..shape })).collect()
}
