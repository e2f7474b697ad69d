//! What carries the messages of the HCA whose features are tried.

use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
use std::sync::atomic::{AtomicU32, Ordering::SeqCst};

use hca_sim::link::Udp;
use hca_sim::{Adopted, Builder, Hca, adopt, connect};
use verbs_core::{Access, DeviceCap, Error, Qp};

/// What carries the messages of the HCA.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Transport {
    Loopback,
    /// UDP.
    Roce,
    /// TCP.
    Iwarp,
}

impl Transport {
    /// What such an HCA never has.
    pub(crate) fn absent(self) -> DeviceCap {
        match self {
            Self::Loopback => Self::Roce.absent() | DeviceCap::AUTO_PATH_MIG,
            Self::Roce => {
                DeviceCap::FLUSH_PERSISTENT | DeviceCap::ON_DEMAND_PAGING | DeviceCap::READ_WITH_INV
            }
            Self::Iwarp => {
                DeviceCap::FLUSH_PERSISTENT
                    | DeviceCap::ON_DEMAND_PAGING
                    | DeviceCap::FLUSH_GLOBAL
                    | DeviceCap::ATOMIC_WRITE
                    | DeviceCap::SEND_WITH_IMM
                    | DeviceCap::XRC
                    | DeviceCap::RC_RNR_NAK_GEN
                    | DeviceCap::AUTO_PATH_MIG
            }
        }
    }

    pub(crate) fn builder(self) -> Builder {
        match self {
            Self::Loopback => Hca::loopback(),
            Self::Roce => {
                // The HCA before may be about to leave its address.
                static NEXT: AtomicU32 = AtomicU32::new(0x7f4f_2001);
                let address = Ipv4Addr::from_bits(NEXT.fetch_add(1, SeqCst));
                Hca::over(Udp::bind(&[address.into()]).expect("an address of this test's own"))
            }
            Self::Iwarp => {
                Hca::iwarp(&[IpAddr::V4(Ipv4Addr::LOCALHOST)]).expect("there are descriptors")
            }
        }
    }

    /// Makes them the two ends of a connection.
    pub(crate) async fn connect(self, qp: &mut Qp, peer: &mut Qp) -> Result<(), Error> {
        if self != Self::Iwarp {
            return connect(qp, peer).await;
        }
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).expect("a port");
        let address = listener.local_addr().expect("it is bound");
        let ours = TcpStream::connect(address).expect("it listens");
        let theirs = listener.accept().expect("the peer has connected").0;
        for (qp, stream) in [(qp, ours), (peer, theirs)] {
            qp.init(1, Access::LOCAL_WRITE | Access::REMOTE).await?;
            // Either may speak first: they have agreed on that by other means.
            adopt(qp, stream, Adopted::new(true))?;
        }
        Ok(())
    }
}
