//! A thread that holds the driver may have read the time long before it gives a queue pair its round.

use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::thread::{self, ThreadId};
use std::time::Duration;

use futures::executor::block_on;
use hca_sim::connect;
use hca_sim::link::{Burst, PacketLink, Sent, Udp, Wrap};
use verbs_core::{QpAttr, QpInit, QpState, WcStatus, Write};

use crate::ends::{end, end_over, free, host, next, retry};

/// The code of 268 ms.
const TIMEOUT: u8 = 16;

/// Who may send.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Way {
    Open,
    /// The link has no room for anybody.
    Full,
    /// A thread that sends says so, and waits until it may go on, which opens the way; for others there is no room.
    Narrow(ThreadId),
}

#[derive(Debug)]
struct Held {
    link: Udp,
    way: Arc<Mutex<Way>>,
    stopped: Sender<()>,
    go_on: Receiver<()>,
}

impl Wrap for Held {
    fn inner(&self) -> &dyn PacketLink {
        &self.link
    }

    fn inner_mut(&mut self) -> &mut dyn PacketLink {
        &mut self.link
    }

    fn transmit(&mut self, burst: &Burst<'_>) -> Sent {
        let way = *self.way.lock().unwrap();
        match way {
            Way::Open => {}
            Way::Narrow(thread) if thread == thread::current().id() => {
                self.stopped.send(()).unwrap();
                self.go_on.recv().unwrap();
                *self.way.lock().unwrap() = Way::Open;
            }
            _ => return Sent::Blocked,
        }
        self.link.transmit(burst)
    }
}

/// Goal: a queue pair whose time is over while another thread holds the driver retries, and ends. Method: its peer is
/// silent; a poster, whose round has read the time, stands in the link until the engine has called.
#[test]
fn a_timer_that_expires_while_another_thread_holds_the_driver_is_not_lost() {
    let way = Arc::new(Mutex::new(Way::Open));
    let ((stopped, has_stopped), (goes_on, go_on)) = (channel(), channel());
    let held = Held {
        link: free(host(36, 1)),
        way: Arc::clone(&way),
        stopped,
        go_on,
    };
    let (mut a, mut b) = (end_over(held), end(host(36, 2)));
    block_on(connect(&mut a.qp, &mut b.qp)).unwrap();
    let [mut asks, mut silent] = [&a, &b].map(|end| {
        let init = QpInit::rc(&end.cq, &end.cq);
        end._pd.create_qp(init).wait().unwrap()
    });
    block_on(connect(&mut asks, &mut silent)).unwrap();
    retry(&a.qp, 18, 7);
    retry(&asks, TIMEOUT, 1);
    silent.modify(QpAttr::to(QpState::Reset)).wait().unwrap();

    let write = |id| {
        let write = Write::new(id, b.mr.remote(0));
        write.from(a.mr.slice(0..64)).signaled()
    };
    asks.post_send(write(1)).unwrap();
    *way.lock().unwrap() = Way::Full;
    a.qp.post_send(write(2)).unwrap();
    let qp = &mut a.qp;
    let posts = thread::scope(|scope| {
        let posting = scope.spawn(|| {
            let narrow = Way::Narrow(thread::current().id());
            *way.lock().unwrap() = narrow;
            // The engine's thread may hold the driver just then: it looks whether there is room.
            let mut posts = 0;
            while *way.lock().unwrap() == narrow {
                qp.post_send(write(2)).unwrap();
                posts += 1;
                thread::sleep(Duration::from_millis(1));
            }
            posts
        });
        has_stopped.recv().unwrap();
        thread::sleep(2 * Duration::from_millis(268));
        goes_on.send(()).unwrap();
        posting.join().unwrap()
    });
    for _ in 0..posts + 2 {
        let wc = next(&mut a.cq);
        let expected = match wc.wr_id {
            1 => WcStatus::RetryExcErr,
            _ => WcStatus::Success,
        };
        assert_eq!(wc.status, expected);
    }
}
