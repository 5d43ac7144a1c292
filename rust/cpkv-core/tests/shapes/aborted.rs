//! What is copied may be given up at any moment, twice as well and after it is over: all that was set aside comes
//! back, every time.

use cpkv_core::machine::Reason;
use cpkv_core::{Lease, OperationId, Tokens};

use crate::engine::ITEMS;
use crate::every_shape;
use crate::lab::Lab;

const PAGES: u32 = 3;
/// Of one kind of copy, in one shape; in those of other pages as many as make ten of each moment.
const ROUNDS: usize = 1_000;
const FEWER_ROUNDS: usize = 70;

/// What is copied.
#[derive(Clone, Copy, PartialEq, Debug)]
enum What {
    /// To slots that were reserved before the forward.
    Transaction,
    /// Late, of pages that are in the tree already.
    LateBackup,
    /// Back to the device.
    Restore,
}

/// How far it has come when it is given up.
#[derive(Clone, Copy, PartialEq, PartialOrd, Debug)]
enum Moment {
    /// All is set aside, and nothing submitted.
    Queued,
    /// A part was submitted; of a late backup, which is submitted whole, all of it.
    Begun,
    Submitted,
    /// A part has landed.
    Copying,
    /// All has landed, and no tick has looked.
    Landed,
    /// The same, and the pages of a request are in the tree.
    Inserted,
    /// It is over, and what is there stays.
    Over,
}

const MOMENTS: [Moment; 7] =
    [Moment::Queued, Moment::Begun, Moment::Submitted, Moment::Copying, Moment::Landed, Moment::Inserted, Moment::Over];

/// Free pages, and slots that are not those of a page.
fn room(lab: &Lab) -> (u32, u32) {
    let stats = lab.cache.stats();
    let used = stats.host_cached_slots + stats.host_reserved_slots + stats.host_draining_slots;
    (lab.free_pages(), stats.host_capacity_slots - used - stats.host_quarantined_slots)
}

fn submit(lab: &mut Lab, id: OperationId, moment: Moment) {
    let items = match moment {
        Moment::Queued => 0,
        Moment::Begun => 1,
        _ => ITEMS,
    };
    (0..items).for_each(|item| lab.submit(id, item, false));
    if moment >= Moment::Submitted {
        lab.cache.submitted_all(id).unwrap();
    }
}

fn land(lab: &mut Lab, moment: Moment) {
    match moment {
        Moment::Queued | Moment::Begun | Moment::Submitted => {}
        Moment::Copying => lab.land_next(0),
        Moment::Landed | Moment::Inserted | Moment::Over => lab.land(),
    }
    if moment == Moment::Over {
        lab.tick();
    }
}

/// What is given up, or over, is not given up again, whoever has its place by now.
fn give_up_in_vain(lab: &mut Lab, id: OperationId) {
    let digest = lab.cache.digest();
    for reason in [Reason::Aborted, Reason::Retracted] {
        lab.cache.abort(id, reason).unwrap();
    }
    assert_eq!(lab.cache.digest(), digest, "{id} was given up twice");
}

fn give_up(lab: &mut Lab, id: OperationId, last: Option<OperationId>) {
    if let Some(last) = last {
        give_up_in_vain(lab, last);
    }
    lab.cache.abort(id, Reason::Aborted).unwrap();
    lab.check();
    give_up_in_vain(lab, id);
}

/// Computes pages that nothing was reserved for, and inserts them.
fn decode(lab: &mut Lab, tokens: &[i64]) -> Lease {
    let mut lease = lab.cache.lock(&lab.find(tokens), 0);
    let pages = lab.take_pages(0, PAGES);
    for (place, &page) in (0..).zip(&pages) {
        let content = lab.content(tokens, place);
        for (item, value) in content.into_iter().enumerate() {
            lab.engine.compute(u32::try_from(page).unwrap(), item, value);
        }
    }
    lab.cache.insert(tokens, &pages, &mut lease).unwrap();
    lease
}

/// Returns what was given up.
fn give_up_once(lab: &mut Lab, what: What, moment: Moment, last: Option<OperationId>) -> OperationId {
    let tokens = lab.prompt(7, PAGES);
    match what {
        What::Transaction => {
            let mut request = lab.start(&tokens);
            let id = request.transaction();
            for (place, &page) in (0..).zip(&request.pages) {
                for (item, value) in lab.content(&tokens, place).into_iter().enumerate() {
                    lab.engine.compute(u32::try_from(page).unwrap(), item, value);
                }
            }
            submit(lab, id, moment);
            if moment >= Moment::Inserted {
                lab.insert(&mut request);
                request.pages.clear();
            }
            land(lab, moment);
            give_up(lab, id, last);
            lab.free(&request.pages);
            lab.release(&mut request);
            id
        }
        What::LateBackup => {
            let lease = decode(lab, &tokens);
            let id = lab.cache.dump().operations[0].operation;
            if moment > Moment::Queued {
                lab.tick();
                land(lab, moment);
            }
            give_up(lab, id, last);
            lab.cache.release(lease);
            id
        }
        What::Restore => {
            let mut lease = lab.cache.lock(&lab.find(&tokens), 0);
            let pages = lab.take_pages(0, PAGES);
            let restored = lab.cache.restore(&mut lease, &pages).unwrap();
            let [id] = restored.operations[..] else { panic!("{restored:?}") };
            submit(lab, id, moment);
            land(lab, moment);
            give_up(lab, id, last);
            assert_eq!(lab.cache.is_lost(&lease), moment != Moment::Over);
            lab.cache.release(lease);
            id
        }
    }
}

#[test]
fn all_that_was_set_aside_comes_back_from_every_moment() {
    for shape in every_shape() {
        for what in [What::Transaction, What::LateBackup, What::Restore] {
            let mut lab = Lab::new(shape, 8, 8);
            let tokens = lab.prompt(7, PAGES);
            if what == What::Restore {
                let request = lab.start(&tokens);
                lab.complete(request);
                lab.drain();
                lab.evict_all();
            }
            let before = room(&lab);
            let mut last = None;
            let rounds = if (shape.page_tokens, shape.lanes) == (4, 2) { ROUNDS } else { FEWER_ROUNDS };
            for moment in MOMENTS.into_iter().cycle().take(rounds) {
                last = Some(give_up_once(&mut lab, what, moment, last));
                lab.drain();
                lab.evict_all();
                if what != What::Restore {
                    let freed = lab.cache.flush();
                    lab.scribble(&freed);
                }
                assert_eq!(room(&lab), before, "{shape:?} {what:?} {moment:?}");
                lab.recount(0);
            }
            let found = if what == What::Restore { lab.cache.shape().pages_in(Tokens(tokens.len())).0 } else { 0 };
            assert_eq!(lab.found(&tokens), (0, found));
        }
    }
}
