//! Connects two queue pairs of this process without a connection manager.

use verbs_core::sync::Arc;
use verbs_core::{Access, Attr, Av, Error, Mtu, Path, Psn, Qp, QpAttr, Why};

use crate::port::Port;
use crate::qp::QueuePair;
use crate::queue::base::limits::PORT;

/// Connects two queue pairs in RESET to each other and takes both to RTS: with every right for the peer, the largest
/// MTU that both support, and random first packet sequence numbers.
///
/// For tests and programs that have both ends; other programs exchange the [`Path`] themselves. Where packets carry
/// messages, the first GID of each port is its address; whether packets arrive there is not checked.
///
/// # Errors
/// [`Error::Mismatch`] if one is not of an [`Hca`](crate::Hca) or they are on different links;
/// otherwise as [`Qp::modify`].
pub async fn connect(a: &mut Qp, b: &mut Qp) -> Result<(), Error> {
    connect_with(a, b, |_| {}).await
}

/// As [`connect`], with other attributes for the step to RTS: `change` gets the usual ones of each end. Between ends that
/// may be kept waiting for processors, for instance, the local ACK timeout is to be longer.
///
/// ```
/// # use hca_sim::{Hca, connect_with};
/// # use verbs_core::QpInit;
/// # futures::executor::block_on(async {
/// # let device = Hca::loopback().open().await?;
/// # let pd = device.alloc_pd().await?;
/// # let cq = device.create_cq(16).await?;
/// # let [mut a, mut b] = [
/// #     pd.create_qp(QpInit::rc(&cq, &cq)).await?,
/// #     pd.create_qp(QpInit::rc(&cq, &cq)).await?,
/// # ];
/// connect_with(&mut a, &mut b, |rts| rts.timeout = Some(18)).await?;
/// assert_eq!(a.query().await?.attr.timeout, Some(18));
/// # Ok::<(), verbs_core::Error>(())
/// # }).unwrap();
/// ```
///
/// # Errors
/// As [`connect`].
pub async fn connect_with(
    a: &mut Qp,
    b: &mut Qp,
    change: impl Fn(&mut QpAttr),
) -> Result<(), Error> {
    let (to_a, to_b) = (End::of(a)?, End::of(b)?);
    if !to_a.reaches(&to_b) {
        return Err(Error::Mismatch {
            attr: Attr::Av,
            why: Why::Unreachable,
        });
    }
    let mtu = to_a.mtu().min(to_b.mtu());
    let path = |end: &End, qp: &Qp| Path {
        av: end.address(),
        dest_qpn: qp.qpn(),
        rq_psn: end.psn,
        mtu,
    };
    let (path_a, path_b) = (path(&to_a, a), path(&to_b, b));
    for (qp, peer, psn, port) in [
        (&*a, path_b, to_a.psn, &to_a.port),
        (&*b, path_a, to_b.psn, &to_b.port),
    ] {
        let mut access = Access::REMOTE | Access::LOCAL_WRITE;
        access.set(
            Access::FLUSH_GLOBAL,
            port.features.grants(Access::FLUSH_GLOBAL),
        );
        qp.init(PORT, access).await?;
        qp.ready_to_receive(&peer).await?;
        let mut rts = QpAttr::rts_of(qp.qp_type(), psn);
        change(&mut rts);
        qp.modify(rts).await?;
    }
    Ok(())
}

/// One end of the connection.
struct End {
    port: Arc<Port>,
    /// The number that its first packet has.
    psn: Psn,
}

impl End {
    fn of(qp: &Qp) -> Result<Self, Error> {
        let foreign = Error::Mismatch {
            attr: Attr::Device,
            why: Why::OtherDevice,
        };
        let port = Arc::clone(&qp.private::<Arc<QueuePair>>().ok_or(foreign)?.port);
        let psn = port.link.draw_psn();
        Ok(Self { port, psn })
    }

    /// Whether both are on one loopback link, or packets pass between them.
    fn reaches(&self, other: &Self) -> bool {
        let packets = |end: &Self| end.port.is_wire();
        Arc::ptr_eq(&self.port.link, &other.port.link) || packets(self) && packets(other)
    }

    fn mtu(&self) -> Mtu {
        self.port.mtu()
    }

    fn address(&self) -> Av {
        if self.port.is_wire() {
            Av::to_gid(PORT, 0, self.port.gid(0).unwrap_or_default())
        } else {
            Av::to_lid(PORT, self.port.lid)
        }
    }
}
