//! Operations that are given up after a time.

use std::time::Duration;

use verbs_core::Access;
use verbs_io::{Connection, Error};
use verbs_simulator::Sim;

use crate::pair::{message, text};
use crate::simulated::{HOSTS, Simulated, simulated};

const SECOND: Duration = Duration::from_secs(1);

fn timed_out(after: Duration) -> Error {
    Error::TimedOut { after }
}

async fn gives_up(sim: &Sim, a: &Connection, after: Duration) {
    let begun = sim.now();
    let sent = a.send(message(a, "late").await).within(after).await;
    let failed = sent.expect_err("the cable is out");
    assert_eq!(
        (failed.error, failed.buf.is_none()),
        (timed_out(after), true)
    );
    assert_eq!(sim.now().since(begun), after);
}

/// Goal: an operation and a wait for a message end when their time is over, by the device's clock, and leave the connection as it
/// was: what was posted arrives when the cable is back. No buffer is lost. Method: a cable that is pulled, in virtual time.
#[test]
fn what_takes_too_long_is_given_up() {
    let sim = Sim::new(12);
    let program = async {
        let opened = simulated(&sim, |opening| opening.buffers(4).keepalive(None)).await?;
        let Simulated { a, b, nets, .. } = &opened;
        let after = Duration::from_millis(30);
        let begun = sim.now();
        let none = a.recv().within(SECOND).await.unwrap_err();
        assert_eq!((none, sim.now().since(begun)), (timed_out(SECOND), SECOND));

        sim.network().cut(HOSTS[0], HOSTS[1], true);
        gives_up(&sim, a, after).await;
        assert_eq!(nets[0].usage().lent, 0);
        sim.network().cut(HOSTS[0], HOSTS[1], false);
        let begun = sim.now();
        assert_eq!(text(b).await.unwrap(), "late");
        assert!(sim.now().since(begun) < 10 * SECOND);

        // What ends in time does not hear of it, and a message that comes later is not lost.
        let sent = a.send(message(a, "in time").await).within(SECOND).await;
        drop(sent.unwrap());
        let came = b.recv().within(SECOND).await?.expect("it is open");
        assert_eq!(&came[..], b"in time");
        drop(came);
        b.recv().within(SECOND).await.unwrap_err();
        a.send(message(a, "later").await).await?;
        assert_eq!(text(b).await.unwrap(), "later");
        sim.sleep(SECOND).await;
        // All buffers of the pool are there.
        let all: Vec<_> = (0..4).map(|_| nets[0].try_buf().unwrap()).collect();
        assert!(nets[0].try_buf().is_none());
        drop(all);
        drop(opened);
        Ok::<(), Error>(())
    };
    sim.run(program).unwrap().unwrap();
}

/// Goal: every operation has a time, also no time at all. Method: each, with the cable pulled.
#[test]
fn every_operation_has_a_time() {
    let sim = Sim::new(13);
    let program = async {
        let opened = simulated(&sim, |opening| opening.keepalive(None)).await?;
        let Simulated { a, nets, .. } = &opened;
        let region = nets[1]
            .region(64, Access::REMOTE | Access::LOCAL_WRITE)
            .await?;
        let token = region.token(0..8)?;
        let word = token.word(0)?;
        sim.network().cut(HOSTS[0], HOSTS[1], true);
        for after in [Duration::ZERO, Duration::from_millis(1)] {
            let buf = async || message(a, "eight by").await;
            let write = a.write(buf().await, token).within(after).await;
            let imm = a.write_with_imm(buf().await, token, 1).within(after).await;
            let read = a.read(buf().await, token).within(after).await;
            for moved in [write, imm, read] {
                assert_eq!(moved.unwrap_err().error, timed_out(after));
            }
            let added = a.fetch_add(word, 1).within(after).await;
            let swapped = a.compare_swap(word, 0, 1).within(after).await;
            assert_eq!(
                (added, swapped),
                (Err(timed_out(after)), Err(timed_out(after)))
            );
        }
        let io = std::io::Error::from(timed_out(SECOND));
        assert_eq!(io.kind(), std::io::ErrorKind::TimedOut);
        drop(opened);
        Ok::<(), Error>(())
    };
    sim.run(program).unwrap().unwrap();
}
