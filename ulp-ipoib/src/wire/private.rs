//! The private data of IPoIB connections (RFC 4755, section 3.5).

use verbs_core::{Qpn, wire_record};

wire_record! {
    /// The private data of REQ and REP.
    pub struct ConnectedData, ConnectedDataView: 8 bytes {
        /// The sender's queue pair for datagrams, which identifies it.
        qpn: Qpn = (1, 0, 24),
        /// Bytes that it accepts in one message, including the encapsulation header.
        receive_mtu: u32 = (4, 0, 32),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn private_data_count_the_header() {
        let data = ConnectedData {
            qpn: Qpn::new(0x404),
            receive_mtu: 65_520 + 4,
        };
        let mut bytes = [0xff; ConnectedData::LEN];
        data.emit(&mut bytes);
        assert_eq!(bytes, [0, 0, 4, 4, 0, 0, 0xff, 0xf4]);
    }
}
