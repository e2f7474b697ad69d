//! Clients of the administrator, as programs use them, against the built-in one.

use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use futures::executor::block_on;
use hca_sim::Hca;
use hca_sim::link::fabric::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
use verbs_cm::resolver::Fixed;
use verbs_cm::sa::{Change, Join, PathCache, PathQuery, SaClient, SaError};
use verbs_cm::wire::ServiceId;
use verbs_cm::{Error, Resolver};
use verbs_core::mad::Bits;
use verbs_core::mad::sa::{
    LinkMask, LinkRecord, McMemberMask, McMemberRecord, NodeMask, NodeRecord, PortInfoMask,
    PortInfoRecord, SaStatus,
};
use verbs_core::mad::sm::{SmState, TrapNumber};
use verbs_core::time;
use verbs_core::{Device, Gid, Lid, PKey, QKey, QpInit};
use verbs_sm::{Config, Manager, Partition};

/// A switch with three adapters, an HCA on each.
struct Bed {
    subnet: SharedSubnet,
    ports: Vec<PortRef>,
    hcas: Vec<Arc<Hca>>,
    devices: Vec<Device>,
}

impl Bed {
    fn new() -> Self {
        let mut topology = Topology::new();
        let switch = topology.switch("s", 4).unwrap();
        let mut ports = Vec::new();
        for number in 1..=3 {
            let node = topology.hca(&format!("h{number}"), 1).unwrap();
            topology.link((switch, number), (node, 1)).unwrap();
            ports.push(PortRef { node, port: 1 });
        }
        let subnet = SharedSubnet::new(Subnet::new(&topology, SubnetConfig::default()));
        let attach = |(&at, seed)| Hca::over(subnet.attach(at, seed).unwrap()).build();
        let hcas: Vec<_> = ports.iter().zip(1..).map(attach).collect();
        let devices = hcas.iter().map(|hca| hca.open().wait().unwrap()).collect();
        Self {
            subnet,
            ports,
            hcas,
            devices,
        }
    }

    fn manager(&self, at: usize, priority: u32) -> Manager {
        let config = Config {
            priority: Bits::truncated(priority),
            poll_interval: Duration::from_millis(50),
            ..Config::default()
        };
        block_on(Manager::start(&self.devices[at], 1, config)).unwrap()
    }

    fn client(&self, at: usize) -> SaClient {
        block_on(SaClient::of(&self.devices[at], 1).into_future()).unwrap()
    }

    fn gid(&self, at: usize) -> Gid {
        self.hcas[at].gid()
    }

    fn lid(&self, at: usize) -> Lid {
        self.subnet
            .with(time::Instant::ZERO, |subnet| subnet.lid(self.ports[at]))
    }
}

fn wait<T>(step: verbs_cm::Step<T>) -> Result<T, Error>
where
    T: Send + 'static,
{
    block_on(step.into_future())
}

/// Waits until the condition holds, for a minute at most.
fn until(what: &str, mut is: impl FnMut() -> bool) {
    let end = Instant::now() + Duration::from_secs(60);
    while !is() {
        assert!(Instant::now() < end, "{what}");
        std::thread::sleep(Duration::from_millis(2));
    }
}

/// Goal: before a manager has been there a client reports that; afterwards paths, nodes, ports and links are found by
/// every supported key, and requests for missing ones are refused. Method: by GID, by LID, by service; tables that need
/// several datagrams.
#[test]
fn paths_and_nodes_are_found() {
    let bed = Bed::new();
    let client = bed.client(1);
    let early = wait(client.path(PathQuery::to_gid(bed.gid(2))));
    assert_eq!(early, Err(Error::Sa(SaError::NoAdministrator(1))));
    let manager = bed.manager(0, 0);
    block_on(manager.up());
    assert_eq!((manager.nodes(), manager.state()), (4, SmState::MASTER));

    let path = wait(client.path(PathQuery::to_gid(bed.gid(2)))).unwrap();
    assert_eq!((path.slid, path.dlid), (bed.lid(1), bed.lid(2)));
    assert_eq!((path.sgid, path.dgid), (bed.gid(1), bed.gid(2)));
    assert_eq!(
        (path.mtu.value(), path.pkey, path.reversible),
        (5, PKey::DEFAULT, true)
    );
    let by_lid = wait(client.path(PathQuery::to_lid(bed.lid(2)))).unwrap();
    assert_eq!(by_lid, path);
    let all = wait(client.paths(PathQuery::to_lid(bed.lid(0)).from_lid(bed.lid(2)), 8)).unwrap();
    assert_eq!(
        all.iter().map(|path| path.slid).collect::<Vec<_>>(),
        [bed.lid(2)]
    );
    let refused = wait(client.path(PathQuery::to_gid(Gid([7; 16]))));
    assert_eq!(
        refused,
        Err(Error::Sa(SaError::Refused(SaStatus::InvalidGid)))
    );
    let elsewhere = PathQuery::to_gid(bed.gid(2)).pkey(PKey(0x8123));
    let refused = wait(client.path(elsewhere));
    assert_eq!(
        refused,
        Err(Error::Sa(SaError::Refused(SaStatus::NoRecords)))
    );

    let nodes = wait(client.table(&NodeRecord::default(), NodeMask::empty())).unwrap();
    assert_eq!(nodes.len(), 4);
    let like = NodeRecord {
        lid: bed.lid(2),
        ..NodeRecord::default()
    };
    let node = wait(client.get(&like, NodeMask::LID)).unwrap();
    assert_eq!(node.info.node_guid, bed.hcas[2].guid());
    let many = wait(client.get(&NodeRecord::default(), NodeMask::empty()));
    assert_eq!(
        many,
        Err(Error::Sa(SaError::Refused(SaStatus::TooManyRecords)))
    );
    let ports = wait(client.table(&PortInfoRecord::default(), PortInfoMask::empty()));
    assert_eq!(ports.unwrap().len(), 3 + 5);
    let links = wait(client.table(&LinkRecord::default(), LinkMask::empty())).unwrap();
    assert_eq!(links.len(), 6);
    let info = wait(client.class_port_info()).unwrap();
    assert_eq!((info.base_version, info.class_version), (1, 2));
}

/// Goal: ports join and leave groups; a group that a program creates exists as long as it has members; the last user of
/// a port leaves for all. Method: two clients of one port, one of another, the broadcast group and one that is created.
#[test]
fn groups_are_joined_and_left() {
    let bed = Bed::new();
    let manager = bed.manager(0, 0);
    block_on(manager.up());
    let (one, other) = (bed.client(1), bed.client(2));
    let broadcast = Partition::default().broadcast();
    let group = wait(one.join(Join::full(broadcast))).unwrap();
    assert_eq!(
        (group.mlid(), group.record().qkey),
        (Lid(0xc000), QKey(0xb1b))
    );
    assert_eq!(
        (group.mtu(), group.record().pkey),
        (Some(verbs_core::Mtu::B2048), PKey::DEFAULT)
    );

    let mgid = Gid([
        0xff, 0x12, 0x40, 0x1b, 0xff, 0xff, 0, 0, 0, 0, 0, 0, 0, 0, 0, 9,
    ]);
    let refused = wait(other.join(Join::full(mgid))).map(drop);
    let expected = SaError::Refused(SaStatus::InsufficientComponents);
    assert_eq!(refused, Err(Error::Sa(expected)));
    let like = Join::full(mgid).like(&group.record());
    let made = wait(other.join(like)).unwrap();
    assert_eq!(
        (made.mlid(), made.record().qkey),
        (Lid(0xc001), QKey(0xb1b))
    );
    let twice = wait(other.join(Join::full(mgid))).unwrap();
    let sender = wait(one.join(Join::send_only(mgid))).unwrap();
    let like = McMemberRecord {
        mgid,
        ..McMemberRecord::default()
    };
    let find = || wait(one.table(&like, McMemberMask::MGID)).unwrap();
    assert_eq!(find().len(), 1);
    wait(twice.leave()).unwrap();
    assert_eq!(find().len(), 1, "there is another user");
    drop(made);
    until("the group goes with its last full member", || {
        find().is_empty()
    });
    // The group was deleted while the sender used it; its leave is refused, which is harmless.
    let left = wait(sender.leave());
    assert_eq!(
        left,
        Err(Error::Sa(SaError::Refused(SaStatus::RequestInvalid)))
    );
    wait(group.leave()).unwrap();
    // A request that is dropped before it was begun does nothing, one that is dropped later leaves.
    drop(one.join(Join::full(broadcast)));
    let step = one.join(Join::full(broadcast)).issue(|_| ());
    step.cancel();
    let trusted = wait(other.join(Join::full(broadcast))).unwrap();
    drop(trusted);
}

/// Goal: services are registered, found, and withdrawn; events are reported. Method: a service with a lease; a
/// subscriber to groups that appear and disappear, and to ports that disappear.
#[test]
fn services_and_events() {
    let bed = Bed::new();
    let manager = bed.manager(0, 0);
    block_on(manager.up());
    let (one, other) = (bed.client(1), bed.client(2));
    let id = ServiceId(0x1000_0000_0000_0042);
    assert!(wait(other.find_service(id)).unwrap().is_empty());
    let mut record = one.service_record(id).unwrap();
    record.lease_seconds = 6;
    let held = wait(one.register_service(record)).unwrap();
    assert_eq!(held.gid(), bed.gid(1));
    let path = wait(other.path(PathQuery::to_service(id))).unwrap();
    assert_eq!(path.dlid, bed.lid(1));
    // It is renewed after half of it, or up to three seconds later where a thread waits for its processor.
    std::thread::sleep(Duration::from_secs(9));
    assert_eq!(
        wait(other.find_service(id)).unwrap().len(),
        1,
        "the lease was renewed"
    );
    wait(held.end()).unwrap();
    assert!(wait(other.find_service(id)).unwrap().is_empty());

    let created = wait(one.subscribe(TrapNumber::GROUP_CREATED)).unwrap();
    let seen = Arc::new(Mutex::new(Vec::new()));
    let notes = Arc::clone(&seen);
    created.on_notice(move |notice| notes.lock().unwrap().push(notice.gid()));
    let mut gone = wait(one.subscribe(TrapNumber::GID_OUT_OF_SERVICE)).unwrap();
    let mgid = Gid([0xff, 0x12, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let join = Join::full(mgid).create(QKey(7), PKey::DEFAULT);
    let group = wait(other.join(join)).unwrap();
    until("a report", || !seen.lock().unwrap().is_empty());
    assert_eq!(*seen.lock().unwrap(), [Some(mgid)]);
    let cache = PathCache::new(&one);
    wait(cache.watch()).unwrap();
    let way = || wait(cache.path(bed.gid(1), bed.gid(2), PKey::DEFAULT));
    assert_eq!(way().unwrap().dlid, bed.lid(2));
    assert_eq!(cache.len(), 1);
    bed.subnet.with(time::Instant::ZERO, |subnet| {
        subnet.plug(time::Instant::ZERO, bed.ports[2], false)
    });
    let notice = block_on(gone.notice());
    assert_eq!(notice.gid(), Some(bed.gid(2)));
    until("the path is forgotten", || cache.is_empty());
    assert!(way().is_err(), "there is no way, and that is not kept");
    wait(gone.end()).unwrap();
    drop(group);
}

/// Goal: what a port has registered survives its manager: another one receives all of it. Method: a group and a
/// service; a manager with priority takes over, then dies.
#[test]
fn registrations_survive_their_manager() {
    let bed = Bed::new();
    let first = bed.manager(0, 0);
    block_on(first.up());
    let client = bed.client(1);
    let broadcast = Partition::default().broadcast();
    let mut group = wait(client.join(Join::full(broadcast))).unwrap();
    let told = Arc::new(Mutex::new(0));
    let count = Arc::clone(&told);
    group.on_change(move |change| {
        if *change == Change::Renewed {
            *count.lock().unwrap() += 1;
        }
    });
    let mgid = Gid([0xff, 0x12, 0xa0, 0x1b, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 5]);
    let own = Join::full(mgid).create(QKey(9), PKey::DEFAULT);
    let mut made = wait(client.join(own)).unwrap();
    let id = ServiceId(0x77);
    let service = wait(client.register_service(client.service_record(id).unwrap())).unwrap();

    let paths = PathCache::new(&client);
    wait(paths.path(bed.gid(1), bed.gid(2), PKey::DEFAULT)).unwrap();
    assert_eq!(paths.len(), 1);

    let second = bed.manager(2, 5);
    block_on(second.up());
    assert_eq!(
        (first.state(), second.state()),
        (SmState::STANDBY, SmState::MASTER)
    );
    assert_eq!(block_on(made.changed()), Change::Renewed);
    until("the group is joined again", || *told.lock().unwrap() > 0);
    until("no path of the first one is kept", || paths.is_empty());
    let find = || {
        let like = McMemberRecord {
            mgid,
            ..McMemberRecord::default()
        };
        let groups = wait(bed.client(0).table(&like, McMemberMask::MGID)).unwrap_or_default();
        let services = wait(bed.client(0).find_service(id)).unwrap_or_default();
        (groups.len(), services.len())
    };
    until("both are known to the new master", || find() == (1, 1));
    drop(second);
    until("the first takes over", || first.is_up());
    until("both are known to the old master", || find() == (1, 1));
    assert_eq!(made.record().qkey, QKey(9));
    drop((group, made, service));
    until("all is taken back", || find() == (0, 0));
}

/// Goal: connections across a subnet are made by GIDs alone: the administrator knows the paths. Method: addresses that
/// stand for GIDs, no LIDs; a peer that has disappeared has no path.
#[test]
fn connections_ask_for_their_way() {
    let bed = Bed::new();
    let addr = |at: u8| std::net::IpAddr::from([10, 0, 0, at]);
    let table = (1..=2).fold(Fixed::new(), |table, at| {
        table.way(addr(at), bed.gid(at.into()), None)
    });
    let table: Arc<dyn Resolver> = Arc::new(table);
    let managers = [1, 2].map(|at| verbs_cm::Manager::of(&bed.devices[at]));
    for manager in &managers {
        wait(manager.use_resolver(Arc::clone(&table))).unwrap();
    }
    // They exist before their ports have LIDs.
    let manager = bed.manager(0, 0);
    block_on(manager.up());
    let qp = |at: usize| {
        let device = &bed.devices[at];
        let pd = device.alloc_pd().wait().unwrap();
        let cq = device.create_cq(16).wait().unwrap();
        pd.create_qp(QpInit::rc(&cq, &cq)).wait().unwrap()
    };
    let serve = async {
        let mut listener = verbs_cm::listen(&bed.devices[2], (addr(2), 7174))
            .await
            .unwrap();
        let request = listener.accept().await;
        request.accept(qp(2)).await.unwrap()
    };
    let connect = async {
        verbs_cm::connect(&bed.devices[1], (addr(2), 7174), qp(1))
            .await
            .unwrap()
    };
    let (served, connected) = block_on(async { futures::join!(serve, connect) });
    assert!(served.is_established() && connected.is_established());
    drop((served, connected));
    bed.subnet.with(time::Instant::ZERO, |subnet| {
        subnet.plug(time::Instant::ZERO, bed.ports[2], false)
    });
    until("the manager has noticed", || {
        manager.nodes() == 3 && manager.is_up()
    });
    until("the way is forgotten", || {
        let refused =
            block_on(verbs_cm::connect(&bed.devices[1], (addr(2), 7174), qp(1)).into_future());
        refused.unwrap_err().error == Error::NoRoute(addr(2))
    });
}
