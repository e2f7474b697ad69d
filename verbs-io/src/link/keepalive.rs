//! A peer that is gone, noticed by a connection that only waits for it.
//!
//! A connection on which nothing has come for a while, and nothing is under way, carries a WRITE of no bytes: the peer's
//! device acknowledges it, and its program never sees it. While no acknowledgement comes others follow, so that one packet
//! that is lost shows in the answer to the next, and does not have to wait for the device's retries. A connection whose
//! peer acknowledges none of them is over.
//!
//! What is under way finds out by the device's own retries, whether a receiver that is not ready takes its time or the
//! peer is gone; nothing is sent beside it.

use std::time::Duration;

use verbs_core::sync::{Arc, Weak};
use verbs_core::task;
use verbs_core::timer::{Sleep, Timer};

use crate::lane::probe;
use crate::link::Link;

/// Half of the time in which a peer that is gone is noticed, unless the program says otherwise: it is over when a message
/// may have come last, two looks have passed without one, and no probe was answered for as long.
pub(crate) const KEEPALIVE: Duration = Duration::from_secs(5);

/// Less is taken for this.
pub(crate) const KEEPALIVE_MIN: Duration = Duration::from_millis(10);

/// How often the peer is asked in the time that it has to answer. A network that loses one packet in fifty in each
/// direction loses all of them, or of their answers, once in 10^11 times.
const PROBES: u32 = 8;

/// Watches a connection from now on, until it is over or dropped.
pub(crate) fn watch(link: &Arc<Link>) {
    let core = link.core();
    let Some(every) = core.keepalive else { return };
    let Some(timer) = core.device.target().provider_of().timer() else {
        return;
    };
    task::detach(run(Arc::downgrade(link), timer, every));
}

async fn run(link: Weak<Link>, timer: Arc<dyn Timer>, every: Duration) {
    let mut receives = 0;
    let mut rest = every / 2;
    loop {
        Sleep::new(&timer, rest).await;
        rest = every / 2;
        // Not held while this sleeps: the last holder is the program's.
        let Some(sent) = link
            .upgrade()
            .and_then(|link| link.on_end(|lane, conn| probe::feel(lane, conn, &mut receives)))
        else {
            return;
        };
        let Some(sent) = sent else { continue };
        for n in 1..=PROBES {
            Sleep::new(&timer, every / PROBES).await;
            let Some(link) = link.upgrade() else { return };
            if link.on_end(|lane, conn| probe::is_answered(lane, conn, sent)) {
                // The answer may have come right after the probe.
                rest = rest.saturating_sub(n * (every / PROBES));
                break;
            }
            match n {
                PROBES => return link.lose(),
                _ => link.on_end(probe::probe),
            };
        }
    }
}
