//! Reliable connections over TCP, as iWARP: the scenarios of `rc`, where messages are placed directly, must end in the
//! same completions, states and bytes. What iWARP lacks is refused, and each such place in a scenario says so by
//! `way::IS_IWARP`. How most faults end is not the same, since a SEND or WRITE is done when TCP has it:
//! `hca-sim/src/transport/iwarp/tests/faults.rs` has those.

#![expect(clippy::unwrap_used, reason = "the helpers of a test are part of it")]

#[path = "../rc/depths.rs"]
mod depths;
#[path = "../rc/ends.rs"]
mod ends;
#[path = "../rc_packets/fences.rs"]
mod fences;
#[path = "../rc/gone.rs"]
mod gone;
#[path = "../rc/memory.rs"]
mod memory;
#[path = "../rc/operations.rs"]
mod operations;
#[path = "../rc/windows.rs"]
mod windows;

/// Streams carry messages.
mod way {
    use std::cell::RefCell;
    use std::io::{Read as _, Write as _};
    use std::net::{IpAddr, Ipv4Addr, TcpListener, TcpStream};
    use std::sync::{Arc, Weak};
    use std::time::Duration;

    use hca_sim::clock::VirtualClock;
    use hca_sim::{Adopted, Builder, Hca, adopt};
    use verbs_core::{Access, Qp, QpState};

    /// What iWARP lacks is refused, a SEND or WRITE is done when it was handed over, and a connection ends at both ends.
    pub(crate) const IS_IWARP: bool = true;

    /// Whether a requester learns more of its peer's reasons than the Terminate says.
    pub(crate) const PEER_SAYS_WHY: bool = false;

    thread_local! {
        static HCAS: RefCell<Vec<Weak<Hca>>> = const { RefCell::new(Vec::new()) };
        /// The ends of a connection beside theirs.
        static BESIDE: [TcpStream; 2] = connected();
    }

    fn connected() -> [TcpStream; 2] {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
        let ours = TcpStream::connect(listener.local_addr().unwrap()).unwrap();
        let ends = [ours, listener.accept().unwrap().0];
        for end in &ends {
            end.set_nodelay(true).unwrap();
        }
        ends
    }

    /// Two HCAs that reach each other, made as `change` has it.
    pub(crate) fn hcas(clock: &VirtualClock, change: fn(Builder) -> Builder) -> [Arc<Hca>; 2] {
        let here = IpAddr::V4(Ipv4Addr::LOCALHOST);
        let hcas = [(); 2].map(|()| {
            let builder = Hca::iwarp(&[here]).unwrap().clock(clock.clone());
            change(builder).build()
        });
        let known = hcas.each_ref().map(Arc::downgrade);
        HCAS.with_borrow_mut(|all| all.extend(known));
        hcas
    }

    /// Makes them the two ends of a TCP connection.
    pub(crate) fn connect(a: &mut Qp, b: &mut Qp) {
        let [ours, theirs] = connected();
        for (qp, stream) in [(a, ours), (b, theirs)] {
            if qp.query().wait().unwrap().state == QpState::Reset {
                qp.init(1, Access::LOCAL_WRITE | Access::REMOTE)
                    .wait()
                    .unwrap();
            }
            // Either may speak first: they have agreed on that by other means.
            adopt(qp, stream, Adopted::new(true)).unwrap();
        }
    }

    /// Moves the clock on, and lets everything happen that is due.
    pub(crate) fn advance(clock: &VirtualClock, time: Duration) {
        clock.advance(time);
        settle();
    }

    /// Lets everything happen that can happen at this time. The system moves the bytes: none are under way when nothing
    /// has come after [`passed`], and again.
    pub(crate) fn settle() {
        let hcas: Vec<_> = HCAS.with_borrow(|all| all.iter().filter_map(Weak::upgrade).collect());
        let mut quiet = 0;
        while quiet < 3 {
            let any = hcas.iter().fold(false, |any, hca| hca.turn() | any);
            quiet = if any { 0 } else { quiet + 1 };
            if !any {
                passed();
            }
        }
    }

    /// Waits until a byte has gone each way beside their connections: the loopback interface delivers what one thread sends
    /// in the order in which it sends it, over whatever connection, so that what was sent before has come.
    fn passed() {
        BESIDE.with(|[a, b]| {
            for (mut from, mut to) in [(a, b), (b, a)] {
                to.set_read_timeout(Some(Duration::from_secs(60))).unwrap();
                from.write_all(&[0]).unwrap();
                to.read_exact(&mut [0]).unwrap();
            }
        });
    }
}
