//! Connections over TCP that are made here and not by the device, which takes them over: in either revision of MPA, with
//! and without CRCs, and with what a peer should not do. The peer is `rdma_server`.

use std::io::{Read as _, Write as _};
use std::net::{SocketAddr, TcpStream};
use std::time::Duration;

use hca_sim::clock::Instant;
use hca_sim::stream::{Agreed, Mpa, MpaConfig, MpaEvent};
use hca_sim::wire::iwarp::Rtr;
use hca_sim::{Adopted, adopt};
use verbs_core::{Access, Memory, Qp, RKey, Read, Remote, Send, WcOpcode, Write};

use crate::host::{Failed, Host};

const SIZE: usize = 16;

/// One message each way on a connection of that kind: `1` or `2` is the revision, then `crc` or `plain`.
pub(crate) async fn client(host: &mut Host, at: SocketAddr, kind: &str) -> Result<String, Failed> {
    let (revision, wants_crc) = match kind {
        "1-crc" => (1, true),
        "1-plain" => (1, false),
        "2-crc" => (2, true),
        "2-plain" => (2, false),
        other => return Err(format!("there is no connection of kind {other}").into()),
    };
    let mut qp = host.prepared(0, 1).await?;
    let (stream, agreed, read) = start(at, revision, wants_crc)?;
    take_over(&qp, stream, agreed, read)?;
    qp.post_send(Send::new(1).inline(&[1; SIZE]).signaled())?;
    host.completion(WcOpcode::Send).await?;
    let wc = host.completion(WcOpcode::Recv).await?;
    let crc = if agreed.has_crc { "with" } else { "without" };
    Ok(format!(
        "{} bytes came back in revision {revision} {crc} CRC",
        wc.byte_len
    ))
}

/// A WRITE to a key that is none: what the peer's Terminate says of it completes the READ behind it.
pub(crate) async fn wrong_key(host: &mut Host, at: SocketAddr) -> Result<String, Failed> {
    let mut qp = host.prepared(0, 1).await?;
    let sink = Access::LOCAL_WRITE | Access::READ_SINK;
    let mr = host.pd.register(Memory::alloc(SIZE)?, sink).await?;
    let (stream, agreed, read) = start(at, 2, true)?;
    take_over(&qp, stream, agreed, read)?;
    let nowhere = Remote {
        addr: 0x1000,
        rkey: RKey::new(0xdead_be00),
    };
    qp.post_send(Write::new(1, nowhere).inline(&[1; SIZE]))?;
    qp.post_send(Read::new(2, nowhere).into(mr.slice(0..SIZE)).signaled())?;
    match host.completion(WcOpcode::RdmaRead).await {
        Ok(_) => Err("the READ was answered".into()),
        Err(told) => Ok(told.to_string()),
    }
}

/// Ends in the middle of an FPDU.
pub(crate) fn torn(at: SocketAddr) -> Result<String, Failed> {
    let (mut stream, ..) = start(at, 2, true)?;
    // The length of a SEND of 16 bytes, and the first bytes of its header.
    stream.write_all(&[0, 34, 0x41, 0x43, 0, 0])?;
    Ok("half a message was sent".into())
}

/// Makes a connection: what was agreed on, and bytes behind the Reply.
fn start(
    at: SocketAddr,
    revision: u8,
    wants_crc: bool,
) -> Result<(TcpStream, Agreed, Vec<u8>), Failed> {
    let config = MpaConfig {
        wants_crc,
        is_enhanced: revision == 2,
        ird: 1,
        ord: 1,
        rtr: Rtr::empty(),
        timeout: Duration::from_secs(10),
    };
    let mut stream = TcpStream::connect(at)?;
    stream.set_nodelay(true)?;
    stream.set_read_timeout(Some(config.timeout))?;
    let mut mpa = Mpa::connect(config, &[], Instant::ZERO)?;
    stream.write_all(&mpa.poll_output())?;
    loop {
        match mpa.poll_event() {
            None => {}
            Some(MpaEvent::Connected {
                agreed, surplus, ..
            }) => return Ok((stream, agreed, surplus)),
            Some(other) => return Err(format!("no connection: {other:?}").into()),
        }
        let mut bytes = [0; 256];
        match stream.read(&mut bytes)? {
            0 => mpa.handle_end(),
            count => mpa.handle_bytes(&bytes[..count]),
        }
    }
}

fn take_over(qp: &Qp, stream: TcpStream, agreed: Agreed, read: Vec<u8>) -> Result<(), Failed> {
    let mut adopted = Adopted::new(true);
    adopted.has_crc = agreed.has_crc;
    adopted.ird = u8::try_from(agreed.ird)?;
    adopted.ord = u8::try_from(agreed.ord)?;
    adopted.read = read;
    Ok(adopt(qp, stream, adopted)?)
}
