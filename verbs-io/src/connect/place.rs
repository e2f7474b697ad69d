//! The place of a connection: an end of the lane, with buffers.

use verbs_cm::NotConnected;
use verbs_core::{Access, Memory, Qp};

use crate::connection::Connection;
use crate::core::{Core, Handle};
use crate::error::Error;
use crate::link::Link;

/// What the peer may do by its requests; each region says what may be done to it.
const ACCESS: Access = Access::REMOTE.union(Access::LOCAL_WRITE);
/// The port that endpoints are on.
pub(crate) const PORT: u8 = 1;

/// A queue pair for a connection, in INIT.
///
/// # Errors
/// [`Error::Verb`], [`Error::Removed`].
pub(super) async fn queue_pair(core: &Core) -> Result<Qp, Error> {
    let request = core.with(|lane| core.pd.create_qp(lane.queue_pair()));
    let qp = request.await?;
    qp.init(PORT, ACCESS).await?;
    Ok(qp)
}

/// Destroys the queue pair of an attempt that has failed, and says why it did.
pub(super) async fn not_connected(failed: NotConnected) -> Error {
    let NotConnected { error, qp } = failed;
    if let Some(qp) = qp {
        // Its receives are flushed by this; nothing else is attached to it.
        let _gone = qp.destroy().await;
    }
    error.into()
}

/// One of the endpoint's connections, while it is being made: an end of the lane. Dropping it makes the end free
/// again.
pub(super) struct Place {
    core: Handle,
    conn: u32,
    /// Which connection of the end.
    serial: u32,
    is_used: bool,
}

impl Place {
    /// Takes one, whose buffers are made if need be.
    ///
    /// # Errors
    /// [`Error::TooManyConnections`], [`Error::Verb`], [`Error::Removed`].
    pub(super) async fn take(core: Handle) -> Result<Self, Error> {
        let conn = match core.with(|lane| lane.vacant()) {
            Some(conn) => conn,
            None => Self::add(&core).await?,
        };
        let serial = core.with(|lane| lane.ends[conn as usize].serial);
        Ok(Self {
            core,
            conn,
            serial,
            is_used: false,
        })
    }

    /// A new end, with buffers.
    async fn add(core: &Core) -> Result<u32, Error> {
        let max = |core: &Core| core.with(|lane| lane.sizes().connections);
        let bytes = core.with(|lane| lane.has_room().then(|| lane.sizes().bytes().1));
        let too_many = || Error::TooManyConnections { max: max(core) };
        let bytes = bytes.ok_or_else(too_many)?;
        let mr = core.buffers(Memory::alloc(bytes)?);
        let mr = mr.await?;
        core.with(|lane| lane.add_end(mr)).ok_or_else(too_many)
    }

    /// Posts the place's receives on a queue pair that is to be connected.
    ///
    /// # Errors
    /// [`Error::Post`]; the queue pair is destroyed.
    pub(super) async fn prepare(&self, mut qp: Qp) -> Result<Qp, Error> {
        let posted = self.core.with(|lane| lane.prepare(self.conn, &mut qp));
        match posted {
            Ok(()) => Ok(qp),
            Err(error) => {
                let _gone = qp.destroy().await;
                Err(error.into())
            }
        }
    }

    /// The connection is there. `asked` is what the peer said when it asked for it.
    pub(super) fn open(mut self, made: verbs_cm::Connection, asked: Option<Vec<u8>>) -> Connection {
        self.is_used = true;
        let core = self.core.clone();
        Connection::of(Link::new(core, (self.conn, self.serial), made, asked))
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if !self.is_used {
            let none = self.core.with(|lane| lane.retire(self.conn));
            drop(none);
        }
    }
}
