//! Requests to nodes, by directed route.

use verbs_core::mad::header::emit_header;
use verbs_core::mad::sm::{self, DATA_LEN, Hops, PERMISSIVE_LID, SmpHeader};
use verbs_core::mad::{Address, AttributeId, Class, MadBytes, MadHeader, Method};
use verbs_core::{Av, Qpn};

use crate::fabric::Route;

/// A Get from a node, or a Set.
#[derive(Clone, Debug)]
pub(crate) struct Smp {
    pub(crate) route: Route,
    pub(crate) method: Method,
    pub(crate) attribute: AttributeId,
    pub(crate) modifier: u32,
    pub(crate) data: [u8; DATA_LEN],
}

impl Smp {
    pub(crate) fn get(route: &Route, attribute: AttributeId, modifier: u32) -> Self {
        Self {
            route: route.clone(),
            method: Method::GET,
            attribute,
            modifier,
            data: [0; DATA_LEN],
        }
    }

    /// A Set of that attribute.
    pub(crate) fn set<const N: usize>(
        route: &Route,
        attribute: AttributeId,
        modifier: u32,
        bytes: &[u8; N],
    ) -> Self {
        const { assert!(N <= DATA_LEN, "the attribute does not fit") };
        let mut smp = Self::get(route, attribute, modifier);
        smp.method = Method::SET;
        for (to, from) in smp.data.iter_mut().zip(bytes) {
            *to = *from;
        }
        smp
    }

    /// The request as a datagram; `None` for a route that is too long.
    pub(crate) fn mad(&self, m_key: u64) -> Option<MadBytes> {
        let mut mad = [0; 256];
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: Class::SUBN_DIRECTED,
            class_version: sm::CLASS_VERSION,
            method: self.method,
            attribute: self.attribute,
            modifier: self.modifier,
            ..MadHeader::default()
        };
        emit_header(&header, &mut mad);
        SmpHeader::directed(m_key).put(&mut mad);
        sm::put_attribute(&mut mad, &self.data);
        Hops::put_path(&mut mad, &self.route)?;
        Some(mad)
    }
}

/// The address of datagrams with a directed route: they leave this port, whatever the LID.
pub(crate) fn directed(port: u8) -> Address {
    Address {
        av: Av::to_lid(port, PERMISSIVE_LID),
        qpn: Qpn::new(0),
        pkey_index: 0,
    }
}
