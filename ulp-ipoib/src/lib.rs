//! IP over InfiniBand (RFC 4391, RFC 4755): an IP interface on a queue pair.

#![forbid(unsafe_code)]

pub mod wire;
