//! Nodes, ports and links: found by what their records say (15.2.5.2, 15.2.5.3, 15.2.5.13).

use verbs_core::mad::sa::{
    LinkMask, LinkRecord, LinkRecordView, NodeMask, NodeRecord, NodeRecordView, PortInfoMask,
    PortInfoRecord, PortInfoRecordView,
};
use verbs_core::mad::sm::{CapabilityMask, LinkState};

use super::*;

fn ports(desk: &mut Desk, like: &PortInfoRecord, mask: PortInfoMask) -> Vec<(u16, u8)> {
    let mut bytes = [0; PortInfoRecord::LEN];
    like.emit(&mut bytes);
    let how = (Method::GET_TABLE, AttributeId::PORT_INFO_RECORD);
    let found = desk.ask(11, how, &bytes, mask.bits());
    let found = found.expect("an answer").into_iter().map(|bytes| {
        let record = PortInfoRecordView::new(&bytes).map(PortInfoRecord::parse);
        record.map_or((0, 0), |record| (record.lid.0, record.port))
    });
    found.collect()
}

/// Goal: ports are found by what they can do: all that is asked for, or exactly that; and by their state. Method:
/// clients with different capabilities, and requests for one, for both and for none.
#[test]
fn ports_are_found_by_what_they_can_do() {
    let mut desk = Desk::new(&config());
    let (sm, traps) = (CapabilityMask::IS_SM, CapabilityMask::TRAP);
    for (lid, has) in [(11, sm | traps), (12, sm), (13, traps)] {
        let (end, _) = desk.plan.fabric.by_lid(Lid(lid)).expect("a port");
        let port = desk.plan.fabric.port_mut(end).expect("a port");
        port.info.capability_mask = has;
    }
    let mut find = |wants: CapabilityMask, options: u8| {
        let like = PortInfoRecord {
            options,
            info: PortInfo {
                capability_mask: wants,
                ..PortInfo::default()
            },
            ..PortInfoRecord::default()
        };
        let found = ports(&mut desk, &like, PortInfoMask::CAPABILITY_MASK);
        let lids = found.into_iter().map(|(lid, _)| lid);
        lids.filter(|lid| CLIENTS.contains(lid)).collect::<Vec<_>>()
    };
    assert_eq!(find(sm, 0x80), [11, 12]);
    assert_eq!(find(traps, 0x80), [11, 13]);
    assert_eq!(find(sm | traps, 0x80), [11], "all of them");
    assert_eq!(find(CapabilityMask::empty(), 0x80), CLIENTS);
    assert_eq!(find(sm, 0), [12], "exactly that");
    assert_eq!(find(sm | traps, 0), [11]);
    assert_eq!(find(CapabilityMask::empty(), 0), [14]);

    desk.change(14, |info| info.state = LinkState::INIT);
    let like = PortInfoRecord {
        info: PortInfo {
            state: LinkState::INIT,
            ..PortInfo::default()
        },
        ..PortInfoRecord::default()
    };
    // Both ends of the link; all ports of a switch have its LID.
    assert_eq!(
        ports(&mut desk, &like, PortInfoMask::STATE),
        [(2, 3), (14, 1)]
    );
}

/// Goal: nodes are found by their LIDs, and links from either end by each of their fields. Method: one node, one end
/// of a link, then a field that does not match.
#[test]
fn nodes_and_links_are_found_by_their_fields() {
    let mut desk = Desk::new(&config());
    let mut nodes = |lid: u16, mask: NodeMask| -> Vec<u16> {
        let like = NodeRecord {
            lid: Lid(lid),
            ..NodeRecord::default()
        };
        let mut bytes = [0; NodeRecord::LEN];
        like.emit(&mut bytes);
        let how = (Method::GET_TABLE, AttributeId::NODE_RECORD);
        let found = desk.ask(11, how, &bytes, mask.bits());
        let found = found.expect("an answer");
        let parse = |bytes: Vec<u8>| NodeRecordView::new(&bytes).map(NodeRecord::parse);
        found
            .into_iter()
            .filter_map(parse)
            .map(|it| it.lid.0)
            .collect()
    };
    assert_eq!(nodes(0, NodeMask::empty()), [1, 2, 11, 12, 13, 14]);
    assert_eq!(nodes(13, NodeMask::LID), [13]);
    assert_eq!(nodes(99, NodeMask::LID), []);

    let mut links = |like: LinkRecord, mask: LinkMask| -> Vec<LinkRecord> {
        let mut bytes = [0; LinkRecord::LEN];
        like.emit(&mut bytes);
        let how = (Method::GET_TABLE, AttributeId::LINK_RECORD);
        let found = desk.ask(11, how, &bytes, mask.bits());
        let found = found.expect("an answer");
        let parse = |bytes: Vec<u8>| LinkRecordView::new(&bytes).map(LinkRecord::parse);
        found.into_iter().filter_map(parse).collect()
    };
    assert_eq!(
        links(LinkRecord::default(), LinkMask::empty()).len(),
        10,
        "five, from both ends"
    );
    let (lid, other) = (Lid(11), Lid(1));
    let mine = LinkRecord {
        from_lid: lid,
        from_port: 1,
        to_port: 2,
        to_lid: other,
    };
    assert_eq!(links(mine, LinkMask::FROM_LID), [mine]);
    assert_eq!(links(mine, LinkMask::all()), [mine]);
    let wrong = [
        LinkRecord {
            from_port: 2,
            ..mine
        },
        LinkRecord { to_port: 1, ..mine },
        LinkRecord {
            to_lid: Lid(2),
            ..mine
        },
    ];
    for wrong in wrong {
        assert_eq!(links(wrong, LinkMask::all()), []);
    }
}
