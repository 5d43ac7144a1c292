//! What is drawn at random: the caches and ranks, and what happens to them.

use cpkv_core::machine::Reason;
use cpkv_core::{CacheConfig, Copies, KeyKind, Namespace, Policy, PoolOwner, WritePolicy};
use proptest::prelude::*;
use proptest::sample::Index;

use crate::engine::{ITEMS, STREAMS};

pub(crate) const NAMESPACES: u8 = 3;

/// A namespace by its number, which ends its name; 0 is the default one.
pub(crate) fn namespace(number: u8) -> Namespace {
    if number == 0 { Namespace::default() } else { Namespace::from_parts([("number", [number].as_slice())]) }
}

#[derive(Clone, Debug)]
pub(crate) enum Action {
    Start {
        prompt: Vec<i64>,
        namespace: u8,
        priority: i32,
        reserves: bool,
        /// Items of what is restored that are submitted at once.
        loads: usize,
    },
    /// A prompt is looked up, to be started some time later.
    Find {
        prompt: Vec<i64>,
        namespace: u8,
    },
    /// The request of a prompt that was looked up, with what was found then.
    StartFound {
        found: Index,
        priority: i32,
        reserves: bool,
        loads: usize,
    },
    Go {
        request: Index,
        step: Step,
    },
    Land {
        rank: Index,
        stream: usize,
        acknowledged: bool,
    },
    /// A whole request, with nothing in between but its restore.
    Serve {
        prompt: Vec<i64>,
        namespace: u8,
    },
    /// Every copy lands, and the ranks hear of it.
    Settle,
    Tick {
        skipped: u8,
    },
    /// Time passes on one rank.
    Wait {
        rank: Index,
        time_ns: u64,
    },
    /// Aborts any open operation, also one that no request knows of.
    Abort {
        operation: Index,
    },
    Evict {
        lane: Index,
        count: u32,
    },
    Flush,
}

/// What happens to a request that was started.
#[derive(Clone, Debug)]
pub(crate) enum Step {
    /// Submits the next item of what the request restores.
    Load {
        fails: bool,
    },
    Compute {
        fails: bool,
    },
    ForwardEnd {
        draft_ran: bool,
    },
    Insert {
        pages: u32,
    },
    /// Leaves out the transaction, which was aborted.
    InsertAlone {
        pages: u32,
    },
    InsertRest,
    /// A chunk if it reserves, and decode otherwise.
    Grow {
        tokens: u8,
        reserves: bool,
    },
    Abort {
        reason: Reason,
    },
    Release,
}

fn steps() -> impl Strategy<Value = Step> {
    let pages = || prop_oneof![3 => Just(u32::MAX), 1 => 0..4u32];
    prop_oneof![
        4 => prop::bool::weighted(0.1).prop_map(|fails| Step::Load { fails }),
        12 => prop::bool::weighted(0.05).prop_map(|fails| Step::Compute { fails }),
        6 => prop::bool::weighted(0.9).prop_map(|draft_ran| Step::ForwardEnd { draft_ran }),
        7 => pages().prop_map(|pages| Step::Insert { pages }),
        2 => pages().prop_map(|pages| Step::InsertAlone { pages }),
        4 => Just(Step::InsertRest),
        6 => (1u8..6, any::<bool>()).prop_map(|(tokens, reserves)| Step::Grow { tokens, reserves }),
        1 => prop::sample::select(vec![Reason::Aborted, Reason::Retracted]).prop_map(|reason| Step::Abort { reason }),
        3 => Just(Step::Release),
    ]
}

pub(crate) fn actions() -> impl Strategy<Value = Action> {
    let run = (prop::sample::select(vec![7i64, 8, -1]), 1usize..6);
    let prompt = || {
        prop::collection::vec(run.clone(), 1..4)
            .prop_map(|runs| runs.into_iter().flat_map(|(token, count)| vec![token; count]).collect::<Vec<i64>>())
    };
    let namespace = || prop_oneof![4 => Just(0), 1 => 1..NAMESPACES];
    let index = any::<Index>;
    prop_oneof![
        10 => (prompt(), namespace(), -1i32..2, prop::bool::weighted(0.9), 0..=ITEMS).prop_map(
            |(prompt, namespace, priority, reserves, loads)| Action::Start { prompt, namespace, priority, reserves, loads }
        ),
        4 => (prompt(), namespace()).prop_map(|(prompt, namespace)| Action::Find { prompt, namespace }),
        4 => (index(), -1i32..2, prop::bool::weighted(0.9), 0..=ITEMS).prop_map(
            |(found, priority, reserves, loads)| Action::StartFound { found, priority, reserves, loads }
        ),
        41 => (index(), steps()).prop_map(|(request, step)| Action::Go { request, step }),
        5 => (prompt(), namespace()).prop_map(|(prompt, namespace)| Action::Serve { prompt, namespace }),
        2 => Just(Action::Settle),
        12 => (index(), 0..STREAMS, prop::bool::weighted(0.8))
            .prop_map(|(rank, stream, acknowledged)| Action::Land { rank, stream, acknowledged }),
        9 => any::<u8>().prop_map(|skipped| Action::Tick { skipped }),
        2 => (index(), prop_oneof![3 => 0u64..10, 2 => 20u64..60])
            .prop_map(|(rank, time_ns)| Action::Wait { rank, time_ns }),
        1 => index().prop_map(|operation| Action::Abort { operation }),
        5 => (index(), 0u32..12).prop_map(|(lane, count)| Action::Evict { lane, count }),
        1 => prop::bool::weighted(0.2).prop_map(|flush| if flush { Action::Flush } else { Action::Tick { skipped: 0 } }),
    ]
}

#[derive(Clone, Debug)]
pub(crate) struct Setup {
    pub(crate) config: CacheConfig,
    pub(crate) ranks: u32,
    /// The ranks agree by a reduction instead of reports and verdicts.
    pub(crate) reduces: bool,
}

impl Setup {
    /// Whether `rank` has its share of a page or slot.
    pub(crate) fn is_on(&self, rank: usize, page: u32) -> bool {
        self.ranks == 1 || self.config.lanes == 1 || page % self.ranks == u32::try_from(rank).unwrap()
    }

    pub(crate) fn config_of(&self, rank: u32) -> CacheConfig {
        let is_striped = self.ranks > 1 && self.config.lanes > 1;
        CacheConfig { own_lane: is_striped.then_some(rank), ..self.config.clone() }
    }

    pub(crate) fn lanes(&self) -> u32 {
        u32::try_from(self.config.lanes).unwrap()
    }

    pub(crate) fn page_tokens(&self) -> usize {
        usize::try_from(self.config.page_tokens).unwrap()
    }
}

pub(crate) fn setups() -> impl Strategy<Value = Setup> {
    let writes = vec![
        (WritePolicy::Through, 0),
        (WritePolicy::Through, 0),
        (WritePolicy::Through, 4),
        (WritePolicy::Selective(2), 0),
        (WritePolicy::Back, 5),
    ];
    let configs = (
        1i64..3,
        prop::sample::select(vec![KeyKind::Token, KeyKind::Pair]),
        prop::sample::select(vec![PoolOwner::Cpkv, PoolOwner::Engine]),
        6i64..16,
        2i64..16,
        prop::sample::select(vec![1i64, 1, 2]),
        prop::sample::select(Policy::ALL.map(|(_, policy)| policy).to_vec()),
        prop::sample::select(writes),
    )
        .prop_map(|(page_tokens, key, owner, device, host, segment_pages, policy, (write, clean_pages))| CacheConfig {
            page_tokens,
            key,
            owner,
            device_pages: device,
            host_slots: Some(host),
            segment_pages,
            policy,
            copies: Copies::Tracked,
            copy_deadline_ns: 40,
            has_draft: true,
            events: true,
            write,
            clean_pages,
            ..CacheConfig::default()
        });
    // One rank may have any number of lanes; several share the same pages, or have one lane each.
    let ranks = prop_oneof![
        (1i64..5).prop_map(|lanes| (1, lanes)),
        (2u32..4, any::<bool>()).prop_map(|(ranks, striped)| (ranks, if striped { i64::from(ranks) } else { 1 })),
    ];
    (configs, ranks, any::<bool>()).prop_map(|(config, (ranks, lanes), reduces)| {
        let config = CacheConfig {
            lanes,
            device_pages: config.device_pages * lanes,
            host_slots: config.host_slots.map(|slots| slots * lanes),
            ..config
        };
        Setup { config, ranks, reduces }
    })
}
