//! Peers of a hosted subnet by their IP addresses: an IP interface that carries no packets of IP, and finds neighbours.

use std::net::IpAddr;
use std::pin::pin;
use std::time::Duration;

use futures::StreamExt;
use futures::channel::mpsc::{UnboundedSender, unbounded};
use futures::future::{Either, select};
use ulp_ipoib::{Config, Face, Interface, LinkInfo};
use verbs_cm::Manager;
use verbs_cm::sa::SaClient;
use verbs_core::Device;
use verbs_core::sync::Arc;
use verbs_core::timer::Sleep;

use super::RdsError;
use crate::wire::PORT;

/// How long the subnet's manager may take to bring the port into service.
const PATIENCE: Duration = Duration::from_secs(20);

/// Makes connections by IP address as long as it is kept.
pub(super) struct Neighbours {
    _interface: Interface,
    _manager: Manager,
}

impl Neighbours {
    /// An interface with these addresses, when its link is up.
    pub(super) async fn up(
        device: &Arc<Device>,
        addresses: impl Iterator<Item = IpAddr>,
    ) -> Result<Self, RdsError> {
        let admin = SaClient::of(device, PORT);
        let admin = Arc::new(admin.await.map_err(ulp_ipoib::Error::from)?);
        let (told, mut links) = unbounded();
        let config = Config {
            // Without a router all addresses are neighbours', whatever their prefix.
            addresses: addresses.map(|addr| (addr, bits(addr))).collect(),
            ..Config::default()
        };
        let interface = Interface::new(device, admin, Arc::new(Told(told)), config).await?;
        let manager = Manager::of(device);
        manager.use_resolver(interface.resolver()).await?;
        let timer = device.target().provider_of().timer();
        let timer = timer.ok_or(ulp_rds::Error::NoTimer)?;
        let up = async { while !interface.link().is_up && links.next().await.is_some() {} };
        match select(pin!(up), Sleep::new(&timer, PATIENCE)).await {
            Either::Left(_) => {}
            Either::Right(_) => return Err(RdsError::NoLink(PATIENCE)),
        }
        Ok(Self {
            _interface: interface,
            _manager: manager,
        })
    }
}

/// Hears of the link. There is no stack of IP that packets could be for.
struct Told(UnboundedSender<LinkInfo>);

impl Face for Told {
    fn deliver(&self, _packet: &[u8]) {}

    fn link(&self, link: &LinkInfo) {
        // Later the link's state is of no interest.
        let _gone = self.0.unbounded_send(*link);
    }
}

fn bits(addr: IpAddr) -> u8 {
    if addr.is_ipv4() { 32 } else { 128 }
}
