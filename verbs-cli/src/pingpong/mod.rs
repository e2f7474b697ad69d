//! `verbs pingpong`: messages go back and forth between two hosts, as with `ibv_rc_pingpong`, whose
//! text protocol it speaks: either end can be that program.
//!
//! [`text`] is what is told over TCP; [`rc`] is the reliable connection and what runs on it. Another
//! kind of queue pair needs a module like [`rc`] and a value of [`Kind`].

mod error;
mod game;
mod rc;
mod text;

use std::fmt;
use std::io::Write;
use std::time::{Duration, Instant};

use futures::executor::block_on;
use verbs_core::Lid;

use crate::address::same_family;
use crate::cli::{Kind, PingpongArgs};
use crate::net::{self, Connection, NetError, PATIENCE};
use crate::wire::{self, Network, PORT, Wire};

pub(crate) use self::error::PingpongError;
use self::rc::Rc;
use self::text::{DONE, Hello};

/// Which end this is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    /// Sends first.
    Client,
    /// Answers.
    Server,
}

/// What a pingpong measured.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Report {
    /// Bytes that went over the wire, both ways.
    bytes: u64,
    /// Messages each way.
    iters: u32,
    elapsed: Duration,
}

/// The lines that the programs end with.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bytes, iters, .. } = self;
        let seconds = self.elapsed.as_secs_f64();
        // A clock that has not moved yet would make rates without end.
        let micros = (seconds * 1e6).max(f64::MIN_POSITIVE);
        let rate = *bytes as f64 * 8.0 / micros;
        writeln!(
            f,
            "{bytes} bytes in {seconds:.2} seconds = {rate:.2} Mbit/sec"
        )?;
        let each = micros / f64::from(*iters);
        write!(
            f,
            "{iters} iters in {seconds:.2} seconds = {each:.2} usec/iter"
        )
    }
}

/// Runs the command, printing as it goes. Blocks until both ends are done.
pub(crate) fn run(
    args: &PingpongArgs,
    network: &dyn Network,
    out: &mut dyn Write,
) -> Result<(), PingpongError> {
    let (role, connection) = match &args.host {
        Some(host) => (Role::Client, Connection::open(host, args.port)?),
        None => (Role::Server, accept(args)?),
    };
    let named = &args.wire.bind;
    let (local, peer) = (connection.local().ip(), connection.peer().ip());
    let wire = match role {
        Role::Client => Wire::open_towards(network, named, local, peer)?,
        Role::Server if named.is_empty() => network.attach(&[local])?,
        Role::Server => network.attach(named)?,
    };
    let addresses = wire.addresses().len();
    if usize::from(args.gid_idx) >= addresses {
        let (got, max) = (args.gid_idx, addresses.saturating_sub(1));
        return Err(PingpongError::GidIndex { got, max });
    }
    let played = match args.kind {
        Kind::Rc => block_on(reliable(args, role, connection, &wire, out)),
    };
    let captured = wire.finish_capture();
    played.and(captured.map_err(PingpongError::from))
}

/// Waits for the client.
fn accept(args: &PingpongArgs) -> Result<Connection, PingpongError> {
    let listener = net::listen(None, args.port)?;
    let accepted = listener.accept();
    let connection = accepted.and_then(|(stream, _)| Connection::new(stream));
    connection.map_err(|error| PingpongError::System {
        doing: "accept a connection",
        error,
    })
}

/// A pingpong over a reliable connection.
async fn reliable(
    args: &PingpongArgs,
    role: Role,
    mut connection: Connection,
    wire: &Wire,
    out: &mut dyn Write,
) -> Result<(), PingpongError> {
    let device = wire.device().await;
    let device = device.map_err(PingpongError::verb("open the device"))?;
    let gid = device.query_gid(PORT, args.gid_idx).await;
    let gid = gid.map_err(PingpongError::verb("query the GID"))?;
    let mut rc = Rc::new(device, args, role).await?;
    let psn = wire::draw_psn().map_err(|error| PingpongError::System {
        doing: "draw a packet sequence number",
        error,
    })?;
    // There are no LIDs on Ethernet.
    let ours = Hello {
        lid: Lid(0),
        qpn: rc.qpn(),
        psn,
        gid,
    };
    let mut say = |text: &dyn fmt::Display| {
        let shown = writeln!(out, "{text}").and_then(|()| out.flush());
        shown.map_err(PingpongError::Stdout)
    };
    say(&format_args!("  local address:  {ours}"))?;
    if role == Role::Client {
        connection.send(&ours.emit())?;
    }
    let theirs = receive_hello(&mut connection)?;
    check(&ours, &theirs)?;
    rc.connect(&ours, &theirs).await?;
    match role {
        Role::Client => connection.send(DONE)?,
        Role::Server => {
            connection.send(&ours.emit())?;
            receive_done(&mut connection)?;
        }
    }
    say(&format_args!("  remote address: {theirs}"))?;
    let report = rc.play()?;
    say(&report)?;
    rc.check()?;
    rc.linger();
    rc.close().await
}

fn receive_hello(connection: &mut Connection) -> Result<Hello, PingpongError> {
    let mut bytes = [0; Hello::LEN];
    connection.receive(&mut bytes, Instant::now() + PATIENCE)?;
    let peer = connection.peer();
    let hello = Hello::parse(&bytes).ok_or_else(|| NetError::Foreign {
        peer,
        what: format!("\"{}\" is no pingpong address", bytes.escape_ascii()),
    })?;
    Ok(hello)
}

fn receive_done(connection: &mut Connection) -> Result<(), PingpongError> {
    let mut bytes = [0; DONE.len()];
    connection.receive(&mut bytes, Instant::now() + PATIENCE)?;
    if &bytes != DONE {
        let what = format!("\"{}\" in place of \"done\"", bytes.escape_ascii());
        let peer = connection.peer();
        return Err(NetError::Foreign { peer, what }.into());
    }
    Ok(())
}

/// Whether packets can pass between the two.
fn check(ours: &Hello, theirs: &Hello) -> Result<(), PingpongError> {
    if theirs.gid.0 == [0; 16] {
        return Err(PingpongError::NoGid);
    }
    if same_family(ours.gid, theirs.gid) {
        return Ok(());
    }
    let (ours, theirs) = (ours.gid, theirs.gid);
    Err(PingpongError::Families { ours, theirs })
}

#[cfg(test)]
mod tests;
