//! Goal: a run is determined by its seed.

use std::cell::RefCell;
use std::io::{self, Write};
use std::rc::Rc;
use std::sync::{Arc, Mutex};
use std::time::Duration;

use verbs_simulator::{Mode, Options, Sim, Stalled, run, run_with};
use verbs_wire::pcap::reader::Capture;

#[test]
fn the_same_seed_gives_the_same_digest_and_another_another() {
    let mut digests = Vec::new();
    for mode in [Mode::Packets, Mode::Direct, Mode::Streams] {
        for seed in 1..=4 {
            let options = Options {
                mode: Some(mode),
                ..Options::new(seed)
            };
            let (first, second) = (run(&options), run(&options));
            assert_eq!(first.violation, None, "{options}");
            assert_eq!(first.digest, second.digest, "{options}");
            assert_eq!(first.counts, second.counts, "{options}");
            digests.push(first.digest);
        }
    }
    let all = digests.len();
    digests.sort_by_key(ToString::to_string);
    digests.dedup();
    assert_eq!(digests.len(), all, "different runs have different digests");
}

/// A file that a test can read.
#[derive(Clone, Default)]
struct Page(Arc<Mutex<Vec<u8>>>);

impl Write for Page {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        self.0.lock().unwrap().extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[test]
fn a_capture_has_every_packet_and_changes_nothing() {
    let options = Options {
        mode: Some(Mode::Packets),
        ..Options::new(3)
    };
    let page = Page::default();
    let (plain, traced) = (
        run(&options),
        run_with(&options, Some(Box::new(page.clone()))),
    );
    assert_eq!(plain.digest, traced.digest);
    let capture = Capture::parse("run", &page.0.lock().unwrap());
    let packets = capture.packets.len();
    assert_eq!(packets as u64, traced.counts.packets);
    assert!(packets > 100, "{packets}");
}

#[test]
fn tasks_run_in_the_order_of_their_deadlines_and_a_stall_is_told() {
    let sim = Sim::new(1);
    let order = Rc::new(RefCell::new(Vec::new()));
    for micros in [30, 10, 20, 10] {
        let (task, order) = (sim.clone(), Rc::clone(&order));
        sim.spawn(async move {
            task.sleep(Duration::from_micros(micros)).await;
            order.borrow_mut().push((task.now().as_nanos(), micros));
        });
    }
    let slept = sim.run(sim.sleep(Duration::from_micros(25)));
    assert_eq!(slept, Ok(()));
    assert_eq!(*order.borrow(), [(10_000, 10), (10_000, 10), (20_000, 20)]);
    let stalled = sim.run(std::future::pending::<()>());
    assert!(matches!(stalled, Err(Stalled::Idle(_))), "{stalled:?}");
    assert_eq!(order.borrow().len(), 4, "the others ran on meanwhile");
    let waited = sim.run(sim.timeout(Duration::from_millis(1), std::future::pending::<()>()));
    assert_eq!(waited, Ok(None));
}
