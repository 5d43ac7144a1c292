//! The table of open operations. A place is used again after its operation is over, under another
//! generation.

use smallvec::SmallVec;

use super::machine::State;
use super::{Ending, Local};
use crate::agreement::OperationId;
use crate::digest::Digest;
use crate::ids::{NodeIndex, OperationIndex, PageId, Pages, SlotId};

/// What an operation is for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Kind {
    /// A host copy of pages that a forward computes, reserved before it.
    Transaction,
    /// A host copy of pages that are in the tree already.
    LateBackup,
    /// Device pages for pages that are on the host only.
    Restore,
}

/// One backup or restore, as all ranks know it.
#[derive(Debug)]
pub(crate) struct Operation {
    pub(crate) state: State,
    /// The last node of its pages; a lock is held on the way to it. Splits leave the index where
    /// the pages end. `None` once the tree does not know of the operation any more.
    pub(crate) end: Option<NodeIndex>,
    /// The depth at which its pages begin.
    pub(crate) first: Pages,
    /// The device pages that its copies read, or write if it is a restore.
    pub(crate) pages: Vec<PageId>,
    /// The host slot of each. Those of a backup are its own until its commit, and what the insertion
    /// did not bring is at the end and belongs to no node. Those of a restore are the tree's.
    pub(crate) slots: Vec<SlotId>,
    /// Backups of pages behind these, which wait for this one.
    pub(crate) children: SmallVec<[OperationId; 2]>,
    pub(crate) kind: Kind,
    /// An insertion was given it.
    pub(crate) was_inserted: bool,
    /// The ends of other locked paths: there are pages on them that its copies use.
    pub(crate) reads: SmallVec<[NodeIndex; 1]>,
    /// Not replicated.
    pub(crate) local: Local,
    /// When a tick has seen it first, by this rank's clock. Not replicated.
    pub(crate) seen_ns: Option<u64>,
    /// Who holds its name will want to know. Not replicated.
    pub(crate) ending: Option<Ending>,
    /// Its place in the list of open operations.
    position: usize,
}

impl Operation {
    pub(crate) fn new(kind: Kind, first: Pages, pages: Vec<PageId>, slots: Vec<SlotId>) -> Self {
        debug_assert_eq!(pages.len(), slots.len());
        let state = if kind == Kind::Transaction { State::reserved(false) } else { State::late(false) };
        Self {
            state,
            end: None,
            first,
            pages,
            slots,
            children: SmallVec::new(),
            kind,
            was_inserted: false,
            reads: SmallVec::new(),
            local: Local::default(),
            seen_ns: None,
            ending: None,
            position: 0,
        }
    }

    fn id_bytes(&self) -> usize {
        self.pages.capacity() * size_of::<PageId>() + self.slots.capacity() * size_of::<SlotId>()
    }

    pub(crate) fn page_count(&self) -> u32 {
        u32::try_from(self.pages.len()).expect("no more than there are")
    }

    /// The host slots that nobody else has.
    pub(crate) fn own_slots(&self) -> &[SlotId] {
        if self.kind == Kind::Restore { &[] } else { &self.slots }
    }

    pub(crate) fn own_slot_count(&self) -> u32 {
        u32::try_from(self.own_slots().len()).expect("no more than there are")
    }
}

#[derive(Debug)]
struct Place {
    generation: u32,
    operation: Option<Operation>,
}

/// All open operations.
#[derive(Debug, Default)]
pub(crate) struct Operations {
    places: Vec<Place>,
    free: Vec<u32>,
    /// The open ones, in an order that depends on nothing but the calls made.
    open: Vec<OperationIndex>,
    /// So many of them are restores.
    restores: usize,
    /// Bytes of the ids of all of them.
    id_bytes: usize,
    /// Of all that were ever opened, and of their ends.
    history: Digest,
}

impl Operations {
    pub(crate) fn insert(&mut self, mut operation: Operation) -> OperationId {
        let index = self.free.pop().unwrap_or_else(|| {
            self.places.push(Place { generation: 0, operation: None });
            u32::try_from(self.places.len() - 1).expect("fewer operations than pages")
        });
        operation.position = self.open.len();
        self.id_bytes += operation.id_bytes();
        self.restores += usize::from(operation.kind == Kind::Restore);
        self.open.push(OperationIndex::new(index).expect("fewer operations than pages"));
        self.history.add(u64::from(index) << 32 | operation.pages.len() as u64);
        self.history.add_id(operation.pages.first().map(|page| page.raw()));
        self.history.add_id(operation.slots.first().map(|slot| slot.raw()));
        let place = &mut self.places[index as usize];
        place.operation = Some(operation);
        OperationId { index, generation: place.generation }
    }

    /// Takes an operation out that is over.
    pub(crate) fn remove(&mut self, id: OperationId) -> Operation {
        let place = &mut self.places[id.index as usize];
        let operation = place.operation.take().expect("only what is open is removed");
        if let Some(ending) = &operation.ending {
            ending.note(operation.state.phase);
        }
        place.generation = place.generation.wrapping_add(1);
        self.history.add(u64::from(id.index) << 32 | u64::from(id.generation));
        self.free.push(id.index);
        self.id_bytes -= operation.id_bytes();
        self.restores -= usize::from(operation.kind == Kind::Restore);
        self.open.swap_remove(operation.position);
        if let Some(&moved) = self.open.get(operation.position) {
            self.places[moved.index()].operation.as_mut().expect("it is open").position = operation.position;
        }
        operation
    }

    /// The operation of that name, if it is open.
    pub(crate) fn get(&self, id: OperationId) -> Option<&Operation> {
        let place = self.places.get(id.index as usize)?;
        place.operation.as_ref().filter(|_| place.generation == id.generation)
    }

    /// Whether an operation ever had that name.
    pub(crate) fn was_given(&self, id: OperationId) -> bool {
        let place = self.places.get(id.index as usize);
        place.is_some_and(|place| {
            id.generation < place.generation || (id.generation == place.generation && place.operation.is_some())
        })
    }

    pub(crate) fn get_mut(&mut self, id: OperationId) -> Option<&mut Operation> {
        let place = self.places.get_mut(id.index as usize)?;
        place.operation.as_mut().filter(|_| place.generation == id.generation)
    }

    /// The name of the open operation in a place.
    pub(crate) fn id_at(&self, index: OperationIndex) -> OperationId {
        OperationId { index: index.raw(), generation: self.places[index.index()].generation }
    }

    pub(crate) fn len(&self) -> usize {
        self.open.len()
    }

    /// Restores that are open.
    pub(crate) fn restores(&self) -> usize {
        self.restores
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.open.is_empty()
    }

    /// The open operation at `position` of an order that depends on nothing but the calls made.
    pub(crate) fn nth(&mut self, position: usize) -> (OperationId, &mut Operation) {
        let index = self.open[position];
        let place = &mut self.places[index.index()];
        let id = OperationId { index: index.raw(), generation: place.generation };
        (id, place.operation.as_mut().expect("it is open"))
    }

    /// The open operations in an order that depends on nothing but the calls made.
    pub(crate) fn iter(&self) -> impl Iterator<Item = (OperationId, &Operation)> {
        let at = |&index: &OperationIndex| {
            let operation = self.places[index.index()].operation.as_ref();
            (self.id_at(index), operation.expect("it is open"))
        };
        self.open.iter().map(at)
    }

    /// One number for all that was ever opened and ended, which is alike on all ranks.
    pub(crate) fn history(&self) -> u64 {
        self.history.finish()
    }

    /// Adds what is alike on all ranks.
    pub(crate) fn add_to_digest(&self, digest: &mut Digest) {
        // The names to come.
        self.free.iter().for_each(|&index| digest.add(u64::from(index)));
        self.places.iter().for_each(|place| digest.add(u64::from(place.generation)));
        for (id, operation) in self.iter() {
            digest.add((operation.kind as u64) << 1 | u64::from(operation.was_inserted));
            operation.reads.iter().for_each(|node| digest.add(u64::from(node.raw())));
            digest.add(u64::from(id.index) << 32 | u64::from(id.generation));
            operation.state.add_to_digest(digest);
            digest.add_id(operation.end.map(NodeIndex::raw));
            digest.add(u64::from(operation.first.0));
            operation.pages.iter().for_each(|page| digest.add(u64::from(page.raw())));
            operation.slots.iter().for_each(|slot| digest.add(u64::from(slot.raw())));
            operation
                .children
                .iter()
                .for_each(|child| digest.add(u64::from(child.generation) << 32 | u64::from(child.index)));
        }
    }

    pub(crate) fn heap_bytes(&self) -> usize {
        self.places.capacity() * size_of::<Place>()
            + (self.free.capacity() + self.open.capacity()) * size_of::<u32>()
            + self.id_bytes
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::operations::machine::{Phase, Reason};

    fn operation() -> Operation {
        Operation::new(Kind::Transaction, Pages::ZERO, Vec::new(), Vec::new())
    }

    #[test]
    fn a_name_is_good_for_one_life() {
        let mut operations = Operations::default();
        let names: Vec<_> = (0..4).map(|_| operations.insert(operation())).collect();
        operations.remove(names[1]);
        assert!(operations.get(names[1]).is_none() && operations.get_mut(names[1]).is_none());
        let again = operations.insert(operation());
        assert_eq!((again.index, again.generation), (names[1].index, 1));
        assert!(operations.get(names[1]).is_none() && operations.get(again).is_some());
        assert_eq!(operations.len(), 4);
    }

    #[test]
    fn an_ending_outlives_the_name_and_the_next_life_of_its_place() {
        let mut operations = Operations::default();
        let mut end = |phase| {
            let name = operations.insert(operation());
            let operation = operations.get_mut(name).expect("it is open");
            let ending = operation.ending.get_or_insert_default().clone();
            assert_eq!(ending.phase(), None);
            operation.state.phase = phase;
            operations.remove(name);
            ending
        };
        let phases = [Phase::Committed, Phase::Gone(Reason::Flushed), Phase::Gone(Reason::Aborted)];
        let endings = phases.map(&mut end);
        assert_eq!(endings.map(|ending| ending.phase()), phases.map(Some));
    }

    #[test]
    fn the_open_ones_are_listed_once() {
        let mut operations = Operations::default();
        let names: Vec<_> = (0..10).map(|_| operations.insert(operation())).collect();
        for &place in &[0, 9, 4, 5] {
            operations.remove(names[place]);
        }
        let mut listed: Vec<_> = operations.iter().map(|(id, _)| id.index).collect();
        listed.sort_unstable();
        assert_eq!(listed, [1, 2, 3, 6, 7, 8]);
        for position in 0..operations.len() {
            assert_eq!(operations.nth(position).1.position, position);
        }
        assert!(operations.get(OperationId { index: 99, generation: 0 }).is_none());
    }
}
