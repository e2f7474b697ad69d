//! What every pingpong is played with: memory, a completion queue, and the carrier of the messages.

use std::net::SocketAddr;
use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::param::page_size;
use verbs_core::mad::TimeCode;
use verbs_core::sync::{spin_loop, thread};
use verbs_core::{Access, Arm, Armed, CompletionChannel, Cq, Device, Memory, Mr, Pd, Wc, WcStatus};

use super::carrier::{Carrier, GRH, SEND_ID};
use super::error::PingpongError;
use super::game::{Game, Role};
use super::report::Report;
use super::streams::{self, Listener};
use super::text::Hello;
use crate::cli::{Kind, PingpongArgs};
use crate::wire::PORT;

/// Completions taken at once.
const POLL_MAX: usize = 16;

/// Polls that find nothing before another thread may have the processor: the peer may need it.
const SPINS: u32 = 64;

/// A peer that is alive answers within its retries; after this much nothing, it has gone.
const SILENCE: Duration = Duration::from_secs(10);

/// How long to wait for a peer with that local ACK timeout: [`SILENCE`], or what all tries take if that is more.
/// With timeout 0 nothing is tried again.
fn silence_max(timeout: u8) -> Duration {
    match timeout {
        0 => SILENCE,
        code => SILENCE.max(8 * TimeCode::new(code).duration()),
    }
}

/// How long a queue pair goes on answering after its own work is done: as long as it takes the peer to
/// repeat a message whose acknowledgement was lost, for all its 7 retries of 67 ms.
const LINGER: Duration = Duration::from_millis(600);

/// What an empty buffer holds, as in the program of that kind.
fn fill_of(kind: Kind) -> u8 {
    match kind {
        Kind::Srq | Kind::Xrc => 0,
        Kind::Rc | Kind::Uc | Kind::Ud => 0x7b,
    }
}

/// What the client's receive buffer holds before the first answer.
const NOTHING: u8 = 0xff;

/// The verbs objects and how far the game is.
pub(super) struct Table {
    device: Device,
    pd: Pd,
    cq: Cq,
    channel: Option<CompletionChannel>,
    carrier: Carrier,
    silence_max: Duration,
    mr: Mr,
    /// Where messages are sent from and where they arrive, the same place at the server's end.
    places: Places,
    check: bool,
    /// What the buffers hold but for the first byte of each page.
    filling: u8,
    game: Game,
}

/// Parts of the buffer.
#[derive(Clone, Debug)]
struct Places {
    sent: Range<usize>,
    arrives: Range<usize>,
    /// Bytes before what arrives.
    header: usize,
}

impl Places {
    fn of(role: Role, size: usize, header: usize) -> Self {
        // The server sends back what arrived.
        let (sent, arrives) = match role {
            Role::Client => (0..size, size..size + header + size),
            Role::Server => (header..header + size, 0..header + size),
        };
        Self {
            sent,
            arrives,
            header,
        }
    }
}

impl Table {
    /// Makes the objects, with the receives posted.
    pub(super) async fn new(
        device: Device,
        args: &PingpongArgs,
        gid_index: u16,
        role: Role,
    ) -> Result<Self, PingpongError> {
        let port = device.query_port(PORT).await;
        let port = port.map_err(PingpongError::verb("query the port"))?;
        if args.mtu > port.active_mtu {
            let (got, max) = (args.mtu, port.active_mtu);
            return Err(PingpongError::Mtu { got, max });
        }
        let (size, max) = (args.size(), port.active_mtu.bytes());
        if args.kind == Kind::Ud && size > max {
            return Err(PingpongError::Datagram { got: size, max });
        }
        let header = if args.kind == Kind::Ud { GRH } else { 0 };
        let places = Places::of(role, size as usize, header);
        let pd = device.alloc_pd().await;
        let pd = pd.map_err(PingpongError::verb("allocate a protection domain"))?;
        let memory = Memory::alloc(places.sent.end.max(places.arrives.end));
        let memory = memory.map_err(PingpongError::verb("allocate the buffers"))?;
        let mr = pd.register(memory, Access::LOCAL_WRITE).await;
        let mr = mr.map_err(PingpongError::verb("register the buffers"))?;
        let channel = match args.events {
            true => Some(
                CompletionChannel::new().map_err(|error| PingpongError::System {
                    doing: "create a completion channel",
                    error,
                })?,
            ),
            false => None,
        };
        let count = args.connections();
        let create = device.create_cq(args.rx_depth.saturating_add(count));
        let cq = match &channel {
            Some(channel) => create.channel(channel, 0).await,
            None => create.await,
        };
        let cq = cq.map_err(PingpongError::verb("create a completion queue"))?;
        let carrier = Carrier::new(&device, &pd, &cq, args, gid_index).await?;
        let mut table = Self {
            device,
            pd,
            cq,
            channel,
            carrier,
            silence_max: silence_max(args.timeout),
            mr,
            places,
            check: args.chk,
            filling: fill_of(args.kind),
            game: Game::new(role, args.iters, args.rx_depth, count as usize),
        };
        table.fill(role)?;
        table.post_recvs()?;
        Ok(table)
    }

    /// How each connection is reached, with first packet numbers drawn for them.
    pub(super) fn hellos(&self, hello: &Hello) -> Result<Vec<Hello>, PingpongError> {
        self.carrier.hellos(hello)
    }

    /// Takes all queue pairs to RTS, with what the programs give them.
    pub(super) async fn connect(
        &mut self,
        ours: &[Hello],
        theirs: &[Hello],
    ) -> Result<(), PingpongError> {
        self.carrier.connect(&self.pd, ours, theirs).await
    }

    /// Listens for the client's queue pairs, over TCP.
    pub(super) async fn listen(&self, at: SocketAddr) -> Result<Listener, PingpongError> {
        Listener::open(&self.device, at, self.carrier.connections().len()).await
    }

    /// Connects all queue pairs with the client's, over TCP.
    pub(super) async fn accept(
        &mut self,
        listener: Listener,
        peer: SocketAddr,
    ) -> Result<(), PingpongError> {
        let ends = listener.accept(self.carrier.connections(), peer).await?;
        self.carrier.keep(ends);
        Ok(())
    }

    /// Connects all queue pairs with the server's, over TCP.
    pub(super) async fn join(
        &mut self,
        from: SocketAddr,
        peer: SocketAddr,
    ) -> Result<(), PingpongError> {
        let qps = self.carrier.connections();
        let ends = streams::connect(&self.device, qps, from, peer).await?;
        self.carrier.keep(ends);
        Ok(())
    }

    /// Whether the device's connections are over TCP.
    pub(super) fn is_over_tcp(&self) -> bool {
        streams::are_there(&self.device)
    }

    /// Plays to the end. Blocks.
    pub(super) fn play(&mut self) -> Result<Report, PingpongError> {
        let started = Instant::now();
        let mut last = started;
        let mut spins = 0_u32;
        while !self.game.is_over() {
            while let Some(number) = self.game.turn() {
                self.post_send(number)?;
            }
            if self.poll()? {
                (spins, last) = (0, Instant::now());
                continue;
            }
            spins = spins.wrapping_add(1);
            let waited = match &self.channel {
                Some(channel) => wait(channel, &mut self.cq)?,
                None if spins.is_multiple_of(SPINS) => {
                    thread::yield_now();
                    true
                }
                None => {
                    spin_loop();
                    false
                }
            };
            if waited && last.elapsed() > self.silence_max {
                return Err(PingpongError::Silent {
                    seconds: self.silence_max.as_secs(),
                    received: self.game.received,
                    iters: self.game.iters,
                });
            }
        }
        let iters = self.game.iters;
        Ok(Report {
            bytes: self.places.sent.len() as u64 * u64::from(iters) * 2,
            iters,
            elapsed: started.elapsed(),
        })
    }

    /// Whether the last message is what it should be, if that was asked for.
    pub(super) fn check(&self) -> Result<(), PingpongError> {
        if !self.check {
            return Ok(());
        }
        let Places {
            arrives, header, ..
        } = self.places.clone();
        let mut bytes = vec![0; arrives.len() - header];
        let read = self.mr.read(arrives.start + header, &mut bytes);
        read.map_err(PingpongError::verb("read the buffer"))?;
        let page = page_size();
        let wrong = (0..)
            .zip(bytes)
            .find(|&(at, byte)| byte != self.content(at, page));
        wrong.map_or(Ok(()), |(at, got)| {
            let expected = self.content(at, page);
            Err(PingpongError::Content { at, got, expected })
        })
    }

    /// Goes on answering a peer that has not heard the last acknowledgement. Blocks for a short time.
    pub(super) fn linger(&mut self) {
        let until = Instant::now() + LINGER;
        while self.carrier.answers() && Instant::now() < until {
            // What completes now is not part of the game; a failure neither.
            let _ = self.cq.poll(&mut [Wc::default(); POLL_MAX]);
            thread::sleep(Duration::from_millis(1));
        }
    }

    /// Destroys everything, in the order in which nothing is Busy.
    pub(super) async fn close(self) -> Result<(), PingpongError> {
        let Self {
            device,
            pd,
            cq,
            channel,
            carrier,
            mr,
            ..
        } = self;
        let failed = |doing| move |error| PingpongError::Verb { doing, error };
        carrier.close().await?;
        drop(channel);
        let done = cq.destroy().await;
        done.map_err(|refused| failed("destroy the completion queue")(refused.error))?;
        let done = mr.dereg().await;
        done.map_err(|refused| failed("deregister the buffers")(refused.error))?;
        let done = pd.dealloc().await;
        done.map_err(|refused| failed("deallocate the protection domain")(refused.error))?;
        let done = device.close().await;
        done.map_err(|refused| failed("close the device")(refused.error))
    }

    /// Fills the buffers: a client that is to check has a pattern to send.
    fn fill(&self, role: Role) -> Result<(), PingpongError> {
        let page = page_size();
        let Places { sent, arrives, .. } = &self.places;
        let pattern = (0..sent.len()).map(|at| match role {
            Role::Client if self.check => self.content(at, page),
            _ => self.filling,
        });
        let pattern: Vec<_> = pattern.collect();
        let nothing = match role {
            Role::Client => vec![NOTHING; arrives.len()],
            Role::Server => Vec::new(),
        };
        self.mr
            .write(sent.start, &pattern)
            .and_then(|()| self.mr.write(arrives.start, &nothing))
            .map_err(PingpongError::verb("fill the buffers"))
    }

    /// What the byte at that place of a checked message is: the programs write the number of each page to
    /// its first byte, in the remainder of division by the size of a character, which is 1.
    fn content(&self, at: usize, page: usize) -> u8 {
        if at.is_multiple_of(page) {
            0
        } else {
            self.filling
        }
    }

    fn post_send(&mut self, number: usize) -> Result<(), PingpongError> {
        let piece = self.mr.slice(self.places.sent.clone());
        let posted = self.carrier.post_send(number, piece);
        posted.map_err(|error| PingpongError::Post {
            doing: "a SEND",
            error,
        })?;
        self.game.posted(number);
        Ok(())
    }

    fn post_recvs(&mut self) -> Result<(), PingpongError> {
        while self.game.recvs < self.game.rx_depth {
            let piece = self.mr.slice(self.places.arrives.clone());
            let posted = self.carrier.post_recv(piece);
            posted.map_err(|error| PingpongError::Post {
                doing: "a receive",
                error,
            })?;
            self.game.recvs += 1;
        }
        Ok(())
    }

    /// Takes some completions; whether there were any.
    fn poll(&mut self) -> Result<bool, PingpongError> {
        let mut entries = [Wc::default(); POLL_MAX];
        let completions = self.cq.poll(&mut entries).len();
        for wc in &entries[..completions] {
            // What is left of a connection whose peer has gone is flushed.
            if self.game.is_over() {
                break;
            }
            let is_send = wc.wr_id == SEND_ID;
            let is_gone = is_send && wc.status == WcStatus::RetryExcErr;
            let is_answered = is_gone && self.game.is_answered(self.carrier.number(wc.qpn));
            if is_gone && !is_answered && self.game.awaits_last_acks() {
                return Err(PingpongError::LastUnacknowledged);
            }
            if wc.status != WcStatus::Success && !is_answered {
                return Err(PingpongError::Completion {
                    what: if is_send { "a SEND" } else { "a receive" },
                    status: wc.status,
                });
            }
            let number = self.carrier.number(wc.qpn);
            if is_send {
                self.game.handle_sent(number);
            } else {
                self.game.handle_received(number);
                if self.game.is_running_out() {
                    self.post_recvs()?;
                }
            }
        }
        Ok(completions > 0)
    }
}

/// Sleeps until the queue has something, or for so long that the silence is worth looking at.
fn wait(channel: &CompletionChannel, cq: &mut Cq) -> Result<bool, PingpongError> {
    if cq.arm(Arm::Next) == Armed::Waiting {
        return Ok(false);
    }
    let second = Timespec {
        tv_sec: 1,
        tv_nsec: 0,
    };
    match poll(&mut [PollFd::new(channel, PollFlags::IN)], Some(&second)) {
        Ok(_) | Err(Errno::INTR) => {}
        Err(error) => {
            return Err(PingpongError::System {
                doing: "wait for an event",
                error: error.into(),
            });
        }
    }
    // Dropping an event acknowledges it.
    while channel.try_next().is_some() {}
    Ok(true)
}
