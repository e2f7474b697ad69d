//! The verbs: one function each, which takes its command apart and hands it to the object that it concerns. Those of
//! memory and connections need the port only, the others the tables of the HCA too.

mod address;
pub(super) mod cm;
mod cq;
pub(super) mod device;
mod memory;
mod qp;
mod srq;
#[cfg(all(test, not(verbs_loom)))]
mod tests;
mod windows;
pub(super) mod xrc;

use verbs_core::{AnyCommand, Attr, Error, Why};

use crate::hca::Hca;

/// Has a verb done: those of the device and of memory here, the others in turn.
pub(super) fn issue(hca: &Hca, command: AnyCommand<'_>) {
    match command {
        AnyCommand::OpenDevice(command) => device::open_device(hca, command),
        AnyCommand::CloseDevice(command) => device::close_device(hca, command),
        AnyCommand::QueryDevice(command) => device::query_device(hca, command),
        AnyCommand::QueryPort(command) => device::query_port(hca, command),
        AnyCommand::QueryPkey(command) => device::query_pkey(hca, command),
        AnyCommand::QueryGid(command) => device::query_gid(hca, command),
        AnyCommand::ModifyDevice(command) => device::modify_device(hca, command),
        AnyCommand::ModifyPort(command) => device::modify_port(hca, command),
        AnyCommand::NextEvent(command) => command.park(),
        AnyCommand::CallExtension(command) => device::call_extension(hca, command),
        AnyCommand::AllocPd(command) => memory::alloc_pd(hca, command),
        AnyCommand::DeallocPd(command) => memory::dealloc_pd(hca, command),
        AnyCommand::RegMr(command) => memory::reg_mr(&hca.port, command),
        AnyCommand::RegSharedMr(command) => memory::reg_shared_mr(&hca.port, command),
        AnyCommand::QueryMr(command) => memory::query_mr(command),
        AnyCommand::ReregMr(command) => memory::rereg_mr(&hca.port, command),
        AnyCommand::DeregMr(command) => memory::dereg_mr(&hca.port, command),
        AnyCommand::AllocMr(command) => windows::alloc_mr(&hca.port, command),
        AnyCommand::RegPages(command) => windows::reg_pages(&hca.port, command),
        AnyCommand::FreeMr(command) => windows::free_mr(&hca.port, command),
        AnyCommand::AllocMw(command) => windows::alloc_mw(&hca.port, command),
        AnyCommand::QueryMw(command) => windows::query_mw(&hca.port, command),
        AnyCommand::DeallocMw(command) => windows::dealloc_mw(&hca.port, command),
        AnyCommand::CreateFmrPool(command) => windows::create_fmr_pool(&hca.port, command),
        AnyCommand::FlushFmrPool(command) => windows::flush_fmr_pool(&hca.port, command),
        AnyCommand::DestroyFmrPool(command) => windows::destroy_fmr_pool(&hca.port, command),
        other => issue_to_queues(hca, other),
    }
}

/// The verbs of queues and of address objects for datagrams.
fn issue_to_queues(hca: &Hca, command: AnyCommand<'_>) {
    match command {
        AnyCommand::CreateCq(command) => cq::create_cq(hca, command),
        AnyCommand::QueryCq(command) => cq::query_cq(command),
        AnyCommand::ResizeCq(command) => cq::resize_cq(hca, command),
        AnyCommand::ModifyCq(command) => cq::modify_cq(hca, command),
        AnyCommand::DestroyCq(command) => cq::destroy_cq(hca, command),
        AnyCommand::CreateSrq(command) => srq::create_srq(hca, command),
        AnyCommand::ModifySrq(command) => srq::modify_srq(hca, command),
        AnyCommand::QuerySrq(command) => srq::query_srq(command),
        AnyCommand::DestroySrq(command) => srq::destroy_srq(hca, command),
        AnyCommand::AllocXrcd(command) => xrc::alloc_xrcd(hca, command),
        AnyCommand::DeallocXrcd(command) => xrc::dealloc_xrcd(hca, command),
        AnyCommand::CreateTargetQp(command) => xrc::create_target_qp(hca, command),
        AnyCommand::OpenTargetQp(command) => xrc::open_target_qp(hca, command),
        AnyCommand::CreateQp(command) => qp::create_qp(hca, command),
        AnyCommand::ModifyQp(command) => qp::modify_qp(command),
        AnyCommand::ResizeQp(command) => qp::resize_qp(hca, command),
        AnyCommand::QueryQp(command) => qp::query_qp(command),
        AnyCommand::DestroyQp(command) => qp::destroy_qp(hca, command),
        AnyCommand::AttachMcast(command) => address::attach_mcast(hca, command),
        AnyCommand::DetachMcast(command) => address::detach_mcast(hca, command),
        AnyCommand::CreateAh(command) => address::create_ah(hca, command),
        AnyCommand::ModifyAh(command) => address::modify_ah(hca, command),
        AnyCommand::QueryAh(command) => address::query_ah(command),
        AnyCommand::DestroyAh(command) => address::destroy_ah(hca, command),
        other => issue_to_connections(hca, other),
    }
}

/// The verbs of connections that the provider makes.
fn issue_to_connections(hca: &Hca, command: AnyCommand<'_>) {
    match command {
        AnyCommand::BindCm(command) => cm::bind_cm(&hca.port, command),
        AnyCommand::ListenCm(command) => cm::listen_cm(command),
        AnyCommand::ConnectCm(command) => cm::connect_cm(command),
        AnyCommand::AcceptCm(command) => cm::accept_cm(command),
        AnyCommand::RejectCm(command) => cm::reject_cm(command),
        AnyCommand::UnbindCm(command) => cm::unbind_cm(command),
        other => other.refuse(Error::Unsupported(Attr::Verb)),
    }
}

fn mismatch(attr: Attr, why: Why) -> Error {
    Error::Mismatch { attr, why }
}

/// [`Error::Invalid`] for the first value that is beyond its maximum.
fn check_sizes(sizes: &[(Attr, u32, u32)]) -> Result<(), Error> {
    match sizes.iter().find(|&&(_, got, max)| got > max) {
        Some(&(attr, got, max)) => Err(Error::Invalid { attr, got, max }),
        None => Ok(()),
    }
}
