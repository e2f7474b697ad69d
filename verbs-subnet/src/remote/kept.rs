//! A message with packets, which are handed up a few at a time.

use std::net::Ipv6Addr;
use std::ops::Range;

use verbs_core::{Bounce, Gid};
use verbs_link::{Arrival, Ident, Local};
use verbs_wire::{Frame, ROCE_PORT};

use crate::ipc::message::PACKETS_MAX;

/// The message that was taken last, and what is left of it.
#[derive(Debug)]
pub(super) struct Kept {
    pub(super) message: Bounce,
    /// The packets that were not handed up yet.
    pub(super) rest: Range<usize>,
}

impl Kept {
    pub(super) fn new() -> Self {
        Self {
            message: Bounce::new(PACKETS_MAX),
            rest: 0..0,
        }
    }

    /// Hands up at most that many packets; returns their number. What is no packet ends the message.
    pub(super) fn hand_up(&mut self, limit: usize, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let mut rest = self.message.get(self.rest.clone()).unwrap_or_default();
        let mut count = 0;
        while count < limit {
            let Ok((frame, transport, behind)) = Frame::split(rest) else {
                rest = &[];
                break;
            };
            rest = behind;
            count += 1;
            sink(&arrival(&frame, transport));
        }
        self.rest.start = self.rest.end - rest.len();
        count
    }
}

fn arrival<'p>(frame: &Frame, transport: &'p [u8]) -> Arrival<'p> {
    let nowhere = Gid::from(Ipv6Addr::UNSPECIFIED);
    let [src, dst] = match &frame.grh {
        Some(grh) => [grh.sgid, grh.dgid],
        None => [nowhere; 2],
    };
    Arrival {
        src: src.into(),
        dst: dst.into(),
        sport: ROCE_PORT,
        tclass: frame.grh.map_or(0, |grh| grh.traffic_class),
        ident: Ident::Known(0),
        bytes: transport,
        long: None,
        local: Some(Local {
            slid: frame.slid,
            dlid: frame.dlid,
            sl: frame.sl,
            global: frame.grh.is_some(),
        }),
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::Lid;

    use super::*;

    /// A message with packets whose first byte is their number.
    fn message(kept: &mut Kept, packets: u8) -> usize {
        let frame = Frame {
            slid: Lid(1),
            dlid: Lid(2),
            ..Frame::default()
        };
        let mut len = 0;
        for number in 0..packets {
            let mut headers = [0; Frame::LEN_MAX];
            let transport = [number; 28];
            let count = frame.emit(transport.len(), &mut headers).unwrap();
            for piece in [&headers[..count], &transport] {
                kept.message[len..len + piece.len()].copy_from_slice(piece);
                len += piece.len();
            }
        }
        kept.rest = 0..len;
        len
    }

    fn take(kept: &mut Kept, limit: usize, seen: &mut Vec<u8>) -> usize {
        kept.hand_up(limit, &mut |arrival| seen.push(arrival.bytes[0]))
    }

    /// Goal: a message is handed up in parts, each packet once and in order.
    #[test]
    fn a_message_is_handed_up_in_parts() {
        let mut kept = Kept::new();
        message(&mut kept, 200);
        let mut seen = Vec::new();
        let mut counts = Vec::new();
        while !kept.rest.is_empty() {
            counts.push(take(&mut kept, 64, &mut seen));
        }
        assert_eq!(counts, [64, 64, 64, 8]);
        assert!(seen.iter().copied().eq(0..200));
        assert_eq!(take(&mut kept, 64, &mut seen), 0, "there are no more");
    }

    /// Goal: what is no packet ends the message, and nothing of it is kept. Method: a message that is cut in its
    /// last packet, and one whose third packet is garbage.
    #[test]
    fn what_is_no_packet_ends_the_message() {
        let mut kept = Kept::new();
        let mut seen = Vec::new();
        let len = message(&mut kept, 3);
        kept.rest = 0..len - 1;
        assert_eq!(take(&mut kept, 64, &mut seen), 2);
        assert!(kept.rest.is_empty());
        let third = message(&mut kept, 2);
        message(&mut kept, 4);
        kept.message[third..third + 8].fill(0xff);
        assert_eq!(take(&mut kept, 1, &mut seen), 1);
        assert_eq!(take(&mut kept, 64, &mut seen), 1);
        assert!(kept.rest.is_empty());
    }
}
