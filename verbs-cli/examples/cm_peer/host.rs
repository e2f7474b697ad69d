//! What every role works with.

use std::collections::VecDeque;
use std::error::Error;
use std::sync::Arc;

use hca_sim::Hca;
use verbs_core::{Access, Cq, Device, Memory, Mr, Pd, Qp, QpInit, QpType, Recv, Wc, WcOpcode};

pub(crate) type Failed = Box<dyn Error>;

/// Bytes before the payload of a datagram.
pub(crate) const GRH: usize = 40;
/// A buffer for one message.
pub(crate) const SLOT: usize = 256;
/// Buffers.
pub(crate) const SLOTS: usize = 64;

pub(crate) struct Host {
    pub(crate) cq: Cq,
    pub(crate) mr: Mr,
    pub(crate) pd: Pd,
    pub(crate) device: Device,
    early: VecDeque<Wc>,
}

impl Host {
    pub(crate) async fn new(hca: Arc<Hca>) -> Result<Self, Failed> {
        let device = hca.open().await?;
        let pd = device.alloc_pd().await?;
        let memory = Memory::alloc(SLOT * SLOTS)?;
        Ok(Self {
            cq: device.create_cq(256).await?,
            mr: pd.register(memory, Access::LOCAL_WRITE).await?,
            pd,
            device,
            early: VecDeque::new(),
        })
    }

    pub(crate) async fn qp(&self, qp_type: QpType) -> Result<Qp, Failed> {
        let init = QpInit::of(qp_type, &self.cq, &self.cq).inline(128);
        let qp = self.pd.create_qp(init.depth(16, 32)).await?;
        Ok(qp)
    }

    /// A connected queue pair with so many receives posted, into the slots from `first` on.
    pub(crate) async fn prepared(&self, first: usize, recvs: usize) -> Result<Qp, Failed> {
        let mut qp = self.qp(QpType::Rc).await?;
        qp.init(1, Access::LOCAL_WRITE).await?;
        for slot in first..first + recvs {
            qp.post_recv(self.recv(slot))?;
        }
        Ok(qp)
    }

    pub(crate) fn recv(&self, slot: usize) -> Recv<'static> {
        let at = slot % SLOTS * SLOT;
        Recv::new(slot as u64).into(self.mr.slice(at..at + SLOT))
    }

    pub(crate) fn text(&self, slot: u64, skip: usize, bytes: usize) -> Result<Vec<u8>, Failed> {
        let mut text = vec![0; bytes];
        self.mr
            .read(slot as usize % SLOTS * SLOT + skip, &mut text)?;
        Ok(text)
    }

    /// The next completion of that kind.
    pub(crate) async fn completion(&mut self, of: WcOpcode) -> Result<Wc, Failed> {
        loop {
            if let Some(at) = self.early.iter().position(|wc| wc.opcode == of) {
                return Ok(self.early.remove(at).ok_or("it was there")?);
            }
            self.cq.ready().await?;
            let mut wcs = [Wc::default(); 8];
            for wc in self.cq.poll(&mut wcs).iter() {
                if !wc.is_ok() {
                    return Err(format!("a completion says: {}", wc.status).into());
                }
                self.early.push_back(*wc);
            }
        }
    }
}
