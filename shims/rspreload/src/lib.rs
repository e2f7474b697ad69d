//! A library to preload into a program that uses sockets. Its TCP connections become rsockets: streams over RDMA, by
//! `librdmacm.so.1`, with the calls of sockets.
//!
//! ```text
//! verbs run --rsocket -- iperf3 -s
//! verbs run --rsocket -- iperf3 -c 127.0.0.1
//! ```
//!
//! A socket for a stream over IPv4 or IPv6 is an rsocket; all others are the system's. A connection that is refused
//! over RDMA is tried over TCP, so a program also reaches servers without this library. A listener accepts only RDMA
//! connections.
//!
//! - `next` finds the original functions: those of the C library, and those of librdmacm.
//! - `table` knows which descriptors are rsockets: until they are closed, or their numbers are given to other files.
//! - `calls` has the functions that the program calls instead of the C library's.
//!
//! Not supported: `epoll`, `dup`, descriptors that are inherited by a child of `fork` or passed to another process,
//! streams of `stdio` over a socket (`fdopen`), and `sendfile`.

#[cfg(not(test))]
mod calls;
mod next;
mod table;
