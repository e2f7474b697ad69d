//! `verbs pingpong`: messages go back and forth between two hosts, as with `ibv_rc_pingpong` and
//! its siblings, whose text protocol it speaks: either end can be that program.
//!
//! [`text`] is what is told over TCP, [`game`] are the rules, [`table`] is what it is played with, and
//! [`carrier`] are the queue pairs, of one kind or another.

mod carrier;
mod error;
mod game;
mod report;
mod streams;
mod table;
mod text;

use std::fmt;
use std::io::Write;
use std::net::{IpAddr, SocketAddr};
use std::time::Instant;

use futures::executor::block_on;
use verbs_core::{Device, Gid, Lid, Psn, Qpn};

use crate::address::same_family;
use crate::cli::{Kind, PingpongArgs, SRQ_QPS_MAX};
use crate::net::{self, Connection, NetError, PATIENCE};
use crate::report::{json, line};
use crate::wire::{Network, PORT, Transport, Wire, gid_towards};

pub(crate) use self::error::PingpongError;
use self::game::Role;
use self::report::Summary;
use self::table::Table;
use self::text::{DONE, END, Hello};

/// Runs the command, printing as it goes. Blocks until both ends are done.
pub(crate) fn run(
    args: &PingpongArgs,
    network: &dyn Network,
    out: &mut dyn Write,
) -> Result<(), PingpongError> {
    let needs_packets = match args.kind {
        Kind::Rc | Kind::Srq => None,
        Kind::Uc => Some("uc"),
        Kind::Ud => Some("ud"),
        Kind::Xrc => Some("xrc"),
    };
    if let (Some(kind), Transport::Iwarp) = (needs_packets, args.wire.transport) {
        return Err(PingpongError::NeedsPackets(kind));
    }
    network.check()?;
    let (role, connection) = match &args.host {
        Some(host) => (
            Role::Client,
            Connection::open(host, args.port, args.connect)?,
        ),
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
    if let Some(got) = args.gid_idx
        && usize::from(got) >= addresses
    {
        let max = addresses.saturating_sub(1);
        return Err(PingpongError::GidIndex { got, max });
    }
    let played = block_on(play(args, role, connection, &wire, out));
    let captured = wire.finish_capture();
    played.and(captured.map_err(PingpongError::from))
}

/// Waits for the client: the first that says something. Others may have connected, and say nothing.
fn accept(args: &PingpongArgs) -> Result<Connection, PingpongError> {
    let listener = net::listen(None, args.port)?;
    let accepted = net::accept_first_to_speak(&listener);
    accepted.map_err(|error| PingpongError::System {
        doing: "accept a connection",
        error,
    })
}

/// A pingpong, from the device to its end.
async fn play(
    args: &PingpongArgs,
    role: Role,
    connection: Connection,
    wire: &Wire,
    out: &mut dyn Write,
) -> Result<(), PingpongError> {
    if args.rx_depth < args.connections() {
        let (depth, connections) = (args.rx_depth, args.connections());
        return Err(PingpongError::Receives { depth, connections });
    }
    let device = wire.device().await;
    let device = device.map_err(PingpongError::verb("open the device"))?;
    let (gid_index, gid) = own_gid(args, &device, &connection, wire).await?;
    let mut table = Table::new(device, args, gid_index, role).await?;
    // There are no LIDs on Ethernet, and the numbers come with the queue pairs.
    let ours = table.hellos(&Hello {
        lid: Lid(0),
        qpn: Qpn::new(0),
        psn: Psn::new(0),
        gid,
        extended: None,
    })?;
    let mut say = |text: &dyn fmt::Display| line(out, text).map_err(PingpongError::Stdout);
    for hello in ours.iter().filter(|_| !args.json) {
        say(&format_args!("  local address:  {hello}"))?;
    }
    let mut talk = Talk {
        kind: args.kind,
        connection,
    };
    if role == Role::Client {
        talk.send(&ours)?;
    }
    let theirs = talk.receive(ours.len())?;
    check(&ours, &theirs)?;
    bring_together(&mut table, &mut talk, role, &ours, &theirs).await?;
    talk.ready(role)?;
    for hello in theirs.iter().filter(|_| !args.json) {
        say(&format_args!("  remote address: {hello}"))?;
    }
    let report = table.play()?;
    match args.json {
        true => json(out, &Summary::of(&report)).map_err(PingpongError::Stdout)?,
        false => say(&report)?,
    }
    table.check()?;
    talk.over(role)?;
    table.linger();
    table.close().await
}

/// Connects the queue pairs. The server's addresses are told when packets can come, or when it listens.
async fn bring_together(
    table: &mut Table,
    talk: &mut Talk,
    role: Role,
    ours: &[Hello],
    theirs: &[Hello],
) -> Result<(), PingpongError> {
    if !table.is_over_tcp() {
        table.connect(ours, theirs).await?;
        return match role {
            Role::Server => talk.send(ours),
            Role::Client => Ok(()),
        };
    }
    let (local, peer) = (talk.connection.local(), talk.connection.peer());
    let ip = |hellos: &[Hello], usual: SocketAddr| {
        let gid = hellos.first().map(|hello| IpAddr::from(hello.gid));
        gid.unwrap_or(usual.ip())
    };
    let (ours_ip, theirs_ip) = (ip(ours, local), ip(theirs, peer));
    match role {
        Role::Client => {
            let from = SocketAddr::new(ours_ip, 0);
            let to = SocketAddr::new(theirs_ip, peer.port());
            table.join(from, to).await
        }
        Role::Server => {
            let at = SocketAddr::new(ours_ip, local.port());
            let listener = table.listen(at).await?;
            talk.send(ours)?;
            let from = SocketAddr::new(theirs_ip, peer.port());
            table.accept(listener, from).await
        }
    }
}

/// The GID to play from, and its index: the one that was named, or the first that has a way to the peer.
async fn own_gid(
    args: &PingpongArgs,
    device: &Device,
    connection: &Connection,
    wire: &Wire,
) -> Result<(u16, Gid), PingpongError> {
    let failed = PingpongError::verb("query the GID");
    let (local, peer) = (connection.local().ip(), connection.peer().ip());
    if args.gid_idx.is_none() {
        let found = gid_towards(device, wire.addresses(), local, peer.into()).await;
        if let Some(found) = found.map_err(PingpongError::verb("query the GIDs"))? {
            return Ok(found);
        }
    }
    let index = args.gid_idx.unwrap_or(0);
    let gid = device.query_gid(PORT, index).await.map_err(failed)?;
    Ok((index, gid))
}

/// What the ends tell each other, in the way of the program of that kind.
struct Talk {
    kind: Kind,
    connection: Connection,
}

impl Talk {
    fn send(&mut self, hellos: &[Hello]) -> Result<(), PingpongError> {
        for hello in hellos {
            match self.kind {
                Kind::Xrc => self.connection.send(&hello.emit_extended())?,
                _ => self.connection.send(&hello.emit())?,
            }
        }
        let Some(first) = hellos.first() else {
            return Ok(());
        };
        // The program tells of all that there might be.
        let nobody = Hello {
            qpn: Qpn::new(0),
            psn: Psn::new(0),
            ..*first
        };
        for _ in hellos.len()..self.told() {
            self.connection.send(&nobody.emit())?;
        }
        Ok(())
    }

    /// How many addresses are told.
    fn told(&self) -> usize {
        match self.kind {
            Kind::Srq => SRQ_QPS_MAX,
            _ => 1,
        }
    }

    /// The first `count` of the peer's.
    fn receive(&mut self, count: usize) -> Result<Vec<Hello>, PingpongError> {
        let deadline = Instant::now() + PATIENCE;
        let peer = self.connection.peer();
        let foreign = |bytes: &[u8]| NetError::Foreign {
            peer,
            what: format!("\"{}\" is no pingpong address", bytes.escape_ascii()),
        };
        let mut hellos = Vec::new();
        for _ in 0..self.told() {
            hellos.push(if self.kind == Kind::Xrc {
                let mut bytes = [0; Hello::EXTENDED_LEN];
                self.connection.receive(&mut bytes, deadline)?;
                Hello::parse_extended(&bytes).ok_or_else(|| foreign(&bytes))?
            } else {
                let mut bytes = [0; Hello::LEN];
                self.connection.receive(&mut bytes, deadline)?;
                Hello::parse(&bytes).ok_or_else(|| foreign(&bytes))?
            });
        }
        hellos.truncate(count);
        let nobody = |hello: &Hello| hello.qpn == Qpn::new(0);
        match hellos.iter().position(nobody).filter(|_| count > 1) {
            Some(got) => Err(PingpongError::Connections { got }),
            None => Ok(hellos),
        }
    }

    /// Both ends are connected.
    fn ready(&mut self, role: Role) -> Result<(), PingpongError> {
        match role {
            _ if self.kind == Kind::Xrc => Ok(()),
            Role::Client => Ok(self.connection.send(DONE)?),
            Role::Server => receive_word(&mut self.connection, DONE),
        }
    }

    /// The game is over at this end; returns when it is at both, where the program says so.
    fn over(&mut self, role: Role) -> Result<(), PingpongError> {
        if self.kind != Kind::Xrc {
            return Ok(());
        }
        if role == Role::Server {
            receive_word(&mut self.connection, END)?;
        }
        self.connection.send(END)?;
        if role == Role::Client {
            receive_word(&mut self.connection, END)?;
        }
        Ok(())
    }
}

fn receive_word(connection: &mut Connection, word: &[u8]) -> Result<(), PingpongError> {
    let mut bytes = vec![0; word.len()];
    connection.receive(&mut bytes, Instant::now() + PATIENCE)?;
    if bytes != word {
        let what = format!(
            "\"{}\" in place of \"{}\"",
            bytes.escape_ascii(),
            word[..word.len() - 1].escape_ascii()
        );
        let peer = connection.peer();
        return Err(NetError::Foreign { peer, what }.into());
    }
    Ok(())
}

/// Whether packets can pass between the two.
fn check(ours: &[Hello], theirs: &[Hello]) -> Result<(), PingpongError> {
    for (ours, theirs) in ours.iter().zip(theirs) {
        let (ours, theirs) = (ours.gid, theirs.gid);
        if theirs.0 == [0; 16] {
            return Err(PingpongError::NoGid);
        }
        if !same_family(ours, theirs) {
            return Err(PingpongError::Families { ours, theirs });
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests;
