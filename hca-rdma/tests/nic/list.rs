//! NICs on a list of devices.

use verbs_core::device_list::{Change, Entry};
use verbs_core::sync::{Arc, Mutex};
use verbs_core::testing::Null;
use verbs_core::{Device, DeviceList, Error, PostError, QpType, Wc, Write};

use crate::pair::connected;
use crate::rdma_core::rdma_core;

fn told(change: &Change) -> String {
    match change {
        Change::Arrived(entry) => format!("+{}", entry.name),
        Change::Gone { name, reason, .. } => format!("-{name}: {reason}"),
        other => format!("{other:?}"),
    }
}

/// Two connected queue pairs of that device write until a post is refused.
fn work(device: &Device) -> (PostError, usize) {
    let pd = device.alloc_pd().wait().unwrap();
    let (mut left, right) = connected(device, &pd, QpType::Rc);
    let (far, mut done) = (right.remote(), 0);
    loop {
        let write = Write::new(1, far).inline(b"load").signaled();
        match left.qp.post_send(write) {
            Ok(()) | Err(PostError::Full { .. }) => {
                done += left.cq.poll(&mut [Wc::default(); 16]).len();
            }
            Err(error) => return (error, done),
        }
        std::thread::yield_now();
    }
}

/// Goal: NICs are found, go under load, and are back, on the same list as other devices; a stream and a handler are told
/// the same, and what is open on a NIC that only left the list works on (E12). Method: the device of the libraries, and clients
/// of it on two threads.
#[test]
fn nics_are_found_go_under_load_and_are_back() {
    let list = DeviceList::new();
    let (mut changes, heard) = (list.watch(), Arc::<Mutex<Vec<String>>>::default());
    let log = Arc::clone(&heard);
    list.on_change(move |change| log.lock().push(told(&change)));
    let _other = list.arrived("null0", Arc::new(Null::default()));
    let rdma = rdma_core();
    let name = rdma.devices().unwrap().remove(0);
    let found = || -> Entry { list.find(&name).expect("it is on the list") };

    let mut nics = rdma.follow(&list);
    assert_eq!(nics.look(), []);
    assert_eq!(nics.look(), [], "nothing is new");
    let entry = found();
    let device = entry.open().wait().unwrap();
    let work = || work(&device);
    std::thread::scope(|scope| {
        let clients = [scope.spawn(work), scope.spawn(work)];
        std::thread::sleep(std::time::Duration::from_millis(50));
        let nic = nics.nics().remove(0);
        nic.remove();
        for client in clients {
            let (refused, done) = client.join().unwrap();
            assert_eq!(refused, PostError::DeviceRemoved);
            assert!(done > 0, "it was at work");
        }
    });
    assert_eq!(list.find(&name), None);
    assert_eq!(entry.open().wait().unwrap_err(), Error::DeviceRemoved);
    assert_eq!(device.alloc_pd().wait().unwrap_err(), Error::DeviceRemoved);

    assert_eq!(nics.look(), []);
    assert_ne!(found().id, entry.id, "another device");
    let again = found().open().wait().unwrap();
    drop(nics);
    again.alloc_pd().wait().unwrap();
    let expected = [
        "+null0".into(),
        format!("+{name}"),
        format!("-{name}: taken out"),
        format!("+{name}"),
        format!("-{name}: no longer offered"),
    ];
    assert_eq!(*heard.lock(), expected);
    let streamed: Vec<_> = std::iter::from_fn(|| changes.try_next()).collect();
    assert_eq!(streamed.iter().map(told).collect::<Vec<_>>(), expected);
}
