//! A host with what a program needs for a connection.

use std::net::IpAddr;
use std::sync::Arc;

use hca_sim::Hca;
use verbs_cm::Connection;
use verbs_core::{
    Access, Cq, Device, Memory, Mr, Mtu, Pd, Qp, QpInit, QpType, Recv, Send, Wc, WcOpcode,
};
use verbs_simulator::Sim;

pub(crate) struct Host {
    // Dropped in this order.
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
    pub(crate) device: Device,
    pub(crate) hca: Arc<Hca>,
}

impl Host {
    pub(crate) fn on(hca: Arc<Hca>) -> Self {
        let device = hca.open().wait().unwrap();
        let pd = device.alloc_pd().wait().unwrap();
        let memory = Memory::alloc(4096).unwrap();
        let access = Access::LOCAL_WRITE | Access::REMOTE_WRITE | Access::REMOTE_READ;
        Self {
            cq: device.create_cq(64).wait().unwrap(),
            mr: pd.register(memory, access).wait().unwrap(),
            pd,
            device,
            hca,
        }
    }

    /// A host of a simulated network.
    pub(crate) fn in_sim(sim: &Sim, addr: IpAddr) -> Self {
        let port = sim.network().attach(&[addr]);
        Self::on(Hca::over(port).clock(sim.clock().clone()).build())
    }

    /// A host of a simulated network whose port has that MTU.
    pub(crate) fn in_sim_with(sim: &Sim, addr: IpAddr, mtu: Mtu) -> Self {
        let port = sim.network().attach(&[addr]).mtu(mtu);
        Self::on(Hca::over(port).clock(sim.clock().clone()).build())
    }

    pub(crate) fn qp(&self) -> Qp {
        self.qp_of(QpType::Rc)
    }

    pub(crate) fn qp_of(&self, qp_type: QpType) -> Qp {
        let init = QpInit::of(qp_type, &self.cq, &self.cq).inline(64);
        self.pd.create_qp(init).wait().unwrap()
    }

    /// Waits for a message, and sends one back.
    pub(crate) async fn answer(&mut self, connection: &mut Connection, text: &[u8]) -> Vec<u8> {
        connection
            .post_recv(Recv::new(1).into(self.mr.slice(0..64)))
            .unwrap();
        let got = self.receive().await;
        connection.post_send(Send::new(2).inline(text)).unwrap();
        got
    }

    /// Sends a message, and waits for the reply.
    pub(crate) async fn ask(&mut self, connection: &mut Connection, text: &[u8]) -> Vec<u8> {
        connection
            .post_recv(Recv::new(1).into(self.mr.slice(0..64)))
            .unwrap();
        connection.post_send(Send::new(2).inline(text)).unwrap();
        self.receive().await
    }

    async fn receive(&mut self) -> Vec<u8> {
        loop {
            self.cq.ready().await.unwrap();
            let mut wcs = [Wc::default(); 1];
            for wc in self.cq.poll(&mut wcs).iter() {
                assert!(wc.is_ok(), "{wc:?}");
                if wc.opcode == WcOpcode::Recv {
                    let mut bytes = vec![0; wc.byte_len as usize];
                    self.mr.read(0, &mut bytes).unwrap();
                    return bytes;
                }
            }
        }
    }

    /// Destroys everything: the connection manager has released all that it had.
    pub(crate) fn close(self) {
        let Self {
            cq,
            mr,
            pd,
            device,
            hca,
        } = self;
        cq.destroy().wait().unwrap();
        mr.dereg().wait().unwrap();
        pd.dealloc().wait().unwrap();
        // On the wall clock, the engine's thread may be about to leave the manager.
        device.close_when_idle().wait().unwrap();
        drop(hca);
    }
}
