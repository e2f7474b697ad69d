//! `udaddy`: datagrams with the sender's queue pair number as immediate data, to a queue pair that
//! service id resolution finds.

use std::net::SocketAddr;

use verbs_cm::{UDP_QKEY, listen_datagrams, resolve_service};
use verbs_core::{Av, Datagram, Psn, Qp, QpType, Qpn, Send, WcFlags, WcOpcode};

use crate::host::{Failed, GRH, Host};

/// As its options -C and -S are given in the suite.
const MESSAGES: usize = 5;
const SIZE: usize = 100;

pub(crate) async fn client(host: &mut Host, at: SocketAddr) -> Result<String, Failed> {
    let mut qp = ready(host).await?;
    let service = resolve_service(&host.device, at, b"").await?;
    send(host, &mut qp, &service.datagram()).await?;
    for _ in 0..MESSAGES {
        receive(host).await?;
    }
    Ok(format!("{MESSAGES} datagrams each way"))
}

pub(crate) async fn server(host: &mut Host, at: SocketAddr) -> Result<String, Failed> {
    let mut qp = ready(host).await?;
    let mut listener = listen_datagrams(&host.device, at).await?;
    let question = listener.accept().await;
    question.answer(&qp, UDP_QKEY, b"")?;
    let mut back = None;
    for _ in 0..MESSAGES {
        back = Some(receive(host).await?);
    }
    let back = back.ok_or("there was a message")?;
    send(host, &mut qp, &back).await?;
    Ok(format!("{MESSAGES} datagrams each way"))
}

/// A queue pair for datagrams in RTS, with its receives posted.
async fn ready(host: &Host) -> Result<Qp, Failed> {
    let mut qp = host.qp(QpType::Ud).await?;
    qp.init_datagram(1, UDP_QKEY).await?;
    for slot in 0..MESSAGES {
        qp.post_recv(host.recv(slot))?;
    }
    qp.ready_to_receive_datagrams().await?;
    qp.ready_to_send(Psn::new(0)).await?;
    Ok(qp)
}

async fn send(host: &mut Host, qp: &mut Qp, to: &Datagram) -> Result<(), Failed> {
    for n in 0..MESSAGES {
        let send = Send::new(n as u64).imm(qp.qpn().value()).to(to);
        qp.post_send(send.inline(&[7; SIZE]).signaled())?;
    }
    for _ in 0..MESSAGES {
        host.completion(WcOpcode::Send).await?;
    }
    Ok(())
}

/// Takes a datagram; the way back to its sender.
async fn receive(host: &mut Host) -> Result<Datagram, Failed> {
    let wc = host.completion(WcOpcode::Recv).await?;
    if wc.byte_len as usize != GRH + SIZE || !wc.flags.contains(WcFlags::GRH) {
        return Err(format!("a datagram of {} bytes", wc.byte_len).into());
    }
    let area = host.text(wc.wr_id, 0, GRH)?;
    let area = area.first_chunk().ok_or("it is as long")?;
    let av = Av::reverse(1, &wc, area, 0).ok_or("it has a header")?;
    let qpn = wc.immediate().ok_or("it has immediate data")?;
    Ok(Datagram::new(av, Qpn::new(qpn), UDP_QKEY))
}
