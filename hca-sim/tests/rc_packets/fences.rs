//! What a fence does where answers take time, and what happens on a device without it.

use hca_sim::clock::VirtualClock;
use verbs_core::{Read, SendWr, WcStatus, Write};

use crate::ends::{bytes, statuses, two_made};
use crate::way;

/// Goal: a fenced WRITE sends what the READ before it has fetched; without the flag, or on a device that does not fence,
/// it sends what was there before.
#[test]
fn a_fence_holds_a_write_back_unless_the_device_has_none() {
    for (fences, flagged) in [(true, true), (true, false), (false, true), (false, false)] {
        let change: fn(hca_sim::Builder) -> hca_sim::Builder = match fences {
            true => |builder| builder,
            false => hca_sim::Builder::without_fences,
        };
        let (mut a, mut b) = two_made(&VirtualClock::new(), change);
        way::connect(&mut a.qp, &mut b.qp);
        a.mr.write(0, b"earlier").unwrap();
        b.mr.write(0, b"fetched").unwrap();
        let read = Read::new(1, b.mr.remote(0)).into(a.mr.slice(0..7));
        let write = Write::new(2, b.mr.remote(64))
            .from(a.mr.slice(0..7))
            .signaled();
        let write = if flagged { write.fenced() } else { write };
        let both = [SendWr::from(read.signaled()), SendWr::from(write)];
        a.qp.send_queue().unwrap().post_batch(&both).unwrap();
        let ok = WcStatus::Success;
        assert_eq!(statuses(&mut a.send_cq), [(1, ok), (2, ok)]);
        let waited = fences && flagged;
        let sent: &[u8] = if waited { b"fetched" } else { b"earlier" };
        assert_eq!(bytes(&b, 64, 7), sent, "fences {fences}, flagged {flagged}");
    }
}
