//! What models see of words that atomics stand for.
//!
//! A ring entry is written by one side and read by the other, word by word, and a word beside them says whose
//! it is. The words are atomic, so a model in which that word is too weak sees old values at most, and often
//! not even those: it does not go back in time. A [`Tracked`] beside the words is touched with them, and loom
//! reports two touches of which neither comes before the other.

#[cfg(not(verbs_loom))]
pub use nothing::{Row, Tracked};
#[cfg(verbs_loom)]
pub use seen::{Row, Tracked};

#[cfg(not(verbs_loom))]
mod nothing {
    /// See the module's documentation. Outside of models it is nothing.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Tracked;

    impl Tracked {
        /// Words that were never touched.
        pub fn new() -> Self {
            Self
        }

        /// The words are read.
        #[inline(always)]
        pub fn read(&self) {}

        /// The words are written.
        #[inline(always)]
        pub fn write(&self) {}
    }

    /// One for each entry of a ring whose entries have no type of their own.
    #[derive(Clone, Copy, Debug, Default)]
    pub struct Row;

    impl Row {
        /// For that many entries.
        pub fn new(_: usize) -> Self {
            Self
        }

        /// That of an entry.
        #[inline(always)]
        pub fn at(&self, _: usize) -> Tracked {
            Tracked
        }
    }
}

#[cfg(verbs_loom)]
mod seen {
    use crate::sync::UnsafeCell;

    /// See the module's documentation.
    #[derive(Debug, Default)]
    pub struct Tracked(UnsafeCell<()>);

    // SAFETY: there is nothing in it that could be read or written.
    unsafe impl Sync for Tracked {}

    impl Tracked {
        /// Words that were never touched.
        pub fn new() -> Self {
            Self::default()
        }

        /// The words are read.
        pub fn read(&self) {
            self.0.with(|_| ());
        }

        /// The words are written.
        pub fn write(&self) {
            self.0.with_mut(|_| ());
        }
    }

    /// One for each entry of a ring whose entries have no type of their own.
    #[derive(Debug)]
    pub struct Row(Box<[Tracked]>);

    impl Row {
        /// For that many entries.
        pub fn new(count: usize) -> Self {
            Self((0..count).map(|_| Tracked::new()).collect())
        }

        /// That of an entry.
        pub fn at(&self, number: usize) -> &Tracked {
            &self.0[number]
        }
    }
}
