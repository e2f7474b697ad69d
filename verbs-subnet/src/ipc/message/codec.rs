//! The bytes of messages, written and read.

use verbs_core::addr::{PKey, QKey, Qpn};
use verbs_core::mad::sm::{BadKey, PortInfo, PortInfoView};
use verbs_core::{Gid, Guid, Lid};

use super::{Adapter, AdapterPort, MadMessage, MessageError, Registration};
use verbs_link::PortTables;

pub(super) struct Writer(pub(super) Vec<u8>);

impl Writer {
    pub(super) fn bytes(&mut self, bytes: &[u8]) -> &mut Self {
        self.0.extend_from_slice(bytes);
        self
    }

    pub(super) fn byte(&mut self, value: u8) -> &mut Self {
        self.bytes(&[value])
    }

    pub(super) fn short(&mut self, value: u16) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn word(&mut self, value: u32) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    pub(super) fn long(&mut self, value: u64) -> &mut Self {
        self.bytes(&value.to_be_bytes())
    }

    /// Writes a text, cut to 65,535 bytes.
    pub(super) fn text(&mut self, text: &str) -> &mut Self {
        let bytes = text.as_bytes();
        let len = u16::try_from(bytes.len()).unwrap_or(u16::MAX);
        let bytes = bytes.get(..usize::from(len)).unwrap_or_default();
        self.short(len).bytes(bytes)
    }

    /// Writes the first 65,535 items of a list.
    pub(super) fn list<T>(&mut self, items: &[T], write: impl Fn(&mut Self, &T)) -> &mut Self {
        let len = u16::try_from(items.len()).unwrap_or(u16::MAX);
        self.short(len);
        for item in items.iter().take(len.into()) {
            write(self, item);
        }
        self
    }

    pub(super) fn registration(&mut self, of: &Registration) -> &mut Self {
        self.byte(of.class)
            .byte(of.version)
            .bytes(&of.methods.to_be_bytes())
            .word(of.oui)
            .byte(u8::from(of.has_transfers))
    }

    pub(super) fn mad(&mut self, mad: &MadMessage) -> &mut Self {
        self.word(mad.agent)
            .word(mad.status)
            .word(mad.timeout_ms)
            .word(mad.retries)
            .word(mad.qpn.value())
            .word(mad.qkey.0)
            .short(mad.lid.0)
            .byte(mad.sl)
            .byte(mad.path_bits)
            .byte(u8::from(mad.gid.is_some()))
            .bytes(&mad.gid.unwrap_or_default().0)
            .byte(mad.gid_index)
            .short(mad.pkey_index)
            .bytes(&mad.bytes)
    }

    pub(super) fn tables(&mut self, tables: &PortTables) -> &mut Self {
        let mut info = [0; PortInfo::LEN];
        tables.info.emit(&mut info);
        self.long(tables.node_guid.0)
            .long(tables.system_guid.0)
            .bytes(&info)
            .list(&tables.gids, |out, gid| {
                out.bytes(&gid.0);
            })
            .list(&tables.pkeys, |out, key| {
                out.short(key.0);
            })
    }

    pub(super) fn bad_key(&mut self, key: &BadKey) -> &mut Self {
        self.byte(u8::from(key.is_qkey))
            .word(key.key)
            .byte(key.sl)
            .short(key.from.0)
            .word(key.src_qpn.value())
            .word(key.dest_qpn.value())
            .bytes(key.gids.as_flattened())
    }

    pub(super) fn adapter(&mut self, adapter: &Adapter) {
        self.text(&adapter.name)
            .long(adapter.guid.0)
            .long(adapter.system_guid.0)
            .short(adapter.device_id)
            .byte(adapter.node_type)
            .list(&adapter.ports, Self::port);
    }

    pub(super) fn port(&mut self, port: &AdapterPort) {
        self.byte(port.number)
            .long(port.guid.0)
            .long(port.gid_prefix)
            .short(port.lid.0)
            .byte(port.lmc)
            .short(port.sm_lid.0)
            .byte(port.sm_sl)
            .byte(port.state)
            .byte(port.phys_state)
            .word(port.rate_mbps)
            .word(port.capability_mask)
            .list(&port.pkeys, |out, key| {
                out.short(key.0);
            });
    }
}

pub(super) struct Reader<'a>(pub(super) &'a [u8]);

impl Reader<'_> {
    pub(super) fn array<const N: usize>(&mut self) -> Result<[u8; N], MessageError> {
        let (array, rest) = self.0.split_first_chunk().ok_or(MessageError::Short)?;
        self.0 = rest;
        Ok(*array)
    }

    pub(super) fn byte(&mut self) -> Result<u8, MessageError> {
        self.array().map(|[byte]| byte)
    }

    pub(super) fn flag(&mut self) -> Result<bool, MessageError> {
        match self.byte()? {
            0 => Ok(false),
            1 => Ok(true),
            other => Err(MessageError::Unknown(other)),
        }
    }

    pub(super) fn short(&mut self) -> Result<u16, MessageError> {
        self.array().map(u16::from_be_bytes)
    }

    pub(super) fn word(&mut self) -> Result<u32, MessageError> {
        self.array().map(u32::from_be_bytes)
    }

    pub(super) fn long(&mut self) -> Result<u64, MessageError> {
        self.array().map(u64::from_be_bytes)
    }

    pub(super) fn text(&mut self) -> Result<String, MessageError> {
        let len = usize::from(self.short()?);
        let (text, rest) = self.0.split_at_checked(len).ok_or(MessageError::Short)?;
        self.0 = rest;
        let text = std::str::from_utf8(text).map_err(|_| MessageError::NoText)?;
        Ok(text.to_owned())
    }

    pub(super) fn list<T>(
        &mut self,
        read: fn(&mut Self) -> Result<T, MessageError>,
    ) -> Result<Vec<T>, MessageError> {
        let len = self.short()?;
        (0..len).map(|_| read(self)).collect()
    }

    pub(super) fn registration(&mut self) -> Result<Registration, MessageError> {
        Ok(Registration {
            class: self.byte()?,
            version: self.byte()?,
            methods: u128::from_be_bytes(self.array()?),
            oui: self.word()?,
            has_transfers: self.flag()?,
        })
    }

    pub(super) fn mad(&mut self) -> Result<MadMessage, MessageError> {
        let agent = self.word()?;
        let (status, timeout_ms, retries) = (self.word()?, self.word()?, self.word()?);
        let (qpn, qkey) = (Qpn::new(self.word()?), QKey(self.word()?));
        let (lid, sl, path_bits) = (Lid(self.short()?), self.byte()?, self.byte()?);
        let (has_gid, gid) = (self.flag()?, Gid(self.array()?));
        let (gid_index, pkey_index) = (self.byte()?, self.short()?);
        let bytes = std::mem::take(&mut self.0).to_vec();
        Ok(MadMessage {
            agent,
            status,
            timeout_ms,
            retries,
            qpn,
            qkey,
            lid,
            sl,
            path_bits,
            gid: has_gid.then_some(gid),
            gid_index,
            pkey_index,
            bytes,
        })
    }

    pub(super) fn tables(&mut self) -> Result<PortTables, MessageError> {
        Ok(PortTables {
            node_guid: Guid(self.long()?),
            system_guid: Guid(self.long()?),
            info: PortInfo::parse(PortInfoView::of(&self.array()?)),
            gids: self.list(|from| from.array().map(Gid))?,
            pkeys: self.list(|from| from.short().map(PKey))?,
        })
    }

    pub(super) fn bad_key(&mut self) -> Result<BadKey, MessageError> {
        Ok(BadKey {
            is_qkey: self.flag()?,
            key: self.word()?,
            sl: self.byte()?,
            from: Lid(self.short()?),
            src_qpn: Qpn::new(self.word()?),
            dest_qpn: Qpn::new(self.word()?),
            gids: [self.array()?, self.array()?],
        })
    }

    pub(super) fn adapter(&mut self) -> Result<Adapter, MessageError> {
        Ok(Adapter {
            name: self.text()?,
            guid: Guid(self.long()?),
            system_guid: Guid(self.long()?),
            device_id: self.short()?,
            node_type: self.byte()?,
            ports: self.list(Self::port)?,
        })
    }

    pub(super) fn port(&mut self) -> Result<AdapterPort, MessageError> {
        Ok(AdapterPort {
            number: self.byte()?,
            guid: Guid(self.long()?),
            gid_prefix: self.long()?,
            lid: Lid(self.short()?),
            lmc: self.byte()?,
            sm_lid: Lid(self.short()?),
            sm_sl: self.byte()?,
            state: self.byte()?,
            phys_state: self.byte()?,
            rate_mbps: self.word()?,
            capability_mask: self.word()?,
            pkeys: self.list(|from| from.short().map(PKey))?,
        })
    }
}
