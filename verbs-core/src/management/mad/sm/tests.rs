use super::*;
use crate::addr::{Guid, PKey};
use crate::mad::field::Bits;
use crate::mad::header::{MadHeader, Method, Status, TransactionId, emit_header};

/// Goal: fields of a port do not touch each other. Method: the offsets, by hand.
#[test]
fn a_port_stands_where_the_specification_has_it() {
    let port = PortInfo {
        lid: Lid(3),
        sm_lid: Lid(1),
        capability_mask: CapabilityMask::IS_SM | CapabilityMask::TRAP,
        link_width_enabled: LinkWidth::X4,
        link_speed_supported: Bits::truncated(7),
        state: LinkState::ARMED,
        phys_state: PhysState::LINK_UP,
        link_down_default: PhysState::POLLING,
        m_key_protect: MKeyProtect::ALL,
        lmc: Bits::truncated(5),
        neighbor_mtu: Bits::truncated(4),
        operational_vls: Bits::truncated(3),
        enforce_out: true,
        client_reregister: true,
        guid_cap: 32,
        ..PortInfo::default()
    };
    let mut bytes = [0; PortInfo::LEN];
    port.emit(&mut bytes);
    assert_eq!(bytes[16..24], [0, 3, 0, 1, 0, 0, 0, 0b1010]);
    assert_eq!(bytes[29..37], [2, 0, 0, 0x73, 0x52, 0x85, 0, 0x40]);
    assert_eq!((bytes[43], bytes[50], bytes[51]), (0x34, 32, 0x80));
    assert_eq!(PortInfo::parse(PortInfoView::of(&bytes)), port);
    assert!(port.has_lid(Lid(31)) && !port.has_lid(Lid(32)));
    assert_eq!([0, 7, 31].map(|lid| port.path_bits(Lid(lid))), [0, 7, 31]);
    assert_eq!(port.path_bits(Lid(0xc007)), 0, "that is a group's");
    assert_eq!(port.lid_of(0xe5), Lid(port.lid.0 | 5), "it has 32 of them");
    assert!(!PortInfo::default().has_lid(Lid(0)), "LID 0 is nobody's");
}

/// Goal: tables are sequences of equal fields. Method: the first and last entries, by hand.
#[test]
fn tables_have_their_entries_in_order() {
    let mut keys = PKeyBlock {
        keys: [PKey(0); 32],
    };
    keys.keys[0] = PKey(0x7fff);
    keys.keys[31] = PKey(0x8001);
    let mut bytes = [0; PKeyBlock::LEN];
    keys.emit(&mut bytes);
    assert_eq!(
        (&bytes[..3], &bytes[62..]),
        (&[0x7f, 0xff, 0][..], &[0x80, 1][..])
    );
    let sl = SlToVl {
        vls: std::array::from_fn(|sl| Bits::truncated(u32::try_from(sl).unwrap())),
    };
    let mut bytes = [0; SlToVl::LEN];
    sl.emit(&mut bytes);
    assert_eq!(bytes, [0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0xcd, 0xef]);
    assert_eq!(SlToVl::parse(SlToVlView::of(&bytes)), sl);
    let mut arbitration = VlArbitration::default();
    arbitration.entries[1] = VlWeight { vl: 2, weight: 64 };
    let mut bytes = [0; VlArbitration::LEN];
    arbitration.emit(&mut bytes);
    assert_eq!(bytes[..5], [0, 0, 2, 64, 0]);
    let guids = GuidBlock {
        guids: [Guid(0x0102_0304_0506_0708); 8],
    };
    let mut bytes = [0; GuidBlock::LEN];
    guids.emit(&mut bytes);
    assert_eq!(bytes[56..], [1, 2, 3, 4, 5, 6, 7, 8]);
}

/// Goal: the golden request of a sweep's first step. Method: its bytes as the sheet gives them.
#[test]
fn a_question_for_the_own_node_has_its_bytes() {
    let mut mad = [0; 256];
    let header = MadHeader {
        base_version: 1,
        class: Class::SUBN_DIRECTED,
        class_version: CLASS_VERSION,
        method: Method::GET,
        tid: TransactionId(1),
        attribute: AttributeId::NODE_INFO,
        ..MadHeader::default()
    };
    emit_header(&header, &mut mad);
    SmpHeader::directed(0).put(&mut mad);
    assert_eq!(
        (&mad[..4], &mad[16..18]),
        (&[1, 0x81, 1, 1][..], &[0, 0x11][..])
    );
    assert_eq!(mad[32..36], [0xff; 4]);
    Hops::put_path(&mut mad, &[1, 17]).expect("two hops");
    assert_eq!((mad[7], &mad[129..132]), (2, &[1, 17, 0][..]));
    let back = Hops {
        returns: true,
        ..Hops::of(&mad)
    };
    back.put(&mut mad);
    assert_eq!((Hops::of(&mad), mad[4]), (back, 0x80));
    assert!(header_of(&mad).status().contains(DIRECTION) && DIRECTION != Status::OK);
    assert_eq!(Hops::put_path(&mut mad, &[0; 64]), None);
    assert_eq!(Hops::initial(&mad, 64), None);
}

/// Goal: the traps that OpenSM acts on. Method: details as recorded from ibsim.
#[test]
fn notices_name_their_issuer() {
    let mut bytes = [0; Notice::LEN];
    Notice::link_state_changed(Lid(2)).emit(&mut bytes);
    assert_eq!(bytes[..12], [0x81, 0, 0, 2, 0, 128, 0, 2, 0, 0, 0, 2]);
    let mask = CapabilityMask::from_bits_retain(0x0050_c04a);
    Notice::capabilities_changed(NodeType::CA, Lid(3), mask).emit(&mut bytes);
    assert_eq!(bytes[..8], [0x84, 0, 0, 1, 0, 144, 0, 3]);
    assert_eq!(bytes[12..22], [0, 3, 0, 0, 0, 0x50, 0xc0, 0x4a, 0, 0]);
}
