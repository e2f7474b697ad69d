//! Errors in setting up a target.

/// Why a target could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// A verb failed.
    #[error("{doing}: {error}")]
    Verb {
        /// The step that failed.
        doing: &'static str,
        /// Why it failed.
        error: verbs_core::Error,
    },
    /// The target cannot listen there.
    #[error(transparent)]
    Listen(#[from] verbs_cm::Error),
    /// There is already a unit with that number.
    #[error("there is a logical unit {0} already")]
    LunTaken(u16),
    /// That number is beyond the highest logical unit.
    #[error("{0} is no number of a logical unit; they end at 16383")]
    Lun(u16),
    /// The unit's block size is not supported.
    #[error("the unit has blocks of {0} bytes; a power of two from 512 to 4096 would be right")]
    BlockSize(u32),
}

impl TargetError {
    pub(super) fn verb(doing: &'static str) -> impl FnOnce(verbs_core::Error) -> Self {
        move |error| Self::Verb { doing, error }
    }
}
