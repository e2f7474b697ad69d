//! Our end of the programs that come with librdmacm, for the peer suites: `ucmatose`, `udaddy`,
//! `rdma_server` and `rdma_client`, and of some failures.
//!
//!     cm_peer ADDRESS ROLE [PEER:PORT]
//!
//! ADDRESS is ours. ROLE is one of the functions below; servers listen at PEER:PORT too, which is then
//! one of ours.

mod host;
mod matose;
mod simple;
mod udaddy;

use std::net::{IpAddr, SocketAddr};
use std::process::ExitCode;

use futures::executor::block_on;

use crate::host::{Failed, Host};

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().collect();
    let [_, address, role, at] = &arguments[..] else {
        eprintln!("usage: cm_peer ADDRESS ROLE PEER:PORT");
        return ExitCode::from(2);
    };
    match run(address, role, at) {
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

fn run(address: &str, role: &str, at: &str) -> Result<String, Failed> {
    let address: IpAddr = address.parse()?;
    let at: SocketAddr = at.parse()?;
    let link = hca_sim::Udp::bind(&[address])?;
    block_on(async {
        let mut host = Host::new(hca_sim::Hca::over(link).build()).await?;
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
            other => Err(format!("there is no role {other}").into()),
        }
    })
}
