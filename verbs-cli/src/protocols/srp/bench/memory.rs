//! A target in this process, with a disk in memory, on a link of its own.

use std::net::{IpAddr, SocketAddr};

use hca_sim::{Hca, Loopback};
use ulp_srp::initiator::{Initiator, Options, Session};
use ulp_srp::iu::PortId;
use ulp_srp::lun::MemoryUnit;
use ulp_srp::target::{Target, TargetConfig};
use verbs_cm::Manager;
use verbs_cm::resolver::Fixed;
use verbs_core::Device;
use verbs_core::sync::Arc;

use super::super::error::SrpError;

const PORT: u16 = 3260;

/// Both ends.
pub(super) struct Bed {
    initiator: Arc<Device>,
    at: SocketAddr,
    _target: Target,
    /// Keep the ports open.
    _managers: [Manager; 2],
    _hcas: [Arc<Hca>; 2],
}

impl Bed {
    pub(super) async fn new(bytes: u64) -> Result<Self, SrpError> {
        let link = Loopback::default();
        let hcas = [(); 2].map(|()| Hca::on(&link).build());
        let address = |number: u8| IpAddr::from([10, 0, 0, number]);
        let table = hcas
            .iter()
            .zip(1..)
            .fold(Fixed::new(), |table, (hca, number)| {
                table.way(address(number), hca.gid(), Some(hca.lid()))
            });
        let table = Arc::new(table);
        let failed = || SrpError::verb("open the device");
        let initiator = Arc::new(hcas[0].open().await.map_err(failed())?);
        let far = Arc::new(hcas[1].open().await.map_err(failed())?);
        let managers = [&initiator, &far].map(|device| Manager::of(device));
        for manager in &managers {
            let table = Arc::<Fixed>::clone(&table);
            manager
                .use_resolver(table)
                .await
                .map_err(SrpError::connect)?;
        }
        let target = Target::open(far, TargetConfig::new(PortId::default())).await?;
        let bytes = usize::try_from(bytes).unwrap_or(usize::MAX);
        let unit = MemoryUnit::new(bytes, 512).map_err(SrpError::verb("allocate the disk"))?;
        target.export(0, Arc::new(unit)).await?;
        let at = SocketAddr::new(address(2), PORT);
        target.listen(at).await?;
        Ok(Self {
            initiator,
            at,
            _target: target,
            _managers: managers,
            _hcas: hcas,
        })
    }

    pub(super) async fn login(&self, options: Options) -> Result<Session, SrpError> {
        let target = ulp_srp::initiator::Target::at(self.at, PortId::default());
        Ok(Initiator::new(&self.initiator, options)
            .login(target)
            .await?)
    }
}
