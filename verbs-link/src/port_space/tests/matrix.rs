//! C3: who has a number, what for and where, against who asks for it, every pair of them.

use std::net::SocketAddr;
use std::os::fd::OwnedFd;

use super::*;

const D: &str = "::1";

/// Who has a number, or asks for one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Who {
    /// An ordinary socket.
    Socket,
    /// An endpoint of the device.
    Endpoint,
    /// One of another device with the same addresses, as another process has it.
    Stranger,
    /// An endpoint whose sockets only keep the number.
    Keeper,
    /// A reservation without a socket.
    Reservation,
}

/// What for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum For {
    Bind,
    Listen,
    Connect,
}

/// Where.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum At {
    One4,
    All4,
    One6,
    All6,
    /// `::` for both families.
    Both,
}

const WHERE: [At; 5] = [At::One4, At::All4, At::One6, At::All6, At::Both];

/// All of them, with what each can do.
const USERS: [(Who, &[For]); 5] = [
    (Who::Socket, &[For::Bind, For::Listen, For::Connect]),
    (Who::Endpoint, &[For::Bind, For::Listen, For::Connect]),
    (Who::Stranger, &[For::Bind, For::Listen, For::Connect]),
    (Who::Keeper, &[For::Bind]),
    (Who::Reservation, &[For::Bind]),
];

fn users() -> impl Iterator<Item = (Who, For)> {
    let each = USERS.into_iter();
    each.flat_map(|(who, does)| does.iter().map(move |&does| (who, does)))
}

impl At {
    fn addr(self, port: u16) -> SocketAddr {
        addr(
            match self {
                Self::One4 => A,
                Self::All4 => "0.0.0.0",
                Self::One6 => D,
                Self::All6 | Self::Both => "::",
            },
            port,
        )
    }

    fn has(self, four: bool) -> bool {
        match self {
            Self::One4 | Self::All4 => four,
            Self::One6 | Self::All6 => !four,
            Self::Both => true,
        }
    }

    /// Whether an address of one is an address of the other.
    fn meets(self, other: Self) -> bool {
        [true, false]
            .iter()
            .any(|&four| self.has(four) && other.has(four))
    }

    /// Where a socket is when it has connected: a wildcard has become the address it sends from.
    fn connected(self) -> Self {
        match self {
            Self::All4 => Self::One4,
            Self::All6 | Self::Both => Self::One6,
            one => one,
        }
    }
}

/// A number that somebody has, until it is dropped.
enum Had {
    Socket(#[expect(dead_code, reason = "kept open")] OwnedFd),
    Port(
        BoundPort,
        #[expect(dead_code, reason = "kept open")] Option<TcpStream>,
    ),
    Reservation(#[expect(dead_code, reason = "kept")] PortReservation),
}

/// The host with two devices at its addresses, and what ordinary connections are made to.
struct Bed {
    device: TcpPortSpace,
    other: TcpPortSpace,
    listeners: [TcpListener; 2],
}

impl Bed {
    fn new() -> Self {
        let space = || TcpPortSpace::of([A, B, D].map(ip));
        Self {
            device: space(),
            other: space(),
            listeners: [A, D].map(|ip| TcpListener::bind((ip, 0)).unwrap()),
        }
    }

    /// What a connection from there is made to.
    fn remote(&self, at: At) -> SocketAddr {
        let six = usize::from(at.connected() == At::One6);
        self.listeners[six].local_addr().unwrap()
    }

    /// Takes what the listeners were asked for, so that their queues stay short.
    fn accept(&self, at: At) {
        let six = usize::from(at.connected() == At::One6);
        drop(self.listeners[six].accept().unwrap());
    }

    fn take(&self, who: Who, does: For, at: At, port: u16) -> Result<(Had, u16), PortError> {
        let usage = match who {
            Who::Keeper => PortUse::Reserve,
            _ => PortUse::Connection,
        };
        let space = match who {
            Who::Stranger => &self.other,
            _ => &self.device,
        };
        let wanted = at.addr(port);
        match who {
            Who::Socket => self.socket(does, at, wanted),
            // A reservation is of one family.
            Who::Reservation => {
                let reserved = space.reserve(wanted)?;
                let port = reserved.local().port();
                Ok((Had::Reservation(reserved), port))
            }
            Who::Endpoint | Who::Stranger | Who::Keeper => {
                let mut bound = match at {
                    At::Both => space.bind_dual(wanted, usage)?,
                    _ => space.bind(wanted, usage)?,
                };
                let port = bound.local().port();
                let mut stream = None;
                match does {
                    For::Bind => {}
                    For::Listen => bound.listen(1)?,
                    For::Connect => {
                        stream = Some(bound.connect(self.remote(at))?);
                        self.accept(at);
                    }
                }
                Ok((Had::Port(bound, stream), port))
            }
        }
    }

    /// An ordinary socket, without `SO_REUSEADDR`.
    fn socket(&self, does: For, at: At, wanted: SocketAddr) -> Result<(Had, u16), PortError> {
        let flags = BindFlags {
            v6_only: at != At::Both,
            reuse: false,
        };
        let failed = |error| PortError::of("bind", wanted, error);
        let (fd, got) = HostSockets.bind(wanted, flags).map_err(failed)?;
        match does {
            For::Bind => {}
            For::Listen => rustix::net::listen(&fd, 1).unwrap(),
            For::Connect => {
                host::connect(&fd, self.remote(at)).unwrap();
                self.accept(at);
            }
        }
        Ok((Had::Socket(fd), got.port()))
    }
}

/// Whether the second is refused a number that the first has, and by what.
fn refused(first: (Who, For, At), second: (Who, At)) -> Option<PortUser> {
    let (who, does, at) = first;
    let (asks, there) = second;
    // A reservation covers the addresses of one family.
    let there = match (asks, there) {
        (Who::Reservation, At::Both) => At::All6,
        (_, there) => there,
    };
    let is_ours = |who| matches!(who, Who::Endpoint | Who::Keeper | Who::Reservation);
    let at = match who {
        Who::Reservation if at == At::Both => At::All6,
        // What the table of the device holds stays as it was asked for.
        Who::Socket if does == For::Connect => at.connected(),
        _ => at,
    };
    // Linux gives a socket of both families that has connected over IPv6 an address of IPv4 too, 127.0.0.6.
    let has_both = (does, first.2, who) == (For::Connect, At::Both, Who::Socket);
    if !(at.meets(there) || has_both && (asks, there) == (Who::Socket, At::All4)) {
        return None;
    }
    match who {
        _ if is_ours(who) && is_ours(asks) => Some(PortUser::Endpoint),
        Who::Stranger if asks == who => Some(PortUser::Endpoint),
        // The kernel does not know of it.
        Who::Reservation => None,
        _ => Some(PortUser::Socket),
    }
}

/// Goal: C3. Method: every user, for bind, listen and connect, at an address and at each wildcard of both families, has a
/// number; every user then asks for that number, and for any, in each of these ways. A number in use is refused where an
/// address is in both, and says by what; what is refused holds nothing, and what is not refused does its work.
#[test]
fn a_number_in_use_is_refused_in_every_cell() {
    let _alone = ALONE.lock();
    let bed = Bed::new();
    let (mut cells, mut last) = (0, 10_000);
    for ((who, does), at) in users().flat_map(|user| WHERE.map(|at| (user, at))) {
        for ((asks, wants), there) in users().flat_map(|user| WHERE.map(|at| (user, at))) {
            for fixed in [true, false] {
                let cell =
                    format!("{who:?} {does:?} {at:?}, then {asks:?} {wants:?} {there:?} {fixed}");
                // A number that is free at every address, so that the second has only the first to meet.
                let (mut first, port) = bed.take(who, does, at, vacant(&mut last)).expect(&cell);
                let held = (bed.device.len(), bed.other.len());
                let asked = if fixed { port } else { 0 };
                let second = bed.take(asks, wants, there, asked);
                match (second, refused((who, does, at), (asks, there))) {
                    (Ok((_, got)), _) if !fixed => {
                        let meets = at.meets(there) && who != Who::Reservation;
                        assert!(got != 0 && (got != port || !meets), "{cell}: {got}");
                    }
                    (Ok((_, got)), None) => assert_eq!(got, port, "{cell}"),
                    (Err(PortError::AddrInUse { addr, by }), Some(user)) if fixed => {
                        assert_eq!((addr.port(), by), (port, user), "{cell}");
                    }
                    (Ok(_), by) => panic!("{cell}: got it beside {by:?}"),
                    (Err(error), by) => panic!("{cell}: {error}, {by:?}"),
                }
                assert_eq!((bed.device.len(), bed.other.len()), held, "{cell}");
                // The first is as it was.
                if let Had::Port(bound, _) = &mut first {
                    assert_eq!(bound.local().port(), port, "{cell}");
                    assert_eq!(bound.is_listening(), does == For::Listen, "{cell}");
                }
                cells += 1;
            }
        }
    }
    assert_eq!(cells, 11 * 5 * 11 * 5 * 2);
    assert!(bed.device.is_empty() && bed.other.is_empty());
}

/// A number that nobody has at any address, and that the system gives to nobody who asks for any.
fn vacant(last: &mut u16) -> u16 {
    let flags = BindFlags {
        v6_only: false,
        reuse: false,
    };
    loop {
        *last = if *last < 19_999 { *last + 1 } else { 10_000 };
        if HostSockets.bind(addr("::", *last), flags).is_ok() {
            return *last;
        }
    }
}
