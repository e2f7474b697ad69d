//! Two connected queue pairs on one device, each with its queues and a region.

use std::time::{Duration, Instant};

use verbs_core::{
    Access, Av, Cq, Device, Gid, Lid, LinkLayer, Memory, Mr, Path, Pd, Psn, QKey, Qp, QpAttr,
    QpInit, QpType, Remote, Wc,
};

/// Bytes of a region.
pub(crate) const BYTES: usize = 8192;

/// The Q_Key of datagrams.
pub(crate) const QKEY: QKey = QKey(0x1234);

/// How long a completion may take.
const PATIENCE: Duration = Duration::from_secs(60);

pub(crate) struct End {
    pub(crate) qp: Qp,
    pub(crate) mr: Mr,
    pub(crate) cq: Cq,
}

impl End {
    pub(crate) fn new(device: &Device, pd: &Pd, qp_type: QpType) -> Self {
        let cq = device.create_cq(64).wait().unwrap();
        let init = QpInit::of(qp_type, &cq, &cq)
            .depth(16, 16)
            .sges(2, 2)
            .inline(64);
        let qp = pd.create_qp(init).wait().unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE;
        let mr = pd
            .register(Memory::alloc(BYTES).unwrap(), access)
            .wait()
            .unwrap();
        Self { qp, mr, cq }
    }

    /// The next completion.
    pub(crate) fn completion(&mut self) -> Wc {
        let start = Instant::now();
        loop {
            let mut wcs = [Wc::default()];
            if let [wc] = self.cq.poll(&mut wcs) {
                return *wc;
            }
            assert!(start.elapsed() < PATIENCE, "no completion comes");
            std::thread::yield_now();
        }
    }

    pub(crate) fn write(&self, bytes: &[u8]) {
        self.mr.memory().write(0, bytes).unwrap();
    }

    pub(crate) fn read(&self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.mr.memory().read(0, &mut bytes).unwrap();
        bytes
    }

    pub(crate) fn remote(&self) -> Remote {
        self.mr.remote(0)
    }
}

/// The address of the device's port, for packets to itself.
pub(crate) fn way(device: &Device) -> Av {
    let port = device.query_port(1).wait().unwrap();
    if port.link_layer == LinkLayer::InfiniBand {
        return Av::to_lid(1, Lid(port.lid.0));
    }
    let gid = |index: u16| -> Gid { device.query_gid(1, index).wait().unwrap() };
    let index = (0..port.gid_tbl_len)
        .find(|&index| gid(index) == port.gid)
        .unwrap();
    Av::to_gid(1, index, port.gid)
}

/// A connected pair.
pub(crate) fn connected(device: &Device, pd: &Pd, qp_type: QpType) -> (End, End) {
    let (left, right) = (End::new(device, pd, qp_type), End::new(device, pd, qp_type));
    connect(device, &left, &right);
    (left, right)
}

/// Connects two ends of one type.
pub(crate) fn connect(device: &Device, left: &End, right: &End) {
    let (av, mtu) = (way(device), device.query_port(1).wait().unwrap().active_mtu);
    let access = match left.qp.qp_type() {
        QpType::Rc => Access::REMOTE,
        _ => Access::REMOTE_WRITE,
    };
    for (own, peer) in [(left, right), (right, left)] {
        let rq_psn = Psn::new(peer.qp.qpn().value());
        let dest_qpn = peer.qp.qpn();
        own.qp.init(1, access).wait().unwrap();
        own.qp
            .ready_to_receive(&Path {
                av,
                dest_qpn,
                rq_psn,
                mtu,
            })
            .wait()
            .unwrap();
        let mut ready = QpAttr::rts_of(own.qp.qp_type(), Psn::new(own.qp.qpn().value()));
        // 8.6 s in all: packets go over sockets, and a thread may wait for its processor.
        ready.timeout = ready.timeout.map(|_| 18);
        own.qp.modify(ready).wait().unwrap();
    }
}

/// An end for datagrams, ready to use.
pub(crate) fn datagrams(device: &Device, pd: &Pd) -> End {
    let end = End::new(device, pd, QpType::Ud);
    end.qp.init_datagram(1, QKEY).wait().unwrap();
    end.qp.ready_to_receive_datagrams().wait().unwrap();
    end.qp.ready_to_send(Psn::new(1)).wait().unwrap();
    end
}
