//! The headers of a connection's packets.

use verbs_core::Psn;

use crate::transport::Path;
use crate::wire::{Bth, BthFlags, Extended, Head, Opcode, Operation, Service};

/// The headers of a packet to the peer, of the operation that `extend` returns, whose own headers it sets.
#[inline(always)]
pub(in crate::transport) fn head(
    path: &Path,
    psn: Psn,
    flags: BthFlags,
    extend: impl FnOnce(&mut Extended) -> Operation,
) -> Head {
    Head::build(|ext| bth(path, extend(ext), psn, flags))
}

#[inline]
pub(in crate::transport) fn bth(
    path: &Path,
    operation: Operation,
    psn: Psn,
    flags: BthFlags,
) -> Bth {
    let is_masked = matches!(
        operation,
        Operation::MaskedCompareSwap | Operation::MaskedFetchAdd
    );
    let service = match path.service {
        Service::Rc if is_masked => Service::Own,
        Service::Xrc if is_masked => Service::OwnXrc,
        service => service,
    };
    Bth {
        opcode: Opcode::new(service, operation)
            .expect("only operations that the service has are sent"),
        flags: flags | path.flags,
        pkey: path.pkey,
        dest_qpn: path.dest_qpn,
        psn,
    }
}
