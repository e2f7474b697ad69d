//! `libibumad.so.3`, the library through which programs send and receive management datagrams, over a simulated subnet
//! that `verbs subnet` hosts. OpenSM, infiniband-diags and other programs that are linked against libibumad run on it
//! unmodified, without a kernel module:
//!
//! ```text
//! VERBS_SUBNET=path of the socket    which subnet; see `hca_sim::link::fabric::socket::default_path`
//! VERBS_HOST=HcaA,HcaB               the nodes that are this host's adapters; SIM_HOST also
//! LD_LIBRARY_PATH=folder of this library
//! ```
//!
//! - `abi` has the structures that programs share with the library.
//! - `device` lists adapters and ports.
//! - `pair` tells which adapter is for datagrams of subnet management, and which for others.
//! - `port` opens ports, registers for classes, sends and receives. An open port's number is a socket to
//!   the subnet, so that programs can wait for it as they wait for umad's device files.
//! - `datagram` accesses the parts of a datagram in a program's buffer.
//! - `text` names numbers.
//!
//! With arguments that make no sense, a function does what libibumad does: it returns a negative error number, often
//! with `errno` set. Null pointers are refused; other invalid pointers are the caller's fault, as in C.

// They panic when nobody reads.
#![cfg_attr(not(test), deny(clippy::print_stderr, clippy::print_stdout))]

mod abi;
mod client;
mod datagram;
mod device;
pub mod fuzz;
mod pair;
mod port;
mod text;
