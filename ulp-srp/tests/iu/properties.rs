//! Properties of the units over random bytes and random values.

use proptest::collection::vec;
use proptest::prelude::*;
use ulp_srp::iu::{
    Cdb, Cmd, DataBuffer, Delta, Descriptors, Detail, Indirect, Lun, MemoryDescriptor, Residual,
    Rsp, Status, Tag, ToInitiator, ToTarget, fuzz,
};
use verbs_core::RKey;

fn descriptor() -> impl Strategy<Value = MemoryDescriptor> {
    (any::<u64>(), any::<u32>(), any::<u32>()).prop_map(|(addr, rkey, len)| MemoryDescriptor {
        addr,
        rkey: RKey::new(rkey),
        len,
    })
}

fn residual() -> impl Strategy<Value = Residual> {
    prop_oneof![
        Just(Residual::None),
        any::<u32>().prop_map(Residual::Under),
        any::<u32>().prop_map(Residual::Over)
    ]
}

proptest! {
    #[test]
    fn arbitrary_bytes_do_no_harm(bytes in vec(any::<u8>(), 0..300)) {
        fuzz::to_target(&bytes);
        fuzz::to_initiator(&bytes);
        fuzz::login(&bytes);
    }

    /// Commands with random content but legal formats are accepted if they are long enough.
    #[test]
    fn commands_of_any_content_come_back(
        mut bytes in vec(any::<u8>(), 600),
        out in 0_u8..4,
        into in 0_u8..3,
        count in 0_u8..4,
        words in 0_u8..20,
    ) {
        (bytes[0], bytes[5]) = (0x02, out << 4 | into);
        (bytes[6], bytes[7], bytes[31]) = (count, count, words << 2);
        prop_assert!(fuzz::to_target(&bytes));
    }

    #[test]
    fn commands_come_back(
        tag: u64,
        lun: u64,
        cdb in vec(any::<u8>(), 1..=16),
        table in descriptor(),
        pieces in vec(descriptor(), 0..=255),
        direct in descriptor(),
    ) {
        let indirect = Indirect { table, total_len: 5, partial: Descriptors::new(&pieces) };
        let cmd = Cmd {
            tag: Tag(tag),
            lun: Lun(lun),
            cdb: Cdb::new(&cdb).unwrap(),
            data_out: DataBuffer::Direct(direct),
            data_in: DataBuffer::Indirect(indirect),
            ..Cmd::default()
        };
        let mut out = vec![0xa5; cmd.emitted_len()];
        prop_assert_eq!(cmd.emit(&mut out), Ok(48 + 16 + 20 + 16 * pieces.len()));
        prop_assert_eq!(ToTarget::parse(&out), Ok(ToTarget::Cmd(cmd)));
        prop_assert!(fuzz::to_target(&out));
    }

    #[test]
    fn answers_come_back(
        delta: i32,
        tag: u64,
        status: u8,
        data_out in residual(),
        data_in in residual(),
        sense in vec(any::<u8>(), 0..252),
    ) {
        let rsp = Rsp {
            solicited: false,
            delta: Delta(delta),
            tag: Tag(tag),
            status: Status::from_code(status),
            data_out,
            data_in,
            detail: Detail::Sense(&sense),
        };
        let mut out = vec![0xa5; rsp.emitted_len()];
        prop_assert_eq!(rsp.emit(&mut out), Ok(36 + sense.len()));
        prop_assert_eq!(ToInitiator::parse(&out), Ok(ToInitiator::Rsp(rsp)));
        prop_assert!(fuzz::to_initiator(&out));
    }
}
