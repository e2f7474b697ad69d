//! A pingpong over a reliable connection, with the attributes and in the order of `ibv_rc_pingpong`.

use std::ops::Range;
use std::time::{Duration, Instant};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::param::page_size;
use verbs_core::sync::{spin_loop, thread};
use verbs_core::{
    Access, Arm, Armed, Av, CompletionChannel, Cq, Device, Memory, Mr, Mtu, Path, Pd, Psn, Qp,
    QpAttr, QpInit, Qpn, Recv, Send, Wc, WcStatus,
};

use super::error::PingpongError;
use super::game::Game;
use super::text::Hello;
use super::{Report, Role};
use crate::cli::PingpongArgs;
use crate::wire::PORT;

const RECV_ID: u64 = 1;
const SEND_ID: u64 = 2;

/// A receive queue that has no more than so many left is filled up again.
const RECVS_MIN: u32 = 1;

/// Completions taken at once.
const POLL_MAX: usize = 2;

/// Polls that find nothing before another thread may have the processor: the peer may need it.
const SPINS: u32 = 64;

/// A peer that is alive answers within its retries; after this much nothing it has gone.
const SILENCE_MAX: Duration = Duration::from_secs(10);

/// How long a queue pair goes on answering after its own work is done: as long as it takes the peer to
/// repeat a message whose acknowledgement was lost, for all its 7 retries of 67 ms.
const LINGER: Duration = Duration::from_millis(600);

/// What an empty buffer holds, as in the programs.
const FILL: u8 = 0x7b;

/// What the client's receive buffer holds before the first answer.
const NOTHING: u8 = 0xff;

/// The verbs objects and how far the game is.
pub(super) struct Rc {
    device: Device,
    pd: Pd,
    cq: Cq,
    channel: Option<CompletionChannel>,
    qp: Qp,
    mr: Mr,
    gid_index: u16,
    mtu: Mtu,
    /// Where messages are sent from and where they arrive, the same place at the server's end.
    places: [Range<usize>; 2],
    check: bool,
    game: Game,
}

impl Rc {
    /// Makes the objects, with the receives posted.
    pub(super) async fn new(
        device: Device,
        args: &PingpongArgs,
        role: Role,
    ) -> Result<Self, PingpongError> {
        let port = device.query_port(PORT).await;
        let port = port.map_err(PingpongError::verb("query the port"))?;
        if args.mtu > port.active_mtu {
            let (got, max) = (args.mtu, port.active_mtu);
            return Err(PingpongError::Mtu { got, max });
        }
        let size = args.size as usize;
        // The server sends back what arrived.
        let places = match role {
            Role::Client => [0..size, size..2 * size],
            Role::Server => [0..size, 0..size],
        };
        let pd = device.alloc_pd().await;
        let pd = pd.map_err(PingpongError::verb("allocate a protection domain"))?;
        let memory = Memory::alloc(places[1].end);
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
        let create = device.create_cq(args.rx_depth.saturating_add(1));
        let cq = match &channel {
            Some(channel) => create.channel(channel, 0).await,
            None => create.await,
        };
        let cq = cq.map_err(PingpongError::verb("create a completion queue"))?;
        let qp = pd
            .create_qp(QpInit::rc(&cq, &cq).depth(1, args.rx_depth))
            .await;
        let qp = qp.map_err(PingpongError::verb("create a queue pair"))?;
        let initialised = qp.init(PORT, Access::empty()).await;
        initialised.map_err(PingpongError::verb("initialise the queue pair"))?;
        let mut rc = Self {
            device,
            pd,
            cq,
            channel,
            qp,
            mr,
            gid_index: args.gid_idx,
            mtu: args.mtu,
            places,
            check: args.chk,
            game: Game::new(role, args.iters, args.rx_depth),
        };
        rc.fill(role)?;
        rc.post_recvs()?;
        Ok(rc)
    }

    pub(super) fn qpn(&self) -> Qpn {
        self.qp.qpn()
    }

    /// Takes the queue pair to RTS, with what `ibv_rc_pingpong` gives it.
    pub(super) async fn connect(&self, ours: &Hello, theirs: &Hello) -> Result<(), PingpongError> {
        let path = Path {
            av: Av::to_gid(PORT, self.gid_index, theirs.gid),
            dest_qpn: theirs.qpn,
            rq_psn: theirs.psn,
            mtu: self.mtu,
        };
        let ready = self.qp.modify(rtr(&path)).await;
        ready.map_err(PingpongError::verb("make the queue pair ready to receive"))?;
        let ready = self.qp.modify(rts(ours.psn)).await;
        ready.map_err(PingpongError::verb("make the queue pair ready to send"))
    }

    /// Plays to the end. Blocks.
    pub(super) fn play(&mut self) -> Result<Report, PingpongError> {
        let started = Instant::now();
        let mut last = started;
        let mut spins = 0_u32;
        while !self.game.is_over() {
            if self.game.may_send() {
                self.post_send()?;
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
            if waited && last.elapsed() > SILENCE_MAX {
                return Err(PingpongError::Silent {
                    seconds: SILENCE_MAX.as_secs(),
                    received: self.game.received,
                    iters: self.game.iters,
                });
            }
        }
        let iters = self.game.iters;
        Ok(Report {
            bytes: self.places[0].len() as u64 * u64::from(iters) * 2,
            iters,
            elapsed: started.elapsed(),
        })
    }

    /// Whether the last message is what it should be, if that was asked for.
    pub(super) fn check(&self) -> Result<(), PingpongError> {
        if !self.check {
            return Ok(());
        }
        let arrived = self.places[1].clone();
        let mut bytes = vec![0; arrived.len()];
        let read = self.mr.read(arrived.start, &mut bytes);
        read.map_err(PingpongError::verb("read the buffer"))?;
        let page = page_size();
        let wrong = (0..)
            .zip(bytes)
            .find(|&(at, byte)| byte != content(at, page));
        wrong.map_or(Ok(()), |(at, got)| {
            let expected = content(at, page);
            Err(PingpongError::Content { at, got, expected })
        })
    }

    /// Goes on answering a peer that has not heard the last acknowledgement. Blocks for a short time.
    pub(super) fn linger(&mut self) {
        let until = Instant::now() + LINGER;
        while Instant::now() < until {
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
            qp,
            mr,
            ..
        } = self;
        let failed = |doing| move |error| PingpongError::Verb { doing, error };
        let done = qp.destroy().await;
        done.map_err(|refused| failed("destroy the queue pair")(refused.error))?;
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
        let [sent, arrives] = &self.places;
        let pattern = (0..sent.len()).map(|at| match role {
            Role::Client if self.check => content(at, page),
            _ => FILL,
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

    fn post_send(&mut self) -> Result<(), PingpongError> {
        let send = Send::new(SEND_ID).from(self.mr.slice(self.places[0].clone()));
        let posted = self.qp.post_send(send.signaled());
        posted.map_err(|error| PingpongError::Post {
            doing: "a SEND",
            error,
        })?;
        self.game.posted();
        Ok(())
    }

    fn post_recvs(&mut self) -> Result<(), PingpongError> {
        while self.game.recvs < self.game.rx_depth {
            let recv = Recv::new(RECV_ID).into(self.mr.slice(self.places[1].clone()));
            let posted = self.qp.post_recv(recv);
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
            let is_send = wc.wr_id == SEND_ID;
            if wc.status != WcStatus::Success {
                return Err(PingpongError::Completion {
                    what: if is_send { "a SEND" } else { "a receive" },
                    status: wc.status,
                });
            }
            if is_send {
                self.game.handle_sent();
            } else {
                self.game.handle_received();
                if self.game.recvs <= RECVS_MIN {
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

/// What the byte at that place of a checked message is: the programs write the number of each page to
/// its first byte, in the remainder of division by the size of a character, which is 1.
fn content(at: usize, page: usize) -> u8 {
    if at.is_multiple_of(page) { 0 } else { FILL }
}

fn rtr(path: &Path) -> QpAttr {
    QpAttr {
        max_dest_rd_atomic: Some(1),
        min_rnr_timer: Some(12),
        ..QpAttr::rtr(path)
    }
}

fn rts(psn: Psn) -> QpAttr {
    QpAttr {
        timeout: Some(14),
        retry_cnt: Some(7),
        rnr_retry: Some(7),
        max_rd_atomic: Some(1),
        ..QpAttr::rts(psn)
    }
}
