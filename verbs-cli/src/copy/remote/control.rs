//! The connection over which two ends find each other, and which tells either that the other has gone.

use std::time::{Duration, Instant};

use futures::StreamExt;
use futures::channel::mpsc;
use verbs_core::sync::thread;

use super::message::{BODY_BYTES_MAX, HEADER_LEN, Header, Message};
use crate::net::{Connection, NetError, PATIENCE};

/// How often whoever waits looks at the clock.
const TICK: Duration = Duration::from_secs(1);

/// News that wait for somebody at most; ticks beyond that are dropped.
const NEWS_MAX: usize = 4;

/// Speaks messages over a connection.
#[derive(Debug)]
pub(crate) struct Control {
    connection: Connection,
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
    pub(crate) fn new(connection: Connection) -> Self {
        Self { connection }
    }

    pub(crate) fn connection(&self) -> &Connection {
        &self.connection
    }

    /// Sends a message. Blocks, for [`PATIENCE`] at most.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), NetError> {
        self.connection.send(&message.emit())
    }

    /// The next message. Blocks, for [`PATIENCE`] at most.
    pub(crate) fn receive(&mut self) -> Result<Message, NetError> {
        let deadline = Instant::now() + PATIENCE;
        let mut header = [0; HEADER_LEN];
        self.connection.receive(&mut header, deadline)?;
        self.receive_body(&header, deadline)
    }

    /// Sends the last message to a peer that may be sending, and lets it read that.
    pub(crate) fn dismiss(mut self, message: &Message) {
        // A peer that does not take it has only itself to blame.
        let _ = self.send(message);
        self.connection.drain(HEADER_LEN + BODY_BYTES_MAX);
    }

    /// Listens from now on.
    pub(crate) fn watch(&self) -> Result<Watch, NetError> {
        let control = self.try_clone()?;
        let mut ears = self.try_clone()?;
        let (mut tell, news) = mpsc::channel(NEWS_MAX);
        let listener = thread::spawn(move || {
            loop {
                let news = ears.news();
                let is_end = matches!(news, News::Ended(_));
                let is_tick = matches!(news, News::Tick);
                let told = tell.try_send(news);
                // A peer that says more than anybody waits for is not listened to any longer.
                if is_end || told.is_err_and(|error| error.is_disconnected() || !is_tick) {
                    return;
                }
            }
        });
        Ok(Watch {
            control,
            news,
            listener: Some(listener),
        })
    }

    fn try_clone(&self) -> Result<Self, NetError> {
        let connection = self.connection.try_clone()?;
        Ok(Self { connection })
    }

    fn receive_body(
        &mut self,
        header: &[u8; HEADER_LEN],
        deadline: Instant,
    ) -> Result<Message, NetError> {
        let peer = self.connection.peer();
        let foreign = |malformed: super::message::Malformed| NetError::Foreign {
            peer,
            what: malformed.to_string(),
        };
        let header = Header::parse(header).map_err(foreign)?;
        let mut body = vec![0; header.len];
        self.connection.receive(&mut body, deadline)?;
        Message::parse(header, &body).map_err(foreign)
    }

    fn news(&mut self) -> News {
        let first = match self.connection.receive_first(TICK) {
            Ok(None) => return News::Tick,
            Ok(Some(first)) => first,
            Err(error) => return News::Ended(error),
        };
        let deadline = Instant::now() + PATIENCE;
        let mut header = [first; HEADER_LEN];
        let message = self.connection.receive(&mut header[1..], deadline);
        let message = message.and_then(|()| self.receive_body(&header, deadline));
        message.map_or_else(News::Ended, News::Message)
    }
}

impl Watch {
    /// Sends a message. Blocks, for [`PATIENCE`] at most.
    pub(crate) fn send(&mut self, message: &Message) -> Result<(), NetError> {
        self.control.send(message)
    }

    /// What is new; news that were not taken when the future was dropped wait for the next.
    pub(crate) async fn next(&mut self) -> News {
        let peer = self.control.connection.peer();
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
        self.control.connection.deafen();
        if let Some(listener) = self.listener.take() {
            // It ends because the connection has; it does not panic.
            let _ = listener.join();
        }
    }
}
