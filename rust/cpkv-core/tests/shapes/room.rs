//! Room is made for what is asked for and no more, in the policy's order, and what a request has found is
//! charged to it before anything goes.

use cpkv_core::{CacheConfig, Copies, Namespace, Placement, Policy, Reserved};

use crate::every_shape;
use crate::lab::{Lab, Shape};

/// What the test knows of a prompt's use.
#[derive(Clone, Copy, Debug)]
struct Use {
    first: i64,
    created: u64,
    last_access: u64,
    hits: u64,
}

/// The order in which a policy gives prompts of equal priority up, from its description.
fn sort(uses: &mut [Use], policy: Policy) {
    uses.sort_by_key(|one| match policy {
        Policy::Lru | Policy::Priority => (0, one.last_access),
        Policy::Lfu => (one.hits, one.last_access),
        Policy::Slru => (u64::from(one.hits >= 2), one.last_access),
        Policy::Fifo => (0, one.created),
        Policy::Mru => (0, u64::MAX - one.last_access),
        Policy::Filo => (0, u64::MAX - one.created),
    });
}

const PROMPTS: u32 = 10;

/// Prompts by their number: served when they come first, and used when they come again. No two policies begin with
/// the same two, but for the one that has nothing else to go by than recency.
const USES: [usize; 20] = [0, 1, 2, 3, 4, 0, 1, 1, 5, 5, 6, 7, 8, 9, 2, 3, 4, 0, 6, 6];

/// Prompts of two pages in each lane, used differently often and in another order than they came.
fn used_prompts(lab: &mut Lab) -> Vec<Use> {
    let lanes = lab.cache.lanes().count();
    let mut uses: Vec<Use> = Vec::new();
    for (now, number) in (1..).zip(USES) {
        let first = 1_000_000 * i64::try_from(number).unwrap();
        let tokens = lab.prompt(first, 2 * lanes);
        if let Some(known) = uses.get_mut(number) {
            *known = Use { last_access: now, hits: known.hits + 1, ..*known };
            let lease = lab.cache.lock(&lab.find(&tokens), 0);
            lab.cache.release(lease);
        } else {
            uses.push(Use { first, created: now, last_access: now, hits: 0 });
            let request = lab.start(&tokens);
            lab.complete(request);
            lab.drain();
        }
    }
    uses
}

/// Three pages a lane are taken from the first prompt and half of the second, whole prompts of two.
fn expect_three_gone(lab: &Lab, uses: &[Use], found: impl Fn((u32, u32)) -> u32, what: &str) {
    let lanes = lab.cache.lanes().count();
    for (place, one) in uses.iter().enumerate() {
        let left = found(lab.found(&lab.prompt(one.first, 2 * lanes)));
        let expected = [0, lanes].get(place).copied().unwrap_or(2 * lanes);
        assert_eq!(left, expected, "{what}: prompt {} at place {place}", one.first);
    }
}

/// Both pools: the slots that are freed for a reservation or for new pages are those that are needed.
#[test]
fn slots_that_are_freed_are_those_that_were_asked_for() {
    for shape in every_shape() {
        for (name, policy) in Policy::ALL {
            for copies in [Copies::Assumed, Copies::Tracked] {
                let lanes = u32::try_from(shape.lanes).unwrap();
                let host_slots = i64::from(2 * PROMPTS);
                let mut lab = Lab::with(&CacheConfig { policy, copies, ..shape.config(40, host_slots) });
                let mut uses = used_prompts(&mut lab);
                lab.evict_all();
                let stats = lab.cache.stats();
                assert_eq!((stats.host_cached_slots, stats.host_mirror_slots), (2 * PROMPTS * lanes, 0));
                let tokens = lab.prompt(500_000, 3 * lanes);
                let mut request = lab.start(&tokens);
                if copies == Copies::Tracked {
                    assert!(matches!(request.reserved, Reserved::Slots(_)));
                } else {
                    lab.insert(&mut request);
                }
                let what = format!("{shape:?} {name} {copies:?}");
                assert_eq!(lab.cache.stats().counters.host_evicted_pages, u64::from(3 * lanes), "{what}");
                sort(&mut uses, policy);
                expect_three_gone(&lab, &uses, |(_, host)| host, &what);
            }
        }
    }
}

#[test]
fn pages_that_are_evicted_are_those_that_were_asked_for() {
    for shape in every_shape() {
        for (name, policy) in Policy::ALL {
            let lanes = u32::try_from(shape.lanes).unwrap();
            let config = CacheConfig { policy, host_slots: None, ..shape.config(i64::from(2 * PROMPTS) + 1, 1) };
            let mut lab = Lab::with(&config);
            let mut uses = used_prompts(&mut lab);
            // One page of each lane is free, three are wanted after those.
            let wanted: Vec<i64> = (0..4 * shape.lanes).map(|page| page % shape.lanes).collect();
            let pages = lab.take_pages_in(&wanted).unwrap();
            assert_eq!((pages.len(), lab.free_pages()), (4 * lanes as usize, 0));
            let what = format!("{shape:?} {name}");
            assert_eq!(lab.cache.stats().counters.device_evicted_pages, u64::from(3 * lanes), "{what}");
            sort(&mut uses, policy);
            expect_three_gone(&lab, &uses, |(device, _)| device, &what);
            lab.free(&pages);
        }
    }
}

// --- What a request has found is not free for it ---

/// A prompt of six pages a lane that is found, and two pages a lane that are free.
fn found_and_free(shape: Shape, host_slots: Option<i64>) -> (Lab, Vec<i64>) {
    let host_slots = host_slots.map(|slots| slots * shape.lanes);
    let mut lab = Lab::with(&CacheConfig { host_slots, ..shape.config(8, 1) });
    let tokens = lab.prompt(0, 6 * lab.cache.lanes().count());
    let request = lab.start(&tokens);
    lab.complete(request);
    lab.drain();
    (lab, tokens)
}

#[test]
fn a_request_that_cannot_have_what_it_lacks_takes_nothing() {
    for shape in every_shape() {
        for host_slots in [None, Some(8)] {
            let (mut lab, tokens) = found_and_free(shape, host_slots);
            let lanes = u32::try_from(shape.lanes).unwrap();
            // A page a lane that could go, and one that is free.
            let other = lab.prompt(700_000, lanes);
            let request = lab.start(&other);
            lab.complete(request);
            lab.drain();
            let mut lease = lab.cache.lock(&lab.find(&tokens), 0);
            assert_eq!(lease.device_pages().0, 6 * lanes);
            let digest = lab.cache.digest();
            // More than both, and be it one page in one lane: that is said before anything goes.
            for lacking in [3 * lanes, 2 * lanes + 1] {
                let longer = lab.prompt(0, 6 * lanes + lacking);
                lease = lab.go_on_if_room(&longer, lease).unwrap_err();
                assert_eq!((lab.cache.digest(), lab.free_pages()), (digest, lanes), "{shape:?} {lacking}");
                assert_eq!((lab.found(&tokens), lab.found(&other)), ((6 * lanes, 0), (lanes, 0)));
            }
            let longer = lab.prompt(0, 8 * lanes);
            let request = lab.go_on(&longer, lease);
            assert_eq!(lab.cache.stats().counters.device_evicted_pages, u64::from(lanes));
            lab.complete(request);
            lab.drain();
            assert_eq!(lab.found(&longer), (8 * lanes, 0));
            lab.recount(0);
        }
    }
}

#[test]
fn room_beside_what_was_found_is_taken_from_others_only() {
    for shape in every_shape() {
        for others in 1..=2 {
            let (mut lab, tokens) = found_and_free(shape, Some(16));
            let lanes = u32::try_from(shape.lanes).unwrap();
            // Newer than what the request has found, and still what has to go.
            let other = lab.prompt(700_000, others * lanes);
            let request = lab.start(&other);
            lab.complete(request);
            lab.drain();
            let longer = lab.prompt(0, 8 * lanes);
            let lease = lab.cache.lock(&lab.find(&longer), 0);
            let request = lab.go_on(&longer, lease);
            lab.complete(request);
            assert_eq!(lab.found(&tokens), (6 * lanes, 0), "{shape:?}");
            assert_eq!(lab.found(&other), (0, others * lanes), "{shape:?}");
            assert_eq!(lab.cache.stats().counters.device_evicted_pages, u64::from(others * lanes));
            lab.drain();
        }
    }
}

// --- Room for drafts ---

/// Tokens that may be written beside those that are accepted take no page unless they reach into another one.
#[test]
fn room_for_drafts_evicts_only_for_the_pages_that_they_reach_into() {
    const HOT: i64 = 30;
    const RUNNING: i64 = 12;
    const FREE: i64 = 4;
    for shape in every_shape() {
        let page_tokens = usize::try_from(shape.page_tokens).unwrap();
        for drafts in [0, 1, page_tokens.div_ceil(10), page_tokens, 2 * page_tokens] {
            let mut lab = Lab::with(&CacheConfig { host_slots: None, ..shape.config(HOT + RUNNING + FREE, 1) });
            // In each lane hot prompts of a page, and requests of a page.
            for prompt in 0..HOT * shape.lanes {
                let tokens = lab.prompt(1_000 * prompt, 1);
                let pages = lab.take_pages_in(&[prompt % shape.lanes]).unwrap();
                lab.cache.insert_unleased(&tokens, &pages, &Namespace::default()).unwrap();
            }
            let requests: Vec<i64> = (0..RUNNING * shape.lanes).collect();
            let first: Vec<i64> = requests.iter().map(|place| place % shape.lanes).collect();
            let mut held = lab.take_pages_in(&first).unwrap();
            // The next page of a request is in the next lane.
            let reaches = |&place: &i64| {
                let length = 1 + usize::try_from(7 * place).unwrap() % page_tokens;
                (1..(length + drafts).div_ceil(page_tokens)).map(move |page| place + i64::try_from(page).unwrap())
            };
            let extra: Vec<i64> = requests.iter().flat_map(reaches).map(|place| place % shape.lanes).collect();
            held.extend(lab.take_pages_in(&extra).unwrap());
            let gone = |lane: i64| (extra.iter().filter(|&&wanted| wanted == lane).count() as u64).saturating_sub(4);
            let expected: u64 = (0..shape.lanes).map(gone).sum();
            assert_eq!(lab.cache.stats().counters.device_evicted_pages, expected, "{shape:?} {drafts}");
            if drafts == 0 {
                assert_eq!(extra, []);
            }
            lab.recount(u32::try_from(held.len()).unwrap());
        }
    }
}

/// Making room in vain and for nothing is seen from outside.
#[test]
fn no_pages_are_no_room() {
    for shape in crate::lab::shapes() {
        let (mut lab, tokens) = found_and_free(shape, Some(8));
        let lanes = u32::try_from(shape.lanes).unwrap();
        let digest = lab.cache.digest();
        assert_eq!(lab.cache.evict_for(Placement::Each(&[])).unwrap(), Some(Vec::new()));
        let free = Placement::Stripe(2 * lanes, cpkv_core::Lane(0));
        assert_eq!(lab.cache.evict_for(free).unwrap(), Some(Vec::new()), "as many as are free");
        assert_eq!((lab.cache.digest(), lab.found(&tokens)), (digest, (6 * lanes, 0)));
    }
}
