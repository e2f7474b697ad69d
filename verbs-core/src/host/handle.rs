//! Names of a client's objects.

use std::fmt;

use slab::Slab;

use crate::host::bytes::{Encode, Malformed, Reader};
use crate::object::ObjectKind;

/// Names an object to the client that made it: an index, its generation, and the kind of the object.
///
/// It means nothing in another client's table. Of the object behind it, it tells nothing: no address and no number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle {
    index: u32,
    generation: u16,
    kind: u16,
}

impl Handle {
    /// The device at the other end of the line: every client has it.
    pub const DEVICE: Self = Self {
        index: 0,
        generation: 0,
        kind: kind_number(ObjectKind::Device),
    };

    /// What kind of object it says that it names. `None` for a number that names no kind.
    pub fn kind(self) -> Option<ObjectKind> {
        let of = |kind: &ObjectKind| kind_number(*kind) == self.kind;
        ObjectKind::ALL.into_iter().find(of)
    }
}

/// As the number that handles have.
impl Encode for ObjectKind {
    fn put(&self, out: &mut Vec<u8>) {
        kind_number(*self).put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        let got: u16 = from.read()?;
        let of = |kind: &Self| kind_number(*kind) == got;
        Self::ALL.into_iter().find(of).ok_or(Malformed::Unknown {
            what: "kind of object",
            got: got.into(),
        })
    }
}

/// Numbers of kinds in handles, written by hand: they stay when kinds are added.
const fn kind_number(kind: ObjectKind) -> u16 {
    match kind {
        ObjectKind::Device => 1,
        ObjectKind::Pd => 2,
        ObjectKind::Cq => 3,
        ObjectKind::Qp => 4,
        ObjectKind::Mr => 5,
        ObjectKind::Mw => 6,
        ObjectKind::Ah => 7,
        ObjectKind::Srq => 8,
        ObjectKind::Xrcd => 9,
        ObjectKind::Mcast => 10,
        ObjectKind::FmrPool => 11,
        ObjectKind::CmEndpoint => 12,
    }
}

impl Encode for Handle {
    fn put(&self, out: &mut Vec<u8>) {
        self.index.put(out);
        self.generation.put(out);
        self.kind.put(out);
    }

    fn take(from: &mut Reader<'_>) -> Result<Self, Malformed> {
        Ok(Self {
            index: from.read()?,
            generation: from.read()?,
            kind: from.read()?,
        })
    }
}

impl fmt::Debug for Handle {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.kind() {
            Some(kind) => write!(f, "{kind} {}.{}", self.index, self.generation),
            None => write!(f, "kind {} {}.{}", self.kind, self.index, self.generation),
        }
    }
}

/// The objects of one client, by their handles.
#[derive(Debug)]
pub struct HandleTable<T> {
    /// `None` for an object that was [taken](HandleTable::take) and may come back.
    entries: Slab<(u16, Option<T>)>,
    /// The generation that each index has next. A stale handle misses until its index was used 65,536 times more.
    generations: Vec<u16>,
    limit: u32,
}

impl<T> HandleTable<T> {
    /// A table for so many objects at most.
    pub fn new(limit: u32) -> Self {
        Self {
            entries: Slab::new(),
            generations: Vec::new(),
            limit,
        }
    }

    /// Enters an object of that kind; gives it back if there are as many as there may be.
    ///
    /// # Errors
    /// The object.
    pub fn insert(&mut self, kind: ObjectKind, value: T) -> Result<Handle, T> {
        if self.entries.len() >= self.limit as usize {
            return Err(value);
        }
        let entry = self.entries.vacant_entry();
        let index = entry.key();
        if self.generations.len() <= index {
            self.generations.resize(index + 1, 0);
        }
        let generation = self.generations[index];
        entry.insert((generation, Some(value)));
        Ok(Handle {
            // 0 is the device's.
            index: index as u32 + 1,
            generation,
            kind: kind_number(kind),
        })
    }

    /// The object that the handle names, if it names one of this table.
    pub fn get(&self, handle: Handle) -> Option<&T> {
        let index = (handle.index as usize).checked_sub(1)?;
        let (generation, value) = self.entries.get(index)?;
        value.as_ref().filter(|_| *generation == handle.generation)
    }

    /// Takes an object out that may [come back](HandleTable::restore); its handle misses in between.
    pub fn take(&mut self, handle: Handle) -> Option<T> {
        self.entry(handle)?.take()
    }

    /// Puts an object back under its handle; gives it back if there is none such any longer.
    ///
    /// # Errors
    /// The object.
    pub fn restore(&mut self, handle: Handle, value: T) -> Result<(), T> {
        match self.entry(handle) {
            Some(place @ None) => {
                *place = Some(value);
                Ok(())
            }
            Some(Some(_)) | None => Err(value),
        }
    }

    /// Forgets an object, taken out or not; its handle misses from then on.
    pub fn remove(&mut self, handle: Handle) -> Option<T> {
        self.entry(handle)?;
        let index = handle.index as usize - 1;
        let (generation, value) = self.entries.try_remove(index)?;
        self.generations[index] = generation.wrapping_add(1);
        value
    }

    fn entry(&mut self, handle: Handle) -> Option<&mut Option<T>> {
        let index = (handle.index as usize).checked_sub(1)?;
        let (generation, value) = self.entries.get_mut(index)?;
        (*generation == handle.generation).then_some(value)
    }

    /// All objects, and their table empty.
    pub fn drain(&mut self) -> Vec<T> {
        self.entries
            .drain()
            .filter_map(|(_, value)| value)
            .collect()
    }

    /// How many objects there are.
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    /// Whether there is none.
    pub fn is_empty(&self) -> bool {
        self.entries.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// K13, K16: stale handles and those of another table miss.
    #[test]
    fn stale_handles_miss() {
        let mut table = HandleTable::new(2);
        let first = table.insert(ObjectKind::Pd, 'a').expect("there is room");
        let second = table.insert(ObjectKind::Cq, 'b').expect("there is room");
        assert_eq!(table.insert(ObjectKind::Cq, 'c'), Err('c'));
        assert_eq!(
            (table.get(first), table.get(second)),
            (Some(&'a'), Some(&'b'))
        );
        assert_eq!(table.get(Handle::DEVICE), None);
        assert_eq!(table.take(first), Some('a'));
        assert_eq!(table.get(first), None);
        assert_eq!(table.take(first), None);
        assert_eq!(table.restore(first, 'a'), Ok(()));
        assert_eq!(table.restore(first, 'x'), Err('x'), "it is back");
        assert_eq!(table.remove(first), Some('a'));
        assert_eq!(table.restore(first, 'a'), Err('a'));
        let third = table.insert(ObjectKind::Qp, 'd').expect("there is room");
        assert_eq!((third.index, third == first), (first.index, false));
        assert_eq!(table.get(first), None);
        assert_eq!(table.remove(first), None);
        assert_eq!(third.kind(), Some(ObjectKind::Qp));
        assert_eq!(table.drain(), ['d', 'b']);
    }

    #[test]
    fn kinds_have_a_number_each() {
        let numbers: std::collections::BTreeSet<_> = ObjectKind::ALL
            .iter()
            .map(|&kind| kind_number(kind))
            .collect();
        assert_eq!(numbers.len(), ObjectKind::ALL.len());
    }
}
