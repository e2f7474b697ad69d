//! `verbs devinfo`: what a device and its ports can do, with the labels and in the order of
//! `ibv_devinfo`, so that what reads the one reads the other.

use std::fmt::{self, Write};

use futures::executor::block_on;
use hca_rdma::OpenError;
use hca_sim::Hca;
use serde::{Serialize, Serializer};
use verbs_core::{Device, DeviceAttr, DeviceCap, Error, Mtu, PortAttr};

use crate::wire::NicName;

/// Why the device could not be shown.
#[derive(Debug, thiserror::Error)]
pub(crate) enum DevinfoError {
    /// There is no such NIC, or it cannot be used.
    #[error(transparent)]
    Nic(OpenError),
    /// The device does not answer as it should.
    #[error("cannot {doing}: {error}")]
    Verb { doing: &'static str, error: Error },
}

/// A device with its ports.
#[derive(Debug, Serialize)]
pub(crate) struct DeviceInfo {
    hca_id: String,
    #[serde(flatten)]
    device: Attributes<DeviceAttr>,
    ports: Vec<PortInfo>,
}

#[derive(Debug, Serialize)]
struct PortInfo {
    port: u8,
    #[serde(flatten)]
    attributes: Attributes<PortAttr>,
}

/// Attributes of a device or port, to be shown as rows of label and value.
#[derive(Debug)]
struct Attributes<T>(T);

type Row = (&'static str, Value);

trait Rows {
    /// What is always shown; comes first.
    fn brief(&self) -> Vec<Row>;

    /// What is shown with -v.
    fn details(&self) -> Vec<Row>;
}

/// One value: how it is printed, and what it is in JSON.
enum Value {
    Number(u64),
    /// Printed in hexadecimal with so many digits at least; in JSON a number.
    Hex(u64, usize),
    Text(String),
    /// A name with its number in `ibv_` enumerations; in JSON the name.
    Named(String, u64),
    /// A number with its code in `ibv_` enumerations; in JSON the number.
    Coded(u64, u64),
    /// A mask; one line for each bit's name. In JSON the names.
    Flags(u64, Vec<&'static str>),
}

use Value::{Coded, Flags, Hex, Named, Number, Text};

/// Opens the device and asks it.
pub(crate) fn query(nic: Option<&NicName>) -> Result<DeviceInfo, DevinfoError> {
    let failed = |doing| move |error| DevinfoError::Verb { doing, error };
    let nic = nic.map(NicName::open).transpose();
    let nic = nic.map_err(DevinfoError::Nic)?;
    block_on(async {
        let opening = match nic {
            Some(nic) => Device::open(nic),
            None => Hca::loopback().open(),
        };
        let device = opening.await.map_err(failed("open the device"))?;
        let attributes = device.query().await.map_err(failed("query the device"))?;
        let mut ports = Vec::new();
        for port in 1..=attributes.phys_port_cnt {
            let attributes = device
                .query_port(port)
                .await
                .map_err(failed("query the port"))?;
            ports.push(PortInfo {
                port,
                attributes: Attributes(attributes),
            });
        }
        device
            .close()
            .await
            .map_err(|refused| failed("close the device")(refused.error))?;
        Ok(DeviceInfo {
            hca_id: attributes.name.clone(),
            device: Attributes(DeviceAttr::clone(&attributes)),
            ports,
        })
    })
}

impl DeviceInfo {
    /// The device for people, with all attributes or the most important ones.
    pub(crate) fn text(&self, verbose: bool) -> String {
        let mut text = format!("hca_id:\t{}\n", self.hca_id);
        print(&mut text, DEVICE, &self.device, verbose);
        for port in &self.ports {
            let _ = writeln!(text, "\t\tport:\t{}", port.port);
            print(&mut text, PORT, &port.attributes, verbose);
        }
        text
    }
}

impl Rows for Attributes<DeviceAttr> {
    fn brief(&self) -> Vec<Row> {
        let attr = &self.0;
        vec![
            // The transport of every device that this project has so far.
            ("transport", Named("InfiniBand".into(), 0)),
            ("fw_ver", Text(attr.fw_ver.clone())),
            ("node_guid", Text(attr.node_guid.to_string())),
            ("sys_image_guid", Text(attr.sys_image_guid.to_string())),
            ("vendor_id", Hex(attr.vendor_id.into(), 4)),
            ("vendor_part_id", Number(attr.vendor_part_id.into())),
            ("hw_ver", Hex(attr.hw_ver.into(), 0)),
            ("phys_port_cnt", Number(attr.phys_port_cnt.into())),
        ]
    }

    fn details(&self) -> Vec<Row> {
        let attr = &self.0;
        let number = |n: u32| Number(n.into());
        let names = |caps: DeviceCap| caps.iter_names().map(|(name, _)| name).collect();
        let absent = DeviceCap::all().difference(attr.caps);
        let at_all_qps = u64::from(attr.max_qp_rd_atom) * u64::from(attr.max_qp);
        let in_all_groups = u64::from(attr.max_mcast_grp) * u64::from(attr.max_mcast_qp_attach);
        let mut rows = vec![
            ("max_mr_size", Hex(attr.max_mr_size, 0)),
            ("max_qp", number(attr.max_qp)),
            ("max_qp_wr", number(attr.max_qp_wr)),
            (
                "device_cap_flags",
                Flags(attr.caps.bits(), names(attr.caps)),
            ),
            ("max_sge", number(attr.max_sge)),
            ("max_sge_rd", number(attr.max_sge)),
            ("max_cq", number(attr.max_cq)),
            ("max_cqe", number(attr.max_cqe)),
            ("max_mr", number(attr.max_mr)),
            ("max_pd", number(attr.max_pd)),
            ("max_qp_rd_atom", Number(attr.max_qp_rd_atom.into())),
            // Reliable datagrams, raw packets and fast memory regions of the first kind: verbs that
            // no device of this project has.
            ("max_ee_rd_atom", Number(0)),
            ("max_res_rd_atom", Number(at_all_qps)),
            (
                "max_qp_init_rd_atom",
                Number(attr.max_qp_init_rd_atom.into()),
            ),
            ("max_ee_init_rd_atom", Number(0)),
            (
                "atomic_cap",
                Named(attr.atomic_cap.to_string(), attr.atomic_cap as u64),
            ),
            ("max_ee", Number(0)),
            ("max_rdd", Number(0)),
            ("max_mw", number(attr.max_mw)),
            ("max_raw_ipv6_qp", Number(0)),
            ("max_raw_ethy_qp", Number(0)),
            ("max_mcast_grp", number(attr.max_mcast_grp)),
            ("max_mcast_qp_attach", number(attr.max_mcast_qp_attach)),
            ("max_total_mcast_qp_attach", Number(in_all_groups)),
            ("max_ah", number(attr.max_ah)),
            ("max_fmr", Number(0)),
            ("max_srq", number(attr.max_srq)),
        ];
        if attr.max_srq > 0 {
            rows.push(("max_srq_wr", number(attr.max_srq_wr)));
            rows.push(("max_srq_sge", number(attr.max_srq_sge)));
        }
        rows.push(("max_pkeys", Number(attr.max_pkeys.into())));
        rows.push(("local_ca_ack_delay", Number(attr.local_ca_ack_delay.into())));
        let masked = attr.masked_atomic_cap;
        rows.push((
            "masked_atomic_cap",
            Named(masked.to_string(), masked as u64),
        ));
        rows.push(("max_fast_reg_pages", number(attr.max_fast_reg_pages)));
        rows.push(("max_xrcd", number(attr.max_xrcd)));
        let types: Vec<String> = attr.qp_types.iter().map(ToString::to_string).collect();
        rows.push(("qp_types", Text(types.join(" "))));
        // Of the flags that this project knows.
        let flags = Flags(absent.bits(), names(absent));
        rows.push(("absent_cap_flags", flags));
        rows
    }
}

impl Rows for Attributes<PortAttr> {
    fn brief(&self) -> Vec<Row> {
        let attr = &self.0;
        let mtu = |mtu: Mtu| Coded(mtu.bytes().into(), mtu as u64);
        vec![
            ("state", Named(attr.state.to_string(), attr.state as u64)),
            ("max_mtu", mtu(attr.max_mtu)),
            ("active_mtu", mtu(attr.active_mtu)),
            ("sm_lid", Number(attr.sm_lid.0.into())),
            ("port_lid", Number(attr.lid.0.into())),
            ("port_lmc", Hex(attr.lmc.into(), 2)),
            ("link_layer", Text(attr.link_layer.to_string())),
        ]
    }

    fn details(&self) -> Vec<Row> {
        let attr = &self.0;
        vec![
            ("max_msg_sz", Hex(attr.max_msg_sz.into(), 0)),
            ("bad_pkey_cntr", Hex(attr.bad_pkey_cntr.into(), 0)),
            ("qkey_viol_cntr", Hex(attr.qkey_viol_cntr.into(), 0)),
            ("sm_sl", Number(attr.sm_sl.into())),
            ("pkey_tbl_len", Number(attr.pkey_tbl_len.into())),
            ("gid_tbl_len", Number(attr.gid_tbl_len.into())),
            (
                "active_width",
                Named(width(attr.active_width), attr.active_width.into()),
            ),
            (
                "active_speed",
                Named(speed(attr.active_speed), attr.active_speed.into()),
            ),
            ("GID[  0]", Text(attr.gid.to_string())),
        ]
    }
}

/// How a block of rows is indented, and the column in which its values stand.
#[derive(Clone, Copy)]
struct Layout {
    tabs: usize,
    value_column: usize,
}

const TAB: usize = 8;
const DEVICE: Layout = Layout {
    tabs: 1,
    value_column: 5 * TAB,
};
const PORT: Layout = Layout {
    tabs: 3,
    value_column: 6 * TAB,
};

fn print(text: &mut String, layout: Layout, attributes: &impl Rows, verbose: bool) {
    let details = if verbose {
        attributes.details()
    } else {
        Vec::new()
    };
    for (label, value) in attributes.brief().into_iter().chain(details) {
        let column = layout.tabs * TAB + label.len() + 1;
        let tabs = layout
            .value_column
            .saturating_sub(column)
            .div_ceil(TAB)
            .max(1);
        let (indent, gap) = ("\t".repeat(layout.tabs), "\t".repeat(tabs));
        // Writing to a string cannot fail.
        let _ = writeln!(text, "{indent}{label}:{gap}{value}");
        if let Flags(_, names) = value {
            for name in names {
                let _ = writeln!(text, "{}{name}", "\t".repeat(layout.value_column / TAB));
            }
        }
    }
}

/// Lanes, by the code of `ibv_port_attr`.
fn width(code: u8) -> String {
    let lanes = [(1, "1X"), (2, "4X"), (4, "8X"), (8, "12X"), (16, "2X")];
    name(&lanes, code)
}

/// Speed of one lane, by the code of `ibv_port_attr`.
fn speed(code: u8) -> String {
    let speeds = [
        (1, "2.5 Gbps"),
        (2, "5.0 Gbps"),
        (4, "10.0 Gbps"),
        (8, "10.0 Gbps"),
        (16, "14.0 Gbps"),
        (32, "25.0 Gbps"),
        (64, "50.0 Gbps"),
        (128, "100.0 Gbps"),
    ];
    name(&speeds, code)
}

fn name(names: &[(u8, &str)], code: u8) -> String {
    let found = names.iter().find(|(known, _)| *known == code);
    found.map_or("invalid", |(_, name)| name).into()
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Number(n) => write!(f, "{n}"),
            Hex(n, digits) => write!(f, "0x{n:0digits$x}"),
            Text(text) => f.write_str(text),
            Named(name, number) => write!(f, "{name} ({number})"),
            Coded(number, code) => write!(f, "{number} ({code})"),
            Flags(mask, _) => write!(f, "{mask:#010x}"),
        }
    }
}

impl Serialize for Value {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        match self {
            Number(n) | Hex(n, _) | Coded(n, _) => serializer.serialize_u64(*n),
            Text(text) | Named(text, _) => serializer.serialize_str(text),
            Flags(_, names) => names.serialize(serializer),
        }
    }
}

impl<T> Serialize for Attributes<T>
where
    Self: Rows,
{
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        let rows = self.brief().into_iter().chain(self.details());
        // The index of a GID table makes a label for people; programs get a plain one.
        serializer.collect_map(
            rows.map(|(label, value)| (label.split('[').next().unwrap_or(label), value)),
        )
    }
}

#[cfg(test)]
mod tests {
    use verbs_core::{AtomicCap, Gid, Guid, Lid, LinkLayer, PortState};

    use super::*;

    fn info() -> DeviceInfo {
        let device = DeviceAttr {
            name: "sim7".into(),
            fw_ver: "0.1.0".into(),
            node_guid: Guid(0x0200_0000_0000_0007),
            sys_image_guid: Guid(0x0200_0000_0000_0007),
            vendor_id: 0x2c9,
            vendor_part_id: 4129,
            hw_ver: 0xa0,
            phys_port_cnt: 1,
            max_mr_size: 1 << 40,
            caps: DeviceCap::SYS_IMAGE_GUID | DeviceCap::RC_RNR_NAK_GEN,
            max_qp: 100,
            max_qp_rd_atom: 16,
            atomic_cap: AtomicCap::Hca,
            ..DeviceAttr::default()
        };
        let port = PortAttr {
            gid: Gid::from_parts(Gid::LINK_LOCAL_PREFIX, Guid(7)),
            max_msg_sz: 1 << 31,
            bad_pkey_cntr: 0,
            qkey_viol_cntr: 0,
            lid: Lid(3),
            sm_lid: Lid(1),
            gid_tbl_len: 1,
            pkey_tbl_len: 1,
            state: PortState::Active,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::B1024,
            sm_sl: 0,
            lmc: 0,
            active_width: 2,
            active_speed: 32,
            link_layer: LinkLayer::InfiniBand,
        };
        let ports = vec![PortInfo {
            port: 1,
            attributes: Attributes(port),
        }];
        DeviceInfo {
            hca_id: device.name.clone(),
            device: Attributes(device),
            ports,
        }
    }

    #[test]
    fn the_short_form_is_that_of_ibv_devinfo() {
        let expected = "\
hca_id:\tsim7
\ttransport:\t\t\tInfiniBand (0)
\tfw_ver:\t\t\t\t0.1.0
\tnode_guid:\t\t\t0200:0000:0000:0007
\tsys_image_guid:\t\t\t0200:0000:0000:0007
\tvendor_id:\t\t\t0x02c9
\tvendor_part_id:\t\t\t4129
\thw_ver:\t\t\t\t0xa0
\tphys_port_cnt:\t\t\t1
\t\tport:\t1
\t\t\tstate:\t\t\tPORT_ACTIVE (4)
\t\t\tmax_mtu:\t\t4096 (5)
\t\t\tactive_mtu:\t\t1024 (3)
\t\t\tsm_lid:\t\t\t1
\t\t\tport_lid:\t\t3
\t\t\tport_lmc:\t\t0x00
\t\t\tlink_layer:\t\tInfiniBand
";
        assert_eq!(info().text(false), expected);
    }

    #[test]
    fn the_long_form_has_everything() {
        let text = info().text(true);
        let lines = [
            "\tmax_mr_size:\t\t\t0x10000000000\n",
            "\tdevice_cap_flags:\t\t0x00001800\n\t\t\t\t\tSYS_IMAGE_GUID\n\t\t\t\t\tRC_RNR_NAK_GEN\n\tmax_sge:",
            "\tmax_res_rd_atom:\t\t1600\n",
            "\tatomic_cap:\t\t\tATOMIC_HCA (1)\n",
            "\tmax_total_mcast_qp_attach:\t0\n",
            "\t\t\tmax_msg_sz:\t\t0x80000000\n",
            "\t\t\tactive_width:\t\t4X (2)\n",
            "\t\t\tactive_speed:\t\t25.0 Gbps (32)\n",
            "\t\t\tGID[  0]:\t\tfe80:0000:0000:0000:0000:0000:0000:0007\n",
        ];
        for line in lines {
            assert!(text.contains(line), "{line:?} in\n{text}");
        }
    }

    #[test]
    fn json_has_values_for_programs() {
        let json = serde_json::to_value(info()).expect("plain data");
        assert_eq!(json["hca_id"], "sim7");
        assert_eq!(json["max_mr_size"], 1_u64 << 40);
        assert_eq!(json["device_cap_flags"][1], "RC_RNR_NAK_GEN");
        let count = |name: &str| json[name].as_array().map_or(0, Vec::len);
        let every = DeviceCap::all().iter_names().count();
        assert_eq!(count("device_cap_flags") + count("absent_cap_flags"), every);
        assert_eq!(json["absent_cap_flags"][0], "RESIZE_MAX_WR");
        assert_eq!(json["ports"][0]["port"], 1);
        assert_eq!(json["ports"][0]["active_mtu"], 1024);
        assert_eq!(json["ports"][0]["state"], "PORT_ACTIVE");
        assert_eq!(
            json["ports"][0]["GID"],
            "fe80:0000:0000:0000:0000:0000:0000:0007"
        );
    }
}
