//! Connections that the device makes itself, as those of iWARP: by verbs that name the queue pair, and not by modifies.

use std::net::SocketAddr;
use std::sync::Arc;

use parking_lot::Mutex;
use verbs_abi as abi;
use verbs_core::cm::{CmEndpoint, CmParam, CmReply};
use verbs_core::{Error, Issued, QpState};

use super::pair::Qp;
use crate::call::Errno;
use crate::call::live::{Lent, lend};

/// This end of a connection, which its id and its queue pair share: whichever is destroyed first ends it.
pub(crate) struct Stream(Mutex<Inner>);

struct Inner {
    /// `None` once it has ended.
    endpoint: Option<Arc<CmEndpoint>>,
    /// The connect or accept under way.
    attempt: Option<Issued>,
}

impl Stream {
    pub(crate) fn new(endpoint: CmEndpoint) -> Arc<Self> {
        Arc::new(Self(Mutex::new(Inner {
            endpoint: Some(Arc::new(endpoint)),
            attempt: None,
        })))
    }

    /// The endpoint, unless it has ended.
    pub(crate) fn endpoint(&self) -> Result<Arc<CmEndpoint>, Errno> {
        self.0.lock().endpoint.clone().ok_or(Errno::INVAL)
    }

    /// Ends the connection, the attempt to make one, or the listening.
    pub(crate) fn end(&self) {
        let (endpoint, attempt) = {
            let mut inner = self.0.lock();
            (inner.endpoint.take(), inner.attempt.take())
        };
        if let Some(Issued::Pending(attempt)) = attempt {
            // It would wait for the peer.
            attempt.cancel();
        }
        if let Some(endpoint) = endpoint.and_then(Arc::into_inner) {
            // That of a device that has gone has gone with it.
            let _ = endpoint.unbind().wait();
        }
    }

    fn began(&self, attempt: Issued) {
        let mut inner = self.0.lock();
        if inner.endpoint.is_some() {
            inner.attempt = Some(attempt);
        }
    }
}

/// Connects a queue pair; `done` gets the result, and runs under `NoBlock`.
///
pub(crate) fn connect(
    qp: *mut abi::Qp,
    stream: &Arc<Stream>,
    remote: SocketAddr,
    (param, private_data): (CmParam, Vec<u8>),
    done: impl FnOnce(Result<CmReply, Error>) + Send + 'static,
) -> Result<(), Errno> {
    let (owner, endpoint) = (lend::<Qp, _>(qp)?, stream.endpoint()?);
    *owner.stream.lock() = Some(Arc::clone(stream));
    let request = endpoint.connect(&owner.control, remote, param, private_data);
    stream.began(request.issue(done));
    Ok(())
}

/// Accepts a request with a queue pair; as [`connect`].
pub(crate) fn accept(
    qp: *mut abi::Qp,
    stream: &Arc<Stream>,
    (param, private_data): (CmParam, Vec<u8>),
    done: impl FnOnce(Result<(), Error>) + Send + 'static,
) -> Result<(), Errno> {
    let (owner, endpoint) = (lend::<Qp, _>(qp)?, stream.endpoint()?);
    *owner.stream.lock() = Some(Arc::clone(stream));
    let request = endpoint.accept(&owner.control, param, private_data);
    stream.began(request.issue(done));
    Ok(())
}

/// The program learns that the queue pair is connected: it shows its state.
///
/// # Safety
/// No other call changes it now.
pub(crate) unsafe fn show_connected(qp: &Lent<Qp>) {
    // SAFETY: guaranteed by the caller.
    unsafe { (*qp.shown.get()).qp.state = QpState::Rts as u32 };
}
