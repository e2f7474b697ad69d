//! Numbers for objects: a slab with a limit, whose numbers carry a generation (K13).

use slab::Slab;
use verbs_core::{Attr, Error};

/// Bits of a number that are the index; the rest is the generation.
const INDEX_BITS: u32 = 20;
const INDEX: u32 = (1 << INDEX_BITS) - 1;

/// Objects by number. A number is not used again until its index has passed through 2^12 generations, so a stale number
/// finds nothing.
#[derive(Debug)]
pub(crate) struct ObjectTable<T> {
    entries: Slab<(u32, T)>,
    /// The next generation of each index.
    generations: Vec<u32>,
    limit: u32,
    attr: Attr,
}

impl<T> ObjectTable<T> {
    /// A table for up to `limit` objects, at most [`ObjectTable::LIMIT_MAX`]; `attr` names the limit in
    /// errors.
    pub(crate) fn new(limit: u32, attr: Attr) -> Self {
        let limit = limit.min(Self::LIMIT_MAX);
        Self {
            entries: Slab::new(),
            generations: Vec::new(),
            limit,
            attr,
        }
    }

    /// The most objects that the numbers have room for.
    pub(crate) const LIMIT_MAX: u32 = INDEX;

    /// Enters an object and gives its number, which is never 0.
    ///
    /// # Errors
    /// [`Error::Exhausted`] at the limit.
    pub(crate) fn insert(&mut self, value: T) -> Result<u32, Error> {
        if self.entries.len() >= self.limit as usize {
            return Err(Error::Exhausted {
                attr: self.attr,
                max: self.limit,
            });
        }
        let entry = self.entries.vacant_entry();
        let index = entry.key();
        if self.generations.len() <= index {
            self.generations.resize(index + 1, 0);
        }
        let generation = self.generations[index];
        entry.insert((generation, value));
        Ok(generation << INDEX_BITS | (index as u32 + 1))
    }

    /// How many objects are in it.
    #[cfg(not(verbs_loom))]
    pub(crate) fn len(&self) -> usize {
        self.entries.len()
    }

    /// Takes an object out; `None` if the number is stale.
    pub(crate) fn remove(&mut self, number: u32) -> Option<T> {
        let index = ((number & INDEX) as usize).checked_sub(1)?;
        let &(generation, _) = self.entries.get(index)?;
        if generation != number >> INDEX_BITS {
            return None;
        }
        self.generations[index] = (generation + 1) & (u32::MAX >> INDEX_BITS);
        self.entries.try_remove(index).map(|(_, value)| value)
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    #[test]
    fn k13_stale_numbers_miss() {
        let mut table = ObjectTable::new(4, Attr::MaxPd);
        let first = table.insert('a').unwrap();
        assert_ne!(first, 0);
        assert_eq!(table.remove(first), Some('a'));
        let second = table.insert('b').unwrap();
        assert_ne!(
            first, second,
            "the index is used again under another number"
        );
        assert_eq!(table.remove(first), None);
        assert_eq!(table.remove(second), Some('b'));
    }

    #[test]
    fn the_limit_holds_and_is_named() {
        let mut table = ObjectTable::new(2, Attr::MaxCq);
        let kept = [table.insert(()).unwrap(), table.insert(()).unwrap()];
        let refused = Err(Error::Exhausted {
            attr: Attr::MaxCq,
            max: 2,
        });
        assert_eq!(table.insert(()), refused);
        assert!(table.remove(kept[0]).is_some());
        assert!(table.insert(()).is_ok());
    }
}
