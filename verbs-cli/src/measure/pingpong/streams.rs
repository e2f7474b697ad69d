//! Connections over TCP, which the provider makes by its own verbs. The server listens at the port on which the ends have
//! found each other, where nothing else listens any longer; the client connects its queue pairs to it one after the
//! other, and says of each which one it is.

use std::net::SocketAddr;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Instant;

use verbs_core::sync::Arc;
use verbs_core::{
    CmEndpoint, CmEvent, CmParam, CmReply, CmRequest, CmSink, Device, Error, PortCaps, Qp,
};

use super::error::PingpongError;
use crate::net::{NetError, PATIENCE};
use crate::wire::PORT;

/// Whether the device's connections are of that kind: no modify makes them.
pub(super) fn are_there(device: &Device) -> bool {
    let caps = device.query_provider(PORT).caps;
    caps.contains(PortCaps::IW_CM)
}

/// Requests of an endpoint. Those of others tell nothing that the flushed work of their queue pairs does not.
struct Requests(Sender<CmRequest>);

impl CmSink for Requests {
    fn event(&self, event: CmEvent) {
        if let CmEvent::ConnectRequest(request) = event {
            // A listener that has all that it wants is gone; the request is rejected.
            let _ = self.0.send(request);
        }
    }
}

/// Listens for the client's queue pairs.
pub(super) struct Listener {
    endpoint: CmEndpoint,
    requests: Receiver<CmRequest>,
}

impl Listener {
    pub(super) async fn open(
        device: &Device,
        at: SocketAddr,
        count: usize,
    ) -> Result<Self, PingpongError> {
        let failed = |error| PingpongError::Listen { at, error };
        let (sender, requests) = channel();
        let bound = device.bind_cm(at, Arc::new(Requests(sender))).await;
        let endpoint = bound.map_err(failed)?;
        let backlog = u32::try_from(count).unwrap_or(u32::MAX);
        endpoint.listen(backlog).await.map_err(failed)?;
        Ok(Self { endpoint, requests })
    }

    /// Connects the queue pairs with the client's; `peer` is the client that has said that it will ask. Blocks.
    pub(super) async fn accept(
        self,
        qps: &[Qp],
        peer: SocketAddr,
    ) -> Result<Vec<CmEndpoint>, PingpongError> {
        let deadline = Instant::now() + PATIENCE;
        let mut ends: Vec<Option<CmEndpoint>> = qps.iter().map(|_| None).collect();
        while ends.iter().any(Option::is_none) {
            let left = deadline.saturating_duration_since(Instant::now());
            let request = self.requests.recv_timeout(left);
            let request = request.map_err(|_| NetError::Silent { peer })?;
            // A stranger, or one that asks twice, is rejected.
            let Some(number) = number_of(&request, peer) else {
                continue;
            };
            if let (Some(end @ None), Some(qp)) = (ends.get_mut(number), qps.get(number)) {
                let accepting = request.endpoint.accept(qp, param(), Vec::new());
                accepting
                    .await
                    .map_err(PingpongError::verb("accept a connection"))?;
                *end = Some(request.endpoint);
            }
        }
        let gone = self.endpoint.unbind().await;
        gone.map_err(|refused| PingpongError::verb("stop listening")(refused.error))?;
        Ok(ends.into_iter().flatten().collect())
    }
}

/// Which queue pair the client wants to connect, if it is the client.
fn number_of(request: &CmRequest, peer: SocketAddr) -> Option<usize> {
    let &[high, low, ..] = request.private_data.as_slice() else {
        return None;
    };
    let is_client = request.remote.ip() == peer.ip();
    is_client.then(|| usize::from(u16::from_be_bytes([high, low])))
}

/// Connects the queue pairs with the server's.
pub(super) async fn connect(
    device: &Device,
    qps: &[Qp],
    from: SocketAddr,
    peer: SocketAddr,
) -> Result<Vec<CmEndpoint>, PingpongError> {
    let mut ends = Vec::new();
    for (number, qp) in (0_u16..).zip(qps) {
        let (sender, _) = channel();
        let bound = device.bind_cm(from, Arc::new(Requests(sender))).await;
        let end = bound.map_err(PingpongError::verb("bind a TCP port"))?;
        let number = number.to_be_bytes().to_vec();
        let reply = end.connect(qp, peer, param(), number).await;
        match reply.map_err(PingpongError::verb("connect the queue pair"))? {
            CmReply::Established(_) => ends.push(end),
            reply => {
                let why = why(&reply);
                return Err(PingpongError::NotConnected { peer, why });
            }
        }
    }
    Ok(ends)
}

/// No READs.
fn param() -> CmParam {
    CmParam::default()
}

fn why(reply: &CmReply) -> &'static str {
    match reply {
        CmReply::Refused => "nobody listens there",
        CmReply::Unreachable => "there is no route",
        CmReply::TimedOut => "it does not answer",
        _ => "it was rejected",
    }
}

/// Unbinds the ends of connections, so that their queue pairs can be destroyed.
pub(super) async fn close(ends: Vec<CmEndpoint>) -> Result<(), Error> {
    for end in ends {
        end.unbind().await.map_err(|refused| refused.error)?;
    }
    Ok(())
}
