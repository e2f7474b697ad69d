//! The `verbs` command from outside: what it prints, what it leaves, how it ends.

mod bench;
mod connections;
mod copy;
mod demo;
mod devinfo;
mod failures;
mod host;
mod hostile;
mod interrupted;
mod iwarp;
#[path = "../child/kept.rs"]
mod kept;
#[path = "../child/line.rs"]
mod line;
mod nic;
mod perf;
mod ports;
mod rds;
mod rping;
mod run;
mod signals;
mod sim;
mod srp;
mod top;
mod wire;
