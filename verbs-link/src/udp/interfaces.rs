//! The machine's interfaces and addresses, and changes to them, from the kernel's route socket (RFC 3549).

use std::io;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

use rustix::net::netlink::SocketAddrNetlink;
use rustix::net::{
    AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, bind, recv, sendto, socket_with,
};
use verbs_core::Mtu;
use verbs_core::sync::plain::{AtomicBool, Ordering::Relaxed};

/// An interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Interface {
    index: u32,
    mtu: u32,
    is_up: bool,
    is_loopback: bool,
}

/// An address of an interface.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Owned {
    address: IpAddr,
    interface: u32,
}

/// The machine's interfaces when the kernel was last asked.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct Interfaces {
    interfaces: Vec<Interface>,
    /// In the order of the kernel: by interface, and in the order in which they were added.
    owned: Vec<Owned>,
}

impl Interfaces {
    /// Asks the kernel.
    pub(crate) fn read() -> io::Result<Self> {
        let mut found = Self::default();
        let socket = route_socket()?;
        dump(socket.as_fd(), libc::RTM_GETLINK, &mut |kind, body| {
            if kind == libc::RTM_NEWLINK {
                found.interfaces.extend(interface(body));
            }
        })?;
        dump(socket.as_fd(), libc::RTM_GETADDR, &mut |kind, body| {
            if kind == libc::RTM_NEWADDR {
                found.owned.extend(owned(body));
            }
        })?;
        Ok(found)
    }

    /// All addresses of interfaces that are up and are, or are not, the loopback interface.
    pub(crate) fn usable(&self, loopback: bool) -> Vec<IpAddr> {
        let is_usable = |index| {
            let fits = |found: Interface| found.is_up && found.is_loopback == loopback;
            self.interface(index).is_some_and(fits)
        };
        self.owned
            .iter()
            .filter(|owned| is_usable(owned.interface))
            .map(|owned| owned.address)
            .collect()
    }

    /// Whether an interface, up or not, has that address.
    pub(super) fn has(&self, address: IpAddr) -> bool {
        self.owned.iter().any(|owned| owned.address == address)
    }

    /// Whether packets from this address are the machine's own.
    pub(super) fn owns(&self, address: IpAddr) -> bool {
        address.is_loopback() || self.has(address)
    }

    /// The interface that an address belongs to, 0 if there is none: the scope of link-local ones.
    pub(super) fn index(&self, address: IpAddr) -> u32 {
        self.of(address).map_or(0, |interface| interface.index)
    }

    /// Whether an address is on an interface that is up.
    pub(super) fn is_up(&self, address: IpAddr) -> bool {
        self.of(address).is_some_and(|interface| interface.is_up)
    }

    /// The largest path MTU whose packets fit through the interface of that address.
    pub(super) fn mtu(&self, address: IpAddr) -> Mtu {
        let interface = self.of(address);
        Mtu::within_ip_mtu(interface.map_or(0, |interface| interface.mtu))
    }

    /// A machine with one interface.
    #[cfg(test)]
    pub(super) fn of_one(mtu: u32, is_up: bool, addresses: &[IpAddr]) -> Self {
        let interface = Interface {
            index: 1,
            mtu,
            is_up,
            is_loopback: true,
        };
        let owned = addresses.iter().map(|&address| Owned {
            address,
            interface: 1,
        });
        Self {
            interfaces: vec![interface],
            owned: owned.collect(),
        }
    }

    fn of(&self, address: IpAddr) -> Option<Interface> {
        let owned = self.owned.iter().find(|owned| owned.address == address);
        match owned {
            Some(owned) => self.interface(owned.interface),
            // The whole of 127.0.0.0/8 belongs to the loopback interface, listed or not.
            None if address.is_loopback() => {
                let is_loopback = |found: &&Interface| found.is_loopback;
                self.interfaces.iter().find(is_loopback).copied()
            }
            None => None,
        }
    }

    fn interface(&self, index: u32) -> Option<Interface> {
        let is_it = |interface: &&Interface| interface.index == index;
        self.interfaces.iter().find(is_it).copied()
    }
}

/// Notifications of changes to interfaces, addresses and routes.
#[derive(Debug)]
pub(super) struct News {
    socket: OwnedFd,
    /// A wait that has just ended saw that there are none.
    are_none: AtomicBool,
}

impl News {
    /// Groups of messages: links, IPv4 and IPv6 addresses, IPv4 and IPv6 routes.
    const GROUPS: u32 = 0x1 | 0x10 | 0x100 | 0x40 | 0x400;

    pub(super) fn open() -> io::Result<Self> {
        let socket = route_socket()?;
        bind(&socket, &SocketAddrNetlink::new(0, Self::GROUPS))?;
        Ok(Self {
            socket,
            are_none: AtomicBool::new(false),
        })
    }

    /// A wait has ended that would have ended for them as well: whether there are any. Those that come later end the next
    /// wait.
    pub(super) fn waited(&self, any: bool) {
        self.are_none.store(!any, Relaxed);
    }

    /// Whether there have been any since the last call. Reads all of them, but no more than can have been waiting in
    /// the socket; the system is not asked if a wait has just shown that there are none.
    pub(super) fn take(&self) -> bool {
        if self.are_none.swap(false, Relaxed) {
            return false;
        }
        // What a message says is asked for afterwards, so its end may be cut off.
        let mut buffer = [0; 64];
        let mut any = false;
        for _ in 0..1000 {
            match recv(&self.socket, &mut buffer[..], RecvFlags::empty()) {
                Ok(_) => any = true,
                Err(rustix::io::Errno::NOBUFS) => any = true, // Some were lost, which counts too.
                Err(_) => break,
            }
        }
        any
    }

    pub(super) fn socket(&self) -> BorrowedFd<'_> {
        self.socket.as_fd()
    }
}

/// A netlink socket whose protocol is the first, that of routes.
fn route_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    Ok(socket_with(
        AddressFamily::NETLINK,
        SocketType::RAW,
        flags,
        None,
    )?)
}

/// Bytes of a message's header: length, type, flags, sequence number, sender.
const HEADER_LEN: usize = 16;
const REQUEST_DUMP: u16 = 0x301;

/// Asks for everything of a kind and hands up the type and the body of each answer.
fn dump(socket: BorrowedFd<'_>, kind: u16, sink: &mut dyn FnMut(u16, &[u8])) -> io::Result<()> {
    let mut request = [0; HEADER_LEN + 4];
    let len = request.len() as u32;
    request[..4].copy_from_slice(&len.to_ne_bytes());
    request[4..6].copy_from_slice(&kind.to_ne_bytes());
    request[6..8].copy_from_slice(&REQUEST_DUMP.to_ne_bytes());
    sendto(
        socket,
        &request,
        SendFlags::empty(),
        &SocketAddrNetlink::new(0, 0),
    )?;
    // The kernel answers within the call, and writes the next part when the last has been read.
    let mut buffer = vec![0; 32 << 10];
    loop {
        let (got, _) = recv(socket, &mut buffer[..], RecvFlags::empty())?;
        let mut rest = &buffer[..got];
        while let Some(len) = word(rest, 0).map(|len| len as usize) {
            let Some(message) = rest.get(..len).filter(|_| len >= HEADER_LEN) else {
                return Err(io::ErrorKind::InvalidData.into());
            };
            let kind = (word(message, 4).unwrap_or(0) & 0xffff) as u16;
            let body = &message[HEADER_LEN..];
            match i32::from(kind) {
                libc::NLMSG_DONE => return Ok(()),
                libc::NLMSG_ERROR => {
                    let code = word(body, 0).map_or(0, |code| code as i32);
                    return Err(io::Error::from_raw_os_error(-code));
                }
                _ => sink(kind, body),
            }
            rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        }
    }
}

/// The interface that a message describes.
fn interface(body: &[u8]) -> Option<Interface> {
    let flags = word(body, 8)? as i32;
    let mtu = attributes(body.get(16..)?)
        .find(|(kind, _)| *kind == libc::IFLA_MTU)
        .and_then(|(_, value)| word(value, 0))?;
    Some(Interface {
        index: word(body, 4)?,
        mtu,
        is_up: flags & libc::IFF_UP != 0 && flags & libc::IFF_RUNNING != 0,
        is_loopback: flags & libc::IFF_LOOPBACK != 0,
    })
}

/// The address that a message describes, unless it cannot be bound yet.
fn owned(body: &[u8]) -> Option<Owned> {
    let [_family, _prefix, flags, _scope] = *body.first_chunk()?;
    if u32::from(flags) & (libc::IFA_F_TENTATIVE | libc::IFA_F_DADFAILED) != 0 {
        return None;
    }
    let find = |wanted| {
        attributes(body.get(8..).unwrap_or(&[]))
            .find(|(kind, _)| *kind == wanted)
            .map(|(_, value)| value)
    };
    // On links between two points the "address" is the other end's, and "local" is this end's.
    let address = find(libc::IFA_LOCAL).or_else(|| find(libc::IFA_ADDRESS))?;
    let address = match address.len() {
        4 => Ipv4Addr::from(*address.first_chunk::<4>()?).into(),
        16 => Ipv6Addr::from(*address.first_chunk::<16>()?).into(),
        _ => return None,
    };
    Some(Owned {
        address,
        interface: word(body, 4)?,
    })
}

/// Types and values of attributes.
fn attributes(mut rest: &[u8]) -> impl Iterator<Item = (u16, &[u8])> {
    std::iter::from_fn(move || {
        let [a, b, c, d] = *rest.first_chunk()?;
        let len = usize::from(u16::from_ne_bytes([a, b]));
        let value = rest.get(4..len)?;
        rest = rest.get(len.next_multiple_of(4)..).unwrap_or(&[]);
        Some((u16::from_ne_bytes([c, d]), value))
    })
}

fn word(bytes: &[u8], at: usize) -> Option<u32> {
    Some(u32::from_ne_bytes(*bytes.get(at..)?.first_chunk()?))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn machine() -> Interfaces {
        let interface = |index, mtu, is_up, is_loopback| Interface {
            index,
            mtu,
            is_up,
            is_loopback,
        };
        let owned = |address: &str, interface| Owned {
            address: address.parse().unwrap(),
            interface,
        };
        Interfaces {
            interfaces: vec![
                interface(1, 65_536, true, true),
                interface(2, 1500, true, false),
                interface(3, 4200, false, false),
            ],
            owned: vec![
                owned("127.0.0.1", 1),
                owned("192.0.2.2", 2),
                owned("fe80::2", 2),
                owned("192.0.2.3", 3),
            ],
        }
    }

    #[test]
    fn an_address_has_the_path_mtu_of_its_interface() {
        let machine = machine();
        let mtu =
            |machine: &Interfaces, address: &str| machine.mtu(address.parse().unwrap()).bytes();
        assert_eq!(mtu(&machine, "127.0.0.1"), 4096);
        assert_eq!(mtu(&machine, "127.9.9.9"), 4096, "all of 127 is on lo");
        assert_eq!(mtu(&machine, "192.0.2.2"), 1024);
        assert_eq!(mtu(&machine, "192.0.2.3"), 4096);
        assert_eq!(mtu(&machine, "198.51.100.1"), 256, "nobody's");
    }

    #[test]
    fn usable_addresses_are_those_of_interfaces_that_are_up() {
        let mut machine = machine();
        let expected: [IpAddr; 2] = ["192.0.2.2".parse().unwrap(), "fe80::2".parse().unwrap()];
        assert_eq!(machine.usable(false), expected);
        assert_eq!(machine.usable(true), [IpAddr::from(Ipv4Addr::LOCALHOST)]);
        machine.interfaces[1].is_up = false;
        assert_eq!(machine.usable(false), [] as [IpAddr; 0]);
        assert!(machine.has(expected[0]) && !machine.is_up(expected[0]));
    }

    /// Goal: the kernel understands the requests. Every machine has a loopback interface.
    #[test]
    fn this_machine_has_a_loopback_interface() {
        let here = Interfaces::read().unwrap();
        let lo = IpAddr::from(Ipv4Addr::LOCALHOST);
        assert!(here.is_up(lo) && here.owns(lo), "{here:?}");
        assert_eq!(here.mtu(lo).bytes(), 4096);
        assert_eq!(here, Interfaces::read().unwrap());
        assert!(!News::open().unwrap().take());
    }

    /// Goal: nothing is read where a wait has just shown that nothing is there, and no notification is lost by that.
    /// Method: a socket pair in the place of the route socket.
    #[test]
    fn news_are_read_unless_a_wait_saw_none() {
        let (kernel, ours) = std::os::unix::net::UnixDatagram::pair().unwrap();
        ours.set_nonblocking(true).unwrap();
        let news = News {
            socket: ours.into(),
            are_none: AtomicBool::new(false),
        };
        let notify = || assert_eq!(kernel.send(b"changed").unwrap(), 7);
        assert!(!news.take());
        notify();
        assert!(news.take(), "nobody waits");
        news.waited(false);
        notify();
        assert!(!news.take(), "it came after the wait");
        // It ends the next wait.
        news.waited(true);
        assert!(news.take());
        news.waited(true);
        news.waited(false);
        notify();
        assert!(!news.take(), "the last wait counts");
        assert!(news.take(), "and counts once");
    }
}
