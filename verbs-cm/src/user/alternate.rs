//! Alternate paths, as users name them.

use verbs_core::Lid;
use verbs_core::mad::sa::PathRecord;

use crate::error::Error;
use crate::params::{Port, Route};

/// Another path to the peer of a connection: [`Connecting::alternate`](crate::Connecting::alternate),
/// [`Connection::load_path`](crate::Connection::load_path).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Alternate {
    /// Between other LIDs of the same two ports, where the subnet manager has given ports several.
    Lids {
        /// Which of this port's, by how far it is from the first.
        src_path_bits: u8,
        /// Which of the peer's.
        dlid: Lid,
    },
    /// What the subnet administrator says ([`SaClient::paths`](crate::SaClient::paths)); the port's first partition.
    Record(PathRecord),
}

impl From<PathRecord> for Alternate {
    fn from(record: PathRecord) -> Self {
        Self::Record(record)
    }
}

impl Alternate {
    /// The route, for a connection whose first one is `route`.
    pub(crate) fn route(&self, port: &Port, route: &Route) -> Result<Route, Error> {
        match self {
            Self::Lids {
                src_path_bits,
                dlid,
            } => Ok(route.between(*src_path_bits, *dlid)),
            Self::Record(record) => {
                let gone = Error::AddressNotAvailable(record.sgid.into());
                Route::from_record(port, record, 0).ok_or(gone)
            }
        }
    }
}
