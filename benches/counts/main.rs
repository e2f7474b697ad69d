//! Instructions of what programs do most, each with a budget that fails the run: one program, which is linked once.

#![allow(missing_docs, reason = "what gungraun generates has none")]
#![allow(unreachable_pub, reason = "what gungraun generates is pub")]
#![allow(unused_qualifications, reason = "gungraun generates paths")]
#![deny(unsafe_code)]

mod asleep;
mod budget;
mod control;
mod message;
mod nic;
mod rds;
mod stream;
mod udp;

use gungraun::main;

use control::controls;
use message::messages;
use nic::nics;
use rds::datagrams;
use stream::streams;
use udp::packets;

main!(
    library_benchmark_groups = controls,
    messages,
    packets,
    streams,
    datagrams,
    nics
);
