//! Address handles: addresses of peers that datagrams name.

use std::net::Ipv4Addr;

use crate::addr::Gid;
#[cfg(doc)]
use crate::error::Error;
use crate::object::header::IfBusy;
use crate::object::{Base, Child, ObjectKind, Private, Target, core, destroy, handle};
use crate::pd::{Pd, PdCore};
use crate::qp_attr::{Av, GlobalRoute};
use crate::request::Request;
use crate::sync::{Arc, Mutex};
use crate::verb::verb;
use crate::wc::{Wc, WcFlags};

/// An address handle (IBTA vol. 1, 11.2.2). The address is copied into each work request that names
/// the handle, so destroying it disturbs no send.
///
/// Dropping it destroys it (K12).
pub struct Ah {
    core: Arc<AhCore>,
}

/// What an address handle's requests act on.
#[derive(Debug)]
pub struct AhCore {
    base: Base,
    pd: Child<PdCore>,
    av: Mutex<Av>,
}

core!(AhCore { pd });
handle!(Ah, AhCore, DestroyAh);

/// Creates an address handle; arguments of the verb.
#[derive(Debug)]
pub struct CreateAh {
    pd: Child<PdCore>,
    /// The address.
    pub av: Av,
}

/// Changes the address; arguments of the verb.
#[derive(Debug)]
pub struct ModifyAh {
    /// The new address.
    pub av: Av,
}

/// Asks for the address; arguments of the verb.
#[derive(Debug)]
pub struct QueryAh(());

verb!(CreateAh, PdCore => Ah);
verb!(ModifyAh, AhCore => ());
verb!(QueryAh, AhCore => Av);

impl CreateAh {
    /// The handle, for a provider that has created it under that number.
    pub fn build(self, number: u32, private: Private) -> Ah {
        let base = Base::new(
            Target::device(self.pd.get()),
            ObjectKind::Ah,
            number,
            private,
        );
        Ah {
            core: Arc::new(AhCore {
                base,
                pd: self.pd,
                av: Mutex::new(self.av),
            }),
        }
    }
}

impl AhCore {
    /// The address as it is now.
    pub fn av(&self) -> Av {
        *self.av.lock()
    }

    /// Takes over a new address, for a provider that accepts it.
    pub fn replace(&self, av: Av) {
        *self.av.lock() = av;
    }
}

impl Av {
    /// The way back to where a datagram came from, as `ibv_init_ah_from_wc` has it: `area` is what stands
    /// in front of its payload, and `sgid_index` the GID that is to answer, the one that it was sent to.
    /// On RoCEv2 over IPv4 the last 20 bytes of it are the IPv4 header.
    ///
    /// `None` if the completion says that there is a global route, and there is none in `area`.
    pub fn reverse(port: u8, wc: &Wc, area: &[u8; 40], sgid_index: u16) -> Option<Self> {
        let global = if wc.flags.contains(WcFlags::GRH) {
            Some(GlobalRoute {
                sgid_index,
                ..reverse_route(area)?
            })
        } else {
            None
        };
        Some(Self {
            global,
            sl: wc.sl,
            src_path_bits: wc.dlid_path_bits,
            ..Self::to_lid(port, wc.slid)
        })
    }
}

/// The way back of the header that stands there.
fn reverse_route(area: &[u8; 40]) -> Option<GlobalRoute> {
    // Before an IPv4 header anything may stand, so that one that is right is one.
    let v4 = area.last_chunk::<20>()?;
    if v4[0] == 0x45 && sums_up(v4) {
        let src = Ipv4Addr::from(*v4[12..].first_chunk::<4>()?);
        return Some(GlobalRoute {
            dgid: src.into(),
            sgid_index: 0,
            flow_label: 0,
            hop_limit: 0xff,
            traffic_class: v4[1],
        });
    }
    let word = u32::from_be_bytes(*area.first_chunk()?);
    (word >> 28 == 6).then_some(GlobalRoute {
        dgid: Gid(*area[8..].first_chunk()?),
        sgid_index: 0,
        flow_label: word & 0xf_ffff,
        hop_limit: 0xff,
        traffic_class: (word >> 20) as u8,
    })
}

/// Whether the checksum of an IPv4 header is right (RFC 1071).
fn sums_up(header: &[u8; 20]) -> bool {
    let words = header.chunks_exact(2);
    let sum = words.fold(0_u32, |sum, word| {
        sum + u32::from(u16::from_be_bytes([word[0], word[1]]))
    });
    (sum & 0xffff) + (sum >> 16) == 0xffff
}

impl Pd {
    /// Creates an address handle.
    ///
    /// # Errors
    /// [`Error::Invalid`] for a port or table index that the device does not have,
    /// [`Error::Exhausted`] at the device's `max_ah`.
    pub fn create_ah(&self, av: Av) -> Request<'_, CreateAh> {
        Request::new(
            self.core(),
            CreateAh {
                pd: Child::new(self.core(), ObjectKind::Ah),
                av,
            },
        )
    }
}

impl Ah {
    /// The address as it is now.
    pub fn av(&self) -> Av {
        self.core.av()
    }

    /// Changes the address; later sends use the new one.
    ///
    /// # Errors
    /// As [`Pd::create_ah`].
    pub fn modify(&self, av: Av) -> Request<'_, ModifyAh> {
        Request::new(&self.core, ModifyAh { av })
    }

    /// Asks the device for the address.
    ///
    /// # Errors
    /// The provider's.
    pub fn query(&self) -> Request<'_, QueryAh> {
        Request::new(&self.core, QueryAh(()))
    }

    /// Destroys the handle. Never Busy: sends have copied the address.
    ///
    /// # Errors
    /// Only [`Error::WouldBlock`] and [`Error::DeviceRemoved`].
    pub fn destroy(self) -> Request<'static, DestroyAh> {
        destroy(self, IfBusy::Refuse)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::addr::Lid;

    fn wc(flags: WcFlags) -> Wc {
        Wc {
            flags,
            slid: Lid(3),
            sl: 4,
            ..Wc::default()
        }
    }

    #[test]
    fn without_a_global_route_the_way_back_is_local() {
        let back = Av::reverse(1, &wc(WcFlags::empty()), &[0; 40], 7);
        let local = Av {
            sl: 4,
            ..Av::to_lid(1, Lid(3))
        };
        assert_eq!(back, Some(local));
        assert_eq!(Av::reverse(1, &wc(WcFlags::GRH), &[0; 40], 7), None);
    }

    #[test]
    fn an_ipv4_header_is_one_only_with_its_checksum() {
        let mut area = [0; 40];
        area[20..].copy_from_slice(&[
            0x45, 0x02, 0, 60, 0, 0, 0x40, 0, 64, 17, 0x26, 0xab, 10, 0, 0, 1, 10, 0, 0, 2,
        ]);
        let sum: u32 = area[20..]
            .chunks(2)
            .map(|word| u32::from(u16::from_be_bytes([word[0], word[1]])))
            .sum();
        // Whatever the checksum above, this makes it right.
        let fixed = 0xffff - (((sum - 0x26ab) & 0xffff) + ((sum - 0x26ab) >> 16));
        area[30..32].copy_from_slice(&(fixed as u16).to_be_bytes());
        let back = Av::reverse(1, &wc(WcFlags::GRH), &area, 7);
        let global = back.and_then(|av| av.global).expect("it is right");
        assert_eq!(global.dgid, Ipv4Addr::new(10, 0, 0, 1).into());
        assert_eq!((global.sgid_index, global.traffic_class), (7, 2));
        area[31] ^= 1;
        assert_eq!(Av::reverse(1, &wc(WcFlags::GRH), &area, 7), None);
    }

    #[test]
    fn a_global_route_leads_back_to_its_source() {
        let mut area = [9; 40];
        area[..4].copy_from_slice(&0x6123_4567_u32.to_be_bytes());
        let back = Av::reverse(1, &wc(WcFlags::GRH), &area, 0);
        let global = back.and_then(|av| av.global).expect("it is version 6");
        assert_eq!(global.dgid, Gid([9; 16]));
        assert_eq!((global.traffic_class, global.flow_label), (0x12, 0x3_4567));
    }
}
