//! Messages about a target queue pair that several programs of a host share.
//!
//! The programs have opened one XRC domain. A target belongs to the HCA of the program that created it, its *home*. A request
//! names a shared receive queue, and executes in the memory of the program that has the queue. So the target *visits* that
//! program's HCA: the home says how the connection stands and hands requests on, and the visited HCA executes and answers
//! them until the home recalls the target.
//!
//! A message is the payload of a datagram between the two HCAs, with the Q_Key [`TargetMessage::QKEY`]. It may be lost, or
//! arrive twice: the home repeats [`About::Begin`] until it is confirmed, and [`About::Recall`] until the target is back. The
//! bytes are this project's own; no specification defines them.

use verbs_core::xrcd::XrcdName;
use verbs_core::{Access, EventType, Gid, Mtu, PKey, Psn, QKey, Qpn, RKey};

use crate::{Message, Reth, WireError};

const MAGIC: [u8; 4] = *b"Vtgt";
const VERSION: u8 = 1;

const BEGIN: u8 = 1;
const RECALL: u8 = 2;
const REPORT: u8 = 3;
const END: u8 = 4;
const OPEN: u8 = 5;
const OPENED: u8 = 6;
const CLOSE: u8 = 7;
const CLOSED: u8 = 8;
const EVENT: u8 = 9;

const READ: u8 = 1;
const ATOMIC: u8 = 2;
const DONE: u8 = 3;

/// Stands for a packet number that there is none of.
const NO_PSN: u32 = u32::MAX;

/// A message: which visit of which target it is about, and what about it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TargetMessage {
    /// The target queue pair.
    pub target: Qpn,
    /// The number of the visit; the home counts them, from any number on.
    pub visit: u32,
    /// What the message says.
    pub about: About,
}

/// What a message says of a visit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum About {
    /// The target comes for a visit.
    Begin(Box<Begin>),
    /// The target is to go home, because of that request for another program.
    Recall(Recall),
    /// How the visit is going: the answer of the visited HCA.
    Report(Phase, Box<Standing>),
    /// The target has left the states in which it takes requests, or no longer exists.
    End,
    /// A program that has opened a domain of that name opens the target too. The visit's number is that of its handle.
    Open(XrcdName),
    /// The home has opened it, or has no such target in the domain.
    Opened(bool),
    /// The program closes its handle.
    Close,
    /// The home knows that.
    Closed,
    /// An event of the target, for those who have opened it.
    Event(EventType),
}

/// What a visited HCA needs to know of a target.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Begin {
    /// The name of the XRC domain.
    pub domain: XrcdName,
    /// The initiator's queue pair.
    pub dest_qpn: Qpn,
    /// The target's address.
    pub sgid: Gid,
    /// The initiator's address.
    pub dgid: Gid,
    /// Traffic class of the answers.
    pub traffic_class: u8,
    /// Hop limit of the answers.
    pub hop_limit: u8,
    /// The connection's path MTU.
    pub mtu: Mtu,
    /// The delay of the initiator when there is no receive, as the IBTA's code.
    pub min_rnr_timer: u8,
    /// READs and atomics that are remembered.
    pub max_dest_rd_atomic: u8,
    /// The partition.
    pub pkey: PKey,
    /// The initiator's rights.
    pub access: Access,
    /// How the connection stands.
    pub standing: Standing,
}

/// The request for which a target is recalled.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Recall {
    /// Its number.
    pub psn: Psn,
    /// What has to be answered if it was executed before.
    pub again: Again,
}

/// What the answer is to a request that is sent again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Again {
    /// An acknowledgement.
    Acknowledge,
    /// What is in memory now: only the program that it is for can say.
    Read,
    /// The result that was kept.
    Result,
}

impl Again {
    /// Every one, at its number.
    const ALL: [Self; 3] = [Self::Acknowledge, Self::Read, Self::Result];

    /// The answer to a repeated message of that kind.
    pub const fn of(kind: Message) -> Self {
        match kind {
            Message::Read => Self::Read,
            Message::Atomic | Message::AtomicWrite | Message::Flush => Self::Result,
            _ => Self::Acknowledge,
        }
    }
}

/// How a visit is going.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Phase {
    /// The target is there.
    There,
    /// It goes home.
    Over,
    /// It stays: the request for which it was recalled is not the next one.
    Stays,
    /// It was never there: the program has not opened the domain, or has no room.
    Refused,
    /// It goes home, to ERR. A completion says why, or something else does.
    Failed,
    /// It goes home, to ERR: a request was invalid, which no completion says there.
    Invalid,
    /// It goes home, to ERR: a request was for memory that is not granted, which no completion says there.
    Denied,
}

/// How a connection stands between two requests, at the responder.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Standing {
    /// The number of the next request.
    pub expected: Psn,
    /// Messages executed.
    pub msn: u32,
    /// The number of the newest READ or atomic.
    pub newest_read: Option<Psn>,
    /// READs and atomics that the initiator may request again, the oldest first.
    pub kept: Vec<Kept>,
}

/// A READ or atomic that was answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kept {
    /// The number of its first packet.
    pub first: Psn,
    /// Packets of its answer.
    pub packets: u32,
    /// What it was.
    pub what: KeptAnswer,
}

/// What is remembered of a READ or atomic.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum KeptAnswer {
    /// Which memory was read.
    Read(Reth),
    /// The result of an atomic.
    Atomic(u64),
    /// An operation without a result was done.
    Done,
}

impl Standing {
    /// READs and atomics that a message has room for; no queue pair remembers more.
    pub const KEPT_MAX: usize = 128;
}

impl TargetMessage {
    /// The Q_Key of the datagrams.
    pub const QKEY: QKey = QKey(0x5654_6774);

    /// The bytes of the message.
    pub fn emit(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(128);
        let (kind, detail) = match &self.about {
            About::Begin(_) => (BEGIN, 0),
            About::Recall(recall) => (RECALL, recall.again as u8),
            About::Report(phase, _) => (REPORT, *phase as u8),
            About::End => (END, 0),
            About::Open(_) => (OPEN, 0),
            About::Opened(is_open) => (OPENED, u8::from(*is_open)),
            About::Close => (CLOSE, 0),
            About::Closed => (CLOSED, 0),
            About::Event(event) => (EVENT, *event as u8),
        };
        out.extend(MAGIC);
        out.extend([VERSION, kind, detail, 0]);
        put_u32(&mut out, self.target.value());
        put_u32(&mut out, self.visit);
        match &self.about {
            About::Begin(begin) => begin.emit(&mut out),
            About::Recall(recall) => put_u32(&mut out, recall.psn.value()),
            About::Report(_, standing) => standing.emit(&mut out),
            About::Open(name) => name_into(name, &mut out),
            About::End | About::Opened(_) | About::Close | About::Closed | About::Event(_) => {}
        }
        out
    }

    /// Reads a message.
    ///
    /// # Errors
    /// [`WireError::TargetMessage`] for any other bytes.
    pub fn parse(bytes: &[u8]) -> Result<Self, WireError> {
        let mut reader = Reader(bytes);
        let message = Self::read(&mut reader).ok_or(WireError::TargetMessage)?;
        match reader.0 {
            [] => Ok(message),
            _ => Err(WireError::TargetMessage),
        }
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        if from.bytes::<4>()? != MAGIC || from.u8()? != VERSION {
            return None;
        }
        let [kind, detail, zero] = from.bytes::<3>()?;
        let target = from.qpn()?;
        let visit = from.u32()?;
        let about = match (kind, detail) {
            (BEGIN, 0) => About::Begin(Box::new(Begin::read(from)?)),
            (RECALL, _) => About::Recall(Recall {
                psn: from.psn()?,
                again: *Again::ALL.get(usize::from(detail))?,
            }),
            (REPORT, _) => {
                let phase = *Phase::ALL.get(usize::from(detail))?;
                About::Report(phase, Box::new(Standing::read(from)?))
            }
            (END, 0) => About::End,
            (OPEN, 0) => About::Open(from.name()?),
            (OPENED, 0 | 1) => About::Opened(detail == 1),
            (CLOSE, 0) => About::Close,
            (CLOSED, 0) => About::Closed,
            (EVENT, _) => About::Event(*EventType::ALL.get(usize::from(detail))?),
            _ => return None,
        };
        (zero == 0).then_some(Self {
            target,
            visit,
            about,
        })
    }
}

impl Phase {
    /// Every phase, at its number.
    const ALL: [Self; 7] = [
        Self::There,
        Self::Over,
        Self::Stays,
        Self::Refused,
        Self::Failed,
        Self::Invalid,
        Self::Denied,
    ];
}

impl Begin {
    fn emit(&self, out: &mut Vec<u8>) {
        name_into(&self.domain, out);
        put_u32(out, self.dest_qpn.value());
        out.extend(self.sgid.0);
        out.extend(self.dgid.0);
        out.extend([
            self.traffic_class,
            self.hop_limit,
            self.mtu as u8,
            self.min_rnr_timer,
            self.max_dest_rd_atomic,
            0,
        ]);
        out.extend(self.pkey.0.to_be_bytes());
        put_u32(out, self.access.bits());
        self.standing.emit(out);
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let domain = from.name()?;
        let dest_qpn = from.qpn()?;
        let (sgid, dgid) = (Gid(from.bytes()?), Gid(from.bytes()?));
        let [
            traffic_class,
            hop_limit,
            mtu,
            min_rnr_timer,
            max_dest_rd_atomic,
            zero,
        ] = from.bytes::<6>()?;
        let pkey = PKey(u16::from_be_bytes(from.bytes()?));
        let access = Access::from_bits(from.u32()?)?;
        let standing = Standing::read(from)?;
        (zero == 0).then_some(Self {
            domain,
            dest_qpn,
            sgid,
            dgid,
            traffic_class,
            hop_limit,
            mtu: Mtu::from_code(mtu.into())?,
            min_rnr_timer,
            max_dest_rd_atomic,
            pkey,
            access,
            standing,
        })
    }
}

impl Standing {
    fn emit(&self, out: &mut Vec<u8>) {
        let number = |psn: Option<Psn>| psn.map_or(NO_PSN, Psn::value);
        put_u32(out, self.expected.value());
        put_u32(out, self.msn);
        put_u32(out, number(self.newest_read));
        // The newest, if there were more.
        let kept = &self.kept[self.kept.len().saturating_sub(Self::KEPT_MAX)..];
        put_u32(out, kept.len() as u32);
        for kept in kept {
            put_u32(out, kept.first.value());
            put_u32(out, kept.packets);
            let (kind, addr, rkey, len) = match kept.what {
                KeptAnswer::Read(reth) => (READ, reth.addr, reth.rkey.value(), reth.dma_len),
                KeptAnswer::Atomic(result) => (ATOMIC, result, 0, 0),
                KeptAnswer::Done => (DONE, 0, 0, 0),
            };
            put_u32(out, kind.into());
            put_u64(out, addr);
            put_u32(out, rkey);
            put_u32(out, len);
        }
    }

    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let mut standing = Self {
            expected: from.psn()?,
            msn: from.u32()?,
            newest_read: from.maybe_psn()?,
            kept: Vec::new(),
        };
        let count = usize::try_from(from.u32()?).ok()?;
        if count > Self::KEPT_MAX {
            return None;
        }
        for _ in 0..count {
            standing.kept.push(Kept::read(from)?);
        }
        Some(standing)
    }
}

impl Kept {
    fn read(from: &mut Reader<'_>) -> Option<Self> {
        let first = from.psn()?;
        let packets = from.u32()?;
        let kind = from.u32()?;
        let (value, rkey, dma_len) = (from.u64()?, from.u32()?, from.u32()?);
        let what = match u8::try_from(kind).ok()? {
            READ => KeptAnswer::Read(Reth {
                addr: value,
                rkey: RKey::new(rkey),
                dma_len,
            }),
            ATOMIC if rkey == 0 && dma_len == 0 => KeptAnswer::Atomic(value),
            DONE if value == 0 && rkey == 0 && dma_len == 0 => KeptAnswer::Done,
            _ => return None,
        };
        Some(Self {
            first,
            packets,
            what,
        })
    }
}

fn name_into(name: &XrcdName, out: &mut Vec<u8>) {
    put_u64(out, name.device);
    put_u64(out, name.inode);
}

fn put_u32(out: &mut Vec<u8>, value: u32) {
    out.extend(value.to_be_bytes());
}

fn put_u64(out: &mut Vec<u8>, value: u64) {
    out.extend(value.to_be_bytes());
}

/// The rest of a message.
struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn bytes<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (found, rest) = self.0.split_first_chunk()?;
        self.0 = rest;
        Some(*found)
    }

    fn u8(&mut self) -> Option<u8> {
        self.bytes().map(|[byte]| byte)
    }

    fn u32(&mut self) -> Option<u32> {
        self.bytes().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.bytes().map(u64::from_be_bytes)
    }

    /// A number of 24 bits.
    fn u24(&mut self) -> Option<u32> {
        self.u32()
            .filter(|&value| value <= Psn::new(NO_PSN).value())
    }

    fn psn(&mut self) -> Option<Psn> {
        self.u24().map(Psn::new)
    }

    fn maybe_psn(&mut self) -> Option<Option<Psn>> {
        match self.u32()? {
            NO_PSN => Some(None),
            value if value <= Psn::new(NO_PSN).value() => Some(Some(Psn::new(value))),
            _ => None,
        }
    }

    fn name(&mut self) -> Option<XrcdName> {
        Some(XrcdName {
            device: self.u64()?,
            inode: self.u64()?,
        })
    }

    fn qpn(&mut self) -> Option<Qpn> {
        self.u24().map(Qpn::new)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn standing() -> Standing {
        let kept = |first, packets, what| Kept {
            first: Psn::new(first),
            packets,
            what,
        };
        Standing {
            expected: Psn::new(0x12_3456),
            msn: 7,
            newest_read: Some(Psn::new(9)),
            kept: vec![
                kept(5, 1, KeptAnswer::Atomic(u64::MAX)),
                kept(6, 1, KeptAnswer::Done),
                kept(
                    7,
                    3,
                    KeptAnswer::Read(Reth {
                        addr: 0x1000,
                        rkey: RKey::new(0x77),
                        dma_len: 2_500,
                    }),
                ),
            ],
        }
    }

    fn messages() -> Vec<TargetMessage> {
        let begin = Begin {
            domain: XrcdName {
                device: 1,
                inode: u64::MAX,
            },
            dest_qpn: Qpn::new(0x1234),
            sgid: Gid([1; 16]),
            dgid: Gid([2; 16]),
            traffic_class: 3,
            hop_limit: 64,
            mtu: Mtu::B1024,
            min_rnr_timer: 12,
            max_dest_rd_atomic: 16,
            pkey: PKey::DEFAULT,
            access: Access::REMOTE_WRITE,
            standing: standing(),
        };
        let recalls = Again::ALL.map(|again| {
            About::Recall(Recall {
                psn: Psn::new(77),
                again,
            })
        });
        let reports = Phase::ALL.map(|phase| About::Report(phase, Box::new(standing())));
        let begins = [About::Begin(Box::new(begin))];
        begins
            .into_iter()
            .chain(recalls)
            .chain(reports)
            .chain([
                About::Report(Phase::Over, Box::default()),
                About::End,
                About::Open(XrcdName {
                    device: 3,
                    inode: 0,
                }),
                About::Opened(false),
                About::Opened(true),
                About::Close,
                About::Closed,
            ])
            .chain(EventType::ALL.iter().copied().map(About::Event))
            .map(|about| TargetMessage {
                target: Qpn::new(0x00ff_ffff),
                visit: 4,
                about,
            })
            .collect()
    }

    /// Goal: every message reads as it was written, and neither with a byte less nor with one more.
    #[test]
    fn what_is_written_is_read() {
        for message in messages() {
            let mut bytes = message.emit();
            assert_eq!(TargetMessage::parse(&bytes), Ok(message));
            let refused = Err(WireError::TargetMessage);
            assert_eq!(TargetMessage::parse(&bytes[..bytes.len() - 1]), refused);
            bytes.push(0);
            assert_eq!(TargetMessage::parse(&bytes), refused);
        }
    }

    /// Goal: what a queue pair remembers at most fits into one packet of the largest MTU.
    #[test]
    fn the_longest_message_fits_a_packet() {
        let mut message = messages().swap_remove(0);
        let About::Begin(begin) = &mut message.about else {
            panic!("the first one begins a visit");
        };
        let one = begin.standing.kept[0];
        begin.standing.kept = vec![one; 2 * Standing::KEPT_MAX];
        let bytes = message.emit();
        assert!(bytes.len() <= 4096, "{}", bytes.len());
        let About::Begin(read) = TargetMessage::parse(&bytes).expect("a message").about else {
            panic!("it begins a visit");
        };
        assert_eq!(read.standing.kept.len(), Standing::KEPT_MAX);
    }

    /// Goal: a changed byte is refused, or stands for something else: two messages have no bytes in common.
    #[test]
    fn no_message_has_two_forms() {
        for message in messages() {
            let bytes = message.emit();
            for at in 0..bytes.len() {
                for bit in 0..8 {
                    let mut other = bytes.clone();
                    other[at] ^= 1 << bit;
                    if let Ok(read) = TargetMessage::parse(&other) {
                        assert_ne!(read, message, "byte {at}");
                        assert_eq!(read.emit(), other);
                    }
                }
            }
        }
    }
}
