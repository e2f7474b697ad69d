//! Logging in and out: LOGIN_REQ in its two forms, LOGIN_RSP, LOGIN_REJ, I_LOGOUT, T_LOGOUT.

use verbs_core::wire_record;

use crate::iu::error::{IuError, fixed};
use crate::iu::ids::{
    BufferFormats, Delta, LoginRejectReason, LogoutReason, MultiChannel, PortId, Tag,
};
use crate::iu::{Unit, typed};

wire_record! {
    /// LOGIN_REQ in the private data of the IB connection manager.
    pub struct LoginReq, LoginReqView: 64 bytes {
        /// Returned in the answer.
        tag: Tag = (8, 0, 64),
        /// Length of the largest information unit that the initiator wants to send.
        max_iu_len: u32 = (16, 0, 32),
        /// Formats of data buffers that the initiator wants to use.
        formats: BufferFormats = (24, 0, 16),
        /// Whether the initiator wants to send data inside commands (SRP-2).
        immediate: bool = (26, 0, 1),
        /// What happens to the nexus's other channels.
        channels: MultiChannel = (26, 6, 2),
        /// Where immediate data begin in a command.
        immediate_offset: u16 = (28, 0, 16),
        /// The initiator's port.
        initiator: PortId = (32, 0, 128),
        /// The target's port.
        target: PortId = (48, 0, 128),
    }
}

wire_record! {
    /// LOGIN_REQ in the 56 bytes of private data that the RDMA connection manager leaves to its users, by Linux's
    /// convention.
    struct CmLoginReq, CmLoginReqView: 56 bytes {
        tag: Tag = (0, 0, 64),
        formats: BufferFormats = (8, 0, 16),
        immediate: bool = (10, 0, 1),
        channels: MultiChannel = (10, 6, 2),
        max_iu_len: u32 = (12, 0, 32),
        initiator: PortId = (16, 0, 128),
        target: PortId = (32, 0, 128),
        immediate_offset: u16 = (48, 0, 16),
    }
}

wire_record! {
    /// LOGIN_RSP: the channel is open.
    pub struct LoginRsp, LoginRspView: 52 bytes {
        /// The initial number of requests that may be outstanding.
        delta: Delta = (4, 0, 32),
        /// The request's tag.
        tag: Tag = (8, 0, 64),
        /// Longest information unit that the target takes.
        max_initiator_iu_len: u32 = (16, 0, 32),
        /// Longest information unit that the target sends.
        max_target_iu_len: u32 = (20, 0, 32),
        /// Formats of data buffers that may be used.
        formats: BufferFormats = (24, 0, 16),
        /// Whether immediate data may be used.
        immediate: bool = (26, 0, 1),
        /// What happened to the nexus's other channels.
        channels: MultiChannel = (26, 6, 2),
    }
}

wire_record! {
    /// LOGIN_REJ: no channel is opened.
    pub struct LoginRej, LoginRejView: 32 bytes {
        /// Why.
        reason: LoginRejectReason = (4, 0, 32),
        /// The request's tag.
        tag: Tag = (8, 0, 64),
        /// Formats of data buffers that the target supports.
        formats: BufferFormats = (24, 0, 16),
    }
}

wire_record! {
    /// I_LOGOUT: the initiator is about to close the channel.
    pub struct InitiatorLogout, InitiatorLogoutView: 16 bytes {
        /// Opaque.
        tag: Tag = (8, 0, 64),
    }
}

wire_record! {
    /// T_LOGOUT: the target is about to close the channel.
    pub struct TargetLogout, TargetLogoutView: 16 bytes {
        /// Solicited notification, as the initiator requested at login.
        solicited: bool = (1, 7, 1),
        /// Why.
        reason: LogoutReason = (4, 0, 32),
        /// Opaque.
        tag: Tag = (8, 0, 64),
    }
}

typed! {
    LoginReq, LoginReqView = LoginReq;
    LoginRsp, LoginRspView = LoginRsp;
    LoginRej, LoginRejView = LoginRej;
    InitiatorLogout, InitiatorLogoutView = InitiatorLogout;
    TargetLogout, TargetLogoutView = TargetLogout;
}

/// The offset of the type in the form for the RDMA connection manager.
const CM_TYPE: usize = 11;

impl LoginReq {
    /// Bytes of the form for the RDMA connection manager.
    pub const CM_LEN: usize = CmLoginReq::LEN;

    /// Reads the form for the RDMA connection manager.
    ///
    /// # Errors
    /// [`IuError::Truncated`], [`IuError::Type`].
    pub fn parse_cm(bytes: &[u8]) -> Result<Self, IuError> {
        let bytes: &[u8; Self::CM_LEN] = fixed(Unit::LoginReq, bytes)?;
        if bytes[CM_TYPE] != Unit::LoginReq.code() {
            return Err(IuError::Type(bytes[CM_TYPE]));
        }
        let form = CmLoginReq::parse(CmLoginReqView::of(bytes));
        Ok(Self {
            tag: form.tag,
            max_iu_len: form.max_iu_len,
            formats: form.formats,
            immediate: form.immediate,
            channels: form.channels,
            immediate_offset: form.immediate_offset,
            initiator: form.initiator,
            target: form.target,
        })
    }

    /// The form for the RDMA connection manager.
    pub fn emit_cm(&self) -> [u8; Self::CM_LEN] {
        let form = CmLoginReq {
            tag: self.tag,
            formats: self.formats,
            immediate: self.immediate,
            channels: self.channels,
            max_iu_len: self.max_iu_len,
            initiator: self.initiator,
            target: self.target,
            immediate_offset: self.immediate_offset,
        };
        let mut bytes = [0; Self::CM_LEN];
        form.emit(&mut bytes);
        bytes[CM_TYPE] = Unit::LoginReq.code();
        bytes
    }

    /// The meaningful bits of that form, without the type.
    pub(crate) fn cm_covered() -> [u8; Self::CM_LEN] {
        CmLoginReq::covered()
    }
}
