//! Reliable connections on a loopback link: the effect of every operation, and every status that it can end in, at both
//! ends. `rc_packets` runs the same scenarios over packets.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

mod batches;
mod depths;
mod direct;
mod ends;
mod faults;
mod gone;
mod hands;
mod memory;
mod operations;
mod states;
mod windows;

/// Messages are placed directly.
mod way {
    use std::sync::Arc;
    use std::time::Duration;

    use futures::executor::block_on;
    use hca_sim::clock::VirtualClock;
    use hca_sim::{Builder, Hca, Loopback};
    use verbs_core::{Av, Qp};

    /// Whether a requester learns more of its peer's reasons than a NAK says.
    pub(crate) const PEER_SAYS_WHY: bool = true;

    /// What iWARP lacks is refused, a SEND or WRITE is done when it was handed over, and a connection ends at both ends.
    pub(crate) const IS_IWARP: bool = false;

    /// Two HCAs that reach each other, configured by `change`.
    pub(crate) fn hcas(clock: &VirtualClock, change: fn(Builder) -> Builder) -> [Arc<Hca>; 2] {
        let link = Loopback::with_seed(1);
        [(); 2].map(|()| change(Hca::on(&link).clock(clock.clone())).build())
    }

    /// The address of that HCA's port.
    pub(crate) fn address(hca: &Hca) -> Av {
        Av::to_lid(1, hca.lid())
    }

    /// Makes them the two ends of a connection.
    pub(crate) fn connect(a: &mut Qp, b: &mut Qp) {
        block_on(hca_sim::connect(a, b)).unwrap();
    }

    /// Moves the clock on.
    pub(crate) fn advance(clock: &VirtualClock, time: Duration) {
        clock.advance(time);
    }

    /// Lets everything happen that can: here it has happened already.
    pub(crate) fn settle() {}
}
