//! Service records: which port offers a service, and under which name (IBTA vol. 1, 15.2.5.14).

use bitflags::bitflags;

use crate::addr::{Gid, PKey};
use crate::mad::field::Blob;
use crate::wire_record;

wire_record! {
    /// A service that a port offers.
    pub struct ServiceRecord, ServiceRecordView: 176 bytes {
        /// The service.
        service_id: u64 = (0, 0, 64),
        /// The port that offers it.
        service_gid: Gid = (8, 0, 128),
        /// Partition.
        pkey: PKey = (24, 0, 16),
        /// For how many seconds the record holds; `u32::MAX` for ever.
        lease_seconds: u32 = (28, 0, 32),
        /// Lets its owner change the record.
        service_key: Blob<16> = (32, 0, 128),
        /// Name in UTF-8, filled up with zeros.
        name: Blob<64> = (48, 0, 512),
        /// The service's own bytes.
        data8: Blob<16> = (112, 0, 128),
        /// Eight numbers of the service's own.
        data16: Blob<16> = (128, 0, 128),
        /// Four numbers of the service's own.
        data32: Blob<16> = (144, 0, 128),
        /// Two numbers of the service's own.
        data64: Blob<16> = (160, 0, 128),
    }
}

bitflags! {
    /// Which fields of a service record a request means. The service's own numbers have a bit each.
    #[derive(Clone, Copy, Debug, PartialEq, Eq, Default)]
    pub struct ServiceMask: u64 {
        /// `service_id`.
        const SERVICE_ID = 1;
        /// `service_gid`.
        const SERVICE_GID = 1 << 1;
        /// `pkey`.
        const PKEY = 1 << 2;
        /// `lease_seconds`.
        const LEASE = 1 << 3;
        /// `service_key`.
        const SERVICE_KEY = 1 << 4;
        /// `name`.
        const NAME = 1 << 5;
        /// All of `data8`.
        const DATA8 = 0xffff << 6;
        /// All of `data16`.
        const DATA16 = 0xff << 22;
        /// All of `data32`.
        const DATA32 = 0xf << 30;
        /// All of `data64`.
        const DATA64 = 3 << 34;
        /// Single numbers.
        const _ = 0xf_ffff_ffff;
    }
}
