//! `libibverbs.so.1` and `librdmacm.so.1` over a software HCA. A program that is linked against them runs on it
//! unmodified: with no RDMA hardware, no kernel module, no root.
//!
//! ```text
//! VERBS_DEVICE=10.0.0.1   the address of this host that the device has; without it a free one of 127.0.0.0/8
//! VERBS_LOSS=10           lose so many of a thousand packets that come
//! VERBS_SEED=7            which ones
//! VERBS_PCAP=file         write all packets to that file
//! VERBS_LOG_LEVEL=3       say why calls are refused
//! LD_LIBRARY_PATH=folder of this library
//! ```
//!
//! `verbs run -- PROGRAM` sets all that up. What was tried on it, and what does not work, is in `docs/PROGRAMS.md`.
//!
//! Where to look:
//!
//! - The structures that programs share with the library are in `verbs-abi`.
//! - `export` names the functions of the library, with their versions.
//! - `call` turns results into what C programs expect: error numbers, and no panic. `live` knows which pointers are
//!   objects, and who uses whom.
//! - `open` opens a device: the table of functions that programs call through pointers.
//! - `device` has the list of devices, and what an open one says of itself and its port.
//! - `memory`, `cq`, `qp`, `srq`, `xrcd` and `ah` have one kind of object each.
//! - `rdmacm` is librdmacm: connections by address.
//! - `rsocket` has its sockets.
//! - `inbox` has the descriptors that programs wait at, `event` asynchronous events.
//!
//! # What a function does with bad arguments
//!
//! What libibverbs and the kernel do: an error number. A pointer that is no object of the kind, or no longer, is
//! refused with `EINVAL` by every function but those for posting, polling and asking for a notification. Other
//! pointers are the program's business.

mod ah;
mod call;
mod cq;
mod device;
mod event;
mod export;
mod inbox;
mod live;
mod memory;
mod open;
mod qp;
mod rdmacm;
mod recv;
mod rsocket;
mod srq;
#[cfg(test)]
mod tests;
mod text;
mod xrcd;
