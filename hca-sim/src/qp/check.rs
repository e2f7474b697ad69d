//! The values that a modify may set. The table decides which attributes it may name ([`verbs_core::qp_state`]).

use verbs_core::qp_state::{Transition, check as check_names};
use verbs_core::{Access, Attr, Error, QpAttr, QpAttrMask, QpState, QpType};

use crate::queue::base::limits;

/// Whether a queue pair in `from` may go to `to` with those attributes.
///
/// # Errors
/// [`Error::Transition`] for names, [`Error::Invalid`] and [`Error::Unsupported`] for values.
pub(crate) fn check(
    qp_type: QpType,
    from: QpState,
    to: QpState,
    change: &QpAttr,
) -> Result<(), Error> {
    check_names(from, to, qp_type, change.mask()).map_err(Error::Transition)?;
    if change.cur_state.is_some_and(|believed| believed != from) {
        let (missing, forbidden) = (QpAttrMask::empty(), QpAttrMask::CUR_STATE);
        return Err(Error::Transition(Transition {
            from,
            to,
            qp_type,
            missing,
            forbidden,
        }));
    }
    values(change)
}

fn values(change: &QpAttr) -> Result<(), Error> {
    let rd_atomic = limits::RD_ATOMIC;
    let alt = change.alt_path;
    let at_most = [
        (Attr::Timeout, change.timeout.map(u32::from), 31),
        (Attr::RetryCnt, change.retry_cnt.map(u32::from), 7),
        (Attr::RnrRetry, change.rnr_retry.map(u32::from), 7),
        (Attr::MinRnrTimer, change.min_rnr_timer.map(u32::from), 31),
        (
            Attr::MaxRdAtomic,
            change.max_rd_atomic.map(u32::from),
            rd_atomic,
        ),
        (
            Attr::MaxDestRdAtomic,
            change.max_dest_rd_atomic.map(u32::from),
            rd_atomic,
        ),
        (Attr::Av, change.av.map(|av| u32::from(av.sl)), 15),
        (Attr::AltPath, alt.map(|alt| u32::from(alt.av().sl)), 15),
        (Attr::Timeout, alt.map(|alt| u32::from(alt.timeout)), 31),
    ];
    for (attr, got, max) in at_most {
        if let Some(got) = got
            && got > max
        {
            return Err(Error::Invalid { attr, got, max });
        }
    }
    let paths = [change.av, alt.map(|alt| alt.av())];
    let ports = [
        change.port,
        paths[0].map(|av| av.port),
        paths[1].map(|av| av.port),
    ];
    if let Some(port) = ports
        .into_iter()
        .flatten()
        .find(|&port| port != limits::PORT)
    {
        return Err(Error::Invalid {
            attr: Attr::Port,
            got: u32::from(port),
            max: u32::from(limits::PORT),
        });
    }
    let known = Access::REMOTE | Access::FLUSH | Access::LOCAL_WRITE;
    match change.access {
        Some(access) if !known.contains(access) => Err(Error::Unsupported(Attr::Access)),
        _ => Ok(()),
    }
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use verbs_core::{Av, Lid, Mtu, Path, Psn, Qpn};

    use super::*;

    fn path() -> Path {
        Path {
            av: Av::to_lid(1, Lid(1)),
            dest_qpn: Qpn::new(17),
            rq_psn: Psn::new(0),
            mtu: Mtu::B1024,
        }
    }

    #[test]
    fn the_usual_transitions_pass() {
        assert_eq!(
            check(
                QpType::Rc,
                QpState::Reset,
                QpState::Init,
                &QpAttr::init(1, Access::REMOTE_WRITE)
            ),
            Ok(())
        );
        assert_eq!(
            check(
                QpType::Rc,
                QpState::Init,
                QpState::Rtr,
                &QpAttr::rtr(&path())
            ),
            Ok(())
        );
        assert_eq!(
            check(
                QpType::Rc,
                QpState::Rtr,
                QpState::Rts,
                &QpAttr::rts(Psn::new(0))
            ),
            Ok(())
        );
    }

    #[test]
    fn values_out_of_range_are_named() {
        let rts = |change: fn(&mut QpAttr)| {
            let mut attr = QpAttr::rts(Psn::new(0));
            change(&mut attr);
            check(QpType::Rc, QpState::Rtr, QpState::Rts, &attr)
        };
        assert_eq!(
            rts(|attr| attr.retry_cnt = Some(8)),
            Err(Error::Invalid {
                attr: Attr::RetryCnt,
                got: 8,
                max: 7
            })
        );
        assert_eq!(
            rts(|attr| attr.timeout = Some(32)),
            Err(Error::Invalid {
                attr: Attr::Timeout,
                got: 32,
                max: 31
            })
        );
        let two = check(
            QpType::Rc,
            QpState::Reset,
            QpState::Init,
            &QpAttr::init(2, Access::empty()),
        );
        assert_eq!(
            two,
            Err(Error::Invalid {
                attr: Attr::Port,
                got: 2,
                max: 1
            })
        );
        let bind = check(
            QpType::Rc,
            QpState::Reset,
            QpState::Init,
            &QpAttr::init(1, Access::MW_BIND),
        );
        assert_eq!(bind, Err(Error::Unsupported(Attr::Access)));
    }

    #[test]
    fn a_wrong_belief_about_the_state_is_refused() {
        let attr = QpAttr {
            cur_state: Some(QpState::Sqd),
            ..QpAttr::rts(Psn::new(0))
        };
        assert!(matches!(
            check(QpType::Rc, QpState::Rtr, QpState::Rts, &attr),
            Err(Error::Transition(_))
        ));
    }
}
