//! Outgoing packets, gathered into bursts.
//!
//! Consecutive packets to one destination, all of one length except the last, are sent together ([`Burst`]). What a
//! link has no room for waits here; in the meantime machines are not asked for more.

use std::net::IpAddr;

use verbs_core::mem::Unmapped;
use verbs_core::{Bounce, Psn, Qpn};

use crate::clock::Instant;
use crate::link::{Burst, Feedback, FillWindow, Local, LongPacket, PacketLink, Route, Sent};
use crate::queue::base::counters::Counters;
use crate::queue::base::poller_thread::{AtWork, PollerThread};
use crate::transport::{Acks, Fill, Outlet};
use crate::wire::{Head, Icrc, ROCE_PORT, Seal};

/// Bytes of the longest packet: headers, 4096 bytes and an ICRC.
const PACKET_MAX: usize = Head::LEN_MAX + 4096 + Icrc::LEN;

/// The packets that have not been sent yet.
pub(crate) struct TxQueue {
    burst: Open,
    /// A packet that was put when the burst had to be sent and could not be.
    spare: Open,
    /// The link had no room for the burst.
    blocked: bool,
    seals: Seals,
    trial: Option<Trial>,
    /// This thread sends several bursts in a row.
    at_work: Option<AtWork>,
}

/// The last burst of requests that was sent: its fate shows whether bursts arrive.
#[derive(Clone, Copy, Debug)]
struct Trial {
    route: Route,
    /// The queue pair that sent the requests.
    qpn: Qpn,
    /// The number of the second packet.
    psn: Psn,
}

/// A burst that is being gathered.
struct Open {
    bytes: Bounce,
    len: usize,
    segment: usize,
    count: usize,
    /// `None` as long as it is empty.
    route: Option<Route>,
    /// Nothing may follow: the last packet is a short one, or one that travels alone.
    closed: bool,
}

impl Open {
    fn new(size: usize) -> Self {
        Self {
            bytes: Bounce::new(size),
            len: 0,
            segment: 0,
            count: 0,
            route: None,
            closed: false,
        }
    }

    fn clear(&mut self) {
        (self.len, self.count, self.route, self.closed) = (0, 0, None, false);
    }

    /// Whether a packet of `len` bytes can follow.
    fn takes(&self, is_by: impl FnOnce(&Route) -> bool, len: usize, limit: usize) -> bool {
        match &self.route {
            None => true,
            Some(own) => {
                is_by(own)
                    && !self.closed
                    && len <= self.segment
                    && self.count < limit
                    && self.len + len <= self.bytes.len()
            }
        }
    }

    /// Appends a packet, without an ICRC if there is nothing to compute it. `false`: its headers do not fit the opcode.
    ///
    /// # Errors
    /// What `fill` fails with; nothing is appended then.
    fn push(
        &mut self,
        (route, seal): (&Route, Option<&Sealing>),
        head: &Head,
        (len, total): (usize, usize),
        alone: bool,
        fill: Fill<'_>,
    ) -> Result<bool, Unmapped> {
        let Some(packet) = self.bytes.get_mut(self.len..self.len + total) else {
            return Ok(false);
        };
        let Ok(at) = head.emit(len, packet) else {
            return Ok(false);
        };
        let (covered, icrc) = packet.split_at_mut(total - Icrc::LEN);
        let (payload, pad) = covered[at..].split_at_mut(len);
        fill(payload)?;
        if !pad.is_empty() {
            pad.fill(0);
        }
        // A burst has fewer packets than there are identifications.
        let crc = match seal {
            Some(seal) => seal.icrc(self.count as u16, covered),
            None => Some(0),
        };
        let Some(crc) = crc else {
            return Ok(false);
        };
        icrc.copy_from_slice(&crc.to_le_bytes());
        if self.route.is_none() {
            (self.route, self.segment) = (Some(*route), total);
        }
        self.closed = alone || total < self.segment;
        self.len += total;
        self.count += 1;
        Ok(true)
    }

    /// Offers it to the link. `false`: there is no room.
    fn send(&mut self, link: &mut dyn PacketLink) -> bool {
        let Some(route) = self.route else { return true };
        let burst = Burst {
            route,
            segment: self.segment,
            bytes: &self.bytes[..self.len],
        };
        if link.transmit(&burst) == Sent::Blocked {
            return false;
        }
        self.clear();
        true
    }
}

/// Computes the ICRC of a route's packets.
#[derive(Clone, Copy, Debug)]
enum Sealing {
    /// RoCEv2's.
    Flow(Seal),
    /// InfiniBand's.
    Local(Local, IpAddr, IpAddr),
}

impl Sealing {
    /// The ICRC of a packet with that identification, from its BTH to what is before the ICRC. `None` for a
    /// packet that no header fits.
    fn icrc(&self, ident: u16, covered: &[u8]) -> Option<u32> {
        match self {
            Self::Flow(seal) => Some(seal.icrc(ident, covered)),
            Self::Local(local, src, dst) => {
                let icrc = local.icrc(*src, *dst, covered.len() + Icrc::LEN)?;
                icrc.compute(covered).ok()
            }
        }
    }
}

/// The seal of the last route that packets were sent by.
#[derive(Debug, Default)]
struct Seals {
    last: Option<(IpAddr, IpAddr, Seal)>,
}

impl Seals {
    /// The seal of packets by that route; `None` if its addresses are not of one family.
    fn of(&mut self, route: &Route) -> Option<Sealing> {
        let Route { src, dst, .. } = *route;
        match route.local {
            Some(local) => Some(Sealing::Local(local, src, dst)),
            None => self.between(src, dst).map(Sealing::Flow),
        }
    }

    fn between(&mut self, src: IpAddr, dst: IpAddr) -> Option<Seal> {
        match self.last {
            Some((from, to, seal)) if from == src && to == dst => Some(seal),
            _ => {
                let seal = Seal::new(src, dst, ROCE_PORT)?;
                self.last = Some((src, dst, seal));
                Some(seal)
            }
        }
    }
}

/// From the BTH to the ICRC.
fn packet_len(head: &Head, payload: usize) -> usize {
    head.wire_len() + payload.next_multiple_of(4) + Icrc::LEN
}

impl TxQueue {
    /// A queue for a link whose bursts have that many bytes.
    pub(crate) fn new(burst_bytes: usize) -> Self {
        Self {
            burst: Open::new(burst_bytes),
            spare: Open::new(PACKET_MAX),
            blocked: false,
            seals: Seals::default(),
            trial: None,
            at_work: None,
        }
    }

    /// The end of a round: nothing more is sent for now.
    #[inline]
    pub(crate) fn rests(&mut self) {
        self.at_work = None;
    }

    /// A queue pair's peer has answered the request with that number.
    pub(crate) fn answered(&mut self, link: &mut dyn PacketLink, qpn: Qpn, psn: Psn) {
        if let Some(trial) = self.trial
            && trial.qpn == qpn
            && psn.since(trial.psn) >= 0
        {
            self.trial = None;
            link.feedback(&trial.route, Feedback::Arrived);
        }
    }

    /// A queue pair sends that request again.
    fn repeated(&mut self, link: &mut dyn PacketLink, qpn: Qpn, psn: Psn) {
        let Some(trial) = self.trial.take_if(|trial| trial.qpn == qpn) else {
            return;
        };
        if trial.psn == psn {
            link.feedback(&trial.route, Feedback::OnlyFirst);
        }
    }

    /// Whether packets wait here for room on the link. Their queue pairs may not know, and wait for answers.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked
    }

    /// Sends the packets that are queued. `false`: the link has no room, and machines have to wait.
    #[inline]
    pub(crate) fn flush(&mut self, link: &mut dyn PacketLink) -> bool {
        if self.burst.route.is_none() && self.spare.route.is_none() {
            self.blocked = false;
            return true;
        }
        self.send(link)
    }

    fn send(&mut self, link: &mut dyn PacketLink) -> bool {
        self.blocked = !(self.burst.send(link) && self.spare.send(link));
        !self.blocked
    }
}

/// The output for one round of the driver.
pub(crate) struct TxContext<'a> {
    pub(crate) tx_queue: &'a mut TxQueue,
    pub(crate) link: &'a mut dyn PacketLink,
    pub(crate) counters: &'a Counters,
    pub(crate) now: Instant,
    /// The port is out of service: packets are lost.
    pub(crate) down: bool,
    /// What becomes of acknowledgements; a queue pair that has one which waits sets `deferred`.
    pub(crate) acks: Acks,
    /// An acknowledgement waits for the next round. The driver clears this after each queue pair.
    pub(crate) deferred: bool,
}

impl TxContext<'_> {
    /// The output of a queue pair to one peer.
    pub(crate) fn of<'f>(&'f mut self, qpn: Qpn, route: &'f Route) -> TxFlow<'f> {
        TxFlow {
            tx_queue: self.tx_queue,
            link: self.link,
            counters: self.counters,
            down: self.down,
            acks: self.acks,
            qpn,
            route,
            limit: None,
            seal: None,
            has_joined: false,
        }
    }
}

/// See [`TxContext::of`].
pub(crate) struct TxFlow<'a> {
    tx_queue: &'a mut TxQueue,
    link: &'a mut dyn PacketLink,
    counters: &'a Counters,
    down: bool,
    acks: Acks,
    qpn: Qpn,
    route: &'a Route,
    /// Packets that a burst by that route may have, once a second one asks.
    limit: Option<usize>,
    /// What computes the ICRC of its packets, if they need one; once the first one asks.
    seal: Option<Option<Sealing>>,
    /// A packet of it was put into the burst; so the burst, unless it is empty, goes by the same route.
    has_joined: bool,
}

impl TxFlow<'_> {
    /// How many packets the burst may have that this one is to join.
    fn limit(&mut self, again: bool) -> usize {
        if again || self.tx_queue.burst.count == 0 {
            return 1;
        }
        let (link, route) = (&*self.link, self.route);
        *self.limit.get_or_insert_with(|| link.burst_limit(route))
    }
}

impl Outlet for TxFlow<'_> {
    fn acks(&self) -> Acks {
        self.acks
    }

    fn is_ready(&mut self) -> bool {
        !self.tx_queue.blocked || self.tx_queue.flush(self.link)
    }

    fn put(
        &mut self,
        head: &Head,
        len: usize,
        again: bool,
        fill: Fill<'_>,
    ) -> Result<(), Unmapped> {
        if !self.down {
            self.append(head, len, again, fill)?;
        }
        self.counters.packets_sent.up();
        Ok(())
    }

    fn longest(&mut self, dest: Qpn) -> Option<usize> {
        if self.down {
            return None;
        }
        self.link.longest(self.route, dest)
    }

    fn put_long(
        &mut self,
        head: &Head,
        len: usize,
        fill: FillWindow<'_>,
    ) -> Result<bool, Unmapped> {
        // What was put before goes first.
        self.has_joined = false;
        if !self.tx_queue.flush(self.link) {
            return Ok(false);
        }
        // Copying takes a while.
        self.tx_queue
            .at_work
            .get_or_insert_with(PollerThread::at_work);
        let (bytes, head_len) = head.bytes();
        let packet = LongPacket {
            route: *self.route,
            dest: head.bth().dest_qpn,
            head: &bytes[..head_len],
            len,
        };
        if self.link.transmit_long(&packet, fill)? == Sent::Blocked {
            return Ok(false);
        }
        self.counters.packets_sent.up();
        Ok(true)
    }
}

impl TxFlow<'_> {
    /// See [`Outlet::put`].
    #[inline(always)]
    fn append(
        &mut self,
        head: &Head,
        len: usize,
        again: bool,
        fill: Fill<'_>,
    ) -> Result<(), Unmapped> {
        let request = head.opcode().is_request();
        if again && request {
            self.tx_queue.repeated(self.link, self.qpn, head.bth().psn);
        }
        let limit = self.limit(again);
        let TxQueue {
            burst,
            spare,
            blocked,
            seals,
            trial,
            at_work,
        } = &mut *self.tx_queue;
        if self.seal.is_none() {
            // A queue pair's addresses are of one family; that was checked when it got them.
            let Some(seal) = seals.of(self.route) else {
                return Ok(());
            };
            let is_needed = self.link.seals(self.route, head.bth().dest_qpn);
            self.seal = Some(is_needed.then_some(seal));
        }
        let seal = self.seal.as_ref().and_then(Option::as_ref);
        let total = packet_len(head, len);
        let is_by = |route: &Route| self.has_joined || route == self.route;
        let mut into = &mut *burst;
        if into.takes(is_by, total, limit) {
            self.has_joined = true;
        } else {
            // Several bursts in a row take a while.
            at_work.get_or_insert_with(PollerThread::at_work);
            self.has_joined = into.send(self.link);
            if !self.has_joined {
                *blocked = true;
                into = spare;
            }
        }
        let pushed = into.push((self.route, seal), head, (len, total), again, fill)?;
        if request && into.count == 2 {
            *trial = Some(Trial {
                route: *self.route,
                qpn: self.qpn,
                psn: head.bth().psn,
            });
        }
        debug_assert!(pushed, "a machine's packet is longer than any can be");
        Ok(())
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use std::net::Ipv4Addr;

    use verbs_core::sync::Arc;
    use verbs_core::{Mtu, PKey, RKey};

    use super::*;
    use crate::link::{Arrival, Change, Ident, Verdict, Verifier, Waiter};
    use crate::wire::Operation::{WriteFirst, WriteLast, WriteMiddle, WriteOnly};
    use crate::wire::{Bth, BthFlags, Extended, Opcode, Operation, Reth, Service};

    const US: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 1));
    const PEER: IpAddr = IpAddr::V4(Ipv4Addr::new(10, 0, 0, 2));
    const ROUTE: Route = Route {
        src: US,
        dst: PEER,
        tclass: 0,
        hop_limit: 64,
        local: None,
    };

    /// A link that keeps what it is given, as (segment, bytes), and may have no room.
    #[derive(Debug, Default)]
    struct Kept {
        bursts: Vec<(usize, Vec<u8>)>,
        full: bool,
        news: Vec<Feedback>,
    }

    impl PacketLink for Kept {
        fn addresses(&self) -> &[IpAddr] {
            &[US]
        }

        fn mtu(&self) -> Mtu {
            Mtu::B4096
        }

        fn burst_limit(&self, _: &Route) -> usize {
            8
        }

        fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
            if self.full {
                return Sent::Blocked;
            }
            self.bursts.push((burst.segment, burst.bytes.to_vec()));
            Sent::Gone
        }

        fn receive(&mut self, _: &mut dyn FnMut(&Arrival<'_>)) -> usize {
            0
        }

        fn feedback(&mut self, _: &Route, news: Feedback) {
            self.news.push(news);
        }

        fn entropy(&mut self) -> u64 {
            0
        }

        fn change(&mut self) -> Option<Change> {
            None
        }

        fn waiter(&self) -> Option<Arc<dyn Waiter>> {
            None
        }
    }

    fn head(operation: Operation, psn: u32) -> Head {
        let bth = Bth {
            opcode: Opcode::new(Service::Rc, operation).expect("RC has it"),
            flags: BthFlags::empty(),
            pkey: PKey::DEFAULT,
            dest_qpn: Qpn::new(17),
            psn: Psn::new(psn),
        };
        let reth = matches!(operation, WriteFirst | WriteOnly);
        let reth = reth.then_some(Reth {
            addr: 0,
            rkey: RKey::new(1),
            dma_len: 0,
        });
        let ext = Extended {
            reth,
            ..Extended::default()
        };
        Head::new(bth, ext).expect("its own headers")
    }

    /// Puts packets, as (operation, bytes, again), numbered from 100.
    fn put(tx_queue: &mut TxQueue, link: &mut Kept, packets: &[(Operation, usize, bool)]) {
        let counters = Counters::default();
        let mut mail = TxContext {
            tx_queue,
            link,
            counters: &counters,
            now: Instant::ZERO,
            down: false,
            acks: Acks::Now,
            deferred: false,
        };
        let mut lane = mail.of(Qpn::new(5), &ROUTE);
        for (psn, &(operation, len, again)) in (100..).zip(packets) {
            if lane.is_ready() {
                lane.put(&head(operation, psn), len, again, &mut |out| {
                    out.fill(7);
                    Ok(())
                })
                .expect("there is memory");
            }
        }
    }

    /// The packets of each burst, by their length; every ICRC must be right for its place in the burst.
    fn shapes(link: &Kept) -> Vec<Vec<usize>> {
        let mut verifier = Verifier::new();
        let mut shape = |(segment, bytes): &(usize, Vec<u8>)| {
            let packets = bytes.chunks(*segment).zip(0..);
            let lengths = packets.map(|(bytes, k)| {
                let arrival = Arrival {
                    src: US,
                    dst: PEER,
                    sport: ROCE_PORT,
                    tclass: 0,
                    ident: Ident::Known(k),
                    bytes,
                    long: None,
                    local: None,
                };
                assert_eq!(verifier.check(&arrival, Instant::ZERO), Verdict::Exact);
                bytes.len()
            });
            lengths.collect()
        };
        link.bursts.iter().map(&mut shape).collect()
    }

    /// Goal: packets that are sent together have one length, except for a shorter last one. The First of a WRITE has a
    /// longer header, so the burst that it begins ends with the next packet.
    #[test]
    fn a_long_write_leaves_in_bursts_that_a_socket_can_take_apart() {
        let (mut tx_queue, mut link) = (TxQueue::new(Burst::BYTES_MAX), Kept::default());
        let mut packets = vec![(WriteFirst, 1024, false)];
        packets.extend([(WriteMiddle, 1024, false); 10]);
        packets.push((WriteLast, 5, false));
        put(&mut tx_queue, &mut link, &packets);
        assert!(tx_queue.flush(&mut link));
        assert_eq!(
            shapes(&link),
            [vec![1056, 1040], vec![1040; 8], vec![1040, 24],]
        );
    }

    #[test]
    fn a_shorter_packet_ends_a_burst() {
        let (mut tx_queue, mut link) = (TxQueue::new(Burst::BYTES_MAX), Kept::default());
        put(
            &mut tx_queue,
            &mut link,
            &[
                (WriteOnly, 64, false),
                (WriteLast, 4, false),
                (WriteOnly, 64, false),
            ],
        );
        assert!(tx_queue.flush(&mut link));
        assert_eq!(shapes(&link), [vec![96, 20], vec![96]]);
    }

    #[test]
    fn what_is_sent_again_travels_alone_and_tells_whether_bursts_arrive() {
        let (mut tx_queue, mut link) = (TxQueue::new(Burst::BYTES_MAX), Kept::default());
        put(&mut tx_queue, &mut link, &[(WriteOnly, 8, false); 3]);
        assert!(tx_queue.flush(&mut link));
        // Packet 101, the second of the burst, is the first that is missing.
        put(&mut tx_queue, &mut link, &[(WriteOnly, 8, true)]);
        assert_eq!(link.news, [], "100 says nothing about the burst");
        put(&mut tx_queue, &mut link, &[(WriteOnly, 8, false); 3]);
        assert!(tx_queue.flush(&mut link));
        tx_queue.answered(&mut link, Qpn::new(6), Psn::new(102));
        assert_eq!(link.news, [], "another queue pair's");
        tx_queue.answered(&mut link, Qpn::new(5), Psn::new(102));
        assert_eq!(link.news, [Feedback::Arrived]);
        assert_eq!(shapes(&link), [vec![40; 3], vec![40], vec![40; 3]]);
    }

    #[test]
    fn without_room_nothing_is_lost_and_machines_wait() {
        let (mut tx_queue, mut link) = (TxQueue::new(Burst::BYTES_MAX), Kept::default());
        link.full = true;
        // The ninth does not fit the burst; it is kept, and the tenth is not asked for.
        put(&mut tx_queue, &mut link, &[(WriteOnly, 8, false); 10]);
        assert!(!tx_queue.flush(&mut link));
        link.full = false;
        assert!(tx_queue.flush(&mut link));
        assert_eq!(shapes(&link), [vec![40; 8], vec![40]]);
    }
}
