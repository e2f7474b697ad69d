//! What requests are made of: records with their component masks, typed.

use verbs_core::mad::header::emit_header;
use verbs_core::mad::sa::{
    self, DATA_LEN, InformInfo, InformInfoView, LinkMask, LinkRecord, LinkRecordView, McMemberMask,
    McMemberRecord, McMemberRecordView, NodeMask, NodeRecord, NodeRecordView, PathMask, PathRecord,
    PathRecordView, PortInfoMask, PortInfoRecord, PortInfoRecordView, SaHeader, ServiceMask,
    ServiceRecord, ServiceRecordView,
};
use verbs_core::mad::{
    AttributeId, Class, ClassPortInfo, ClassPortInfoView, MadBytes, MadHeader, Method,
};

/// A record that the subnet administrator keeps. Implemented by the record types of
/// [`verbs_core::mad::sa`] and by no others.
pub trait Record: Copy + Send + Sync + sealed::Sealed + 'static {
    /// Which fields of the record a request means.
    type Mask: Copy + Send + Sync + Into<Components> + 'static;
    /// The record's attribute.
    const ATTRIBUTE: AttributeId;
    /// Bytes of the record, without what fills it up in tables.
    const LEN: usize;

    /// Reads the record that these bytes start with; `None` when there are too few.
    #[doc(hidden)]
    fn from_bytes(bytes: &[u8]) -> Option<Self>;

    /// Writes it into a datagram.
    #[doc(hidden)]
    fn put(&self, mad: &mut MadBytes);
}

/// A component mask, of whatever record.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
pub struct Components(pub u64);

mod sealed {
    pub trait Sealed {}
}

macro_rules! records {
    ($($record:ident, $view:ident, $mask:ty, $attribute:ident;)*) => {$(
        impl sealed::Sealed for $record {}

        impl Record for $record {
            type Mask = $mask;
            const ATTRIBUTE: AttributeId = AttributeId::$attribute;
            const LEN: usize = Self::LEN;

            fn from_bytes(bytes: &[u8]) -> Option<Self> {
                $view::new(bytes).map(Self::parse)
            }

            fn put(&self, mad: &mut MadBytes) {
                let mut bytes = [0; Self::LEN];
                self.emit(&mut bytes);
                sa::put_record(mad, &bytes);
            }
        }
    )*};
}

records! {
    PathRecord, PathRecordView, PathMask, PATH_RECORD;
    McMemberRecord, McMemberRecordView, McMemberMask, MC_MEMBER_RECORD;
    ServiceRecord, ServiceRecordView, ServiceMask, SERVICE_RECORD;
    NodeRecord, NodeRecordView, NodeMask, NODE_RECORD;
    PortInfoRecord, PortInfoRecordView, PortInfoMask, PORT_INFO_RECORD;
    LinkRecord, LinkRecordView, LinkMask, LINK_RECORD;
    InformInfo, InformInfoView, Components, INFORM_INFO;
    ClassPortInfo, ClassPortInfoView, Components, CLASS_PORT_INFO;
}

macro_rules! masks {
    ($($mask:ident),*) => {$(
        impl From<$mask> for Components {
            fn from(mask: $mask) -> Self {
                Self(mask.bits())
            }
        }
    )*};
}

masks!(
    PathMask,
    McMemberMask,
    ServiceMask,
    NodeMask,
    PortInfoMask,
    LinkMask
);

/// A request to the administrator, before it is known where that is.
#[derive(Clone, Copy)]
pub(super) struct Question(MadBytes);

impl Question {
    pub(super) fn new<R: Record>(method: Method, record: &R, mask: R::Mask) -> Self {
        let mut mad = [0; 256];
        let header = MadHeader {
            base_version: MadHeader::BASE_VERSION,
            class: Class::SA,
            class_version: sa::CLASS_VERSION,
            method,
            attribute: R::ATTRIBUTE,
            ..MadHeader::default()
        };
        emit_header(&header, &mut mad);
        let Components(component_mask) = mask.into();
        SaHeader {
            component_mask,
            ..SaHeader::default()
        }
        .put(&mut mad);
        record.put(&mut mad);
        Self(mad)
    }

    pub(super) fn mad(&self) -> &MadBytes {
        &self.0
    }

    /// How much it says.
    pub(super) fn components(&self) -> u32 {
        SaHeader::of(&self.0).component_mask.count_ones()
    }
}

/// An answer: the records in it, as bytes.
pub(super) struct Answer {
    pub(super) data: Vec<u8>,
    /// From one record to the next, in units of 8 bytes.
    pub(super) offset: u16,
}

impl Answer {
    /// What one datagram says, or what the segments of a transfer said.
    pub(super) fn new(mad: &MadBytes, payload: Option<Vec<u8>>) -> Self {
        Self {
            data: payload.unwrap_or_else(|| sa::record(mad).to_vec()),
            offset: SaHeader::of(mad).attribute_offset,
        }
    }

    /// The first record.
    pub(super) fn first<R: Record>(&self) -> Option<R> {
        R::from_bytes(&self.data)
    }

    /// All records.
    pub(super) fn all<R: Record>(&self) -> Vec<R> {
        sa::records(&self.data, self.offset, R::LEN)
            .filter_map(R::from_bytes)
            .collect()
    }

    /// The first record as it came, for callers that know its type.
    pub(super) fn bytes(&self) -> [u8; DATA_LEN] {
        let mut bytes = [0; DATA_LEN];
        for (to, from) in bytes.iter_mut().zip(&self.data) {
            *to = *from;
        }
        bytes
    }
}
