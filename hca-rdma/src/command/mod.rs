//! Carries out commands on the command threads, and refuses beforehand those that cannot succeed.

pub(crate) mod device;
mod limit;
mod memory;
pub(crate) mod pair;
pub(crate) mod queue;
mod window;
mod xrc;

use verbs_core::verb::Verb;
use verbs_core::{AnyCommand, Attr, DeviceCap, Error, Kind, Pending, PendingCommand, QpState};

use crate::cm::verbs as cm;
use crate::shared::Shared;

/// Whether the command can be carried out, as far as its arguments show: refusing early is cheap.
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
        A::AllocMw(args) => window::check_alloc(nic, args),
        A::AllocXrcd(_) | A::CreateTargetQp(_) | A::OpenTargetQp(_) => xrc::check(nic),
        A::RegMr(args) => memory::check_register(nic, args),
        A::ReregMr(args) => memory::check_again(nic, args),
        A::BindCm(_) | A::ListenCm(_) | A::RejectCm(_) => cm::check(nic, None),
        A::ConnectCm(args) => cm::check(nic, args.target().qp().as_deref()),
        A::AcceptCm(args) => cm::check(nic, args.target().qp().as_deref()),
        other if is_offered(other.kind()) => Ok(()),
        other => Err(why_not(nic, other.kind())),
    }
}

/// Why a verb that this provider does not have is refused.
fn why_not(nic: &Shared, kind: Kind) -> Error {
    let (cap, attr) = match kind {
        Kind::ResizeQp => (DeviceCap::RESIZE_MAX_WR, Attr::MaxSendWr),
        Kind::AllocMr => (DeviceCap::MEM_MGT_EXTENSIONS, Attr::PageList),
        Kind::CreateFmrPool => (DeviceCap::FMR_POOL, Attr::MaxFmr),
        _ => return Error::Unsupported(Attr::Verb),
    };
    let lacked = limit::require(nic, cap, attr).err();
    lacked.unwrap_or(Error::Unsupported(Attr::Verb))
}

/// Whether that verb is offered, for verbs whose arguments cannot be wrong.
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
            | K::DeallocMw
            | K::DeallocXrcd
            | K::UnbindCm
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
        P::QueryPort(args, pending) => answer(pending, |_| device::query_port(nic, args.port)),
        P::QueryPkey(args, pending) => answer(pending, |_| device::query_pkey(nic, &args)),
        P::QueryGid(args, pending) => answer(pending, |_| device::query_gid(nic, &args)),
        P::AllocPd(args, pending) => answer(pending, |_| memory::alloc_pd(nic, args)),
        P::RegMr(args, pending) => answer(pending, |pd| memory::register(nic, args, pd)),
        P::ReregMr(args, pending) => answer(pending, |mr| memory::register_again(nic, args, mr)),
        P::AllocMw(args, pending) => answer(pending, |pd| window::alloc(nic, args, pd)),
        P::AllocXrcd(args, pending) => answer(pending, |_| xrc::alloc(nic, args)),
        P::CreateTargetQp(args, pending) => {
            answer(pending, |xrcd| xrc::create_target(nic, args, xrcd));
        }
        P::OpenTargetQp(args, pending) => answer(pending, |xrcd| xrc::open_target(nic, args, xrcd)),
        P::CreateAh(args, pending) => answer(pending, |pd| memory::create_ah(nic, args, pd)),
        P::ModifyAh(args, pending) => answer(pending, |ah| memory::modify_ah(args.av, ah)),
        P::CreateCq(args, pending) => answer(pending, |_| queue::create_cq(nic, args)),
        P::ResizeCq(args, pending) => answer(pending, |cq| queue::resize_cq(args.cqe, cq)),
        P::ModifyCq(args, pending) => answer(pending, |cq| queue::modify_cq(&args, cq)),
        P::CreateSrq(args, pending) => answer(pending, |pd| queue::create_srq(nic, args, pd)),
        P::ModifySrq(args, pending) => answer(pending, |srq| queue::modify_srq(&args, srq)),
        P::QuerySrq(_, pending) => answer(pending, queue::query_srq),
        P::CreateQp(args, pending) => answer(pending, |pd| pair::create(nic, args, pd)),
        P::ModifyQp(args, pending) => answer(pending, |qp| {
            pair::modify(&args.attr, qp)?;
            if let Some(QpState::Err | QpState::Reset) = args.attr.state {
                cm::left(qp);
            }
            Ok(())
        }),
        P::QueryQp(args, pending) => answer(pending, |qp| Ok(args.answer(pair::query(qp)?))),
        P::AttachMcast(args, pending) => answer(pending, |qp| pair::attach(nic, args, qp)),
        P::BindCm(args, pending) => answer(pending, |_| cm::bind(nic, args)),
        P::ListenCm(args, pending) => answer(pending, |endpoint| cm::listen(&args, endpoint)),
        P::ConnectCm(args, pending) => cm::connect(nic, args, pending),
        P::AcceptCm(args, pending) => cm::accept(nic, &args, pending),
        P::RejectCm(args, pending) => answer(pending, |endpoint| cm::reject(&args, endpoint)),
        destroy => carry_out_destroy(nic, destroy),
    }
}

/// Carries out a destroy, which always succeeds.
fn carry_out_destroy(nic: &Shared, command: PendingCommand) {
    use PendingCommand as P;
    match command {
        P::DeallocPd(_, pending) => finish(pending, |pd| memory::dealloc_pd(nic, pd)),
        P::DeregMr(_, pending) => finish(pending, |mr| memory::deregister(nic, mr)),
        P::DeallocMw(_, pending) => finish(pending, |mw| window::dealloc(nic, mw)),
        P::DeallocXrcd(_, pending) => finish(pending, |xrcd| xrc::dealloc(nic, xrcd)),
        P::DestroyAh(_, pending) => finish(pending, |ah| memory::destroy_ah(nic, ah)),
        P::DestroyCq(_, pending) => finish(pending, |cq| queue::destroy_cq(nic, cq)),
        P::DestroySrq(_, pending) => finish(pending, |srq| queue::destroy_srq(nic, srq)),
        P::DestroyQp(_, pending) => finish(pending, |qp| pair::destroy(nic, qp)),
        P::UnbindCm(_, pending) => finish(pending, |endpoint| cm::unbind(nic, endpoint)),
        P::DetachMcast(_, pending) => finish(pending, |mcast| pair::detach(nic, mcast)),
        other => other.refuse(Error::Unsupported(Attr::Verb)),
    }
}

/// Completes a command with the result of `carry_out` for its target, after that has released everything (K6).
fn answer<V: Verb>(
    pending: Pending<V>,
    carry_out: impl FnOnce(&V::Target) -> Result<V::Output, V::Error>,
) {
    let result = carry_out(pending.target());
    pending.complete(result);
}

/// Completes a destroy when `carry_out` has done it.
fn finish<V: Verb<Output = ()>>(pending: Pending<V>, carry_out: impl FnOnce(&V::Target)) {
    answer(pending, |target| {
        carry_out(target);
        Ok(())
    });
}
