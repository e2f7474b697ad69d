//! The connection over which two ends find each other, and which tells either that the other has gone.

use std::net::{IpAddr, SocketAddr};
use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::channel::mpsc;
use verbs_core::Gid;
use verbs_core::sync::{Arc, thread};

use super::managed::Managed;
use super::message::{BODY_BYTES_MAX, HEADER_LEN, Header, Malformed, Message};
use crate::net::{Connection, NetError, PATIENCE};
use crate::places::HangUp;

/// How often a waiting thread looks at the clock.
const TICK: Duration = Duration::from_secs(1);

/// News that wait at most; ticks beyond that are dropped.
const NEWS_MAX: usize = 4;

/// Speaks messages over a connection.
#[derive(Clone, Debug)]
pub(crate) enum Control {
    /// One of TCP.
    Stream(Connection),
    /// One of the connection manager's.
    Managed(Managed),
}

/// What a watched connection tells.
#[derive(Debug)]
pub(crate) enum News {
    /// Time has passed.
    Tick,
    Message(Message),
    /// Nothing more will come.
    Ended(NetError),
}

/// Listens on a thread of its own, so that a task can wait for messages and for completions at once.
/// Dropping it ends the reading side of the connection, so that the thread ends.
#[derive(Debug)]
pub(crate) struct Watch {
    control: Control,
    news: mpsc::Receiver<News>,
    listener: Option<thread::JoinHandle<()>>,
}

impl Control {
    /// The other end.
    pub(crate) fn peer(&self) -> SocketAddr {
        match self {
            Self::Stream(stream) => stream.peer(),
            Self::Managed(managed) => managed.peer(),
        }
    }

    /// This end.
    pub(crate) fn local(&self) -> SocketAddr {
        match self {
            Self::Stream(stream) => stream.local(),
            Self::Managed(managed) => managed.local(),
        }
    }

    /// Whether packets to that GID go to the other end. Otherwise it may be that of a third party.
    pub(crate) fn is_at(&self, gid: Gid) -> bool {
        match self {
            Self::Stream(stream) => IpAddr::from(gid).to_canonical() == stream.peer().ip(),
            Self::Managed(managed) => managed.peer_gid() == Some(gid),
        }
    }

    /// What ends the connection, whichever thread uses it.
    pub(super) fn hang_up(&self) -> HangUp {
        match self.clone() {
            Self::Stream(stream) => Arc::new(move || stream.hang_up()),
            Self::Managed(managed) => managed.hang_up(),
        }
    }

    /// Sends a message. Blocks, for [`PATIENCE`] at most.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), NetError> {
        match self {
            Self::Stream(stream) => stream.send(&message.emit()),
            Self::Managed(managed) => managed.send(&message.emit()),
        }
    }

    /// The next message. Blocks, for [`PATIENCE`] at most.
    pub(crate) fn receive(&mut self) -> Result<Message, NetError> {
        let (deadline, peer) = (Instant::now() + PATIENCE, self.peer());
        match self {
            Self::Stream(stream) => {
                let mut header = [0; HEADER_LEN];
                stream.receive(&mut header, deadline)?;
                receive_body(stream, &header, deadline)
            }
            Self::Managed(managed) => match managed.receive(deadline)? {
                Some(bytes) => parse(peer, &bytes),
                None => Err(NetError::Silent { peer }),
            },
        }
    }

    /// Sends the last message to a peer that may be sending, and lets it read that.
    pub(crate) fn dismiss(mut self, message: &Message) {
        // A peer that does not take it has only itself to blame.
        let _ = self.send(message);
        match self {
            Self::Stream(mut stream) => stream.drain(HEADER_LEN + BODY_BYTES_MAX),
            Self::Managed(managed) => managed.end(),
        }
    }

    /// Listens from now on.
    pub(crate) fn watch(&self) -> Watch {
        let control = self.clone();
        let mut ears = self.clone();
        let (mut tell, news) = mpsc::channel(NEWS_MAX);
        let listener = thread::spawn(move || {
            loop {
                let news = ears.news();
                let is_end = matches!(news, News::Ended(_));
                let is_tick = matches!(news, News::Tick);
                let told = tell.try_send(news);
                // A peer that says more than is waited for is not listened to any longer.
                if is_end || told.is_err_and(|error| error.is_disconnected() || !is_tick) {
                    return;
                }
            }
        });
        Watch {
            control,
            news,
            listener: Some(listener),
        }
    }

    fn news(&mut self) -> News {
        let peer = self.peer();
        let message = match self {
            Self::Stream(stream) => {
                let first = match stream.receive_first(TICK) {
                    Ok(None) => return News::Tick,
                    Ok(Some(first)) => first,
                    Err(error) => return News::Ended(error),
                };
                let deadline = Instant::now() + PATIENCE;
                let mut header = [first; HEADER_LEN];
                let header_came = stream.receive(&mut header[1..], deadline);
                header_came.and_then(|()| receive_body(stream, &header, deadline))
            }
            Self::Managed(managed) => match managed.receive(Instant::now() + TICK) {
                Ok(None) => return News::Tick,
                Ok(Some(bytes)) => parse(peer, &bytes),
                Err(error) => Err(error),
            },
        };
        message.map_or_else(News::Ended, News::Message)
    }

    /// Ends the reading side: a reader, through any handle, finds the end.
    fn deafen(&self) {
        match self {
            Self::Stream(stream) => stream.deafen(),
            Self::Managed(managed) => managed.deafen(),
        }
    }
}

/// The body that a header announces.
fn receive_body(
    stream: &mut Connection,
    header: &[u8; HEADER_LEN],
    deadline: Instant,
) -> Result<Message, NetError> {
    let foreign = foreign(stream.peer());
    let header = Header::parse(header).map_err(&foreign)?;
    let mut body = vec![0; header.len];
    stream.receive(&mut body, deadline)?;
    Message::parse(header, &body).map_err(&foreign)
}

/// A message that came in one piece.
fn parse(peer: SocketAddr, bytes: &[u8]) -> Result<Message, NetError> {
    let foreign = foreign(peer);
    let (header, body) = bytes
        .split_first_chunk()
        .ok_or_else(|| foreign(Malformed::Short))?;
    let header = Header::parse(header).map_err(&foreign)?;
    match body.len() {
        len if len < header.len => Err(foreign(Malformed::Short)),
        len if len > header.len => Err(foreign(Malformed::Trailing)),
        _ => Message::parse(header, body).map_err(&foreign),
    }
}

fn foreign(peer: SocketAddr) -> impl Fn(Malformed) -> NetError {
    move |malformed| NetError::Foreign {
        peer,
        what: malformed.to_string(),
    }
}

impl Watch {
    /// Sends a message. Blocks, for [`PATIENCE`] at most.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), NetError> {
        self.control.send(message)
    }

    /// What is new; news that were not taken when the future was dropped wait for the next.
    pub(crate) async fn next(&mut self) -> News {
        let peer = self.control.peer();
        let news = self.news.next().await;
        news.unwrap_or(News::Ended(NetError::Ended(peer)))
    }

    /// What is new within so long. Blocks.
    pub(crate) fn next_within(&mut self, wait: Duration) -> Option<News> {
        let until = Instant::now() + wait;
        loop {
            match self.news.try_recv() {
                Ok(News::Tick) => {}
                Ok(news) => return Some(news),
                Err(mpsc::TryRecvError::Closed) => return None,
                Err(mpsc::TryRecvError::Empty) => {}
            }
            if Instant::now() >= until {
                return None;
            }
            thread::sleep(Duration::from_millis(5));
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        self.control.deafen();
        if let Some(listener) = self.listener.take() {
            // It ends because the connection has; it does not panic.
            let _ = listener.join();
        }
    }
}
