//! Reliable connections between two programs of one host: the scenarios of `rc`, where messages are placed directly, must end
//! in the same completions, states and bytes when they go through memory that the two share.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

#[path = "../exact/near/daemon.rs"]
mod daemon;
#[path = "../../hca-sim/tests/rc/depths.rs"]
mod depths;
#[path = "../../hca-sim/tests/rc/ends.rs"]
mod ends;
#[path = "../../hca-sim/tests/rc/faults.rs"]
mod faults;
#[path = "../../hca-sim/tests/rc/gone.rs"]
mod gone;
#[path = "../../hca-sim/tests/rc/hands.rs"]
mod hands;
mod link;
mod long;
#[path = "../../hca-sim/tests/rc/memory.rs"]
mod memory;
#[path = "../../hca-sim/tests/rc/operations.rs"]
mod operations;
#[path = "../../hca-sim/tests/rc/states.rs"]
mod states;
#[path = "../../hca-sim/tests/rc/windows.rs"]
mod windows;

/// Rings of shared memory carry messages.
mod way {
    use std::cell::RefCell;
    use std::sync::{Arc, Weak};
    use std::time::Duration;

    use futures::executor::block_on;
    use hca_sim::clock::VirtualClock;
    use hca_sim::{Builder, Hca};
    use verbs_core::{Av, Qp};

    use crate::link::neighbours;

    /// Whether a requester learns more of its peer's reasons than a NAK says.
    pub(crate) const PEER_SAYS_WHY: bool = false;

    thread_local! {
        static HCAS: RefCell<Vec<Weak<Hca>>> = const { RefCell::new(Vec::new()) };
    }

    /// What iWARP lacks is refused, a SEND or WRITE is done when it was handed over, and a connection ends at both ends.
    pub(crate) const IS_IWARP: bool = false;

    /// Two HCAs that reach each other, configured by `change`.
    pub(crate) fn hcas(clock: &VirtualClock, change: fn(Builder) -> Builder) -> [Arc<Hca>; 2] {
        let hcas = neighbours(clock).map(|end| change(Hca::over(end).clock(clock.clone())).build());
        let known = hcas.each_ref().map(Arc::downgrade);
        HCAS.with_borrow_mut(|all| all.extend(known));
        hcas
    }

    /// The address of that HCA's port.
    pub(crate) fn address(hca: &Hca) -> Av {
        Av::to_gid(1, 0, hca.gid())
    }

    /// Makes them the two ends of a connection.
    pub(crate) fn connect(a: &mut Qp, b: &mut Qp) {
        block_on(hca_sim::connect(a, b)).unwrap();
    }

    /// Moves the clock on, and lets everything happen that is due until then.
    pub(crate) fn advance(clock: &VirtualClock, time: Duration) {
        let end = clock.now() + time;
        settle();
        while let Some(next) = clock.next_deadline().filter(|&next| next <= end) {
            clock.run_until(next);
            settle();
        }
        clock.run_until(end);
    }

    /// Lets everything happen that can happen at this time.
    pub(crate) fn settle() {
        let hcas: Vec<_> = HCAS.with_borrow(|all| all.iter().filter_map(Weak::upgrade).collect());
        while hcas.iter().fold(false, |any, hca| hca.turn() | any) {}
    }
}
