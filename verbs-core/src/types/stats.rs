//! Statistics of queue pairs, as plain values.
//!
//! ```
//! # use verbs_core::testing::Null;
//! # use verbs_core::{Attr, Device, Error};
//! # use std::sync::Arc;
//! # let device = Device::open(Arc::new(Null::default())).wait()?;
//! # let pd = device.alloc_pd().wait()?;
//! # let cq = device.create_cq(16).wait()?;
//! # let qp = pd.create_qp(verbs_core::QpInit::rc(&cq, &cq)).wait()?;
//! match qp.stats().wait() {
//!     Ok(stats) => println!("{} attempts timed out", stats.timeouts),
//!     // The providers of this workspace that have no such numbers say so.
//!     Err(error) => assert_eq!(error, Error::Unsupported(Attr::Extension)),
//! }
//! # Ok::<(), Error>(())
//! ```

use std::net::SocketAddr;
use std::time::Duration;

use crate::addr::{Lid, Qpn};
use crate::device::Device;
use crate::extension::{Call, Extension};
use crate::object::Target;
use crate::qp::Qp;
use crate::qp_state::{QpState, QpType};

/// What has happened on a queue pair since it was created; a reset does not begin again. Work requests that succeed at the
/// first attempt are not counted, as that would cost each of them time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[cfg_attr(feature = "serde", serde(default))]
#[non_exhaustive]
pub struct QpStats {
    /// Attempts that were not acknowledged within the local ACK timeout; each is repeated, or is the last one.
    pub timeouts: u64,
    /// Attempts that the peer answered with an RNR NAK, as it had no receive posted; each is repeated after a wait, or is
    /// the last one.
    pub rnr_naks: u64,
    /// How often something was sent again because an answer said, or showed, that it was lost.
    pub sequence_naks: u64,
    /// Messages of the peer that found no receive here, and were answered with an RNR NAK.
    pub receives_missing: u64,
    /// Requests of the peer that were refused here.
    pub refused: u64,
    /// Congestion notifications that arrived.
    pub cnps: u64,
    /// Moves to the alternate path.
    pub migrations: u64,
    /// Work requests that ended in error, without those that were flushed.
    pub failures: u64,
    /// The round trip to the peer and back, smoothed as in RFC 6298; `None` before the first was measured, and where
    /// the provider does not measure it.
    pub round_trip: Option<Duration>,
    /// The rate in bytes per second to which congestion notifications limit it; `None` while nothing does.
    pub rate: Option<u64>,
}

/// Reads the statistics of the queue pair of that number; they are all 0 for a number that none has.
#[derive(Debug)]
pub struct QpStatistics;

impl Extension for QpStatistics {
    const NAME: &'static str = "verbs.qp_stats";
    type Input = Qpn;
    type Output = QpStats;
}

/// A queue pair that has a peer, as programs that show connections have it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ConnectedQp {
    /// Its number.
    pub qpn: Qpn,
    /// Its service.
    pub qp_type: QpType,
    /// [`Rtr`](QpState::Rtr) or later; [`Err`](QpState::Err) once the connection is over.
    pub state: QpState,
    /// This end's address. The port number is that of a TCP connection, and 0 where queue pairs have none. `None` of a
    /// connection within a subnet that goes by LIDs alone.
    pub local: Option<SocketAddr>,
    /// The peer's address, alike.
    pub remote: Option<SocketAddr>,
    /// The LID of the peer's port, where there are any.
    pub remote_lid: Option<Lid>,
    /// The peer's queue pair, where peers name theirs: not over TCP.
    pub remote_qpn: Option<Qpn>,
    /// What has happened on it.
    pub stats: QpStats,
}

/// Lists the device's queue pairs that have a peer, by their numbers; whoever made them, in this process.
#[derive(Debug)]
pub struct ConnectedQps;

impl Extension for ConnectedQps {
    const NAME: &'static str = "verbs.connected_qps";
    type Input = ();
    type Output = Vec<ConnectedQp>;
}

impl Qp {
    /// What has happened on it. `.run()` of the answer is its future, `.wait()` blocks, `.issue(routine)` does neither.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device has no such statistics.
    pub fn stats(&self) -> Call<'_, QpStatistics> {
        Call::of(Target::device(self.target()), self.qpn())
    }
}

impl Device {
    /// The statistics of the device's queue pair of that number: for one that is not at hand, as it belongs to a
    /// connection. Other than with [`Qp::stats`], the number decides.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device has none.
    pub fn qp_stats(&self, qpn: Qpn) -> Call<'_, QpStatistics> {
        self.call::<QpStatistics>(qpn)
    }

    /// The device's queue pairs that have a peer.
    ///
    /// # Errors
    /// [`Error::Unsupported`](crate::Error::Unsupported) if the device does not list them.
    pub fn connected_qps(&self) -> Call<'_, ConnectedQps> {
        self.call::<ConnectedQps>(())
    }
}
