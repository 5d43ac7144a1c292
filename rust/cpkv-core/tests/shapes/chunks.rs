//! Prompts that come in chunks of any length: a page is backed up once, when it is full, and stays when its
//! request does not.

use cpkv_core::machine::Reason;
use cpkv_core::{CacheConfig, Pages, Reserved, WritePolicy};

use crate::every_shape;
use crate::lab::{Lab, Shape};

/// Chunks that end just before, at and just behind the end of a page, of less than a page and of several.
fn chunk_lengths(shape: Shape) -> Vec<usize> {
    let page_tokens = usize::try_from(shape.page_tokens).unwrap();
    let mut lengths: Vec<usize> =
        [1, 2, 5].iter().flat_map(|&page| page * page_tokens - 1..=page * page_tokens + 1).collect();
    lengths.retain(|&length| length > 0);
    lengths.dedup();
    lengths
}

/// The ends of the chunks of a prompt.
fn ends(tokens: &[i64], chunk: usize) -> impl Iterator<Item = usize> {
    (chunk..tokens.len()).step_by(chunk).chain([tokens.len()])
}

#[test]
fn each_page_is_backed_up_once_wherever_chunks_end() {
    for shape in every_shape() {
        for chunk in chunk_lengths(shape) {
            for write in [WritePolicy::Through, WritePolicy::Selective(2)] {
                let mut lab = Lab::with(&CacheConfig { write, ..shape.config(16, 16) });
                let tokens = lab.prompt(0, 9);
                let mut lease = Some(lab.cache.lock(&lab.find(&tokens), 0));
                for end in ends(&tokens, chunk) {
                    let mut request = lab.go_on(&tokens[..end], lease.take().unwrap());
                    lab.forward(&request);
                    lab.insert(&mut request);
                    lease = request.lease.take();
                }
                lab.cache.release(lease.take().unwrap());
                lab.drain();
                if write == WritePolicy::Selective(2) {
                    assert_eq!(lab.cache.stats().host_cached_slots, 0, "one request has used it");
                    let lease = lab.cache.lock(&lab.find(&tokens), 0);
                    lab.cache.release(lease);
                    lab.drain();
                }
                let stats = lab.cache.stats();
                let counters = stats.counters;
                let what = format!("{shape:?} {chunk} {write:?}");
                assert_eq!(stats.host_cached_slots, 9, "{what}");
                assert_eq!(counters.reserved_pages + counters.late_reserved_pages, 9, "{what}");
                assert_eq!((counters.committed_pages, counters.host_skipped_pages), (9, 0), "{what}");
                lab.recount(0);
                lab.check_device();
                lab.evict_all();
                assert_eq!(lab.found(&tokens), (0, 9), "{what}");
            }
        }
    }
}

/// What a lease holds is not read again, or n chunks would cost n² steps: only its last page is looked at.
#[test]
fn a_chunk_reads_nothing_in_front_of_the_last_page_that_is_held() {
    for shape in every_shape() {
        for held in 2..=5 {
            let mut lab = Lab::new(shape, 16, 16);
            let (front, all) = (lab.prompt(0, held), lab.prompt(0, 8));
            let mut request = lab.start(&front);
            lab.forward(&request);
            lab.insert(&mut request);
            let mut scrambled = all.clone();
            let unread = lab.cache.shape().tokens_of(Pages(held - 1)).0;
            scrambled[..unread].fill(-7);
            let mut request = lab.go_on(&scrambled, request.lease.take().unwrap());
            lab.forward(&request);
            assert_eq!(lab.insert(&mut request).new_pages.0, 8 - held, "{shape:?} {held}");
            lab.release(&mut request);
            lab.drain();
            assert_eq!((lab.found(&all), lab.found(&scrambled)), ((8, 0), (0, 0)), "{shape:?} {held}");
            lab.check_device();
        }
    }
}

/// A request is given up in the middle of a prompt; what it has inserted is the cache's, and its bytes stay.
#[test]
fn what_earlier_chunks_have_inserted_stays_whole() {
    for shape in every_shape() {
        for given_up in 0..4_u32 {
            for stage in 0..3 {
                let mut lab = Lab::new(shape, 16, 16);
                let all = lab.prompt(0, 8);
                let mut lease = Some(lab.cache.lock(&lab.find(&all), 0));
                for chunk in 0..given_up {
                    let part = lab.prompt(0, 2 * (chunk + 1));
                    let mut request = lab.go_on(&part, lease.take().unwrap());
                    lab.forward(&request);
                    lab.insert(&mut request);
                    lease = request.lease.take();
                }
                let part = lab.prompt(0, 2 * (given_up + 1));
                let mut request = lab.go_on(&part, lease.take().unwrap());
                // Before, within and after its forward.
                if stage > 0 {
                    lab.compute(&request, 0);
                }
                if stage > 1 {
                    lab.compute(&request, 1);
                    lab.compute(&request, 2);
                    lab.forward_end(&request);
                }
                lab.cache.abort(request.transaction(), Reason::Aborted).unwrap();
                lab.free(&request.pages);
                lab.release(&mut request);
                // Every free page is written over by others.
                take_all_free_pages(&mut lab);
                lab.check_device();
                assert_eq!(lab.found(&all), (2 * given_up, 0), "{shape:?} {given_up} {stage}");
                lab.drain();
                lab.check_device();
                lab.recount(0);
                lab.evict_all();
                assert_eq!(lab.found(&all), (0, 2 * given_up), "{shape:?} {given_up} {stage}");
                assert_eq!(lab.free_pages(), lab.cache.stats().device_capacity_pages);
            }
        }
    }
}

/// Takes all that is free, has it scribbled on, and gives it back. Returns how many pages that were.
fn take_all_free_pages(lab: &mut Lab) -> u32 {
    let (lanes, evictable) = (lab.cache.lanes().count(), lab.cache.stats().device_evictable_pages);
    assert_eq!(evictable, 0, "nothing else could be had");
    let mut taken = Vec::new();
    for lane in 0..i64::from(lanes) {
        while let Some(page) = lab.take_pages_in(&[lane]) {
            taken.extend(page);
        }
    }
    lab.engine.scribble(taken.iter().map(|&page| u32::try_from(page).unwrap()));
    lab.free(&taken);
    u32::try_from(taken.len()).unwrap()
}

/// The page that becomes full in the very step in which its request ends.
#[test]
fn the_last_page_is_backed_up_and_read_in_peace() {
    for shape in every_shape() {
        for in_front in 0..3_u32 {
            for aborts in [false, true] {
                let mut lab = Lab::new(shape, 16, 16);
                let tokens = lab.prompt(0, in_front + 1);
                let shape_of_key = lab.cache.shape();
                // All but the last token are a prompt; then it is decoded.
                let prompt = &tokens[..tokens.len() - 1];
                let whole = shape_of_key.pages_in(cpkv_core::Tokens(prompt.len()));
                assert_eq!(whole, Pages(in_front), "{shape:?}");
                let mut request = lab.start(prompt);
                lab.forward(&request);
                lab.insert(&mut request);
                let mut last = lab.go_on(&tokens, request.lease.take().unwrap());
                lab.forward(&last);
                if aborts {
                    let Reserved::Slots(id) = last.reserved else { panic!("{:?}", last.reserved) };
                    lab.cache.abort(id, Reason::Aborted).unwrap();
                }
                // Either way its page has come to be in the tree.
                lab.insert(&mut last);
                lab.release(&mut last);
                assert_eq!(take_all_free_pages(&mut lab), lab.cache.stats().device_capacity_pages - in_front - 1);
                lab.check_device();
                assert!(lab.cache.has_work());
                lab.drain();
                lab.check_device();
                assert_eq!(lab.cache.stats().host_cached_slots, in_front + 1, "{shape:?} {in_front} {aborts}");
                assert_eq!(lab.evict_all(), in_front as usize + 1);
                assert_eq!(lab.found(&tokens), (0, in_front + 1));
            }
        }
    }
}
