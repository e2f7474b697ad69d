//! Goal: each unit has the bytes that the specification gives it. Method: values written down by hand.

use ulp_srp::iu::{
    AerReq, AerRsp, BufferFormats, Cdb, Cmd, CredReq, CredRsp, DataBuffer, Delta, Descriptors,
    Detail, Indirect, InitiatorLogout, IuError, LoginAnswer, LoginRej, LoginRejectReason, LoginReq,
    LoginRsp, LogoutReason, Lun, MemoryDescriptor, MultiChannel, PortId, Residual, ResponseCode,
    Rsp, Status, Tag, TargetLogout, TaskAttribute, TaskFunction, ToInitiator, ToTarget, TskMgmt,
    Unit,
};
use verbs_core::{Guid, RKey};

fn piece(addr: u64, rkey: u32, len: u32) -> MemoryDescriptor {
    MemoryDescriptor {
        addr,
        rkey: RKey::new(rkey),
        len,
    }
}

/// Decodes hexadecimal bytes, ignoring blanks.
fn hex(text: &str) -> Vec<u8> {
    let digits: String = text.split_whitespace().collect();
    let digit = |at| u8::from_str_radix(&digits[at..at + 2], 16).unwrap();
    (0..digits.len()).step_by(2).map(digit).collect()
}

#[test]
fn a_direct_data_in_buffer_is_one_descriptor() {
    let cmd = Cmd {
        tag: Tag(5),
        lun: Lun::new(1).unwrap(),
        attribute: TaskAttribute::ORDERED,
        cdb: Cdb::new(&[0x28, 0, 0, 0, 0, 8, 0, 0, 1, 0]).unwrap(),
        data_in: DataBuffer::Direct(piece(0x1122_3344_5566_7788, 0xaabb_ccdd, 512)),
        ..Cmd::default()
    };
    let mut out = [0xa5; 64];
    assert_eq!(cmd.emit(&mut out), Ok(64));
    let expected = hex(
        "02 00 000000 01 00 00 0000000000000005 00000000 0001000000000000 00 02 00 00
         28000000000800000100 000000000000 1122334455667788 aabbccdd 00000200",
    );
    assert_eq!(out[..], expected);
    assert_eq!(ToTarget::parse(&out), Ok(ToTarget::Cmd(cmd)));
}

#[test]
fn an_indirect_data_out_buffer_is_a_table() {
    let pieces = [
        piece(0x1000, 1, 512),
        piece(0x2000, 2, 1024),
        piece(0x3000, 3, 2560),
    ];
    let cmd = Cmd {
        data_out: DataBuffer::Indirect(Indirect {
            table: piece(0x9000, 9, 48),
            total_len: 4096,
            partial: Descriptors::new(&pieces),
        }),
        ..Cmd::default()
    };
    let mut out = [0; 200];
    assert_eq!(cmd.emit(&mut out), Ok(116));
    assert_eq!((out[0], out[5], out[6], out[7]), (0x02, 0x20, 3, 0));
    let expected = hex("0000000000009000 00000009 00000030 00001000
         0000000000001000 00000001 00000200 0000000000002000 00000002 00000400
         0000000000003000 00000003 00000a00");
    assert_eq!(out[48..116], expected);
    let ToTarget::Cmd(read) = ToTarget::parse(&out[..116]).unwrap() else {
        panic!("a command");
    };
    assert_eq!(read, cmd);
    let DataBuffer::Indirect(indirect) = read.data_out else {
        panic!("an indirect buffer");
    };
    assert!(indirect.is_complete());
    assert_eq!(indirect.partial.total_len(), 4096);
    assert_eq!(
        ToTarget::parse(&out[..115]),
        Err(IuError::Truncated {
            unit: Unit::Cmd,
            got: 115,
            needed: 116
        })
    );
}

#[test]
fn long_command_descriptor_blocks_and_both_directions_stand_in_order() {
    let cdb: Vec<u8> = (1..=32).collect();
    let cmd = Cmd {
        solicit_failure: true,
        cdb: Cdb::new(&cdb).unwrap(),
        data_out: DataBuffer::Immediate(7),
        data_in: DataBuffer::Direct(piece(1, 2, 3)),
        ..Cmd::default()
    };
    let mut out = [0; 128];
    assert_eq!(cmd.emit(&mut out), Ok(48 + 16 + 4 + 16));
    assert_eq!((out[1], out[5], out[31]), (0x04, 0x31, 4 << 2));
    assert_eq!(out[32..64], cdb);
    assert_eq!(out[64..68], [0, 0, 0, 7]);
    assert_eq!(ToTarget::parse(&out), Ok(ToTarget::Cmd(cmd)));
    assert_eq!(cmd.immediate(&out, 84).map(<[u8]>::len), Ok(7));
    assert!(matches!(
        cmd.immediate(&out, 68),
        Err(IuError::Contradiction(_))
    ));
    assert!(matches!(
        cmd.immediate(&out, 122),
        Err(IuError::Truncated { .. })
    ));

    for len in [0, 17, 18, 19, 21, 269, 272] {
        assert_eq!(Cdb::new(&vec![0; len]), Err(IuError::CdbLength(len)));
    }
    for len in [1, 6, 10, 12, 16, 20, 32, 268] {
        assert_eq!(Cdb::new(&vec![1; len]).map(|cdb| cdb.bytes()[0]), Ok(1));
    }
}

#[test]
fn logins_have_two_forms() {
    let login = LoginReq {
        tag: Tag(0x0102),
        max_iu_len: 260,
        formats: BufferFormats::DIRECT | BufferFormats::INDIRECT,
        immediate: true,
        channels: MultiChannel::INDEPENDENT,
        immediate_offset: 68,
        initiator: PortId {
            extension: 1,
            guid: Guid(2),
        },
        target: PortId {
            extension: 3,
            guid: Guid(4),
        },
    };
    let ib = hex(
        "00 00000000000000 0000000000000102 00000104 00000000 0006 81 00 0044 0000
         0000000000000001 0000000000000002 0000000000000003 0000000000000004",
    );
    assert_eq!(login.unit()[..], ib);
    let cm = hex("0000000000000102 0006 81 00 00000104
         0000000000000001 0000000000000002 0000000000000003 0000000000000004 0044 000000000000");
    assert_eq!(login.emit_cm()[..], cm);
    assert_eq!(LoginReq::parse_unit(&ib), Ok(login));
    assert_eq!(LoginReq::parse_cm(&cm), Ok(login));
    assert!(LoginReq::parse_unit(&ib[..63]).is_err());
    assert!(LoginReq::parse_cm(&cm[..55]).is_err());
}

#[test]
fn answers_to_logins_have_fixed_lengths() {
    let rsp = LoginRsp {
        delta: Delta(64),
        tag: Tag(9),
        max_initiator_iu_len: 1116,
        max_target_iu_len: 260,
        formats: BufferFormats::DIRECT,
        immediate: false,
        channels: MultiChannel::MAINTAINED,
    };
    let expected = hex("c0000000 00000040 0000000000000009 0000045c 00000104 0002 02");
    assert_eq!(rsp.unit()[..27], expected);
    assert_eq!(rsp.unit().len(), 52);
    assert_eq!(LoginAnswer::parse(&rsp.unit()), Ok(LoginAnswer::Rsp(rsp)));

    let rej = LoginRej {
        reason: LoginRejectReason::CHANNEL_LIMIT,
        tag: Tag(9),
        formats: BufferFormats::INDIRECT,
    };
    let expected = hex("c2000000 00010006 0000000000000009 0000000000000000 0004 000000000000");
    assert_eq!(rej.unit()[..], expected);
    // The connection manager pads private data with zeros.
    let padded = [rej.unit().as_slice(), &[0; 116]].concat();
    assert_eq!(LoginAnswer::parse(&padded), Ok(LoginAnswer::Rej(rej)));
}

#[test]
fn answers_are_a_head_of_36_bytes_and_one_detail() {
    let sense = [0x70, 0, 5, 0, 0, 0, 0, 0];
    let rsp = Rsp {
        delta: Delta(-1),
        tag: Tag(7),
        status: Status::CHECK_CONDITION,
        data_in: Residual::Under(24),
        detail: Detail::Sense(&sense),
        ..Rsp::default()
    };
    let mut out = [0; 64];
    assert_eq!(rsp.emit(&mut out), Ok(44));
    let expected = hex(
        "c1 00 0000 ffffffff 0000000000000007 0000 22 02 00000000 00000018 00000008 00000000
         7000050000000000",
    );
    assert_eq!(out[..44], expected);
    assert_eq!(ToInitiator::parse(&out), Ok(ToInitiator::Rsp(rsp)));

    let failed = Rsp {
        data_out: Residual::Over(1),
        detail: Detail::Response(ResponseCode::NOT_SUPPORTED),
        ..Rsp::default()
    };
    assert_eq!(failed.emit(&mut out), Ok(40));
    assert_eq!(out[18], 0x05);
    assert_eq!(out[32..40], [0, 0, 0, 4, 0, 0, 0, 4]);
    assert_eq!(ToInitiator::parse(&out[..40]), Ok(ToInitiator::Rsp(failed)));

    out[18] = 0x03;
    assert!(matches!(
        ToInitiator::parse(&out),
        Err(IuError::Contradiction(_))
    ));
    out[18] = 0x30;
    assert!(matches!(
        ToInitiator::parse(&out),
        Err(IuError::Contradiction(_))
    ));
}

#[test]
fn task_management_credit_events_and_logouts() {
    let abort = TskMgmt {
        solicit_success: true,
        tag: Tag(0x0a),
        lun: Lun(0x0001_0000_0000_0000),
        function: TaskFunction::ABORT_TASK,
        task: Tag(0x0b),
        ..TskMgmt::default()
    };
    let expected = hex(
        "01 02 000000000000 000000000000000a 00000000 0001000000000000 0000 01 00
         000000000000000b 0000000000000000",
    );
    assert_eq!(abort.unit()[..], expected);

    let credit = CredReq {
        solicited: true,
        delta: Delta(3),
        tag: Tag(1),
    };
    assert_eq!(
        credit.unit()[..],
        hex("81 01 0000 00000003 0000000000000001")
    );
    assert_eq!(
        CredRsp { tag: Tag(1) }.unit()[..],
        hex("41000000 00000000 0000000000000001")
    );
    assert_eq!(
        AerRsp { tag: Tag(2) }.unit()[..],
        hex("42000000 00000000 0000000000000002")
    );
    assert_eq!(
        InitiatorLogout { tag: Tag(3) }.unit()[..],
        hex("03000000 00000000 0000000000000003")
    );
    let logout = TargetLogout {
        solicited: false,
        reason: LogoutReason::MULTICHANNEL,
        tag: Tag(4),
    };
    assert_eq!(logout.unit()[..], hex("80000000 00000004 0000000000000004"));

    let event = AerReq {
        lun: Lun(8),
        sense: &[1, 2],
        ..AerReq::default()
    };
    let mut out = [0; 38];
    assert_eq!(event.emit(&mut out), Ok(38));
    assert_eq!((out[27], out[31], out[36], out[37]), (8, 2, 1, 2));
    assert_eq!(ToInitiator::parse(&out), Ok(ToInitiator::AerReq(event)));
    assert!(ToInitiator::parse(&out[..37]).is_err());
}

#[test]
fn each_side_refuses_its_own_units() {
    assert_eq!(ToTarget::parse(&[0xc1; 64]), Err(IuError::Type(0xc1)));
    assert_eq!(ToInitiator::parse(&[0x02; 64]), Err(IuError::Type(0x02)));
    assert_eq!(ToTarget::parse(&[]), Err(IuError::Type(0xff)));
    let mut cmd = [0; 64];
    cmd[0] = 0x02;
    cmd[5] = 0x03;
    assert_eq!(ToTarget::parse(&cmd), Err(IuError::Format(3)));
    cmd[5] = 0x40;
    assert_eq!(ToTarget::parse(&cmd), Err(IuError::Format(4)));
}
