//! Goal: the connection manager makes connections by a provider's own verbs where it has them, chosen by
//! what the provider says of itself, and builds no management datagram then. Method: a provider that
//! connects endpoints within the process, over one that has no hardware.

#![expect(
    clippy::unwrap_used,
    reason = "helpers of tests may panic as the tests themselves"
)]

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering::Relaxed};

use futures::executor::block_on;
use futures::future::join;
use verbs_cm::{ConnectionState, Ended, Error, Manager, connect, listen};
use verbs_core::cm::{AcceptCm, CmCore, ConnectCm};
use verbs_core::command::{Command, Pending};
use verbs_core::sync::Mutex;
use verbs_core::testing::{Null, Subject, conformance};
use verbs_core::{
    AnyCommand, Attr, CmEvent, CmLimits, CmParam, CmReply, CmRequest, Cq, Device,
    Error as VerbError, Pd, PortCaps, Provider, ProviderAttr, Qp, QpInit, QpType, Target,
    TransportType, Why,
};

/// Connects endpoints within the process.
#[derive(Default)]
struct Wired {
    null: Null,
    numbers: AtomicU32,
    nets: Mutex<Net>,
    /// Queue pairs of the special types that were asked for.
    special: AtomicU32,
}

#[derive(Default)]
struct Net {
    bound: BTreeMap<SocketAddr, u32>,
    listening: BTreeMap<SocketAddr, Arc<CmCore>>,
    /// The waiting task of each endpoint of the passive side.
    asking: BTreeMap<u32, (Arc<CmCore>, Pending<ConnectCm>)>,
    peers: BTreeMap<u32, Arc<CmCore>>,
}

fn number(core: &CmCore) -> u32 {
    core.id().number
}

impl Wired {
    fn next(&self) -> u32 {
        self.numbers.fetch_add(1, Relaxed) + 1
    }

    fn connect(&self, command: Command<'_, ConnectCm>) {
        let listener = self.nets.lock().listening.get(&command.remote).cloned();
        let Some(listener) = listener else {
            return command.complete(Ok(CmReply::Refused));
        };
        let active = Arc::clone(command.target());
        let Some((args, pending)) = command.pend() else {
            return;
        };
        let endpoint = listener.spawn(self.next(), listener.local(), Box::new(()));
        let asked = number(endpoint.target());
        let remote = active.local();
        self.nets.lock().asking.insert(asked, (active, pending));
        listener.raise(CmEvent::ConnectRequest(CmRequest {
            endpoint,
            remote,
            param: args.param,
            private_data: args.private_data,
        }));
    }

    fn accept(&self, command: Command<'_, AcceptCm>) {
        let passive = Arc::clone(command.target());
        let asking = self.nets.lock().asking.remove(&number(&passive));
        let Some((active, pending)) = asking else {
            let (attr, why) = (Attr::Address, Why::Missing);
            return command.complete(Err(VerbError::Mismatch { attr, why }));
        };
        {
            let mut net = self.nets.lock();
            net.peers.insert(number(&active), Arc::clone(&passive));
            net.peers.insert(number(&passive), active);
        }
        let data = command.private_data.clone().into_boxed_slice();
        command.complete(Ok(()));
        pending.complete(Ok(CmReply::Established(data)));
    }

    /// An endpoint has gone, or is about to be.
    fn leave(&self, endpoint: u32) {
        let (asking, peer) = {
            let mut net = self.nets.lock();
            net.bound.retain(|_, bound| *bound != endpoint);
            net.listening.retain(|_, core| number(core) != endpoint);
            let peer = net.peers.remove(&endpoint);
            if let Some(peer) = &peer {
                net.peers.remove(&number(peer));
            }
            (net.asking.remove(&endpoint), peer)
        };
        if let Some((_, pending)) = asking {
            pending.complete(Ok(CmReply::Rejected(Box::default())));
        }
        if let Some(peer) = peer {
            peer.raise(CmEvent::Disconnected);
            peer.raise(CmEvent::Closed);
        }
    }
}

impl Provider for Wired {
    fn issue(&self, command: AnyCommand<'_>) {
        match command {
            AnyCommand::BindCm(command) => {
                let mut local = command.local;
                let number = self.next();
                if local.port() == 0 {
                    local.set_port(40_000 + u16::try_from(number).unwrap());
                }
                if self.nets.lock().bound.contains_key(&local) {
                    let port = local.port();
                    return command.refuse(VerbError::AddrInUse { port });
                }
                self.nets.lock().bound.insert(local, number);
                let (args, reply) = command.split();
                reply.complete(Ok(args.build(number, local, Box::new(()))));
            }
            AnyCommand::ListenCm(command) => {
                let core = Arc::clone(command.target());
                self.nets.lock().listening.insert(core.local(), core);
                command.complete(Ok(()));
            }
            AnyCommand::ConnectCm(command) => self.connect(command),
            AnyCommand::AcceptCm(command) => self.accept(command),
            AnyCommand::RejectCm(command) => {
                let endpoint = number(command.target());
                let asking = self.nets.lock().asking.remove(&endpoint);
                let data = command.private_data.clone().into_boxed_slice();
                command.complete(Ok(()));
                if let Some((_, pending)) = asking {
                    pending.complete(Ok(CmReply::Rejected(data)));
                }
            }
            AnyCommand::UnbindCm(command) => {
                let endpoint = number(command.target());
                command.complete(Ok(()));
                self.leave(endpoint);
            }
            other => {
                if let AnyCommand::CreateQp(create) = &other
                    && create.qp_type != QpType::Rc
                {
                    self.special.fetch_add(1, Relaxed);
                }
                self.null.issue(other);
            }
        }
    }

    fn query_provider(&self, _port: u8) -> ProviderAttr {
        ProviderAttr {
            transport: TransportType::Iwarp,
            caps: PortCaps::IW_CM,
            cm: CmLimits {
                private_data: 512,
                max_ird: 16,
                max_ord: 16,
            },
            ..ProviderAttr::default()
        }
    }
}

struct Host {
    // Dropped in this order.
    cq: Cq,
    pd: Pd,
    device: Device,
}

impl Host {
    fn new(wired: &Arc<Wired>) -> Self {
        let device = Device::open(Arc::clone(wired) as Arc<dyn Provider>)
            .wait()
            .unwrap();
        Self {
            cq: device.create_cq(4).wait().unwrap(),
            pd: device.alloc_pd().wait().unwrap(),
            device,
        }
    }

    fn qp(&self) -> Qp {
        let init = QpInit::rc(&self.cq, &self.cq);
        self.pd.create_qp(init).wait().unwrap()
    }
}

#[test]
fn connections_are_made_by_the_providers_verbs() {
    let wired = Arc::new(Wired::default());
    let (client, server) = (Host::new(&wired), Host::new(&wired));
    block_on(async {
        let mut listener = listen(&server.device, "10.0.0.2:7174").await.unwrap();
        let asks = connect(&client.device, "10.0.0.2:7174", client.qp()).private_data(b"hello");
        let answers = async {
            let request = listener.accept().await;
            assert_eq!(request.private_data(), b"hello");
            assert_eq!(request.initiator_depth(), 16);
            request.accept(server.qp()).private_data(b"welcome").await
        };
        let (connected, accepted) = join(asks.into_future(), answers).await;
        let (connected, accepted) = (connected.unwrap(), accepted.unwrap());
        assert_eq!(connected.private_data(), b"welcome");
        assert!(connected.is_established() && accepted.is_established());

        // Both ends are listed, with what an adapter's connections lack.
        let info = connected.info();
        let listed = verbs_cm::connections();
        assert!(listed.contains(&info) && listed.contains(&accepted.info()));
        assert_eq!(info.remote, "10.0.0.2:7174".parse().unwrap());
        assert!(info.local.is_some() && info.qpn.is_some() && info.is_offloaded);
        assert_eq!(info.transport, Some(TransportType::Iwarp));
        assert_eq!(info.state, ConnectionState::Established);
        assert_eq!(info.host.missing().count(), 3);

        // B8: no event before, the end once, on the other side.
        let closed = accepted.closed();
        drop(connected);
        assert_eq!(accepted.ended(), Some(Ended::Peer), "the event has come");
        closed.await.unwrap();
        assert!(!accepted.is_established());

        let refused = connect(&client.device, "10.0.0.9:1", client.qp()).await;
        let refused = refused.unwrap_err();
        assert_eq!(refused.to_string(), "nobody listens at 10.0.0.9:1");
        assert!(refused.qp.is_some(), "it can be used again");

        let asks = connect(&client.device, "10.0.0.2:7174", client.qp());
        let answers = async { listener.accept().await.reject(b"full") };
        let (rejected, _) = join(asks.into_future(), answers).await;
        let rejected = rejected.unwrap_err().to_string();
        assert!(rejected.contains("\"full\""), "{rejected}");

        let asks = connect(&client.device, "10.0.0.2:7174", client.qp());
        let answers = async { drop(listener.accept().await) };
        let (dropped, ()) = join(asks.into_future(), answers).await;
        assert!(matches!(dropped.unwrap_err().error, Error::Rejected(_)));
    });
    assert_eq!(wired.special.load(Relaxed), 0, "no MAD was built (B3)");
    let Host { cq, pd, device } = client;
    drop((cq, pd));
    device.close().wait().expect("nothing is left on it");
}

#[test]
fn a_queue_pair_with_an_endpoint_is_busy() {
    let wired = Arc::new(Wired::default());
    let host = Host::new(&wired);
    struct Deaf;
    impl verbs_core::CmSink for Deaf {
        fn event(&self, _: CmEvent) {}
    }
    let local = SocketAddr::from(([10, 0, 0, 1], 5));
    let listener = host.device.bind_cm(local, Arc::new(Deaf)).wait().unwrap();
    let taken = host.device.bind_cm(local, Arc::new(Deaf)).wait();
    assert_eq!(taken.unwrap_err(), VerbError::AddrInUse { port: 5 });
    listener.listen(1).wait().unwrap();
    let endpoint = host
        .device
        .bind_cm(([10, 0, 0, 1], 0).into(), Arc::new(Deaf));
    let endpoint = endpoint.wait().unwrap();
    let qp = host.qp();
    let param = CmParam::default();
    // The request is dropped by the deaf listener, and rejected by that.
    let reply = endpoint
        .connect(&qp, local, param, Vec::new())
        .wait()
        .unwrap();
    assert_eq!(reply, CmReply::Rejected(Box::default()));
    let qp = {
        let (sender, receiver) = std::sync::mpsc::channel();
        struct Keeps(std::sync::mpsc::Sender<CmRequest>);
        impl verbs_core::CmSink for Keeps {
            fn event(&self, event: CmEvent) {
                if let CmEvent::ConnectRequest(request) = event {
                    self.0.send(request).unwrap();
                }
            }
        }
        listener.events_to(Arc::new(Keeps(sender)));
        let _ = endpoint.connect(&qp, local, param, Vec::new()).issue(drop);
        let request = receiver.recv().unwrap();
        let busy = qp.destroy().wait().expect_err("a connect is under way");
        let qp = busy.handle.unwrap();
        request.endpoint.reject(Vec::new()).wait().unwrap();
        qp
    };
    qp.destroy().wait().expect("nobody has it any more");
}

/// Goal: a provider with these verbs keeps the contract, the order of events and the backlog among it.
#[test]
fn the_provider_conforms() {
    conformance::run(|| Subject::new(Arc::new(Wired::default())));
}

/// Goal: more private data than the provider carries is refused with both numbers, and the queue pair comes back;
/// depths of READs are what the provider has.
#[test]
fn the_providers_limits_are_kept() {
    let wired = Arc::new(Wired::default());
    let host = Host::new(&wired);
    let addr = "10.0.0.2:7174";
    let mut listener = listen(&host.device, addr).wait().unwrap();
    let asks = connect(&host.device, addr, host.qp()).private_data(&[0; 600]);
    let refused = asks.wait().unwrap_err();
    assert_eq!(refused.error, Error::PrivateData { got: 600, max: 512 });
    let qp = refused.qp.unwrap();
    block_on(async {
        let asks = connect(&host.device, addr, qp).initiator_depth(40);
        let answers = async {
            let request = listener.accept().await;
            assert_eq!(request.initiator_depth(), 16);
            let data = [0; 600];
            let refused = request.accept(host.qp()).private_data(&data).await;
            assert_eq!(
                refused.unwrap_err().error,
                Error::PrivateData { got: 600, max: 512 }
            );
        };
        let (rejected, ()) = join(asks.into_future(), answers).await;
        assert!(matches!(rejected.unwrap_err().error, Error::Rejected(_)));
    });
}

/// Goal: an address that another endpoint has is named by the connection manager.
#[test]
fn an_address_in_use_is_named() {
    let host = Host::new(&Arc::new(Wired::default()));
    let addr = SocketAddr::from(([10, 0, 0, 2], 7174));
    let _first = listen(&host.device, addr).wait().unwrap();
    let second = listen(&host.device, addr).wait().unwrap_err();
    assert_eq!(second, Error::AddressInUse(addr));
}

#[test]
fn a_device_without_any_way_says_so() {
    /// Neither has the verbs nor a queue pair 1.
    #[derive(Default)]
    struct Without(Null);
    impl Provider for Without {
        fn issue(&self, command: AnyCommand<'_>) {
            self.0.issue(command);
        }
    }
    let device = Device::open(Arc::new(Without::default())).wait().unwrap();
    struct Deaf;
    impl verbs_core::CmSink for Deaf {
        fn event(&self, _: CmEvent) {}
    }
    let bind = device.bind_cm(([10, 0, 0, 1], 5).into(), Arc::new(Deaf));
    let refused = bind.wait().unwrap_err();
    assert_eq!(refused, VerbError::Unsupported(Attr::Verb));
    let error = Manager::of(&device).open().wait().unwrap_err();
    assert_eq!(error, Error::NoManager(1));
    device.close().wait().expect("nothing is left on it");
}
