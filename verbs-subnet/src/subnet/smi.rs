//! Directed routes: how a node handles a datagram that contains its own route (IBTA vol. 1, 14.2.2).

use verbs_core::Lid;
use verbs_core::mad::MadBytes;
use verbs_core::mad::sm::{HOPS_MAX, Hops, PERMISSIVE_LID, SmpHeader};

/// What happens to a datagram.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// It leaves through that port.
    Out(u8),
    /// It has arrived.
    Here,
    /// The rest of its route is by LID.
    ToLid(Lid),
    /// Its route is invalid.
    Drop,
}

/// Decides what the node does with a datagram that arrived through `came`, or was sent here.
pub(super) fn step(mad: &mut MadBytes, is_switch: bool, came: Option<u8>) -> Step {
    let hops = Hops::of(mad);
    if hops.count > HOPS_MAX {
        return Step::Drop;
    }
    if hops.returns {
        inbound(mad, hops, is_switch, came)
    } else {
        outbound(mad, hops, is_switch, came)
    }
}

/// C14-9: outbound.
fn outbound(mad: &mut MadBytes, hops: Hops, is_switch: bool, came: Option<u8>) -> Step {
    let Hops { pointer, count, .. } = hops;
    let ends = SmpHeader::of(mad);
    // It begins at its requester, or where the part of its route by LID ends.
    let begins = came.is_none() || is_switch && ends.dr_slid != PERMISSIVE_LID;
    if pointer == 0 && begins {
        advance(mad, hops, 1);
        return match count {
            0 => Step::Here,
            _ => Hops::initial(mad, 1).map_or(Step::Drop, Step::Out),
        };
    }
    if pointer == count + 1 {
        return Step::Here;
    }
    let Some(port) = came else { return Step::Drop };
    if pointer == 0 || pointer > count {
        return Step::Drop;
    }
    Hops::note_back(mad, pointer, port);
    advance(mad, hops, pointer + 1);
    if pointer < count {
        return match Hops::initial(mad, pointer + 1) {
            Some(out) if is_switch => Step::Out(out),
            _ => Step::Drop,
        };
    }
    match ends.dr_dlid {
        PERMISSIVE_LID => Step::Here,
        lid if is_switch => Step::ToLid(lid),
        _ => Step::Drop,
    }
}

/// C14-13: returning.
fn inbound(mad: &mut MadBytes, hops: Hops, is_switch: bool, came: Option<u8>) -> Step {
    let Hops { pointer, count, .. } = hops;
    match pointer {
        0 => Step::Here,
        1 => {
            advance(mad, hops, 0);
            match SmpHeader::of(mad).dr_slid {
                PERMISSIVE_LID => Step::Here,
                lid if is_switch => Step::ToLid(lid),
                _ => Step::Here,
            }
        }
        _ if pointer > count + 1 => Step::Drop,
        // Only the node that answers may be an adapter.
        _ if came.is_some() && !is_switch => Step::Drop,
        _ => {
            advance(mad, hops, pointer - 1);
            Hops::back(mad, pointer - 1).map_or(Step::Drop, Step::Out)
        }
    }
}

fn advance(mad: &mut MadBytes, hops: Hops, pointer: u8) {
    Hops { pointer, ..hops }.put(mad);
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    fn request(path: &[u8]) -> MadBytes {
        let mut mad = [0; 256];
        mad[1] = 0x81;
        SmpHeader::directed(0).put(&mut mad);
        Hops::put_path(&mut mad, path).expect("it fits");
        mad
    }

    fn turn(mad: &mut MadBytes) {
        let hops = Hops::of(mad);
        Hops {
            returns: true,
            ..hops
        }
        .put(mad);
    }

    /// Goal: a datagram travels out and back by the rules. Method: three nodes, each step by hand.
    #[test]
    fn a_datagram_goes_out_and_comes_back() {
        let mut mad = request(&[1, 7]);
        assert_eq!(step(&mut mad, false, None), Step::Out(1));
        assert_eq!(step(&mut mad, true, Some(4)), Step::Out(7));
        assert_eq!(step(&mut mad, false, Some(1)), Step::Here);
        assert_eq!((Hops::of(&mad).pointer, &mad[193..195]), (3, &[4, 1][..]));
        turn(&mut mad);
        assert_eq!(step(&mut mad, false, None), Step::Out(1));
        assert_eq!(step(&mut mad, true, Some(7)), Step::Out(4));
        assert_eq!(step(&mut mad, false, Some(1)), Step::Here);
        assert_eq!(Hops::of(&mad).pointer, 0);
    }

    #[test]
    fn a_datagram_to_the_own_node_stays() {
        let mut mad = request(&[]);
        assert_eq!(step(&mut mad, false, None), Step::Here);
        assert_eq!(Hops::of(&mad).pointer, 1);
        turn(&mut mad);
        assert_eq!(step(&mut mad, false, None), Step::Here);
        assert_eq!(Hops::of(&mad).pointer, 0);
    }

    /// Goal: the two mixed kinds of routes. Method: LIDs at either end.
    #[test]
    fn routes_may_begin_and_end_by_lid() {
        let mut mad = request(&[5]);
        SmpHeader {
            m_key: 0,
            dr_slid: Lid(9),
            dr_dlid: Lid(12),
        }
        .put(&mut mad);
        assert_eq!(step(&mut mad, true, Some(2)), Step::Out(5));
        assert_eq!(step(&mut mad, true, Some(3)), Step::ToLid(Lid(12)));
        turn(&mut mad);
        assert_eq!(step(&mut mad, true, Some(8)), Step::Out(3));
        assert_eq!(step(&mut mad, true, Some(5)), Step::ToLid(Lid(9)));
        assert_eq!(step(&mut mad, false, Some(1)), Step::Here);
    }

    #[test]
    fn datagrams_that_lost_their_way_are_dropped() {
        let mut adapter = request(&[1, 1, 1]);
        assert_eq!(step(&mut adapter, false, None), Step::Out(1));
        assert_eq!(
            step(&mut adapter, false, Some(1)),
            Step::Drop,
            "adapters forward nothing"
        );
        for (pointer, count, returns) in [(0, 2, false), (9, 2, false), (9, 2, true), (1, 64, true)]
        {
            let mut mad = request(&[]);
            Hops {
                pointer,
                count,
                returns,
            }
            .put(&mut mad);
            assert_eq!(
                step(&mut mad, true, Some(1)),
                Step::Drop,
                "{pointer} of {count}"
            );
        }
    }
}
