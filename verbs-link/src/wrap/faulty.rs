//! A link that loses, repeats, reorders and damages packets, as its seed decides.

use std::fmt;
use std::net::IpAddr;
use std::str::FromStr;

use crate::rng::Rng;
use crate::wrap::Wrap;
use crate::wrap::remarks::{Fate, Remarks};
use crate::{Arrival, Burst, Ident, PacketLink, Route, Sent};

/// How many packets of a thousand meet each fault. Faults are drawn one by one, so a packet may meet
/// several.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Faults {
    /// Are lost.
    pub loss: u16,
    /// Come twice.
    pub duplication: u16,
    /// Are received after up to [`Faults::REACH`] packets that were sent behind them.
    pub reordering: u16,
    /// Have one bit changed, among those that the ICRC covers.
    pub corruption: u16,
}

impl Faults {
    /// The most packets that overtake one packet.
    pub const REACH: u32 = 8;

    /// No faults.
    pub const NONE: Self = Self {
        loss: 0,
        duplication: 0,
        reordering: 0,
        corruption: 0,
    };

    /// As many of each.
    pub const fn all(per_mille: u16) -> Self {
        Self {
            loss: per_mille,
            duplication: per_mille,
            reordering: per_mille,
            corruption: per_mille,
        }
    }
}

/// A share of packets in thousandths, as people write it: `20`, or `2%` and `0.2%`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PerMille(u16);

impl PerMille {
    /// Of a thousand, 1,000 at most.
    pub const fn get(self) -> u16 {
        self.0
    }
}

impl FromStr for PerMille {
    type Err = NotPerMille;

    fn from_str(text: &str) -> Result<Self, NotPerMille> {
        let number = |text: &str| {
            let is_one = text.bytes().all(|byte| byte.is_ascii_digit());
            let number = text.parse::<u16>().ok().filter(|_| is_one);
            number.ok_or(NotPerMille)
        };
        let thousandths = match text.strip_suffix('%') {
            None => number(text)?,
            Some(percent) => {
                let (whole, tenths) = percent.split_once('.').unwrap_or((percent, "0"));
                // A second digit would be hundredths.
                let one = Some(tenths).filter(|tenths| tenths.len() == 1);
                let tenths = number(one.ok_or(NotPerMille)?)?;
                number(whole)?.saturating_mul(10).saturating_add(tenths)
            }
        };
        match thousandths {
            0..=1000 => Ok(Self(thousandths)),
            _ => Err(NotPerMille),
        }
    }
}

impl fmt::Display for PerMille {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

/// A text that is no share of packets.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("a share such as 2% or 0.2%, or a number of thousandths from 0 to 1000, would be right")]
pub struct NotPerMille;

/// How many packets met each fault.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct FaultCounters {
    /// Were lost.
    pub lost: u64,
    /// Came twice.
    pub duplicated: u64,
    /// Were held back.
    pub reordered: u64,
    /// Had a bit changed.
    pub corrupted: u64,
}

/// A link with faults. With the same seed, packets and calls in the same order meet the same faults.
///
/// On reception each packet meets its own faults. In transmission a burst stays together, because the ICRC of a packet
/// covers its number in the burst: a loss affects a packet and all behind it, and a repetition or overtaking affects
/// the whole burst.
#[derive(Debug)]
pub struct Faulty<L> {
    link: L,
    rng: Rng,
    receiving: Faults,
    sending: Faults,
    /// Packets to be handed up later.
    held: Vec<HeldPacket>,
    /// A burst that the next one overtakes.
    held_burst: Option<HeldBurst>,
    counters: FaultCounters,
    /// Where the fate of packets that come is told.
    remarks: Option<Remarks>,
}

#[derive(Debug)]
struct HeldPacket {
    /// Packets that are still to overtake it.
    behind: u32,
    src: IpAddr,
    dst: IpAddr,
    sport: u16,
    tclass: u8,
    ident: Ident,
    bytes: Vec<u8>,
}

#[derive(Debug)]
struct HeldBurst {
    route: Route,
    segment: usize,
    bytes: Vec<u8>,
}

impl<L: PacketLink> Faulty<L> {
    /// A link without faults yet.
    ///
    /// ```
    /// use verbs_link::{Cable, Faults, Faulty};
    ///
    /// let (link, _other_end) = Cable::new().plug(&["10.0.0.1".parse()?], &["10.0.0.2".parse()?]);
    /// let link = Faulty::new(link, 7).receiving(Faults { loss: 10, ..Faults::NONE });
    /// assert_eq!(link.fault_counters().lost, 0);
    /// # Ok::<(), std::net::AddrParseError>(())
    /// ```
    pub fn new(link: L, seed: u64) -> Self {
        Self {
            link,
            rng: Rng::new(seed),
            receiving: Faults::NONE,
            sending: Faults::NONE,
            held: Vec::new(),
            held_burst: None,
            counters: FaultCounters::default(),
            remarks: None,
        }
    }

    /// Faults of received packets.
    pub fn receiving(mut self, faults: Faults) -> Self {
        self.receiving = faults;
        self
    }

    /// Faults of sent packets.
    pub fn sending(mut self, faults: Faults) -> Self {
        self.sending = faults;
        self
    }

    /// Tells the capture of the link that this one is around what becomes of packets that come: it comments them with
    /// "lost on purpose", for instance. With `None`, as where there is no capture, nothing is told.
    ///
    /// ```
    /// use std::time::Duration;
    ///
    /// use verbs_link::time::{Clock, VirtualClock};
    /// use verbs_link::{Cable, Captured, Faults, Faulty};
    /// use verbs_wire::pcap::{LinkType, PcapNgWriter};
    ///
    /// let (link, _other_end) = Cable::new().plug(&["10.0.0.1".parse()?], &["10.0.0.2".parse()?]);
    /// let pcap = PcapNgWriter::with_interface(Vec::new(), "port 1", LinkType::RawIp)?;
    /// let captured = Captured::new(link, pcap, VirtualClock::new().into(), Duration::ZERO);
    /// let remarks = captured.remarks();
    /// let link = Faulty::new(captured, 7)
    ///     .receiving(Faults { loss: 10, ..Faults::NONE })
    ///     .telling(remarks);
    /// # Ok::<(), Box<dyn std::error::Error>>(())
    /// ```
    pub fn telling(mut self, remarks: impl Into<Option<Remarks>>) -> Self {
        self.remarks = remarks.into();
        self
    }

    /// How many packets met each fault.
    pub fn fault_counters(&self) -> FaultCounters {
        self.counters
    }

    /// The link without faults. What was held back is lost.
    pub fn into_inner(self) -> L {
        self.link
    }

    /// Sends what was held back; a link without room loses it.
    fn release_burst(&mut self) {
        if let Some(held) = self.held_burst.take() {
            self.link.transmit(&Burst {
                route: held.route,
                segment: held.segment,
                bytes: &held.bytes,
            });
        }
    }

    /// What remains of a burst that loses a packet and all behind it, with its other packets damaged as drawn.
    fn damaged(&mut self, burst: &Burst<'_>) -> (Vec<u8>, Fate) {
        let mut bytes = Vec::with_capacity(burst.bytes.len());
        let mut fate = Fate::default();
        let count = burst.packets().len();
        for (k, packet) in burst.packets().enumerate() {
            let drawn = Fate::draw(&mut self.rng, self.sending);
            fate.is_repeated |= drawn.is_repeated;
            fate.is_held |= drawn.is_held;
            if drawn.is_lost {
                self.counters.lost += (count - k) as u64;
                break;
            }
            let begin = bytes.len();
            bytes.extend_from_slice(packet);
            if drawn.is_changed {
                self.counters.corrupted += 1;
                change_a_bit(&mut self.rng, &mut bytes[begin..]);
            }
        }
        (bytes, fate)
    }
}

impl Fate {
    fn draw(rng: &mut Rng, faults: Faults) -> Self {
        let mut meets = |per_mille: u16| rng.within(0..1000) < per_mille.into();
        Self {
            is_lost: meets(faults.loss),
            is_repeated: meets(faults.duplication),
            is_held: meets(faults.reordering),
            is_changed: meets(faults.corruption),
        }
    }
}

/// Changes a bit that the ICRC covers, or one of the ICRC's own.
fn change_a_bit(rng: &mut Rng, packet: &mut [u8]) {
    let len = u32::try_from(packet.len()).unwrap_or(u32::MAX);
    if len <= 5 {
        return;
    }
    // Byte 4 of the BTH is not covered: the last byte stands in for it.
    let at = match rng.within(0..len - 1) {
        4 => len - 1,
        at => at,
    };
    packet[at as usize] ^= 1 << rng.within(0..8);
}

impl<L: PacketLink> Wrap for Faulty<L> {
    fn inner(&self) -> &dyn PacketLink {
        &self.link
    }

    fn inner_mut(&mut self) -> &mut dyn PacketLink {
        &mut self.link
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        if self.sending == Faults::NONE {
            return self.link.transmit(burst);
        }
        let (bytes, fate) = self.damaged(burst);
        let burst = Burst {
            bytes: &bytes,
            ..*burst
        };
        if bytes.is_empty() {
            return Sent::Gone;
        }
        if fate.is_held && self.held_burst.is_none() {
            self.counters.reordered += burst.packets().len() as u64;
            self.held_burst = Some(HeldBurst {
                route: burst.route,
                segment: burst.segment,
                bytes,
            });
            return Sent::Gone;
        }
        let sent = self.link.transmit(&burst);
        if sent == Sent::Gone {
            if fate.is_repeated {
                self.counters.duplicated += burst.packets().len() as u64;
                self.link.transmit(&burst);
            }
            self.release_burst();
        }
        sent
    }

    fn receive(&mut self, sink: &mut dyn FnMut(&Arrival<'_>)) -> usize {
        let Self {
            link,
            rng,
            receiving,
            held,
            counters,
            remarks,
            ..
        } = self;
        let mut handed_up = 0;
        let came = link.receive(&mut |arrival| {
            let fate = Fate::draw(rng, *receiving);
            handed_up += pass(arrival, fate, rng, held, counters, sink);
            if let Some(remarks) = remarks {
                remarks.tell(fate);
            }
        });
        if came == 0 {
            // Nothing is left to overtake them.
            handed_up += release(held, u32::MAX, sink);
            self.release_burst();
        }
        handed_up
    }
}

/// Hands up a packet as often as its fate says, and then the packets that waited only for it to overtake them. Returns
/// how many those were.
fn pass(
    arrival: &Arrival<'_>,
    fate: Fate,
    rng: &mut Rng,
    held: &mut Vec<HeldPacket>,
    counters: &mut FaultCounters,
    sink: &mut dyn FnMut(&Arrival<'_>),
) -> usize {
    if fate.is_lost {
        counters.lost += 1;
        return 0;
    }
    let mut changed;
    let mut arrival = *arrival;
    if fate.is_changed {
        counters.corrupted += 1;
        changed = arrival.bytes.to_vec();
        change_a_bit(rng, &mut changed);
        arrival.bytes = &changed;
        if arrival.ident == Ident::Unsealed {
            // A damaged packet is not taken: the ICRC that it does not have is wrong.
            arrival.ident = Ident::Known(0);
        }
    }
    if fate.is_held {
        counters.reordered += 1;
        held.push(HeldPacket {
            behind: rng.within(1..Faults::REACH + 1),
            src: arrival.src,
            dst: arrival.dst,
            sport: arrival.sport,
            tclass: arrival.tclass,
            ident: arrival.ident,
            bytes: arrival.bytes.to_vec(),
        });
        return 0;
    }
    sink(&arrival);
    let mut handed_up = 1;
    if fate.is_repeated {
        counters.duplicated += 1;
        sink(&arrival);
        handed_up += 1;
    }
    handed_up + release(held, 1, sink)
}

/// That many packets have overtaken the held ones; hands up those that wait for no more.
fn release(
    held: &mut Vec<HeldPacket>,
    overtaken_by: u32,
    sink: &mut dyn FnMut(&Arrival<'_>),
) -> usize {
    let before = held.len();
    held.retain_mut(|packet| {
        packet.behind = packet.behind.saturating_sub(overtaken_by);
        if packet.behind > 0 {
            return true;
        }
        sink(&Arrival {
            src: packet.src,
            dst: packet.dst,
            sport: packet.sport,
            tclass: packet.tclass,
            ident: packet.ident,
            bytes: &packet.bytes,
            long: None,
            local: None,
        });
        false
    });
    before - held.len()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shares_are_percent_or_thousandths() {
        for (text, thousandths) in [
            ("0", 0),
            ("20", 20),
            ("1000", 1000),
            ("0%", 0),
            ("2%", 20),
            ("0.2%", 2),
            ("12.5%", 125),
            ("100%", 1000),
            ("100.0%", 1000),
        ] {
            assert_eq!(text.parse(), Ok(PerMille(thousandths)), "{text}");
        }
        for text in [
            "2.05%", "2.50%", "", "%", ".2%", "2.%", "0.25%", "100.1%", "101%", "6554%", "1001",
            "-1", "+1", "0.2", "2 %", "2%%", "x",
        ] {
            assert_eq!(text.parse::<PerMille>(), Err(NotPerMille), "{text}");
        }
    }
}
