//! Topologies in files, in the formats that ibsim reads and ibnetdiscover prints.
//!
//! A node is a line `Switch 8 "name"` or `Hca 2 "name"` (also `Ca`), followed by a line for each connected port:
//! `[1] "other"[3]`. `w=1`, `w=4` or `w=12` and `s=1`, `s=2` or `s=4` on a port's line bound the link; in the
//! output of ibnetdiscover, `4xQDR` has the same meaning. `vendid=`, `devid=`, `sysimgguid=`, `switchguid=` and
//! `caguid=` before a node are its own. `#` begins a comment; the first quoted text in a comment after a node is
//! its description.

use verbs_core::Guid;
use verbs_core::mad::sm::{LinkWidth, NodeType};

use super::{LinkSpec, NodeId, PortRef, Topology, TopologyError};

/// The values in the lines before a node.
#[derive(Default)]
struct Ahead {
    guid: Option<u64>,
    system_guid: Option<u64>,
    vendor_id: Option<u32>,
    device_id: Option<u16>,
}

/// A port's line, whose other end may be a later node.
struct Wire {
    line: usize,
    end: PortRef,
    peer: String,
    peer_port: u8,
    widths: LinkWidth,
    speeds: u8,
    speeds_extended: u8,
}

impl Topology {
    /// Reads a file.
    ///
    /// # Errors
    /// Any [`TopologyError`], with the line.
    pub fn parse(text: &str) -> Result<Self, TopologyError> {
        let mut topology = Self::new();
        let mut wires = Vec::new();
        let mut ahead = Ahead::default();
        let mut node = None;
        for (line, content) in (1..).zip(text.lines()) {
            let (content, comment) = content.split_once('#').unwrap_or((content, ""));
            let content = content.trim();
            if content.is_empty() {
                continue;
            }
            if content.starts_with('[') {
                let Some(node) = node else {
                    let what = "a port that belongs to no node";
                    return Err(TopologyError::Syntax { line, what });
                };
                wires.push(wire(line, node, content, comment)?);
            } else if let Some((key, value)) = content.split_once('=') {
                ahead.note(line, key.trim(), value.trim())?;
            } else {
                let ahead = std::mem::take(&mut ahead);
                node = Some(topology.parse_node(line, content, comment, &ahead)?);
            }
        }
        for wire in wires {
            let Some(peer) = topology.find(&wire.peer) else {
                let (line, name) = (wire.line, wire.peer);
                return Err(TopologyError::NoNode { line, name });
            };
            let peer = PortRef {
                node: peer,
                port: wire.peer_port,
            };
            let link = LinkSpec {
                ends: [wire.end, peer],
                widths: wire.widths,
                speeds: wire.speeds,
                speeds_extended: wire.speeds_extended,
            };
            topology.connect(wire.line, link)?;
        }
        Ok(topology)
    }

    fn parse_node(
        &mut self,
        line: usize,
        content: &str,
        comment: &str,
        ahead: &Ahead,
    ) -> Result<NodeId, TopologyError> {
        let syntax = |what| TopologyError::Syntax { line, what };
        let mut words = content.split_whitespace();
        let node_type = match words.next() {
            Some("Switch") => NodeType::SWITCH,
            Some("Hca" | "Ca") => NodeType::CA,
            _ => {
                return Err(syntax(
                    "a line begins with Switch, Hca, Ca, [ or a key and =",
                ));
            }
        };
        let ports = words.next().and_then(|word| word.parse().ok());
        let ports = ports.filter(|&ports: &u8| ports > 0 && ports < 255);
        let ports = ports.ok_or(syntax("behind the kind of node its ports, 1 to 254"))?;
        let name = quoted(content).ok_or(syntax("a node has a name in quotes"))?;
        let mut spec = match node_type {
            NodeType::SWITCH => self.switch_spec(name, ports),
            _ => self.hca_spec(name, ports),
        };
        if let Some(guid) = ahead.guid {
            (spec.guid, spec.system_guid) = (Guid(guid), Guid(guid));
        }
        if let Some(guid) = ahead.system_guid {
            spec.system_guid = Guid(guid);
        }
        spec.vendor_id = ahead.vendor_id.unwrap_or(spec.vendor_id);
        spec.device_id = ahead.device_id.unwrap_or(spec.device_id);
        if let Some(description) = quoted(comment) {
            spec.description = description.to_owned();
        }
        self.node(line, spec)
    }
}

impl Ahead {
    fn note(&mut self, line: usize, key: &str, value: &str) -> Result<(), TopologyError> {
        let what = "behind = a number in hexadecimal";
        let digits = value.trim_start_matches("0x");
        // ibnetdiscover writes a port's GUID in parentheses after a switch's.
        let digits = digits.split('(').next().unwrap_or_default();
        let number = u64::from_str_radix(digits, 16);
        let number = number.map_err(|_| TopologyError::Syntax { line, what })?;
        let narrow = |_| TopologyError::Syntax { line, what };
        match key {
            "vendid" => self.vendor_id = Some(u32::try_from(number).map_err(narrow)?),
            "devid" => self.device_id = Some(u16::try_from(number).map_err(narrow)?),
            "sysimgguid" => self.system_guid = Some(number),
            "caguid" | "switchguid" | "hcaguid" | "nodeguid" => self.guid = Some(number),
            _ => {
                let what = "of keys there are vendid, devid, sysimgguid, switchguid and caguid";
                return Err(TopologyError::Syntax { line, what });
            }
        }
        Ok(())
    }
}

/// The text between the first two quotes.
fn quoted(text: &str) -> Option<&str> {
    let (_, rest) = text.split_once('"')?;
    let (name, _) = rest.split_once('"')?;
    (!name.is_empty()).then_some(name)
}

/// A port's line: `[1](guid) "other"[3](guid) w=4`.
fn wire(line: usize, node: NodeId, content: &str, comment: &str) -> Result<Wire, TopologyError> {
    let what = "a port is [number] \"other node\"[its port]";
    let syntax = TopologyError::Syntax { line, what };
    let bracketed = |text: &str| -> Option<u8> {
        let (_, rest) = text.split_once('[')?;
        let (number, _) = rest.split_once(']')?;
        number.trim().parse().ok()
    };
    let peer = quoted(content).ok_or(syntax.clone())?;
    let (front, back) = content.split_once('"').ok_or(syntax.clone())?;
    let (_, back) = back.split_once('"').ok_or(syntax.clone())?;
    let port = bracketed(front).ok_or(syntax.clone())?;
    let peer_port = bracketed(back).ok_or(syntax)?;
    let mut wire = Wire {
        line,
        end: PortRef { node, port },
        peer: peer.to_owned(),
        peer_port,
        widths: LinkWidth::X1 | LinkWidth::X4,
        speeds: 7,
        speeds_extended: 0,
    };
    for word in back.split_whitespace().chain(comment.split_whitespace()) {
        bound(&mut wire, word);
    }
    Ok(wire)
}

/// Reads width and speed from a word; other words are ignored.
fn bound(wire: &mut Wire, word: &str) {
    let (width, speed) = match word.split_once('=') {
        Some(("w", width)) => (width, ""),
        Some(("s", speed)) => ("", speed),
        _ => word.split_once('x').unwrap_or(("", "")),
    };
    let is_speed = speed.is_empty() || speed_of(speed).is_some();
    wire.widths = match width {
        "1" if is_speed => LinkWidth::X1,
        "4" if is_speed => LinkWidth::X1 | LinkWidth::X4,
        "8" if is_speed => LinkWidth::X1 | LinkWidth::X4 | LinkWidth::X8,
        "12" if is_speed => LinkWidth::X1 | LinkWidth::X4 | LinkWidth::X12,
        _ => wire.widths,
    };
    if let Some((speeds, extended)) = speed_of(speed) {
        (wire.speeds, wire.speeds_extended) = (speeds, extended);
    }
}

fn speed_of(word: &str) -> Option<(u8, u8)> {
    Some(match word {
        "1" | "SDR" => (1, 0),
        "2" | "DDR" => (3, 0),
        "4" | "QDR" => (7, 0),
        "FDR" => (7, 1),
        "EDR" => (7, 3),
        "HDR" => (7, 7),
        _ => return None,
    })
}

#[cfg(all(test, not(verbs_loom)))]
mod tests {
    use super::*;

    /// Goal: both dialects are read. Method: one file with a line of each kind.
    #[test]
    fn files_of_ibsim_and_ibnetdiscover_are_read() {
        let text = "# a comment\n\nvendid=0x2c9\ndevid=0xbd36\nsysimgguid=0x2c9000003\n\
            switchguid=0x2c9000000(2c9000000)\nSwitch\t4 \"S-1\"\t\t# \"Leaf one\" base port 0 lid 6 lmc 0\n\
            [1]\t\"H-1\"[1](2c9000101) \t\t# \"Node A\" lid 4 4xSDR\n[2] \"Hca B\"[2]  w=12 s=2\n\n\
            caguid=0x2c9000100\nCa 1 \"H-1\" # \"Node A\"\n[1](2c9000101) \"S-1\"[1] # lid 4 lmc 0 4xSDR\n\n\
            Hca 2 \"Hca B\"\n[2] \"S-1\"[2]\n";
        let topology = Topology::parse(text).expect("both dialects");
        let [switch, a, b] = topology.nodes() else {
            panic!("three nodes: {topology:?}");
        };
        assert_eq!((switch.guid, switch.ports), (Guid(0x2_c900_0000), 4));
        assert_eq!(switch.description, "Leaf one");
        assert_eq!((switch.vendor_id, switch.device_id), (0x2c9, 0xbd36));
        assert_eq!((a.guid, a.node_type), (Guid(0x2_c900_0100), NodeType::CA));
        assert_eq!((b.name.as_str(), b.ports), ("Hca B", 2));
        let [first, second] = topology.links() else {
            panic!("two links");
        };
        assert_eq!((first.speeds, first.ends[1].port), (1, 1));
        assert!(second.widths.contains(LinkWidth::X12) && second.speeds == 3);
        assert_eq!(topology.find("Hca B"), Some(NodeId(2)));
        assert_eq!(topology.first_hca(), Some(NodeId(1)));
    }

    #[test]
    fn what_cannot_be_is_refused_with_its_line() {
        let refused = |text: &str| Topology::parse(text).expect_err("it is wrong").to_string();
        assert_eq!(
            refused("Switch 2 \"a\"\n[1] \"b\"[1]\n"),
            "line 2: there is no node \"b\""
        );
        assert_eq!(
            refused("Hca 1 \"a\"\nHca 1 \"b\"\n[2] \"a\"[1]"),
            "line 3: \"b\" has ports 1 to 1, not 2"
        );
        assert_eq!(
            refused("Hca 1 \"a\"\n[1] \"b\"[1]\nHca 2 \"b\"\n[2] \"a\"[1]"),
            "line 4: port 1 of \"a\" has a link already"
        );
        assert_eq!(
            refused("Hca 1 \"a\"\n[1] \"a\"[1]"),
            "line 2: port 1 of \"a\" has a link already"
        );
        assert_eq!(
            refused("Hca 1 \"a\"\nHca 1 \"a\""),
            "line 2: there are two nodes called \"a\""
        );
        assert!(refused("caguid=1\nHca 1 \"a\"\ncaguid=2\nHca 1 \"b\"").contains("GUID"));
        for wrong in [
            "[1] \"a\"[1]",
            "Hca 0 \"a\"",
            "Hca 1",
            "include x",
            "devid=zz",
            "mtu=1",
        ] {
            assert!(refused(wrong).starts_with("line 1: "), "{wrong}");
        }
    }
}
