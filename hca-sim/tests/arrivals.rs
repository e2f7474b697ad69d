//! Devices that appear and disappear, as a list of them reports it.
#![allow(clippy::unwrap_used, reason = "tests")]

#[path = "udp/under_load.rs"]
mod under_load;

use futures::executor::block_on;
use hca_sim::{Hca, Loopback};
use verbs_core::device_list::{Change, DeviceList};
use verbs_core::{Error, Wc};

/// Goal: a watcher of the devices sees them appear, disappear with a reason, and return, ports too; a client that holds
/// on to a device that disappears is informed by that device and can still use the rest (E12). Method: two HCAs that
/// join a list, a client of the first.
#[test]
fn a_list_of_devices_tells_who_comes_and_goes() {
    let list = DeviceList::new();
    let mut changes = list.watch();
    let mut told = || {
        changes.try_next().map(|change| match change {
            Change::Arrived(entry) => format!("+{}", entry.name),
            Change::Gone { name, reason, .. } => format!("-{name}: {reason}"),
            Change::Port { port, is_up, .. } => format!("port {port} {is_up}"),
            other => panic!("{other:?}"),
        })
    };
    let link = Loopback::with_seed(1);
    let [a, b] = ["first", "second"].map(|name| Hca::on(&link).name(name).build());
    a.join(&list);
    b.join(&list);
    assert_eq!(told().as_deref(), Some("+first"));
    assert_eq!(told().as_deref(), Some("+second"));
    let entry = list.find("first").unwrap();
    let device = entry.open().wait().unwrap();
    let mut cq = device.create_cq(4).wait().unwrap();

    a.port_down();
    assert_eq!(told().as_deref(), Some("port 1 false"));
    a.port_up();
    assert_eq!(told().as_deref(), Some("port 1 true"));
    a.remove();
    assert_eq!(told().as_deref(), Some("-first: taken out"));
    assert_eq!(
        block_on(cq.ready()),
        Err(Error::DeviceRemoved),
        "who waits is told"
    );
    assert_eq!(cq.poll(&mut [Wc::default(); 4]).len(), 0);
    cq.destroy().wait().unwrap();
    assert_eq!(entry.open().wait().unwrap_err(), Error::DeviceRemoved);
    b.fail();
    assert_eq!(told().as_deref(), Some("-second: failed"));
    assert_eq!(list.devices(), []);

    let again = Hca::on(&link).name("first").build();
    again.join(&list);
    assert_eq!(told().as_deref(), Some("+first"), "it is back");
    assert_ne!(list.find("first").unwrap().id, entry.id);
    assert_eq!(
        device.query().wait().unwrap_err(),
        Error::DeviceRemoved,
        "the old one is not"
    );
    again.leave();
    assert_eq!(told().as_deref(), Some("-first: no longer offered"));
    assert_eq!(told(), None);
    device.close().wait().unwrap();
}

/// See [`under_load::comes_and_goes`]; over UDP it is in the tests of that.
#[test]
fn a_device_arrives_and_goes_under_load() {
    let link = Loopback::with_seed(2);
    under_load::comes_and_goes(&|name| Hca::on(&link).name(name).build());
}
