//! Names of numbers, and datagrams as text.

use std::ffi::{CStr, c_char, c_void};
use std::io::Write;

use verbs_core::mad::sa::SaStatus;
use verbs_core::mad::{AttributeId, Class, Method, Status};

use crate::abi::{MadAddr, UserMad};

/// The name of a class.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_class_str(mgmt_class: u8) -> *const c_char {
    match Class(mgmt_class) {
        Class::SUBN_LID => c"Subn",
        Class::SUBN_DIRECTED => c"SubnDirRoute",
        Class::SA => c"SubnAdm",
        Class::PERF => c"Perf",
        Class::BM => c"BM",
        Class::DEV_MGT => c"DevMgt",
        Class::CM => c"CommMgt",
        Class::SNMP => c"SNMP",
        _ => c"<unknown>",
    }
    .as_ptr()
}

/// The name of a method.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_method_str(_mgmt_class: u8, method: u8) -> *const c_char {
    match Method(method) {
        Method::GET => c"Get",
        Method::SET => c"Set",
        Method::SEND => c"Send",
        Method::TRAP => c"Trap",
        Method::REPORT => c"Report",
        Method::TRAP_REPRESS => c"TrapRepress",
        Method::GET_TABLE => c"GetTable",
        Method::GET_TRACE_TABLE => c"GetTraceTable",
        Method::GET_MULTI => c"GetMulti",
        Method::DELETE => c"Delete",
        Method::GET_RESP => c"GetResp",
        Method::REPORT_RESP => c"ReportResp",
        Method::GET_TABLE_RESP => c"GetTableResp",
        Method::GET_MULTI_RESP => c"GetMultiResp",
        Method::DELETE_RESP => c"DeleteResp",
        _ => c"<unknown>",
    }
    .as_ptr()
}

/// The text for the common part of a status.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_common_mad_status_str(status: u16) -> *const c_char {
    let status = Status::from_bits_retain(u16::from_be(status));
    let text = if status.contains(Status::BUSY) {
        c"Busy"
    } else if status.contains(Status::REDIRECT) {
        c"Redirection required"
    } else {
        match status.invalid_field() {
            0 => c"Success",
            1 => c"Bad class and/or version",
            2 => c"Method not supported",
            3 => c"Method/attribute combination not supported",
            7 => c"Invalid attribute/modifier value",
            _ => c"<unknown>",
        }
    };
    text.as_ptr()
}

/// The text for the subnet administrator's part of a status.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_sa_mad_status_str(status: u16) -> *const c_char {
    let code = Status::from_bits_retain(u16::from_be(status)).class_specific();
    let text: &CStr = match SaStatus::from_code(code) {
        None => c"Success",
        Some(SaStatus::NoResources) => c"No resources",
        Some(SaStatus::RequestInvalid) => c"Request invalid",
        Some(SaStatus::NoRecords) => c"No records",
        Some(SaStatus::TooManyRecords) => c"Too many records",
        Some(SaStatus::InvalidGid) => c"Invalid GID",
        Some(SaStatus::InsufficientComponents) => c"Insufficient components",
        Some(SaStatus::Denied) => c"Request denied",
        Some(_) => c"<unknown>",
    };
    text.as_ptr()
}

/// The name of an attribute that all classes have, or that the class has.
#[unsafe(no_mangle)]
pub(crate) extern "C" fn umad_attribute_str(mgmt_class: u8, attr_id: u16) -> *const c_char {
    let id = AttributeId(u16::from_be(attr_id));
    let common = match id {
        AttributeId::CLASS_PORT_INFO => c"ClassPortInfo",
        AttributeId::NOTICE => c"Notice",
        AttributeId::INFORM_INFO => c"InformInfo",
        _ => c"<unknown>",
    };
    let text = match Class(mgmt_class) {
        _ if common != c"<unknown>" => common,
        Class::SUBN_LID | Class::SUBN_DIRECTED => match id {
            AttributeId::NODE_DESCRIPTION => c"NodeDescription",
            AttributeId::NODE_INFO => c"NodeInfo",
            AttributeId::SWITCH_INFO => c"SwitchInfo",
            AttributeId::GUID_INFO => c"GUIDInfo",
            AttributeId::PORT_INFO => c"PortInfo",
            AttributeId::PKEY_TABLE => c"P_KeyTable",
            AttributeId::SL_TO_VL => c"SLtoVLMappingTable",
            AttributeId::VL_ARBITRATION => c"VLArbitrationTable",
            AttributeId::LINEAR_FORWARDING => c"LinearForwardingTable",
            AttributeId::MULTICAST_FORWARDING => c"MulticastForwardingTable",
            AttributeId::SM_INFO => c"SMInfo",
            _ => c"<unknown>",
        },
        Class::SA => match id {
            AttributeId::PORT_INFO_RECORD => c"PortInfoRecord",
            AttributeId::SERVICE_RECORD => c"ServiceRecord",
            AttributeId::PATH_RECORD => c"PathRecord",
            AttributeId::MC_MEMBER_RECORD => c"MCMemberRecord",
            _ => c"<unknown>",
        },
        Class::PERF => match id {
            AttributeId::PORT_COUNTERS => c"PortCounters",
            AttributeId::PORT_COUNTERS_EXTENDED => c"PortCountersExtended",
            _ => c"<unknown>",
        },
        _ => c"<unknown>",
    };
    text.as_ptr()
}

/// Writes an address to the standard error stream.
///
/// # Safety
/// `addr` is null or an `ib_mad_addr_t`.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_addr_dump(addr: *const MadAddr) {
    if addr.is_null() {
        return;
    }
    // SAFETY: it is one.
    let addr = unsafe { addr.read_unaligned() };
    let line = format!(
        "qpn {} qkey {:#x} lid {} sl {} path bits {} grh {} gid index {} P_Key index {}\n",
        u32::from_be(addr.qpn),
        u32::from_be(addr.qkey),
        u16::from_be(addr.lid),
        addr.sl,
        addr.path_bits,
        addr.grh_present,
        addr.gid_index,
        addr.pkey_index
    );
    // If the stream is closed, nothing can report that.
    let _written = std::io::stderr().write_all(line.as_bytes());
}

/// Writes a header and its address to the standard error stream.
///
/// # Safety
/// `umad` is null or a buffer with a header.
#[unsafe(no_mangle)]
pub(crate) unsafe extern "C" fn umad_dump(umad: *const c_void) {
    if umad.is_null() {
        return;
    }
    // SAFETY: it begins with a header.
    let header = unsafe { umad.cast::<UserMad>().read_unaligned() };
    let line = format!(
        "agent {} status {} timeout {} ms retries {} length {}\n",
        header.agent_id, header.status, header.timeout_ms, header.retries, header.length
    );
    // If the stream is closed, nothing can report that.
    let _written = std::io::stderr().write_all(line.as_bytes());
    // SAFETY: the address is this function's own copy.
    unsafe { umad_addr_dump(&raw const header.addr) };
}
