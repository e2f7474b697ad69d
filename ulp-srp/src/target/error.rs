//! What can go wrong when a target is set up.

/// Why a target could not be set up.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TargetError {
    /// A verb failed.
    #[error("{doing}: {error}")]
    Verb {
        /// What was being done.
        doing: &'static str,
        /// Why it failed.
        error: verbs_core::Error,
    },
    /// Nobody can be listened to there.
    #[error(transparent)]
    Listen(#[from] verbs_cm::Error),
    /// There is a unit of that number already.
    #[error("there is a logical unit {0} already")]
    LunTaken(u16),
    /// Numbers of logical units end before that.
    #[error("{0} is no number of a logical unit; they end at 16383")]
    Lun(u16),
    /// The unit's blocks have a size that there is not.
    #[error("the unit has blocks of {0} bytes; a power of two from 512 to 4096 would be right")]
    BlockSize(u32),
}

impl TargetError {
    pub(super) fn verb(doing: &'static str) -> impl FnOnce(verbs_core::Error) -> Self {
        move |error| Self::Verb { doing, error }
    }
}
