//! The events of a run, in order: always digested, and written to a capture if requested.

use std::collections::BTreeMap;
use std::fmt;
use std::hash::Hasher;
use std::io::{self, Write};
use std::net::{IpAddr, SocketAddr};
use std::time::Duration;

use siphasher::sip128::{Hasher128, SipHasher24};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::{AsyncEvent, EventType, Kind, Subject, Wc};
use verbs_link::time::Instant;
use verbs_wire::Envelope;
use verbs_wire::pcap::{Interface, LinkType, Note, PcapNgWriter};

/// The digest of a run: every packet, completion, event, verb and timer with its time, in order.
///
/// It is SipHash-2-4 with 128 bits and the key zero, over numbers in little-endian order: small, specified, the same on
/// every machine, and fast on short inputs. No run has a reason to look for collisions, so nothing stronger is needed.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Digest(u128);

impl Digest {
    /// What was written to a hasher so far.
    pub(crate) fn of(hasher: &SipHasher24) -> Self {
        Self(hasher.finish128().as_u128())
    }
}

impl fmt::Display for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:032x}", self.0)
    }
}

impl fmt::Debug for Digest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// Where captures go.
pub type Sink = Box<dyn Write + Send>;

/// The journal of a run. Clones are the same journal.
#[derive(Clone, Default)]
pub(crate) struct Journal(Arc<Mutex<Book>>);

struct Book {
    hasher: SipHasher24,
    counts: Counts,
    pcap: Option<Pcap>,
    /// The first error of writing the capture.
    failed: Option<io::Error>,
}

/// A capture, with an interface for each address that has sent.
struct Pcap {
    writer: PcapNgWriter<Sink>,
    interfaces: BTreeMap<IpAddr, Interface>,
}

impl Pcap {
    fn packet(
        &mut self,
        now: Instant,
        envelope: &Envelope,
        bytes: &[u8],
        fate: PacketFate,
    ) -> io::Result<()> {
        let from = IpAddr::from(envelope.sgid());
        let interface = match self.interfaces.get(&from) {
            Some(interface) => *interface,
            None => {
                let name = from.to_string();
                let interface = self.writer.interface(&name, LinkType::RawIp)?;
                self.interfaces.insert(from, interface);
                interface
            }
        };
        let comment = fate.comment();
        let note = Note::new(interface, Duration::from_nanos(now.as_nanos()));
        let note = note.outbound().comment(&comment);
        self.writer.roce(&note, envelope, &[bytes])
    }
}

/// What becomes of a packet that was sent.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum PacketFate {
    /// No port has its destination.
    Unknown,
    /// The path between its ends is cut.
    Cut,
    /// So many copies are under way to so many ports, and some of them may be damaged.
    Carried {
        copies: u64,
        ports: u64,
        is_damaged: bool,
    },
}

impl PacketFate {
    /// Its number in the digest.
    const fn number(self) -> u64 {
        match self {
            Self::Unknown => u64::MAX,
            Self::Cut => 0,
            Self::Carried { copies, .. } => copies,
        }
    }

    /// What a capture says about it: nothing if it arrives as it was sent, once at each port.
    fn comment(self) -> String {
        match self {
            Self::Unknown => "lost: no port has its destination".into(),
            Self::Cut => "lost: the path is cut".into(),
            Self::Carried { copies: 0, .. } => "lost on purpose".into(),
            Self::Carried {
                copies,
                ports,
                is_damaged,
            } => {
                let copies = match copies {
                    _ if copies == ports => String::new(),
                    _ if ports == 1 => format!("arrives {copies} times"),
                    _ => format!("{copies} copies for {ports} ports"),
                };
                let damaged = if is_damaged { "damaged on purpose" } else { "" };
                match (copies.as_str(), damaged) {
                    (_, "") => copies,
                    ("", _) => damaged.into(),
                    _ => format!("{copies}, {damaged}"),
                }
            }
        }
    }
}

/// How much happened in a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Counts {
    /// Packets and pieces of streams sent, whatever became of them.
    pub packets: u64,
    /// Completions polled.
    pub completions: u64,
    /// Asynchronous events.
    pub events: u64,
    /// Those of queue pairs that moved to their alternate paths.
    pub migrations: u64,
    /// Verbs completed.
    pub verbs: u64,
    /// Steps of the clock, each with all that was due.
    pub timers: u64,
}

/// The kind of an entry; the first byte of each.
#[derive(Clone, Copy)]
enum Entry {
    Packet = 1,
    Completion,
    Event,
    Verb,
    Timer,
    Piece,
}

impl Default for Book {
    fn default() -> Self {
        Self {
            hasher: SipHasher24::new(),
            counts: Counts::default(),
            pcap: None,
            failed: None,
        }
    }
}

impl Book {
    fn begin(&mut self, entry: Entry, now: Instant) -> &mut SipHasher24 {
        self.hasher.write(&[entry as u8]);
        self.hasher.write(&now.as_nanos().to_le_bytes());
        &mut self.hasher
    }
}

impl Journal {
    /// Writes packets to a capture from now on, each as its sender sent it.
    pub(crate) fn capture(&self, sink: Sink) -> io::Result<()> {
        self.0.lock().pcap = Some(Pcap {
            writer: PcapNgWriter::new(sink)?,
            interfaces: BTreeMap::new(),
        });
        Ok(())
    }

    /// A packet was sent.
    pub(crate) fn packet(&self, now: Instant, envelope: &Envelope, bytes: &[u8], fate: PacketFate) {
        let mut book = self.0.lock();
        book.counts.packets += 1;
        let hasher = book.begin(Entry::Packet, now);
        hasher.write(&fate.number().to_le_bytes());
        hasher.write(&(bytes.len() as u64).to_le_bytes());
        hasher.write(bytes);
        if let Some(pcap) = &mut book.pcap
            && let Err(error) = pcap.packet(now, envelope, bytes, fate)
        {
            book.failed.get_or_insert(error);
        }
    }

    /// A piece of a stream was sent; `fate` says which faults it met.
    pub(crate) fn piece(&self, now: Instant, from: SocketAddr, bytes: &[u8], fate: [bool; 2]) {
        let mut book = self.0.lock();
        book.counts.packets += 1;
        let hasher = book.begin(Entry::Piece, now);
        match from.ip() {
            IpAddr::V4(ip) => hasher.write(&ip.octets()),
            IpAddr::V6(ip) => hasher.write(&ip.octets()),
        }
        hasher.write(&from.port().to_le_bytes());
        hasher.write(&fate.map(u8::from));
        hasher.write(&(bytes.len() as u64).to_le_bytes());
        hasher.write(bytes);
    }

    /// A completion was polled from a queue that the run calls `queue`.
    pub(crate) fn completion(&self, now: Instant, queue: u64, wc: &Wc) {
        let mut book = self.0.lock();
        book.counts.completions += 1;
        let hasher = book.begin(Entry::Completion, now);
        hasher.write(&queue.to_le_bytes());
        hasher.write(&wc.wr_id.to_le_bytes());
        hasher.write(&[wc.status as u8, wc.opcode as u8]);
        hasher.write(&wc.flags.bits().to_le_bytes());
        for number in [wc.byte_len, wc.qpn.value(), wc.imm, wc.vendor_err] {
            hasher.write(&number.to_le_bytes());
        }
    }

    /// A node raised an event.
    pub(crate) fn event(&self, now: Instant, node: u64, event: &AsyncEvent) {
        let mut book = self.0.lock();
        book.counts.events += 1;
        book.counts.migrations += u64::from(event.event == EventType::PathMig);
        let hasher = book.begin(Entry::Event, now);
        hasher.write(&node.to_le_bytes());
        hasher.write(&[event.event as u8]);
        // Device numbers are assigned per process, so they may differ from run to run.
        let (kind, number) = match event.subject {
            Subject::Device => (0, 0),
            Subject::Port(port) => (1, u32::from(port)),
            Subject::Object(id) => (2, id.number),
        };
        hasher.write(&[kind]);
        hasher.write(&number.to_le_bytes());
    }

    /// A verb completed.
    pub(crate) fn verb(&self, now: Instant, node: u64, kind: Kind, ok: bool) {
        let mut book = self.0.lock();
        book.counts.verbs += 1;
        let hasher = book.begin(Entry::Verb, now);
        hasher.write(&node.to_le_bytes());
        hasher.write(&(kind as u32).to_le_bytes());
        hasher.write(&[u8::from(ok)]);
    }

    /// The clock was moved to `now`, and what was due there was called.
    pub(crate) fn timer(&self, now: Instant) {
        let mut book = self.0.lock();
        book.counts.timers += 1;
        book.begin(Entry::Timer, now);
    }

    /// The digest of everything that has happened.
    pub(crate) fn digest(&self) -> Digest {
        Digest(self.0.lock().hasher.finish128().as_u128())
    }

    /// How much has happened.
    pub(crate) fn counts(&self) -> Counts {
        self.0.lock().counts
    }

    /// Ends the capture, if there is one.
    pub(crate) fn finish(&self) -> io::Result<()> {
        let mut book = self.0.lock();
        let finished = match book.pcap.take() {
            Some(pcap) => pcap.writer.finish().map(drop),
            None => Ok(()),
        };
        match book.failed.take() {
            Some(error) => Err(error),
            None => finished,
        }
    }
}

impl fmt::Debug for Journal {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Journal").field(&self.digest()).finish()
    }
}
