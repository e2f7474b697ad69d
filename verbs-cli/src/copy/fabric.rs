//! Two software HCAs on one loopback link, and how to break them.

use hca_sim::{Hca, Loopback};
use rustix::system::sysinfo;
use verbs_core::sync::Arc;
use verbs_core::{Access, Device, Error};

use super::endpoint::Endpoint;
use super::error::{CopyError, End};
use super::window::Plan;
use crate::cli::{CopyArgs, Fault};
use crate::wire::PORT;

/// The hardware that a copy runs on.
pub(crate) struct Fabric {
    link: Loopback,
    source: Arc<Hca>,
    destination: Arc<Hca>,
}

impl Fabric {
    /// Makes the hardware. A fault that hits the link is armed from the start.
    pub(crate) fn new(fault: Option<Fault>) -> Self {
        let link = Loopback::default();
        if let Some(Fault::Flip(chunk)) = fault {
            // Before the closing messages only WRITEs carry data, and they are posted in order.
            link.flip_bit(chunk);
        }
        let hca = |name| Hca::on(&link).name(name).build();
        let (source, destination) = (hca("source"), hca("destination"));
        Self {
            link,
            source,
            destination,
        }
    }

    /// Opens both devices and connects an end on each.
    pub(crate) async fn connect(
        &self,
        args: &CopyArgs,
        plan: &Plan,
    ) -> Result<(Endpoint, Endpoint), CopyError> {
        let sender = Self::end(End::Source, &self.source, args, plan, Access::LOCAL_WRITE).await?;
        let rights = Access::LOCAL_WRITE | Access::REMOTE_WRITE;
        let receiver = Self::end(End::Destination, &self.destination, args, plan, rights).await?;
        let psns = [self.link.draw_psn(), self.link.draw_psn()];
        sender.connect(&receiver, psns).await?;
        Ok((sender, receiver))
    }

    /// Takes the destination device away, as if it were pulled out.
    pub(crate) fn remove_destination(&self) {
        self.destination.remove();
    }

    async fn end(
        end: End,
        hca: &Arc<Hca>,
        args: &CopyArgs,
        plan: &Plan,
        access: Access,
    ) -> Result<Endpoint, CopyError> {
        let device = hca.open().await.map_err(|error| CopyError::Verb {
            end,
            doing: "open the device",
            error,
        })?;
        check(end, &device, args.chunk, plan).await?;
        Endpoint::new(end, device, plan, access).await
    }
}

/// Refuses what the device or the machine is too small for, naming the option to change.
pub(crate) async fn check(
    end: End,
    device: &Device,
    chunk: u32,
    plan: &Plan,
) -> Result<(), CopyError> {
    let failed = |doing| move |error| CopyError::Verb { end, doing, error };
    let attr = device.query().await.map_err(failed("query the device"))?;
    let port = device
        .query_port(PORT)
        .await
        .map_err(failed("query the port"))?;
    if chunk > port.max_msg_sz {
        let (got, max) = (chunk.into(), port.max_msg_sz.into());
        return Err(CopyError::BeyondDevice {
            option: "--chunk",
            got,
            end,
            max,
        });
    }
    // The inverse of what an endpoint asks for.
    let window = Endpoint::slots_within(attr.max_qp_wr, attr.max_cqe);
    if plan.slots() > window {
        let (got, max) = (plan.slots().into(), window.into());
        return Err(CopyError::BeyondDevice {
            option: "--window",
            got,
            end,
            max,
        });
    }
    let bytes = plan
        .buffer_bytes()
        .ok_or(Error::NoMemory)
        .map_err(failed("allocate the chunk buffers"))? as u64;
    let memory = sysinfo();
    let machine = memory.totalram.saturating_mul(memory.mem_unit.into());
    if bytes > attr.max_mr_size || bytes > machine / 2 {
        return Err(CopyError::Buffers {
            slots: plan.slots(),
            chunk,
            machine,
        });
    }
    Ok(())
}
