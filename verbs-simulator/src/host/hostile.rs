//! A program that breaks rules: of the line, and of the memory that it shares with others.

use std::io::IoSliceMut;
use std::mem::MaybeUninit;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::time::Duration;

use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendFlags, recvmsg, send};
use verbs_core::host::channel::{FEATURE, FILES, Head};
use verbs_core::host::message::{
    Hello, MESSAGE_MAX, NotListening, Service, VERSION, VERSION_LEAST,
};
use verbs_core::host::{Block, Channel, Message};
use verbs_link::ring::{Broken, End, Rings, Shared as _, Word};

use super::mutant::HostMutant;
use super::world::{HERE, World};
use crate::Draw;

/// A life on one line.
struct Hostile {
    socket: OwnedFd,
    block: Option<Block>,
    channels: Vec<(Channel, OwnedFd, Rings, OwnedFd)>,
}

/// Joins again and again, and breaks rules.
pub(super) async fn run(world: Rc<World>, mut draw: Draw, mutant: Option<HostMutant>) {
    while !world.is_over() {
        let Ok(socket) = world.place.connect() else {
            world.sim.sleep(Duration::from_micros(50)).await;
            continue;
        };
        let mut hostile = Hostile {
            socket,
            block: None,
            channels: Vec::new(),
        };
        hostile.introduce(&mut draw);
        while !world.is_over() {
            let pause = draw.duration(Duration::ZERO..=Duration::from_micros(40));
            world.sim.sleep(pause).await;
            if !hostile.read() || !hostile.act(&world, &mut draw, mutant) {
                break;
            }
        }
    }
}

impl Hostile {
    fn say(&self, bytes: &[u8]) -> bool {
        let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
        !matches!(
            send(&self.socket, bytes, flags),
            Err(rustix::io::Errno::PIPE)
        )
    }

    fn introduce(&self, draw: &mut Draw) {
        let claims = draw.below(8) == 0;
        let hello = Message::Hello(Hello {
            lowest: VERSION_LEAST,
            highest: VERSION,
            features: FEATURE,
            addresses: vec![HERE],
            name: "hostile".into(),
            token: [draw.below(3) as u8; 16],
            blocks: if claims {
                vec![draw.below(4095) as u16]
            } else {
                Vec::new()
            },
        });
        self.say(&hello.encode());
    }

    /// Reads what it is told. False if its line is over.
    fn read(&mut self) -> bool {
        loop {
            let mut bytes = vec![0; MESSAGE_MAX];
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(FILES))];
            let mut control = RecvAncillaryBuffer::new(&mut space);
            let mut into = [IoSliceMut::new(&mut bytes)];
            let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
            let len = match recvmsg(&self.socket, &mut into, &mut control, flags) {
                Ok(received) if received.bytes == 0 => return false,
                Ok(received) => received.bytes,
                Err(rustix::io::Errno::AGAIN) => return true,
                Err(_) => return false,
            };
            let mut files = Vec::new();
            for message in control.drain() {
                if let RecvAncillaryMessage::ScmRights(rights) = message {
                    files.extend(rights);
                }
            }
            match Message::decode(&bytes[..len]) {
                Ok(Message::Welcome(welcome)) => self.block = Block::new(welcome.block),
                Ok(Message::Channel(news)) => self.open(news, files),
                _ => {}
            }
        }
    }

    fn open(&mut self, news: Channel, files: Vec<OwnedFd>) {
        let end = if news.end == 0 {
            End::First
        } else {
            End::Second
        };
        let Ok([file, bell]) = <[OwnedFd; FILES]>::try_from(files) else {
            return;
        };
        if let Ok(rings) = Rings::open(&file, news.ring_len as usize, end) {
            self.say(&Message::ChangedOver(news.number).encode());
            self.channels.push((news, file, rings, bell));
        }
    }

    /// Does one bad thing. False if it leaves.
    fn act(&mut self, world: &World, draw: &mut Draw, mutant: Option<HostMutant>) -> bool {
        let alive = world.alive();
        let victim = match alive.len() {
            0 => return true,
            count => &alive[draw.below(count)],
        };
        let Some(block) = world.place.block_of(victim.number) else {
            return true;
        };
        match draw.below(40) {
            0 => self.say(&garbage(draw)),
            1 => self.say(&Message::Listening(3, Err(NotListening::InUse)).encode()),
            2 => self.say(&Message::Unlisten(service(draw)).encode()),
            3 => self.say(&Message::Return(block.number()).encode()),
            4 => false,
            5..=8 => self.say(&Message::Listen(draw.number(), service(draw)).encode()),
            9 => self.say(&Message::Broken(block.number()).encode()),
            10 => self.say(&Message::Lease(1).encode()),
            11 | 12 => {
                self.spoil(draw);
                true
            }
            13..=28 => {
                self.send_foreign(world, draw, mutant);
                true
            }
            _ => self.say(&Message::OpenChannel(block.number()).encode()),
        }
    }

    /// Writes nonsense into the memory that it shares.
    fn spoil(&mut self, draw: &mut Draw) {
        let Some((news, file, ..)) = self.channels.last() else {
            return;
        };
        let Ok(rings) = Rings::memory(file, news.ring_len as usize) else {
            return;
        };
        let word = *draw.pick(&[
            Word::Tail,
            Word::Head,
            Word::Sleeps,
            Word::Waits,
            Word::Told,
            Word::Long,
        ]);
        rings[draw.below(2)].store(word, draw.number() >> draw.below(64));
        let mut bytes = vec![0; 64];
        draw.fill(&mut bytes);
        let at = 64 * draw.below(news.ring_len as usize / 64) as u64;
        rings[usize::from(news.end & 1)].write(at, &bytes);
    }

    /// Sends a packet, perhaps a long one, through the memory that it shares with a program, for a queue pair that is not that
    /// program's.
    fn send_foreign(&mut self, world: &World, draw: &mut Draw, mutant: Option<HostMutant>) {
        let own = self.block;
        let Some((news, _, rings, bell)) = self.channels.last_mut() else {
            return;
        };
        let mut numbers: Vec<_> = world.alive().iter().map(|it| it.number).collect();
        numbers.retain(|&number| {
            let block = world.place.block_of(number);
            block.is_some_and(|block| !news.blocks.contains(&block.number()))
        });
        let others = numbers
            .iter()
            .filter_map(|&number| world.place.block_of(number));
        let targets: Vec<_> = others.chain(own).chain(Block::new(0)).collect();
        let target = *draw.pick(&targets);
        let packet = packet(target.qpns().start + draw.below(target.qpns().len()) as u32);
        let head = Head {
            addresses: Some((HERE, HERE)),
            tclass: 0,
            ident: 0,
            segment: packet.len() as u16,
        };
        let (bytes, len) = head.bytes();
        let message = [&bytes[..len], &packet[..]].concat();
        let pieces = std::iter::once(&message[..]);
        let longest = rings.writer.longest_payload().unwrap_or(0);
        let written = match draw.below(2) * draw.below(longest + 1) {
            0 => rings.writer.write(message.len(), pieces),
            len => {
                // What was there before is as good a payload as any.
                let fill = |_: &_, _| Ok::<_, Broken>(());
                let written = rings.writer.write_long((message.len(), pieces), len, fill);
                written.flatten()
            }
        };
        if let Ok(Some(_)) = written {
            let _ = send(&*bell, &[1], SendFlags::DONTWAIT | SendFlags::NOSIGNAL);
            if mutant == Some(HostMutant::ForeignBlock) {
                let mut alive = world.alive().into_iter();
                let is_victim = |number| {
                    let block = world.place.block_of(number);
                    block.is_some_and(|block| news.blocks.contains(&block.number()))
                };
                if let Some(victim) = alive.find(|it| is_victim(it.number)) {
                    victim.takes_foreign(packet);
                }
            }
        }
    }
}

fn service(draw: &mut Draw) -> Service {
    Service {
        id: 0x0106_0000 + draw.below(400) as u64,
        addr: None,
    }
}

fn garbage(draw: &mut Draw) -> Vec<u8> {
    let mut bytes = vec![0; 1 + draw.below(300)];
    draw.fill(&mut bytes);
    bytes
}

/// A packet of RC, its ICRC left out.
fn packet(qpn: u32) -> Vec<u8> {
    let [_, a, b, c] = qpn.to_be_bytes();
    let mut packet = vec![4, 0, 0xff, 0xff, 0, a, b, c, 0, 0, 0, 0];
    packet.extend([7; 32]);
    packet.extend([0; 4]);
    packet
}
