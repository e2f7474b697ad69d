//! Extended reliable connections: what the messages say, and what queue pairs are told (IBTA vol. 1, annex A14).

use verbs_core::QpAttr;
use verbs_core::addr::Qpn;
use verbs_core::mad::Bits;
use verbs_core::qp_state::{QpState, QpType, check};

use super::lab::{Lab, accept, connect};
use crate::Event;
use crate::params::{Connect, Listen};
use crate::wire::{Message, Req, ServiceId, Transport};

const OPEN: ServiceId = ServiceId(0x99);

/// What the queue pair of a host is told, all of which it does.
fn told(lab: &mut Lab, host: usize) -> Vec<QpAttr> {
    let mut attrs = Vec::new();
    while let Some(change) = lab.cms[host].poll_qp_change() {
        attrs.push(change.attr);
        lab.cms[host].qp_modified(lab.now, change.conn, Ok(()));
    }
    attrs
}

/// Goal: REQ and REP are those that Linux sends for such a connection, each queue pair gets the attributes that its type
/// has, and the connection ends by the target's number. Method: message by message.
#[test]
fn an_extended_connection_is_made_and_ended() {
    let mut lab = Lab::new();
    let listen = Listen {
        extended: true,
        ..Listen::new(OPEN)
    };
    lab.cms[1].listen(listen).unwrap();
    let wish = Connect {
        service_id: OPEN,
        transport: Transport::Extended,
        retry_count: Bits::truncated(5),
        srq: true,
        initiator_depth: 4,
        ..connect(0x55)
    };
    let active = lab.cms[0].connect(lab.now, wish).unwrap();
    let [Message::Req(req)] = lab.sent(0)[..] else {
        panic!("it asks")
    };
    assert_eq!(
        (req.transport, req.extended_transport, req.qpn),
        (Transport::Extended, Req::XRC, Qpn::new(0x55))
    );
    let of_requests = (req.responder_resources, req.retry_count, req.srq);
    assert_eq!(
        of_requests,
        (0, Bits::default(), false),
        "it is asked for nothing"
    );
    assert_eq!(req.initiator_depth, 4);
    lab.give(1, &req.into());
    let Some(Event::ConnectRequest { conn, .. }) = lab.event(1) else {
        panic!("it is asked for")
    };
    let mut answer = accept();
    answer.responder_resources = 3;
    lab.cms[1].accept(lab.now, conn, &answer).unwrap();
    let mut targets = told(&mut lab, 1);
    let [Message::Rep(rep)] = lab.sent(1)[..] else {
        panic!("it replies")
    };
    assert_eq!((rep.qpn, rep.local_eecn.value()), (Qpn::default(), 0x99));
    assert!(rep.srq);
    lab.give(0, &rep.into());
    let initiators = told(&mut lab, 0);
    assert_eq!(lab.cms[0].remote_qpn(active), Some(Qpn::new(0x99)));
    assert_eq!(initiators[0].dest_qpn, Some(Qpn::new(0x99)));
    let retries = (initiators[1].retry_cnt, initiators[1].max_rd_atomic);
    assert_eq!(retries, (Some(5), Some(3)));
    lab.carry(0);
    targets.extend(told(&mut lab, 1));
    for (qp_type, attrs) in [(QpType::XrcSend, &initiators), (QpType::XrcRecv, &targets)] {
        let [rtr, rts] = &attrs[..] else {
            panic!("{attrs:?}")
        };
        let rtr = check(QpState::Init, QpState::Rtr, qp_type, rtr.mask());
        let rts = check(QpState::Rtr, QpState::Rts, qp_type, rts.mask());
        assert_eq!((rtr, rts), (Ok(()), Ok(())), "{qp_type}");
    }
    lab.disconnect(0, active);
    assert_eq!(lab.carry(0), ["DREQ"]);
    assert_eq!(lab.carry(1), ["DREP"], "it knows itself by that number");
    lab.finish();
}
