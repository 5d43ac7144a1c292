//! Whatever the scheduler is doing, its ticks bring copies to their end: nothing stays locked because nobody starts
//! a request, and what is locked no more can be had.

use cpkv_core::{Lane, Lease, Tokens};

use crate::every_shape;
use crate::lab::{Lab, Shape};

/// Pages of a request in each lane.
const PAGES: u32 = 12;
const TICKS: usize = 100;

/// What happens between the ticks.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Meanwhile {
    /// Nothing at all.
    Idle,
    /// A request decodes, and fills no page.
    Decode,
    /// A request decodes, and fills a page now and then, which is backed up late.
    DecodePages,
}

/// When the acks of the two backups come.
#[derive(Clone, Copy, PartialEq, Debug)]
enum Acks {
    BeforeTheFirstTick,
    /// In the middle of the ticks.
    Later,
    /// They are lost, and a later word of the stream says so.
    Lost,
}

/// Inserts the next page of a request that decodes.
fn decode(lab: &mut Lab, tokens: &mut Vec<i64>, lease: &mut Lease) {
    let page_tokens = lab.cache.shape().page_tokens();
    let page = lease.pages().0;
    let next = tokens.last().unwrap() + 1;
    tokens.extend((next..).take(page_tokens));
    let pages = lab.take_pages(page, page + 1);
    for (item, value) in lab.content(tokens, page).into_iter().enumerate() {
        lab.engine.compute(u32::try_from(pages[0]).unwrap(), item, value);
    }
    lab.cache.insert(tokens, &pages, lease).unwrap();
}

fn evictable(lab: &Lab) -> u32 {
    (0..lab.cache.lanes().count()).map(|lane| lab.cache.evictable_pages(Lane(lane)).unwrap()).sum()
}

fn run(shape: Shape, meanwhile: Meanwhile, acks: Acks) {
    let lanes = u32::try_from(shape.lanes).unwrap();
    let mut lab = Lab::new(shape, 32, 64);
    let mut decoded = lab.prompt(900_000, 1);
    let request = lab.start(&decoded);
    lab.complete(request);
    lab.drain();
    let mut lease = lab.cache.lock(&lab.find(&decoded), 0);
    let prompts = [lab.prompt(0, PAGES * lanes), lab.prompt(100_000, PAGES * lanes)];
    for tokens in &prompts {
        let request = lab.start(tokens);
        lab.complete(request);
    }
    assert_eq!(evictable(&lab), 0, "copies read them");
    let all = 2 * PAGES * lanes;
    for tick in 0..TICKS {
        match acks {
            Acks::BeforeTheFirstTick if tick == 0 => lab.land(),
            Acks::Later if tick == TICKS / 2 => lab.land(),
            // The copies land, and nobody says so before there are others.
            Acks::Lost if tick == 0 => while (0..2).any(|stream| lab.engine.land(&mut lab.cache, stream)) {},
            Acks::Lost if tick == TICKS / 2 => (0..2).for_each(|stream| lab.engine.acknowledge(stream)),
            _ => {}
        }
        lab.tick();
        if tick == 0 && acks == Acks::BeforeTheFirstTick {
            assert_eq!(evictable(&lab), all, "{shape:?} {meanwhile:?}: with the first tick");
        }
        if meanwhile == Meanwhile::DecodePages && tick.is_multiple_of(30) {
            decode(&mut lab, &mut decoded, &mut lease);
        }
    }
    // Those of late backups.
    lab.land();
    for _ in 0..3 {
        lab.tick();
    }
    assert!(!lab.cache.has_work());
    let stats = lab.cache.stats();
    let decoded_pages = lab.cache.shape().pages_in(Tokens(decoded.len())).0;
    assert_eq!(stats.host_cached_slots, all + decoded_pages, "{shape:?} {meanwhile:?} {acks:?}");
    assert_eq!(evictable(&lab), all);
    for tokens in &prompts {
        assert_eq!(lab.found(tokens), (PAGES * lanes, 0));
    }
    let wanted: Vec<i64> = (0..20 * shape.lanes).map(|page| page % shape.lanes).collect();
    let pages = lab.take_pages_in(&wanted).expect("nothing is locked any more");
    lab.recount(u32::try_from(pages.len()).unwrap());
    lab.free(&pages);
    lab.cache.release(lease);
    // What went from the device is on the host, as it was written.
    for tokens in &prompts {
        let hit = lab.find(tokens);
        assert_eq!(hit.pages(), lab.cache.shape().pages_in(Tokens(tokens.len())));
    }
}

#[test]
fn copies_end_whatever_the_scheduler_is_doing() {
    for shape in every_shape() {
        for meanwhile in [Meanwhile::Idle, Meanwhile::Decode, Meanwhile::DecodePages] {
            for acks in [Acks::BeforeTheFirstTick, Acks::Later, Acks::Lost] {
                run(shape, meanwhile, acks);
            }
        }
    }
}
