//! Connects two queue pairs of this process without a connection manager.

use verbs_core::sync::Arc;
use verbs_core::{Access, Attr, Av, Error, Mtu, Path, Psn, Qp, Why};

use crate::limits::PORT;
use crate::port::Port;
use crate::qp::QueuePair;

/// Connects two queue pairs in RESET to each other and takes both to RTS: with every right for the
/// peer, an MTU of 4096, and first packet sequence numbers drawn from the link.
///
/// For tests and programs that have both ends; others exchange the [`Path`] themselves.
///
/// # Errors
/// [`Error::Mismatch`] if one is not of an [`Hca`](crate::Hca) or they are on different links;
/// otherwise as [`Qp::modify`].
pub async fn connect(a: &mut Qp, b: &mut Qp) -> Result<(), Error> {
    let (to_a, to_b) = (end(a)?, end(b)?);
    if !Arc::ptr_eq(&to_a.0.link, &to_b.0.link) {
        return Err(Error::Mismatch {
            attr: Attr::Av,
            why: Why::Unreachable,
        });
    }
    let path = |(port, psn): &(Arc<Port>, Psn), qp: &Qp| Path {
        av: Av::to_lid(PORT, port.lid),
        dest_qpn: qp.qpn(),
        rq_psn: *psn,
        mtu: Mtu::B4096,
    };
    let (path_a, path_b) = (path(&to_a, a), path(&to_b, b));
    for (qp, peer, psn) in [(&*a, path_b, to_a.1), (&*b, path_a, to_b.1)] {
        qp.init(PORT, Access::REMOTE | Access::LOCAL_WRITE).await?;
        qp.ready_to_receive(&peer).await?;
        qp.ready_to_send(psn).await?;
    }
    Ok(())
}

/// A queue pair's port, and the number that its first packet is to have.
fn end(qp: &Qp) -> Result<(Arc<Port>, Psn), Error> {
    let foreign = Error::Mismatch {
        attr: Attr::Device,
        why: Why::OtherDevice,
    };
    let port = Arc::clone(&qp.private::<Arc<QueuePair>>().ok_or(foreign)?.port);
    let psn = port.link.draw_psn();
    Ok((port, psn))
}
