//! A special queue pair with its buffers: datagrams go out of it and come in.

use std::collections::VecDeque;

use crate::addr::{Gid, Psn, QKey};
use crate::cq::Cq;
use crate::error::Error;
use crate::mad::process::GRH_LEN;
use crate::mad::{Address, MAD_LEN, MadBytes};
use crate::mem::{Access, Memory};
use crate::mr::Mr;
use crate::pd::Pd;
use crate::qp::{Qp, QpInit};
use crate::qp_attr::QpAttr;
use crate::qp_state::{QpState, QpType};
use crate::wc::{Wc, WcOpcode};
use crate::wr::{Datagram, Recv, Send};

/// Receives that are kept posted. A burst of requests that is larger loses some, which their senders
/// repeat.
pub(super) const RECVS: u32 = 512;
/// Datagrams that may be on their way out.
pub(super) const SENDS: u32 = 256;
/// Datagrams that wait for one of these at most; more are dropped, as a network would.
const BACKLOG_MAX: usize = 8192;
/// A receive: a GRH, then the datagram, at a multiple of a cache line.
const STRIDE: usize = 320;
/// Marks the work requests of receives; the rest is the number of the buffer.
const RECV: u64 = 1 << 32;

/// A datagram with what came along with it.
pub(super) struct Arrival {
    pub(super) wc: Wc,
    pub(super) grh: [u8; GRH_LEN],
    pub(super) mad: MadBytes,
}

/// One special queue pair.
pub(super) struct Wire {
    qp: Qp,
    mr: Mr,
    qkey: QKey,
    /// Send buffers that are free.
    free: Vec<u32>,
    backlog: VecDeque<(Address, MadBytes)>,
    pub(super) dropped: u64,
    /// Datagrams that have left, or never will.
    left: u64,
}

impl Wire {
    /// Makes the queue pair, with its receives posted.
    pub(super) async fn open(pd: &Pd, cq: &Cq, qp_type: QpType) -> Result<Self, Error> {
        let bytes = RECVS as usize * STRIDE + SENDS as usize * MAD_LEN;
        let mr = pd
            .register(Memory::alloc(bytes)?, Access::LOCAL_WRITE)
            .await?;
        let init = QpInit::of(qp_type, cq, cq).depth(SENDS, RECVS);
        let mut qp = pd.create_qp(init).await?;
        let qkey = match qp_type {
            QpType::Gsi => QKey::GSI,
            _ => QKey(0),
        };
        qp.modify(QpAttr::init_special(qkey)).await?;
        for buffer in 0..RECVS {
            post_receive(&mut qp, &mr, buffer);
        }
        qp.modify(QpAttr::to(QpState::Rtr)).await?;
        qp.modify(QpAttr::rts_of(qp_type, Psn::new(0))).await?;
        Ok(Self {
            qp,
            mr,
            qkey,
            free: (0..SENDS).rev().collect(),
            backlog: VecDeque::new(),
            dropped: 0,
            left: 0,
        })
    }

    /// Takes a completion of this queue pair: what has come, if something has.
    pub(super) fn completed(&mut self, wc: &Wc) -> Option<Arrival> {
        let buffer = (wc.wr_id & (RECV - 1)) as u32;
        if wc.wr_id & RECV == 0 {
            self.free.push(buffer);
            self.left += 1;
            return None;
        }
        let whole =
            wc.is_ok() && wc.opcode == WcOpcode::Recv && wc.byte_len as usize == GRH_LEN + MAD_LEN;
        let arrival = whole.then(|| self.read(wc, buffer)).flatten();
        if wc.is_ok() {
            post_receive(&mut self.qp, &self.mr, buffer);
        }
        arrival
    }

    /// Sends a datagram, or keeps it until there is room. Call it under NoBlock, as what results from it
    /// may be a completion here.
    pub(super) fn send(&mut self, to: Address, mad: &MadBytes) {
        if !self.backlog.is_empty() || !self.post(to, mad) {
            if self.backlog.len() >= BACKLOG_MAX {
                self.dropped += 1;
            } else {
                self.backlog.push_back((to, *mad));
            }
        }
    }

    /// Sends what had no room, as far as there is some now.
    pub(super) fn flush(&mut self) {
        while let Some((to, mad)) = self.backlog.pop_front() {
            if !self.post(to, &mad) {
                self.backlog.push_front((to, mad));
                return;
            }
        }
    }

    /// Whether there was room. A datagram that cannot be posted for another reason is lost.
    fn post(&mut self, to: Address, mad: &MadBytes) -> bool {
        let Some(buffer) = self.free.pop() else {
            return false;
        };
        let at = RECVS as usize * STRIDE + buffer as usize * MAD_LEN;
        let written = self.mr.write(at, mad);
        let datagram = Datagram {
            av: to.av,
            qpn: to.qpn,
            qkey: self.qkey,
            pkey_index: to.pkey_index,
        };
        let send = Send::new(u64::from(buffer))
            .from(self.mr.slice(at..at + MAD_LEN))
            .to(&datagram)
            .signaled();
        if written.is_err() || self.qp.post_send(send).is_err() {
            self.free.push(buffer);
            self.dropped += 1;
            self.left += 1;
        }
        true
    }

    fn read(&self, wc: &Wc, buffer: u32) -> Option<Arrival> {
        let at = buffer as usize * STRIDE;
        let mut arrival = Arrival {
            wc: *wc,
            grh: [0; GRH_LEN],
            mad: [0; MAD_LEN],
        };
        self.mr.read(at, &mut arrival.grh).ok()?;
        self.mr.read(at + GRH_LEN, &mut arrival.mad).ok()?;
        Some(arrival)
    }

    /// Datagrams that were taken over so far: those that have left, are on their way, or wait.
    pub(super) fn taken(&self) -> u64 {
        let here = SENDS as usize - self.free.len() + self.backlog.len();
        self.left + here as u64
    }

    /// Whether the first so many of these have left, or never will.
    pub(super) fn has_left(&self, taken: u64) -> bool {
        self.left >= taken
    }

    /// Its queue pair's number.
    pub(super) fn qpn(&self) -> crate::addr::Qpn {
        self.qp.qpn()
    }
}

/// A queue pair that cannot take its receive back has gone with its device.
fn post_receive(qp: &mut Qp, mr: &Mr, buffer: u32) {
    let at = buffer as usize * STRIDE;
    let recv = Recv::new(RECV | u64::from(buffer)).into(mr.slice(at..at + GRH_LEN + MAD_LEN));
    let _ = qp.post_recv(recv);
}

/// The non-empty entries of a port's GID table.
pub(super) async fn gids(
    device: &crate::sync::Arc<crate::device::DeviceCore>,
    port: u8,
    entries: u16,
) -> Result<Vec<(u16, Gid)>, Error> {
    let mut gids = Vec::new();
    for index in 0..entries {
        // An entry that goes away in the meantime counts as empty.
        match device.query_gid(port, index).await {
            Ok(gid) if gid != Gid::default() => gids.push((index, gid)),
            Ok(_) | Err(Error::Invalid { .. }) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(gids)
}
