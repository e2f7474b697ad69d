//! A subnet without HCAs, managers at some of its ports, and the datagrams between them, in virtual time.

use std::time::Duration;

use hca_sim::link::fabric::{Body, Packet, PortRef, Subnet, SubnetConfig, Topology};
use verbs_core::mad::header::header_of;
use verbs_core::mad::sm::PERMISSIVE_LID;
use verbs_core::mad::{
    Address, AgentConfig, AgentId, Agents, Class, Delivery, MadBytes, Retry, TransactionId,
};
use verbs_core::time::Instant;
use verbs_core::{Av, Lid, Qpn};
use verbs_sm::{CLASSES, Config, Port, Seat, SubnetManager};

/// A port's service and its user.
pub(crate) struct Station {
    pub(crate) at: PortRef,
    service: Service,
    pub(crate) seat: Option<Seat>,
    /// What has arrived for a station that is not a manager.
    pub(crate) inbox: Vec<Delivery>,
}

/// A port's service as managers see it.
struct Service {
    agents: Agents,
    ids: Vec<(Class, AgentId)>,
    sends: Vec<(Address, MadBytes)>,
    is_sm: Option<bool>,
    now: Instant,
}

impl Port for Service {
    fn request(&mut self, to: Address, mad: &MadBytes, retry: Retry) -> Option<TransactionId> {
        let class = header_of(mad).class();
        let &(_, id) = self.ids.iter().find(|(own, _)| *own == class)?;
        self.agents.request(self.now, id, to, mad, retry).ok()
    }

    fn send(&mut self, to: Address, mad: &MadBytes) {
        self.sends.push((to, *mad));
    }

    fn respond(&mut self, to: Address, template: &MadBytes, payload: Vec<u8>) {
        let class = header_of(template).class();
        let &(_, id) = self.ids.iter().find(|(own, _)| *own == class).unwrap();
        let sent = self.agents.respond(self.now, id, to, template, payload);
        sent.unwrap();
    }

    fn is_sm(&mut self, is_here: bool) {
        self.is_sm = Some(is_here);
    }
}

pub(crate) struct Lab {
    pub(crate) subnet: Subnet,
    pub(crate) now: Instant,
    pub(crate) stations: Vec<Station>,
    /// Which datagrams of stations get lost.
    pub(crate) loses: fn(&MadBytes) -> bool,
}

impl Lab {
    pub(crate) fn new(topology: &Topology) -> Self {
        Self {
            subnet: Subnet::new(topology, SubnetConfig::default()),
            now: Instant::ZERO,
            stations: Vec::new(),
            loses: |_| false,
        }
    }

    /// Puts a manager at a port, and starts it. Returns its number.
    pub(crate) fn manager(&mut self, at: PortRef, config: Config) -> usize {
        let number = self.client(at);
        let seat = Seat::new(SubnetManager::new(config, at.port));
        self.stations[number].seat = Some(seat);
        self.manage(number, SubnetManager::start);
        number
    }

    /// Opens the service of a port for a client that only sends requests, and receives none except reports.
    pub(crate) fn client(&mut self, at: PortRef) -> usize {
        let first = u32::try_from(self.stations.len() + 1).unwrap() << 16;
        let mut agents = Agents::new(AgentConfig::default(), first);
        let register =
            |(class, version, methods)| (class, agents.register(class, version, methods).unwrap());
        let ids = CLASSES.into_iter().map(register).collect();
        let service = Service {
            agents,
            ids,
            sends: Vec::new(),
            is_sm: None,
            now: self.now,
        };
        self.stations.push(Station {
            at,
            service,
            seat: None,
            inbox: Vec::new(),
        });
        self.stations.len() - 1
    }

    /// Removes a manager, as when its process is killed.
    pub(crate) fn kill(&mut self, number: usize) {
        let station = self.stations.remove(number);
        self.subnet.set_sm(self.now, station.at, false);
    }

    /// Calls a manager.
    pub(crate) fn manage(&mut self, number: usize, call: impl FnOnce(&mut SubnetManager, Instant)) {
        let (now, station) = (self.now, &mut self.stations[number]);
        station.service.now = now;
        let seat = station.seat.as_mut().unwrap();
        seat.with(now, &mut station.service, |manager| call(manager, now));
    }

    pub(crate) fn state(&self, number: usize) -> &SubnetManager {
        self.stations[number].seat.as_ref().unwrap().manager()
    }

    /// Sends a request from a station, and returns its result.
    pub(crate) fn ask(&mut self, number: usize, dlid: Lid, mad: &MadBytes) -> Option<Delivery> {
        let to = Address::gsi(Av::to_lid(1, dlid));
        let station = &mut self.stations[number];
        station.service.now = self.now;
        let tid = station.service.request(to, mad, Retry::default()).unwrap();
        self.settle();
        let inbox = &mut self.stations[number].inbox;
        let at = inbox.iter().position(
            |delivery| matches!(delivery, Delivery::Response { tid: of, .. } if *of == tid),
        );
        at.map(|at| inbox.remove(at))
    }

    /// Carries datagrams until nothing moves. Time stands still.
    pub(crate) fn settle(&mut self) {
        while self.carry() {}
    }

    /// Lets that much time pass.
    pub(crate) fn pass(&mut self, time: Duration) {
        let end = self.now + time;
        self.settle();
        loop {
            let stations = self.stations.iter();
            let due = stations.filter_map(|station| {
                let seat = station.seat.as_ref();
                let own = seat.and_then(|seat| seat.manager().poll_timeout());
                own.into_iter()
                    .chain(station.service.agents.poll_timeout())
                    .min()
            });
            let due = due.chain(self.subnet.poll_timeout()).min();
            let Some(due) = due.filter(|&due| due <= end) else {
                break;
            };
            self.now = self.now.max(due);
            self.subnet.handle_timeout(self.now);
            for number in 0..self.stations.len() {
                self.stations[number]
                    .service
                    .agents
                    .handle_timeout(self.now);
                if self.stations[number].seat.is_some() {
                    self.manage(number, SubnetManager::handle_timeout);
                }
            }
            self.settle();
        }
        self.now = end;
    }

    /// One round. Returns whether anything moved.
    fn carry(&mut self) -> bool {
        let mut moved = false;
        let now = self.now;
        for station in &mut self.stations {
            station.service.now = now;
            if let Some(is_here) = station.service.is_sm.take() {
                self.subnet.set_sm(now, station.at, is_here);
            }
            while let Some(delivery) = station.service.agents.poll_delivery() {
                moved = true;
                match &mut station.seat {
                    Some(seat) => seat.deliver(now, &mut station.service, &delivery),
                    None => station.inbox.push(delivery),
                }
            }
            let mut sends = std::mem::take(&mut station.service.sends);
            while let Some(transmit) = station.service.agents.poll_transmit() {
                sends.push(transmit);
            }
            for (to, mad) in sends {
                moved = true;
                if (self.loses)(&mad) {
                    continue;
                }
                self.subnet.send(now, station.at, packet(to, mad));
            }
        }
        while let Some((at, packet)) = self.subnet.poll_delivery() {
            moved = true;
            let Body::Mad(datagram) = packet.body else {
                continue;
            };
            let from = Address {
                av: Av::to_lid(at.port, packet.slid),
                qpn: datagram.src_qpn,
                pkey_index: 0,
            };
            let station = self.stations.iter_mut().find(|station| station.at == at);
            if let Some(station) = station {
                station.service.agents.handle(now, from, &datagram.mad);
            }
        }
        moved
    }
}

fn packet(to: Address, mad: MadBytes) -> Packet {
    let mad = Box::new(mad);
    match (to.qpn == Qpn::new(0), to.av.dlid) {
        (true, PERMISSIVE_LID) => Packet::smp(PERMISSIVE_LID, PERMISSIVE_LID, mad),
        (true, dlid) => Packet::smp(Lid(0), dlid, mad),
        (false, dlid) => Packet::gmp(Lid(0), dlid, mad),
    }
}
