//! Coming from IRPs: kernel drivers of Windows, and NDKPI.
//!
//! A verb is a request that is formatted, issued to a provider, and completed once, through one mechanism. It may be
//! issued from any context; the completion routine runs under NoBlock, which is what such drivers know as dispatch level.
//! The example `routines` is a driver's start and stop in that style.
//!
//! | IRPs, NDKPI | here, in [`control`](crate::control) |
//! |---|---|
//! | format an IRP, `IoCallDriver` | a [`Request`](verbs_core::Request), [`issue`](verbs_core::Request::issue) |
//! | `IoCompletion` routine, `NDK_FN_REQUEST_COMPLETION` | the routine that `issue` takes |
//! | `STATUS_PENDING` | [`Issued::Pending`](verbs_core::Issued::Pending), a hint: the routine runs in any case |
//! | `KeWaitForSingleObject` after it | [`Request::wait`](verbs_core::Request::wait); answers `WouldBlock` under NoBlock |
//! | `IoCancelIrp` | [`CancelHandle::cancel`](verbs_core::CancelHandle::cancel): a hint, that never waits |
//! | `IoMarkIrpPending` in the driver below | the provider's [`pend`](verbs_core::Command::pend) |
//! | filter drivers | providers over providers: [`filter`](verbs_core::filter) |
//! | `IRQL == DISPATCH_LEVEL` | [`no_block`](verbs_core::no_block) |
//! | a DPC for what may not run here | [`defer`](verbs_core::defer) |
//! | work item at passive level | [`ClientQueue`](verbs_core::ClientQueue), which the client drains |
//! | `NDK_FN_CLOSE_OBJECT`, objects closed in order | destroys in any order: `Busy` with what holds the object, or [`destroy_when_idle`](verbs_core::Qp::destroy_when_idle) |
//! | `NdkRegisterMr` | [`Pd::register`](verbs_core::Pd::register) |
//! | `NdkSend`, `NdkWrite`, `NdkRead` | direct calls on [`SendQueue`](verbs_core::SendQueue): no request, no lock, no allocation |
//! | `NdkGetCqResults`, `NdkArmCq` | [`Cq::poll`](verbs_core::Cq::poll), [`Cq::arm`](verbs_core::Cq::arm) |
//! | `NdkConnect`, `NdkListen`, `NdkAccept` | [`cm::connect`](verbs_cm::connect()), [`cm::listen`](verbs_cm::listen()): steps with the same front ends |
//! | `NdkDisconnect` | [`cm::Connection::disconnect`](verbs_cm::Connection::disconnect) |
//! | surprise removal | every request ends with `DeviceRemoved`; see [`device`](verbs_core::device#surprise-removal) |
//! | `!irp`, lists of pending IRPs | [`Device::in_flight`](verbs_core::Device::in_flight): verb, target, age, where it was issued |
//!
//! The same verbs can be awaited, so that a driver's sequences are written as `async` functions: the routine, the future
//! and the blocking wait are front ends of one request.
