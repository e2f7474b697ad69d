//! Several programs at one address: the system hands each the packets for its own queue pairs.
//!
//! The sockets of an address are one group of the system (`SO_REUSEPORT`). A packet filter reads the queue pair number of
//! each packet, and names the socket that receives it by its place in the group: the order in which they were bound. The
//! first place is the link's own: what is for no other program comes there. A socket that left the group would move another
//! one to its place, so that a copy of each stays here, and one that its program no longer needs is the next one's.
//!
//! A program that takes away the filter, or connects its socket, misleads packets of the others. They arrive all the same, if
//! each hands on what is not for it.

use std::collections::BTreeMap;
use std::io;
use std::net::IpAddr;
use std::os::fd::{AsFd, OwnedFd};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::RecvFlags;
use verbs_core::host::Block;
use verbs_core::sync::Arc;

use super::Udp;
use super::sockets::endpoint::Endpoint;
use crate::sys::{self, Filter};

/// Programs at one address at most.
pub const PROGRAMS_MAX: usize = 64;

/// Addresses of a link that is shared like that at most: each program has a socket for each of them.
pub const SHARED_MAX: usize = 8;

/// Where a socket is: its address, and its place in the group.
pub type Seat = (IpAddr, usize);

/// A socket that a program is to have.
#[derive(Debug)]
pub struct SteeredSocket {
    /// The number of the program.
    pub program: u32,
    /// Where it is.
    pub seat: Seat,
    /// The socket.
    pub socket: Arc<OwnedFd>,
    /// Nobody had it before.
    pub is_new: bool,
}

/// The programs that share a link, and their sockets.
#[derive(Debug, Default)]
pub struct Steering {
    groups: BTreeMap<IpAddr, Group>,
    programs: BTreeMap<u32, Vec<Block>>,
    /// The system cannot do it.
    is_off: bool,
}

/// The sockets of one address but the link's own, by their place; the first has place 1.
#[derive(Debug, Default)]
struct Group(Vec<Chair>);

#[derive(Debug)]
struct Chair {
    socket: Arc<OwnedFd>,
    program: Option<u32>,
}

impl Steering {
    /// With the sockets that a process before this one has had, whose link has the same ones: all of an address, or none.
    /// None of them has an owner.
    pub fn restored(link: &Udp, seats: BTreeMap<Seat, OwnedFd>) -> Self {
        let mut steering = Self::default();
        for ((address, _), socket) in seats {
            if link.endpoint(address).is_some() {
                let Group(chairs) = steering.groups.entry(address).or_default();
                chairs.push(Chair {
                    socket: Arc::new(socket),
                    program: None,
                });
            }
        }
        steering
    }

    /// A program has these blocks from now on; it has gone if it has none. Returns its new sockets: none if there are as many
    /// programs as there may be, or the system cannot do it.
    pub fn moved(&mut self, link: &Udp, program: u32, blocks: Vec<Block>) -> Vec<SteeredSocket> {
        let is_new = !self.programs.contains_key(&program);
        let has_room = !self.is_off && self.programs.len() < PROGRAMS_MAX;
        if is_new && (blocks.is_empty() || !has_room) {
            return Vec::new();
        }
        if blocks.is_empty() {
            self.programs.remove(&program);
            self.steer(link);
            // From now on nothing comes there.
            self.groups
                .values_mut()
                .for_each(|group| group.free(program));
            return Vec::new();
        }
        self.programs.insert(program, blocks);
        let given = match is_new {
            true => self.seat(link, program),
            false => Vec::new(),
        };
        self.steer(link);
        given
    }

    /// The link may have other addresses. Returns the new sockets.
    pub fn followed(&mut self, link: &Udp) -> Vec<SteeredSocket> {
        self.groups
            .retain(|&address, _| link.endpoint(address).is_some());
        let programs: Vec<_> = self.programs.keys().copied().collect();
        let given = programs.into_iter();
        let given = given.flat_map(|program| self.seat(link, program)).collect();
        self.steer(link);
        given
    }

    /// Sockets for a program at all addresses where it has none.
    fn seat(&mut self, link: &Udp, program: u32) -> Vec<SteeredSocket> {
        let mut given = Vec::new();
        let endpoints = link.endpoints();
        if endpoints.len() > SHARED_MAX || self.is_off {
            return given;
        }
        for endpoint in endpoints {
            let group = self.groups.entry(endpoint.address).or_default();
            if group.0.iter().any(|chair| chair.program == Some(program)) {
                continue;
            }
            match group.seat(endpoint, program) {
                Ok(one) => given.push(one),
                Err(error) => {
                    tracing::warn!(address = %endpoint.address, %error, "packets of the network pass through the daemon");
                    self.is_off = true;
                    break;
                }
            }
        }
        given
    }

    /// Has the system steer packets as the programs' blocks say.
    fn steer(&self, link: &Udp) {
        for endpoint in link.endpoints() {
            let group = self.groups.get(&endpoint.address);
            // Without further sockets it is no group for the system either.
            let Some(group) = group.filter(|Group(chairs)| !chairs.is_empty()) else {
                continue;
            };
            let mut places = Vec::new();
            for (place, chair) in (1..).zip(&group.0) {
                let blocks = chair
                    .program
                    .and_then(|program| self.programs.get(&program));
                let blocks = blocks.into_iter().flatten();
                places.extend(blocks.map(|&block| (block.number(), place)));
            }
            // Without the filter, packets are misled, and handed on.
            if let Err(error) = steer(endpoint, &places) {
                tracing::warn!(address = %endpoint.address, %error, "packets are not steered");
            }
        }
    }
}

impl Group {
    /// A place for a program: one that is free, or a new one.
    fn seat(&mut self, own: &Endpoint, program: u32) -> io::Result<SteeredSocket> {
        let free = self.0.iter().position(|chair| chair.program.is_none());
        let (at, is_new) = match free {
            Some(at) => (at, false),
            None => {
                let socket = Arc::new(own.beside()?);
                if self.0.is_empty() {
                    prove(own, &socket)?;
                }
                let program = None;
                self.0.push(Chair { socket, program });
                (self.0.len() - 1, true)
            }
        };
        let chair = &mut self.0[at];
        chair.program = Some(program);
        drain(&chair.socket);
        Ok(SteeredSocket {
            program,
            seat: (own.address, at + 1),
            socket: Arc::clone(&chair.socket),
            is_new,
        })
    }

    /// A program has gone.
    fn free(&mut self, program: u32) {
        for chair in &mut self.0 {
            if chair.program == Some(program) {
                chair.program = None;
                drain(&chair.socket);
            }
        }
    }
}

/// Packets that nobody is there for are lost.
fn drain(socket: &OwnedFd) {
    // As many as its buffer may have; a program that still sends to it goes on.
    for _ in 0..DRAIN_MAX {
        match rustix::net::recv(socket, &mut [0; 1], RecvFlags::DONTWAIT | RecvFlags::TRUNC) {
            // An error of the network, which is reported once.
            Ok(_) | Err(Errno::CONNREFUSED | Errno::INTR) => {}
            Err(_) => return,
        }
    }
}

const DRAIN_MAX: usize = 65_536;

/// A block that no program has: its numbers are those of multicast packets.
const NOBODYS: u16 = 0x3fff;

/// How long a packet to the machine itself may take.
const PATIENCE: Timespec = Timespec {
    tv_sec: 0,
    tv_nsec: 200_000_000,
};

/// Tests that the system steers packets: one for a block of nobody comes to the second socket of the group.
fn prove(own: &Endpoint, second: &OwnedFd) -> io::Result<()> {
    steer(own, &[(NOBODYS, 1)])?;
    let mut packet = [0; 16];
    packet[4..8].copy_from_slice(&(u32::from(NOBODYS) << Block::INDEX_BITS | 1).to_be_bytes());
    own.send_to_itself(&packet)?;
    let mut polled = [PollFd::new(second, PollFlags::IN)];
    let came = poll(&mut polled, Some(&PATIENCE))?;
    drain(second);
    match came {
        0 => Err(io::Error::other("the system does not steer packets")),
        _ => Ok(()),
    }
}

/// Replaces the filter of the group: packets for these blocks go to these places, all others to the first.
fn steer(own: &Endpoint, places: &[(u16, u32)]) -> io::Result<()> {
    // The destination in the base transport header; a packet that is too short for one goes to the first place.
    let mut filter = vec![
        Filter::load_word(4),
        Filter::and(0xff_ffff),
        Filter::shift_right(Block::INDEX_BITS),
    ];
    for &(block, place) in places {
        filter.push(Filter::unless_equal(block.into(), 1));
        filter.push(Filter::answer(place));
    }
    filter.push(Filter::answer(0));
    sys::steer(own.socket().as_fd(), &filter)
}
