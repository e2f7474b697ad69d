//! What a hostile client does.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use hca_sim::link::fabric::RING_LEN;
use hca_sim::link::fabric::message::{BELL, BULK, MadMessage, Message, Registration};
use hca_sim::link::fabric::ring::Rings;
use hca_sim::link::fabric::socket::{Take, connect_to, receive_into, send, send_with};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use verbs_core::Lid;

use crate::bed::{Hosted, STUCK};

/// A number that looks like chance, and is the same in every run.
struct Draw(u64);

impl Draw {
    fn below(&mut self, end: usize) -> usize {
        self.0 = self
            .0
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        (self.0 >> 33) as usize % end
    }

    fn bytes(&mut self, max: usize) -> Vec<u8> {
        (0..self.below(max))
            .map(|_| self.below(256) as u8)
            .collect()
    }
}

/// What a hostile client does, until it is over.
pub(crate) fn attack(hosted: &Hosted, seed: u64, nice: i32, is_over: &AtomicBool) {
    let mut draw = Draw(seed);
    // Of this thread alone: processors that are short say nothing about the host.
    rustix::process::setpriority_process(None, nice).unwrap();
    let names = ["a", "b", "c", "s", "", "a,b,c,s", "x"];
    while !is_over.load(Relaxed) {
        let Ok(client) = connect_to(&hosted.socket) else {
            continue;
        };
        let session = open_quietly(&client, names[draw.below(names.len())]);
        let (reader, _writer) = std::io::pipe().unwrap();
        let files: [OwnedFd; 3] = [
            reader.into(),
            fs::File::open("/dev/zero").unwrap().into(),
            Rings::create(RING_LEN).unwrap().0,
        ];
        // What cannot be sent now is not waited for; a client that was dropped begins again.
        for _ in 0..draw.below(2000) {
            let name = names[draw.below(names.len())];
            let said = wild(&mut draw, name, session.as_ref().map_or(0, |it| it.0));
            let sent = match draw.below(20) {
                0 => {
                    let file = files[draw.below(files.len())].as_fd();
                    let bytes = if draw.below(2) == 0 { &BULK[..] } else { &said };
                    send_with(client.as_fd(), bytes, file, false)
                }
                1..=9 => match &session {
                    Some((_, port)) => send(port.as_fd(), &said, false),
                    None => send(client.as_fd(), &said, false),
                },
                _ => send(client.as_fd(), &said, false),
            };
            if sent.is_err_and(|error| error != Errno::AGAIN) {
                break;
            }
        }
    }
}

fn open_quietly(client: &OwnedFd, node: &str) -> Option<(u32, OwnedFd)> {
    let open = Message::Open {
        host: node.into(),
        adapter: 0,
        port: 1,
    };
    send(client.as_fd(), &open.encode(), false).ok()?;
    let mut entry = [PollFd::new(client, PollFlags::IN)];
    poll(&mut entry, Some(&Timespec::try_from(STUCK).ok()?)).ok()?;
    let mut buffer = Vec::new();
    let (len, end) = receive_into(client.as_fd(), Take::Away, false, &mut buffer).ok()?;
    match Message::decode(buffer.get(..len)?) {
        Ok(Message::Opened { session }) => Some((session, end?)),
        _ => None,
    }
}

fn wild(draw: &mut Draw, name: &str, session: u32) -> Vec<u8> {
    let host = name.to_owned();
    let session = match draw.below(3) {
        0 => draw.below(100) as u32,
        _ => session,
    };
    let message = match draw.below(12) {
        0 => Message::Look { host },
        1 => Message::Open {
            host,
            adapter: 0,
            port: 1,
        },
        // Not of the port that the honest one looks through.
        2 => Message::Attach {
            host: "c".into(),
            adapter: 0,
            port: 1,
        },
        3 => Message::Register {
            session,
            registration: Registration {
                class: draw.below(256) as u8,
                version: 1,
                methods: draw.below(1 << 16) as u128,
                ..Registration::default()
            },
        },
        4 => Message::Unregister {
            session,
            agent: draw.below(4) as u32,
        },
        5 => Message::Plug {
            node: host,
            port: 1,
            is_in: false,
        },
        6 => Message::ManagerFile {
            host,
            adapter: 0,
            port: 1,
        },
        7 => Message::PlugOwn { is_in: false },
        8 => return BELL.to_vec(),
        9 => return draw.bytes(300),
        10 => Message::Count,
        _ => Message::Mad(MadMessage {
            agent: draw.below(4) as u32,
            timeout_ms: draw.below(50) as u32,
            retries: draw.below(3) as u32,
            lid: Lid(draw.below(1 << 16) as u16),
            path_bits: draw.below(256) as u8,
            bytes: wild_mad(draw),
            ..MadMessage::default()
        }),
    };
    message.encode()
}

/// A datagram that asks, and changes nothing at other nodes.
fn wild_mad(draw: &mut Draw) -> Vec<u8> {
    let mut mad = vec![0; 256];
    for byte in &mut mad[24..] {
        *byte = draw.below(256) as u8;
    }
    let class = [1, 3, 4, 0x81, 0x32][draw.below(5)];
    let method = [1, 0x81, 0x12, 0x92][draw.below(4)];
    mad[..4].copy_from_slice(&[1, class, 1, method]);
    mad[17] = draw.below(64) as u8;
    mad[15] = draw.below(256) as u8;
    mad
}
