//! `libibverbs.so.1` and `librdmacm.so.1` over a software HCA. A program that is linked against them runs on it
//! unmodified: with no RDMA hardware, no kernel module, no root.
//!
//! ```text
//! VERBS_DEVICE=10.0.0.1   the address of this host that the device has for RoCE; without it a free one of 127.0.0.0/8
//! VERBS_DEVICE=iwarp:ADDR iWARP over TCP at that address of this host; iwarp alone is at 127.0.0.1
//! VERBS_DEVICE=loopback   within this process
//! VERBS_DEVICE=subnet:A   the node A of the subnet that `verbs subnet` hosts
//! VERBS_LOSS=10           lose that many of a thousand packets that arrive
//! VERBS_SEED=7            the seed that selects those packets
//! VERBS_PCAP=file         write all packets to that file
//! VERBS_KEEPALIVE=10      end connections by address whose peer was silent for that many seconds
//! VERBS_PORT_MAPPER=1     with iWARP: ask port mappers (iwpmd) of peers, and answer them
//! VERBS_LOG_LEVEL=3       say why calls are refused
//! VERBS_LOG=verbs::cm=debug   say on stderr what happens, as `verbs --log`
//! VERBS_CONNECTIONS=1     answer `verbs connections`
//! LD_LIBRARY_PATH=folder of this library
//! ```
//!
//! `verbs run -- PROGRAM` sets all of that up. `docs/PROGRAMS.md` lists what was tried on it, and what does not work.
//!
//! The modules:
//!
//! - The structures that programs share with the library are in `verbs-abi`.
//! - `export` names the functions of the library, with their versions.
//! - `call` turns results into what C programs expect: error numbers, and no panic. `call::live` knows which pointers are
//!   objects, and which objects use which; `call::text` has names of numbers.
//! - `device` has the list of devices, and what an open device reports about itself and its port. `device::open` opens
//!   one: the table of functions that programs call through pointers.
//! - `memory`, `cq`, `qp`, `qp::ah`, `srq` and `srq::xrcd` have one kind of object each; `srq::recv` posts receives.
//! - `rdmacm` is librdmacm: connections by address.
//! - `rsocket` has its sockets.
//! - `inbox` has the descriptors that programs wait for, `inbox::event` asynchronous events.
//!
//! # What a function does with invalid arguments
//!
//! It does what libibverbs and the kernel do: it returns an error number. Every function except those for posting,
//! polling and requesting a notification refuses a pointer that is not, or no longer, an object of the kind, with
//! `EINVAL`. The program is responsible for other pointers.

// They panic when nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod call;
mod cq;
mod device;
mod export;
mod inbox;
mod memory;
#[cfg(test)]
mod process_tests;
mod qp;
mod rdmacm;
mod rsocket;
mod srq;
#[cfg(test)]
mod tests;
