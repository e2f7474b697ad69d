//! Targets of an InfiniBand subnet: found by device management, logged in to by the InfiniBand connection
//! manager.

use std::sync::{Arc, Weak};

use futures::executor::block_on;
use ulp_srp::initiator::discovery::{
    CLASS_VERSION, ControllerProfile, IO_CONTROLLER_PROFILE, IO_UNIT_INFO, IoUnitInfo,
    SERVICE_ENTRIES, discover, emit_service,
};
use ulp_srp::initiator::{Initiator, Options};
use ulp_srp::iu::{Lun, MultiChannel, PortId};
use verbs_cm::wire::ServiceId;
use verbs_cm::{Manager, Route};
use verbs_core::mad::header::{emit_header, header_of};
use verbs_core::mad::{
    Address, Class, Delivery, MadAgent, MadClient, MadHeader, MadService, Method, Status,
};
use verbs_core::sync::Mutex;
use verbs_core::{Av, Guid};

use crate::bed::Bed;

const CONTROLLER: Guid = Guid(0x0200_c903_0000_0001);
const SERVICE: ServiceId = ServiceId(0x0200_c903_0000_0002);
/// Services of the controller; the fifth is the target's.
const SERVICES: u8 = 6;
/// In which slot it is.
const SLOT: u8 = 3;

/// An I/O unit with one controller.
#[derive(Default)]
struct Unit {
    agent: Mutex<Option<MadAgent>>,
    asked: Mutex<Vec<(u16, u32)>>,
}

impl MadClient for Unit {
    fn deliver(&self, delivery: Delivery) {
        let Delivery::Request { from, mad, .. } = delivery else {
            return;
        };
        let header = MadHeader::parse(header_of(&mad));
        self.asked
            .lock()
            .push((header.attribute.0, header.modifier));
        let mut answer = [0; 256];
        emit_header(&header.response(Status::OK), &mut answer);
        let data = &mut answer[64..];
        match header.attribute {
            IO_UNIT_INFO => {
                let mut info = IoUnitInfo {
                    max_controllers: 4,
                    ..IoUnitInfo::default()
                };
                info.slots.0[1] = 0x10;
                info.emit(data.first_chunk_mut().unwrap());
            }
            IO_CONTROLLER_PROFILE => {
                let profile = ControllerProfile::srp(CONTROLLER, SERVICES);
                profile.emit(data.first_chunk_mut().unwrap());
            }
            SERVICE_ENTRIES => {
                let (begin, end) = (header.modifier as u8, (header.modifier >> 8) as u8);
                for (number, place) in (begin..=end).zip(data.chunks_exact_mut(48)) {
                    let name = match number {
                        4 => "SRP.T10:00000000000000AB".to_owned(),
                        number => format!("other {number}"),
                    };
                    place.copy_from_slice(&emit_service(&name, SERVICE));
                }
            }
            other => panic!("{other:?}"),
        }
        if let Some(agent) = &*self.agent.lock() {
            agent.send([(from, answer)]);
        }
    }
}

#[test]
fn a_target_is_found_and_logged_in_to() {
    block_on(async {
        let bed = Bed::new().await;
        let far = bed.target.device();
        let unit = Arc::new(Unit::default());
        let client: Weak<dyn MadClient> = Arc::<Unit>::downgrade(&unit);
        let service = MadService::of(far, 1).await.unwrap();
        let agent = service.register(Class::DEV_MGT, CLASS_VERSION, &[Method::GET], client);
        *unit.agent.lock() = Some(agent.unwrap());
        let listener = Manager::of(far).listen_service(SERVICE, 4).await.unwrap();
        bed.target.listen_service(listener);

        let [here, there] = &bed.hcas;
        let av = Av::to_lid(1, there.lid());
        let controllers = discover(&bed.initiator, 1, Address::gsi(av)).await.unwrap();
        assert_eq!(controllers.len(), 1);
        assert_eq!(
            (controllers[0].slot, controllers[0].services.len()),
            (SLOT, 6)
        );
        let asked: Vec<_> = unit.asked.lock().iter().map(|asked| asked.1).collect();
        assert_eq!(
            asked,
            [0, 3, 0x0003_0300, 0x0003_0504],
            "four services at a time"
        );

        let route = Route {
            av,
            local_gid: here.gid(),
            remote_gid: there.gid(),
            is_subnet_local: true,
            ..Route::default()
        };
        let targets = controllers[0].targets(&route);
        let port = PortId {
            extension: 0xab,
            guid: CONTROLLER,
        };
        assert_eq!(
            targets.iter().map(|target| target.port).collect::<Vec<_>>(),
            [port]
        );

        let options = Options {
            channels: 2,
            ..Options::default()
        };
        let initiator = Initiator::new(&bed.initiator, options);
        let session = initiator.login(targets[0].clone()).await.unwrap();
        assert_eq!(session.luns().await.unwrap(), [Lun(0)]);
        session.logout().await;
        let state = bed.target.state.lock();
        let asked: Vec<_> = state
            .logins
            .iter()
            .map(|login| (login.target, login.channels))
            .collect();
        assert_eq!(
            asked,
            [
                (port, MultiChannel::SINGLE),
                (port, MultiChannel::INDEPENDENT)
            ]
        );
    });
}
