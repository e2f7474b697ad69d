//! Reliable connections on a loopback link: what every operation does, and every status that it can
//! end in, at both ends. `rc_packets` runs the same scenarios over packets.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

mod batches;
mod direct;
mod ends;
mod faults;
mod memory;
mod operations;
mod states;
mod windows;

/// Messages are placed directly.
mod way {
    use std::sync::Arc;
    use std::time::Duration;

    use hca_sim::clock::VirtualClock;
    use hca_sim::{Builder, Hca, Loopback};
    use verbs_core::Av;

    /// Two HCAs that reach each other, made as `change` has it.
    pub(crate) fn hcas(clock: &VirtualClock, change: fn(Builder) -> Builder) -> [Arc<Hca>; 2] {
        let link = Loopback::with_seed(1);
        [(); 2].map(|()| change(Hca::on(&link).clock(clock.clone())).build())
    }

    /// The way to that HCA's port.
    pub(crate) fn address(hca: &Hca) -> Av {
        Av::to_lid(1, hca.lid())
    }

    /// Moves the clock on.
    pub(crate) fn advance(clock: &VirtualClock, time: Duration) {
        clock.advance(time);
    }

    /// Lets everything happen that can: it has happened already.
    pub(crate) fn settle() {}
}
