//! Awaitable operations, over the loopback link and over UDP.

#![deny(unsafe_code)]

mod basics;
mod dropped;
mod ends;
mod over;
mod pair;
mod streams;
