//! Our end of the programs that come with librdmacm, for the peer suites: `ucmatose`, `udaddy`,
//! `rdma_server` and `rdma_client`, of some failures, and of MPA in all its forms.
//!
//!     cm_peer [--iwarp] ADDRESS ROLE PEER:PORT
//!
//!     cm_peer reemit requests|replies <STREAM
//!
//! With --iwarp over TCP, without over RoCE. ADDRESS is ours. ROLE is one of the functions below; servers listen at PEER:PORT too, which is then
//! one of ours.

mod host;
mod matose;
mod mpa;
mod reemit;
mod simple;
mod udaddy;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use futures::executor::block_on;

use crate::host::{Failed, Host};

fn main() -> ExitCode {
    let mut arguments: Vec<String> = std::env::args().skip(1).collect();
    let iwarp = arguments.first().is_some_and(|first| first == "--iwarp");
    arguments.drain(..usize::from(iwarp));
    let done = match &arguments[..] {
        [reemit, side] if reemit == "reemit" => reemit::stream(side == "requests"),
        [address, role, at] => run(iwarp, address, role, at),
        _ => {
            eprintln!(
                "usage: cm_peer [--iwarp] ADDRESS ROLE PEER:PORT, or cm_peer reemit requests|replies"
            );
            return ExitCode::from(2);
        }
    };
    match done {
        Ok(text) => {
            println!("{text}");
            ExitCode::SUCCESS
        }
        Err(error) => {
            println!("{error}");
            ExitCode::FAILURE
        }
    }
}

fn run(iwarp: bool, address: &str, role: &str, at: &str) -> Result<String, Failed> {
    let address: IpAddr = address.parse()?;
    let at: SocketAddr = at.parse()?;
    let builder = if iwarp {
        hca_sim::Hca::iwarp(&[address])?
    } else {
        hca_sim::Hca::over(hca_sim::Udp::bind(&[address])?)
    };
    block_on(async {
        let mut host = Host::new(builder.build()).await?;
        match role {
            "matose-client" => matose::client(&mut host, at).await,
            "matose-server" => matose::server(&mut host, at).await,
            "udaddy-client" => udaddy::client(&mut host, at).await,
            "udaddy-server" => udaddy::server(&mut host, at).await,
            "simple-client" => simple::client(&mut host, at).await,
            "simple-server" => simple::server(&mut host, at).await,
            "rejecting-server" => simple::reject(&host, at).await,
            "open" => simple::open(&host).await,
            "connect" => simple::connect(&host, at).await,
            "cut" => simple::cut(&mut host, at).await,
            "hold" => simple::hold(&host, at).await,
            "wrong-key" => mpa::wrong_key(&mut host, at).await,
            "torn" => mpa::torn(at),
            role if role.starts_with("mpa-") => mpa::client(&mut host, at, &role[4..]).await,
            other => Err(format!("there is no role {other}").into()),
        }
    })
}
