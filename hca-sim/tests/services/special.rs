//! The general services queue pair.

use verbs_core::{Attr, Error, Psn, QKey, QpAttr, QpInit, QpType, Qpn, Recv, Send};

use crate::bed::{Bed, End, Way, to};

fn gsi(bed: &Bed, number: usize) -> End {
    let end = bed.end(number, QpType::Gsi, |init| init);
    end.qp
        .modify(QpAttr::init_special(QKey::GSI))
        .wait()
        .unwrap();
    end.qp.ready_to_receive_datagrams().wait().unwrap();
    end.qp.ready_to_send(Psn::new(0)).wait().unwrap();
    end
}

#[test]
fn every_port_has_one_under_the_number_one() {
    for way in Way::ALL {
        let bed = Bed::new(way);
        let (mut a, mut b) = (gsi(&bed, 0), gsi(&bed, 1));
        assert_eq!((a.qp.qpn(), b.qp.qpn()), (Qpn::new(1), Qpn::new(1)));
        let second = a.pd.create_qp(QpInit::of(QpType::Gsi, &a.cq, &a.cq)).wait();
        let taken = Error::Exhausted {
            attr: Attr::QpType,
            max: 1,
        };
        assert_eq!(second.unwrap_err(), taken);
        b.qp.post_recv(Recv::new(1).into(b.mr.slice(0..296)))
            .unwrap();
        let there = to(bed.address(1), Qpn::new(1), QKey::GSI);
        a.mr.write(0, &[3; 256]).unwrap();
        a.qp.post_send(Send::new(2).from(a.mr.slice(0..256)).to(&there))
            .unwrap();
        let [wc] = bed.poll(&mut b)[..] else {
            panic!("{way:?}: one MAD");
        };
        assert_eq!(
            (wc.src_qpn, wc.byte_len, wc.pkey_index),
            (Qpn::new(1), 296, 0)
        );
        assert_eq!(b.bytes(40..296), [3; 256]);
        a.qp.destroy().wait().unwrap();
        gsi(&bed, 0);
    }
}
