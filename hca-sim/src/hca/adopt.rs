//! Takes over an established TCP connection for a queue pair, as the modify verb of RDMAC does.

use std::net::TcpStream;

use verbs_core::sync::Arc;
use verbs_core::{Attr, Error, Qp, QpType, Why};
use verbs_link::stream::Agreed;
use verbs_wire::iwarp::Rtr;

use crate::port::streams::making::{Making, OnStream};
use crate::qp::QueuePair;
use crate::queue::base::limits::RD_ATOMIC;

/// The parameters that both ends have agreed on before a connection carries RDMA: [`adopt`].
#[derive(Clone, Debug)]
#[non_exhaustive]
pub struct Adopted {
    /// This side sends the first message. The other side waits for it.
    pub is_initiator: bool,
    /// FPDUs carry CRCs.
    pub has_crc: bool,
    /// READs that this side serves at a time.
    pub ird: u8,
    /// READs that may be outstanding.
    pub ord: u8,
    /// Bytes that were already read from the connection: the first ones of FPDUs.
    pub read: Vec<u8>,
}

impl Adopted {
    /// With CRCs, 16 READs in each direction and nothing read.
    pub const fn new(is_initiator: bool) -> Self {
        Self {
            is_initiator,
            has_crc: true,
            ird: 16,
            ord: 16,
            read: Vec::new(),
        }
    }
}

/// Makes an established TCP connection the stream of a queue pair of an HCA over TCP
/// ([`Hca::iwarp`](crate::Hca::iwarp)), which is in RESET or INIT and goes to RTS. No MPA frame is exchanged: the ends
/// have agreed by their own protocol, and every byte from here on belongs to FPDUs.
///
/// It is taken over at a message boundary: what this side has sent must have been acknowledged, because TCP would
/// retransmit bytes in flight between FPDUs, and nothing keeps the two apart. What was already read is handed over with
/// it ([`Adopted::read`]).
///
/// # Context
/// Does not block.
///
/// # Errors
/// With each error the connection is closed. [`Error::Unsupported`] for a queue pair that is not on an HCA over TCP, or
/// not a reliable connection; [`Error::Mismatch`] with [`Why::State`] for one in another state, and with
/// [`Why::StillUsed`] for a connection with data in flight; [`Error::Invalid`] for more than 128 READs; [`Error::Os`]
/// for a socket that is not connected.
///
/// # Examples
/// ```
/// use std::net::{TcpListener, TcpStream};
///
/// use hca_sim::{Adopted, Hca, adopt};
/// use verbs_core::{Access, QpInit, QpState};
///
/// let address = "127.0.0.1".parse()?;
/// let device = Hca::iwarp(&[address])?.open().wait()?;
/// let (pd, cq) = (device.alloc_pd().wait()?, device.create_cq(8).wait()?);
/// let qp = pd.create_qp(QpInit::rc(&cq, &cq)).wait()?;
/// let listener = TcpListener::bind((address, 0))?;
/// let stream = TcpStream::connect(listener.local_addr()?)?;
/// adopt(&qp, stream, Adopted::new(true))?;
/// assert_eq!(qp.query().wait()?.state, QpState::Rts);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
pub fn adopt(qp: &Qp, stream: TcpStream, adopted: Adopted) -> Result<(), Error> {
    let unsupported = Error::Unsupported(Attr::Verb);
    let qp = qp.private::<Arc<QueuePair>>().ok_or(unsupported)?;
    let streams = qp.port.streams.as_ref().ok_or(unsupported)?;
    if qp.qp_type != QpType::Rc {
        return Err(Error::Unsupported(Attr::QpType));
    }
    for (attr, got) in [
        (Attr::MaxDestRdAtomic, adopted.ird),
        (Attr::MaxRdAtomic, adopted.ord),
    ] {
        let (got, max) = (u32::from(got), RD_ATOMIC);
        if got > max {
            return Err(Error::Invalid { attr, got, max });
        }
    }
    let (stream, in_flight) = streams.link.adopt(stream).map_err(|error| Error::Os {
        errno: error.raw_os_error().unwrap_or(0),
    })?;
    if in_flight != 0 {
        let (attr, why) = (Attr::Address, Why::StillUsed);
        return Err(Error::Mismatch { attr, why });
    }
    let token = streams.reserve();
    let made = qp.connect_stream(Making {
        stream,
        token,
        is_initiator: adopted.is_initiator,
        agreed: Agreed {
            has_crc: adopted.has_crc,
            ird: u16::from(adopted.ird),
            ord: u16::from(adopted.ord),
            rtr: Rtr::empty(),
        },
        reply: Vec::new(),
        surplus: adopted.read,
        endpoint: None,
    });
    if made.is_err() {
        streams.forget(token);
    }
    made
}
