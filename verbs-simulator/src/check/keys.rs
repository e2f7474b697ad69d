//! The access that every key may grant, derived only from what was done to it.
//!
//! A key is valid from the completion of the work request that made it so to the post of the one that ends it; between
//! the post and the completion of either it may be. Before and after, and if it never was, it grants no access. No key
//! is used twice.

use std::collections::BTreeMap;
use std::ops::Range;

use verbs_core::Access;

/// The access that a key grants while it is valid.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Leads {
    /// The address of the first byte.
    pub(crate) iova: u64,
    /// The position of that byte in its memory.
    pub(crate) at: usize,
    pub(crate) len: usize,
    pub(crate) access: Access,
    /// The connection that may use it.
    pub(crate) via: usize,
}

/// How an access through a key has to end.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It succeeds.
    Must,
    /// It succeeds or is refused.
    May,
    /// It is refused.
    Never,
}

/// An access by a key.
#[derive(Clone, Debug)]
pub(crate) struct Reach {
    pub(crate) key: u32,
    pub(crate) via: usize,
    pub(crate) addr: u64,
    pub(crate) len: usize,
    pub(crate) right: Access,
}

/// Whether a key is valid.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Life {
    Coming,
    Valid,
    /// Its end is under way, or it is no longer in use.
    Going,
    /// The peer has posted its end: accesses posted behind that on the same connection find it invalid.
    GoingBehind(usize),
}

/// See the module's documentation.
#[derive(Debug, Default)]
pub(crate) struct KeyModel(BTreeMap<u32, (Leads, Life)>);

impl KeyModel {
    /// A work request was posted that makes a key valid.
    pub(crate) fn coming(&mut self, key: u32, leads: Leads) {
        self.0.insert(key, (leads, Life::Coming));
    }

    /// The key is valid now.
    pub(crate) fn valid(&mut self, key: u32) {
        self.change(key, Life::Valid);
    }

    /// An operation was begun that ends the key, or it may end at any time.
    pub(crate) fn going(&mut self, key: u32) {
        self.change(key, Life::Going);
    }

    /// The peer has posted an operation on that connection that ends the key.
    pub(crate) fn going_behind(&mut self, key: u32, via: usize) {
        self.change(key, Life::GoingBehind(via));
    }

    /// The key is no longer valid.
    pub(crate) fn gone(&mut self, key: u32) {
        self.0.remove(&key);
    }

    fn change(&mut self, key: u32, life: Life) {
        if let Some((_, at)) = self.0.get_mut(&key) {
            *at = life;
        }
    }

    /// The keys that may be valid now.
    pub(crate) fn known(&self) -> impl ExactSizeIterator<Item = (u32, Leads)> {
        self.0.iter().map(|(&key, &(leads, _))| (key, leads))
    }

    /// Whether that key is valid for certain.
    pub(crate) fn is_valid(&self, key: u32) -> bool {
        matches!(self.0.get(&key), Some((_, Life::Valid)))
    }

    /// How an access that is posted now has to end, and the bytes that it reaches if it succeeds.
    pub(crate) fn judge(&self, reach: &Reach) -> (Verdict, Range<usize>) {
        let Some((leads, life)) = self.0.get(&reach.key) else {
            return (Verdict::Never, 0..0);
        };
        let offset = reach.addr.checked_sub(leads.iova);
        let offset = offset.and_then(|offset| usize::try_from(offset).ok());
        let fits = |offset: &usize| *offset <= leads.len && reach.len <= leads.len - offset;
        let offset = offset.filter(fits);
        let allowed = leads.via == reach.via && leads.access.contains(reach.right);
        let Some(offset) = offset.filter(|_| allowed) else {
            return (Verdict::Never, 0..0);
        };
        let from = leads.at + offset;
        let verdict = match life {
            Life::Valid => Verdict::Must,
            Life::GoingBehind(via) if *via == reach.via => Verdict::Never,
            Life::Coming | Life::Going | Life::GoingBehind(_) => Verdict::May,
        };
        (verdict, from..from + reach.len)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEADS: Leads = Leads {
        iova: 0x1000,
        at: 64,
        len: 100,
        access: Access::REMOTE_WRITE,
        via: 0,
    };

    fn reach(addr: u64, len: usize) -> Reach {
        let (key, via, right) = (7, 0, Access::REMOTE_WRITE);
        Reach {
            key,
            via,
            addr,
            len,
            right,
        }
    }

    #[test]
    fn a_key_leads_to_its_bytes_while_it_is_valid_and_for_whom_it_is() {
        let mut keys = KeyModel::default();
        let inside = reach(0x1010, 84);
        assert_eq!(keys.judge(&inside).0, Verdict::Never);
        keys.coming(7, LEADS);
        assert_eq!(keys.judge(&inside).0, Verdict::May);
        keys.valid(7);
        assert_eq!(keys.judge(&inside), (Verdict::Must, 80..164));
        let mut wrong = [reach(0x1010, 85), reach(0xfff, 1), inside.clone()];
        wrong[2].right = Access::REMOTE_READ;
        let other = Reach {
            via: 1,
            ..inside.clone()
        };
        for wrong in wrong.iter().chain([&other]) {
            assert_eq!(keys.judge(wrong).0, Verdict::Never, "{wrong:?}");
        }
        keys.going_behind(7, 0);
        assert_eq!(keys.judge(&inside).0, Verdict::Never);
        keys.going(7);
        assert_eq!(keys.judge(&inside).0, Verdict::May);
        keys.gone(7);
        assert_eq!(keys.judge(&inside).0, Verdict::Never);
    }
}
