//! Carries out commands, on the command threads, and says before which cannot be.

pub(crate) mod device;
mod memory;
mod pair;
mod queue;

use verbs_core::{AnyCommand, Attr, Error, Kind, PendingCommand};

use crate::shared::Shared;

/// Whether the command can be carried out, as far as its arguments tell: refused early is refused cheaply.
pub(crate) fn acceptable(nic: &Shared, command: &AnyCommand<'_>) -> Result<(), Error> {
    use AnyCommand as A;
    match command {
        A::QueryPort(args) => device::check_port(nic, args.port),
        A::QueryPkey(args) => device::check_port(nic, args.port),
        A::QueryGid(args) => device::check_port(nic, args.port),
        A::CreateCq(args) => queue::check_cq(nic, args),
        A::ResizeCq(args) => queue::check_cqe(nic, args.cqe),
        A::CreateSrq(args) => queue::check_srq(nic, args),
        A::ModifySrq(args) => queue::check_srq_change(nic, args),
        A::CreateQp(args) => pair::check_create(nic, args),
        A::ModifyQp(args) => pair::check_modify(nic, args),
        A::AttachMcast(args) => pair::check_attach(nic, args),
        A::CreateAh(args) => device::check_av(nic, &args.av),
        A::ModifyAh(args) => device::check_av(nic, &args.av),
        A::RegMr(args) => memory::check_register(nic, args),
        A::ReregMr(args) => memory::check_again(nic, args),
        other if is_offered(other.kind()) => Ok(()),
        _ => Err(Error::Unsupported(Attr::Verb)),
    }
}

/// Whether there is such a verb, among those whose arguments cannot be wrong.
fn is_offered(kind: Kind) -> bool {
    use Kind as K;
    matches!(
        kind,
        K::AllocPd
            | K::DeallocPd
            | K::DestroyCq
            | K::ModifyCq
            | K::QuerySrq
            | K::DestroySrq
            | K::QueryQp
            | K::DestroyQp
            | K::DetachMcast
            | K::DestroyAh
            | K::DeregMr
    )
}

/// Carries out a command. Waits for the kernel.
pub(crate) fn carry_out(nic: &Shared, command: PendingCommand) {
    use PendingCommand as P;
    if !command.kind().destroys() {
        if command.cancelled() {
            return command.refuse(Error::Cancelled);
        }
        if nic.is_removed() {
            return command.refuse(Error::DeviceRemoved);
        }
    }
    match command {
        P::QueryPort(args, pending) => pending.complete(device::query_port(nic, args.port)),
        P::QueryPkey(args, pending) => pending.complete(device::query_pkey(nic, &args)),
        P::QueryGid(args, pending) => pending.complete(device::query_gid(nic, &args)),
        P::AllocPd(args, pending) => pending.complete(memory::alloc_pd(nic, args)),
        P::DeallocPd(_, pending) => memory::dealloc_pd(nic, pending),
        P::RegMr(args, pending) => memory::register(nic, args, pending),
        P::ReregMr(args, pending) => memory::register_again(nic, args, pending),
        P::DeregMr(_, pending) => memory::deregister(nic, pending),
        P::CreateAh(args, pending) => memory::create_ah(nic, args, pending),
        P::ModifyAh(args, pending) => memory::modify_ah(args, pending),
        P::DestroyAh(_, pending) => memory::destroy_ah(nic, pending),
        P::CreateCq(args, pending) => pending.complete(queue::create_cq(nic, args)),
        P::ResizeCq(args, pending) => queue::resize_cq(args, pending),
        P::ModifyCq(args, pending) => queue::modify_cq(args, pending),
        P::DestroyCq(_, pending) => queue::destroy_cq(nic, pending),
        P::CreateSrq(args, pending) => queue::create_srq(nic, args, pending),
        P::ModifySrq(args, pending) => queue::modify_srq(args, pending),
        P::QuerySrq(_, pending) => queue::query_srq(pending),
        P::DestroySrq(_, pending) => queue::destroy_srq(nic, pending),
        P::CreateQp(args, pending) => pair::create(nic, args, pending),
        P::ModifyQp(args, pending) => pair::modify(args, pending),
        P::QueryQp(_, pending) => pair::query(pending),
        P::DestroyQp(_, pending) => pair::destroy(nic, pending),
        P::AttachMcast(args, pending) => pair::attach(nic, args, pending),
        P::DetachMcast(_, pending) => pair::detach(nic, pending),
        other => other.refuse(Error::Unsupported(Attr::Verb)),
    }
}

/// The argument's value is out of range, if it is.
fn at_most(attr: Attr, got: u32, max: u32) -> Result<(), Error> {
    match got <= max {
        true => Ok(()),
        false => Err(Error::Invalid { attr, got, max }),
    }
}
