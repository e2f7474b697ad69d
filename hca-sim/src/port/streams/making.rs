//! What a connection brings along for its queue pair, and what is asked of that.

use verbs_core::Error;
use verbs_core::cm::CmCore;
use verbs_core::sync::{Arc, Weak};
use verbs_link::stream::{Agreed, Stream, Token};

use crate::effects::Effects;
use crate::port::ready::Listed;

/// A connection that MPA has made, for a queue pair.
pub(crate) struct Making {
    pub(crate) stream: Box<dyn Stream>,
    pub(crate) token: Token,
    pub(crate) is_initiator: bool,
    pub(crate) agreed: Agreed,
    /// What is to be sent before everything else: the Reply.
    pub(crate) reply: Vec<u8>,
    pub(crate) surplus: Vec<u8>,
    pub(crate) endpoint: Option<Weak<CmCore>>,
}

/// What there was on a stream.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Taken {
    /// Anything.
    pub(crate) came: bool,
    /// What came has to be answered, or lets something go on: the queue pair wants a round.
    pub(crate) wants_round: bool,
}

/// A queue pair whose messages a stream carries, as its port's streams know it.
pub(crate) trait OnStream: Listed + Send + Sync + Sized + 'static {
    /// Takes in what has come on the stream. For the holder of the driver.
    fn take_stream(self: &Arc<Self>, rx: &mut [u8], effects: &mut Effects) -> Taken;

    /// Takes over a stream on which MPA has agreed: the queue pair goes to RTS.
    ///
    /// # Errors
    /// [`Error::Mismatch`] if it is neither in RESET nor in INIT, [`Error::NoMemory`]; the stream is closed then.
    fn connect_stream(self: &Arc<Self>, making: Making) -> Result<(), Error>;

    /// How often it was reset. A connection is over with the next reset.
    fn resets(&self) -> u32;

    /// Ends the connection that it had after so many resets: the queue pair goes to ERR, unless it was reset since.
    fn end_stream(self: &Arc<Self>, resets: u32);
}
