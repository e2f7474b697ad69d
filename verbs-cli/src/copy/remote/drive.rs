//! One end of a copy between hosts, driven to its end.

use std::pin::pin;
use std::time::{Duration, Instant};

use futures::future::{Either, select};
use verbs_core::{Gid, WcStatus};

use super::control::{News, Watch};
use super::message::Message;
use crate::copy::endpoint::Endpoint;
use crate::copy::error::{CopyError, End};
use crate::copy::receiver::{Receiver, Step};
use crate::copy::sender::Sender;
use crate::net::PATIENCE;
use crate::report::Progress;

/// A peer that lets nothing happen for so long is given up. Writing to a slow disk takes less.
const IDLE_MAX: Duration = Duration::from_secs(60);

/// How long a peer whose queue pair failed may take to say why.
const EXPLANATION_MAX: Duration = Duration::from_millis(500);

/// One of the two ends.
pub(super) trait Side {
    /// Does what can be done now; whether that was anything.
    fn step(&mut self, progress: &Progress) -> Result<bool, CopyError>;
    /// Whether both ends have closed.
    fn is_over(&self) -> bool;
    /// Chunks that are through.
    fn chunks(&self) -> u64;
    fn endpoint(&mut self) -> &mut Endpoint;
    /// Which end the other one is.
    const PEER: End;
}

impl Side for Sender<'_> {
    fn step(&mut self, progress: &Progress) -> Result<bool, CopyError> {
        let _ = progress;
        Sender::step(self)
    }

    fn is_over(&self) -> bool {
        self.is_closed()
    }

    fn chunks(&self) -> u64 {
        self.writes()
    }

    fn endpoint(&mut self) -> &mut Endpoint {
        Sender::endpoint(self)
    }

    const PEER: End = End::Destination;
}

impl Side for Receiver<'_> {
    fn step(&mut self, progress: &Progress) -> Result<bool, CopyError> {
        let step = Receiver::step(self)?;
        if let Step::Drained(bytes) = step {
            progress.advance(bytes as u64);
        }
        Ok(step != Step::Idle)
    }

    fn is_over(&self) -> bool {
        self.is_closed()
    }

    fn chunks(&self) -> u64 {
        Receiver::chunks(self)
    }

    fn endpoint(&mut self) -> &mut Endpoint {
        Receiver::endpoint(self)
    }

    const PEER: End = End::Source;
}

/// Runs one end until both have closed. `chunks` is how many there are. Blocks in file reads and writes
/// between polls, so it belongs on a thread of its own. Calls `moved` when something was done.
///
/// Yields whether the peer has said [`Message::Done`] already.
pub(super) async fn drive<S: Side>(
    side: &mut S,
    watch: &mut Watch,
    chunks: u64,
    progress: &Progress,
    moved: &dyn Fn(),
) -> Result<bool, CopyError> {
    let mut last = Instant::now();
    let mut news = None;
    let mut is_done = false;
    loop {
        while !side.is_over() {
            match side.step(progress) {
                Ok(true) => {
                    last = Instant::now();
                    moved();
                }
                Ok(false) => break,
                Err(error) => return Err(diagnose(&at(side, chunks), watch, error)),
            }
        }
        if side.is_over() {
            return Ok(is_done);
        }
        // Only now, because what the peer did before it spoke or went counts.
        match news.take() {
            Some(News::Message(Message::Done)) => is_done = true,
            Some(News::Tick) if last.elapsed() < IDLE_MAX => {
                if let Err(error) = side.endpoint().probe() {
                    return Err(diagnose(&at(side, chunks), watch, error));
                }
            }
            Some(News::Tick) => {
                return Err(CopyError::Stuck {
                    end: S::PEER,
                    seconds: IDLE_MAX.as_secs(),
                    done: side.chunks(),
                    chunks,
                });
            }
            Some(bad) => return Err(explain(&at(side, chunks), bad)),
            None => {}
        }
        news = match either(side.endpoint(), watch).await {
            Ok(told) => told,
            Err(error) => return Err(diagnose(&at(side, chunks), watch, error)),
        };
    }
}

/// Asks whether a device is where the data is to go, and waits for its answer. It is asked by one small packet,
/// and by nothing else until it has answered: the address is what the client says.
pub(super) async fn prove(
    endpoint: &mut Endpoint,
    watch: &mut Watch,
    gid: Gid,
    chunks: u64,
) -> Result<(), CopyError> {
    let (end, done) = (End::Destination, 0);
    let point = Point { end, done, chunks };
    let since = Instant::now();
    endpoint.probe()?;
    loop {
        match endpoint.poll() {
            Ok(None) if !endpoint.is_probing() => return Ok(()),
            Ok(None) => {}
            Ok(Some(_)) => {
                let what = "sent something before there was anything to answer";
                return Err(CopyError::Offer { end, what });
            }
            Err(CopyError::Completion {
                status: WcStatus::RetryExcErr,
                ..
            }) => {
                let silent = CopyError::Unproven { end, gid };
                return Err(diagnose(&point, watch, silent));
            }
            Err(error) => return Err(diagnose(&point, watch, error)),
        }
        match either(endpoint, watch).await {
            Ok(None) => {}
            Ok(Some(News::Tick)) if since.elapsed() < PATIENCE => {}
            Ok(Some(News::Tick)) => return Err(CopyError::Unproven { end, gid }),
            Ok(Some(news)) => return Err(explain(&point, news)),
            Err(error) => return Err(diagnose(&point, watch, error)),
        }
    }
}

/// Waits for a completion, or for news of the peer; the news, if that is what came.
async fn either(endpoint: &mut Endpoint, watch: &mut Watch) -> Result<Option<News>, CopyError> {
    let (ready, told) = (pin!(endpoint.ready()), pin!(watch.next()));
    match select(ready, told).await {
        Either::Left((ready, _)) => ready.map(|()| None),
        Either::Right((told, _)) => Ok(Some(told)),
    }
}

/// Waits until the peer has no more use for this end. It may go without a word, when its last
/// acknowledgement has come.
pub(super) async fn see_off(watch: &mut Watch) {
    let since = Instant::now();
    while let News::Tick = watch.next().await {
        if since.elapsed() > PATIENCE {
            return;
        }
    }
}

/// How far a copy was, and with which peer.
struct Point {
    end: End,
    done: u64,
    chunks: u64,
}

fn at<S: Side>(side: &S, chunks: u64) -> Point {
    Point {
        end: S::PEER,
        done: side.chunks(),
        chunks,
    }
}

/// Why an end failed: the peer knows better, if it still speaks.
fn diagnose(at: &Point, watch: &mut Watch, error: CopyError) -> CopyError {
    if !error.is_of_device() {
        return error;
    }
    match watch.next_within(EXPLANATION_MAX) {
        Some(news @ (News::Message(Message::Fail(_)) | News::Ended(_))) => explain(at, news),
        _ => error,
    }
}

/// What news mean that end a copy.
fn explain(at: &Point, news: News) -> CopyError {
    let &Point { end, done, chunks } = at;
    match news {
        News::Message(message) => unexpected(end, message),
        News::Ended(error) => CopyError::PeerGone {
            end,
            done,
            chunks,
            error,
        },
        News::Tick => CopyError::Stuck {
            end,
            seconds: IDLE_MAX.as_secs(),
            done,
            chunks,
        },
    }
}

/// What a message means that was not the next one.
pub(super) fn unexpected(end: End, message: Message) -> CopyError {
    match message {
        Message::Fail(fail) => CopyError::Said {
            end,
            cause: fail.cause,
            text: fail.text,
        },
        got => CopyError::OutOfTurn {
            end,
            got: Box::new(got),
        },
    }
}
