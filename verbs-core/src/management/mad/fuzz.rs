//! Fuzz targets as plain functions over bytes: `ci/fuzz` drives them, and a test with random
//! ones. They panic when a promise of this module's parsers or machines is broken.

use crate::addr::Lid;
use crate::mad::header::{MAD_LEN, MadBytes, MadHeader, MadHeaderView};
use crate::mad::pm::{
    PortCounters, PortCountersExtended, PortCountersExtendedView, PortCountersView,
};
use crate::mad::rmpp::{Layout, Received, Receiver, RmppConfig, RmppHeader, RmppHeaderView};
use crate::mad::sa::{
    InformInfo, InformInfoView, LinkRecord, LinkRecordView, McMemberRecord, McMemberRecordView,
    NodeRecord, NodeRecordView, PathRecord, PathRecordView, SaHeader, SaHeaderView, ServiceRecord,
    ServiceRecordView,
};
use crate::mad::sm::{
    GuidBlock, GuidBlockView, MulticastBlock, MulticastBlockView, NodeInfo, NodeInfoView, Notice,
    NoticeView, PKeyBlock, PKeyBlockView, PortInfo, PortInfoView, SlToVl, SlToVlView, SmInfo,
    SmInfoView, SmpHeader, SmpHeaderView, SwitchInfo, SwitchInfoView, VlArbitration,
    VlArbitrationView,
};
use crate::mad::{
    Address, AgentConfig, Agents, Class, ClassPortInfo, ClassPortInfoView, Delivery, Method, Retry,
};
use crate::qp_attr::Av;
use crate::time::Instant;

/// Reads one record out of bytes, and writes it again to the same bytes but for those without a
/// meaning.
macro_rules! again {
    ($bytes:ident, $($repr:ident $view:ident),*) => {$(
        if let Some(view) = $view::new($bytes) {
            let record = $repr::parse(view);
            assert_eq!(format!("{view:?}"), format!("{record:?}"));
            let mut out = [0xa5; $repr::LEN];
            record.emit(&mut out);
            let covered = $repr::covered();
            for (at, (&from, &to)) in $bytes.iter().zip(&out).enumerate() {
                assert_eq!(to, from & covered[at], "byte {at} of {record:?}");
            }
            assert_eq!($repr::parse($view::of(&out)), record);
        }
    )*};
}

/// Every format, over the same bytes.
pub fn records(bytes: &[u8]) {
    again!(
        bytes, MadHeader MadHeaderView, RmppHeader RmppHeaderView, SaHeader SaHeaderView,
        PathRecord PathRecordView, McMemberRecord McMemberRecordView,
        ServiceRecord ServiceRecordView, InformInfo InformInfoView,
        NodeRecord NodeRecordView, LinkRecord LinkRecordView,
        ClassPortInfo ClassPortInfoView, SmpHeader SmpHeaderView, NodeInfo NodeInfoView,
        PortInfo PortInfoView, SwitchInfo SwitchInfoView, GuidBlock GuidBlockView,
        PKeyBlock PKeyBlockView, SlToVl SlToVlView, VlArbitration VlArbitrationView,
        MulticastBlock MulticastBlockView, Notice NoticeView, SmInfo SmInfoView,
        PortCounters PortCountersView, PortCountersExtended PortCountersExtendedView
    );
}

/// Datagrams one after the other to a receiver of a transfer. It must not panic, nor take more than
/// its limit, nor end twice.
pub fn transfer(bytes: &[u8]) {
    let config = RmppConfig {
        transfer_bytes_max: 1_000,
        ..RmppConfig::default()
    };
    let mut receiver = Receiver::new(Instant::ZERO, &[0; MAD_LEN], Layout::SA, config);
    let mut ended = 0;
    for (now, chunk) in (0..).zip(bytes.chunks(12)) {
        let mut mad: MadBytes = [0; MAD_LEN];
        for (to, from) in mad.iter_mut().skip(24).zip(chunk) {
            *to = *from;
        }
        receiver.handle(Instant::from_nanos(now), &mad);
        let _answer = receiver.poll_transmit();
        match receiver.poll_received() {
            Some(Received::Done(payload)) => {
                assert!(payload.len() <= 1_000);
                ended += 1;
            }
            Some(Received::Failed(_)) => ended += 1,
            None => {}
        }
    }
    assert!(ended <= 1);
}

/// Datagrams one after the other to a port's service in which requests wait. Each request ends at
/// most once, and all have ended when time has passed.
pub fn service(bytes: &[u8]) {
    const REQUESTS: usize = 4;
    let peer = Address::gsi(Av::to_lid(1, Lid(1)));
    let mut agents = Agents::new(AgentConfig::default(), 0);
    let mut request = [0; MAD_LEN];
    request[..4].copy_from_slice(&[1, Class::SA.0, 2, Method::GET.0]);
    let Ok(agent) = agents.register(Class::SA, 2, &[Method::SEND]) else {
        unreachable!("nobody else is there");
    };
    for _ in 0..REQUESTS {
        let asked = agents.request(Instant::ZERO, agent, peer, &request, Retry::default());
        assert!(asked.is_ok());
    }
    let mut ended = 0;
    let mut count = |agents: &mut Agents| {
        while agents.poll_transmit().is_some() {}
        while let Some(delivery) = agents.poll_delivery() {
            ended += usize::from(!matches!(delivery, Delivery::Request { .. }));
        }
    };
    for (now, chunk) in (0..).zip(bytes.chunks(16)) {
        let mut mad = request;
        let (tid, rest) = chunk.split_at(1);
        mad[3] = if tid[0] & 0x80 == 0 {
            Method::GET_RESP.0
        } else {
            Method::SEND.0
        };
        mad[15] = tid[0] & 7;
        for (to, from) in mad.iter_mut().skip(24).zip(rest) {
            *to = *from;
        }
        agents.handle(Instant::from_nanos(now), peer, &mad);
        count(&mut agents);
    }
    while let Some(deadline) = agents.poll_timeout() {
        agents.handle_timeout(deadline);
        count(&mut agents);
    }
    assert_eq!((ended, agents.pending()), (REQUESTS, 0));
}
