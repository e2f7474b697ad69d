//! Why the subnet administrator did not do what it was asked for.

use verbs_core::mad::Status;
use verbs_core::mad::rmpp::RmppStatus;
use verbs_core::mad::sa::SaStatus;

/// Why a request to the subnet administrator failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum SaError {
    // --- the administrator ---
    /// No subnet manager has told the port where its administrator is.
    #[error("port {0} has no subnet administrator: no subnet manager has configured it yet")]
    NoAdministrator(u8),
    /// There was no answer, in spite of all retries.
    #[error("the subnet administrator does not answer")]
    TimedOut,
    /// The administrator refused, with a status of its class.
    #[error("{0}")]
    Refused(SaStatus),
    /// The administrator refused, with a status that all classes share.
    #[error("the subnet administrator cannot answer: {0:?}")]
    Status(Status),
    /// The transfer of a long answer failed.
    #[error("the answer of the subnet administrator broke off: {0:?}")]
    Transfer(RmppStatus),
    /// The answer is none to what was asked.
    #[error("the subnet administrator's answer makes no sense")]
    Malformed,
}
