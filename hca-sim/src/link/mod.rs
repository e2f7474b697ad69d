//! Links, to which ports are attached: those that carry packets can be wrapped.
//!
//! Links of packets are those of `verbs-link`, which are re-exported here. The loopback link is the device's own:
//! its messages are placed without packets.

mod directory;
pub mod host;
mod hub;
mod loopback;

pub(crate) use directory::{Directory, LID_MAX, Links, door_of};
pub(crate) use hub::HubPort;
pub use loopback::Loopback;
#[doc(no_inline)]
pub use verbs_link::sys::past_reset;
#[doc(no_inline)]
pub use verbs_link::{
    ADDRESSES_MAX, Answer, Arrival, Burst, Cable, CableEnd, Captured, Change, FaultCounters,
    Faults, Faulty, Feedback, FillWindow, GROUPS_MAX, GsoOff, IcrcCounters, Ident, JoinError,
    Joined, Joining, LinkCounters, LinkError, Local, LongPacket, Managed, NotPerMille,
    PROGRAMS_MAX, PacketLink, PerMille, PortTables, Refusal, Remarks, Route, SHARED_MAX, Seat,
    Sent, SteeredSocket, Steering, Udp, Verdict, Verifier, Waiter, Wrap, channel_files, clients_of,
    loopback_addresses,
};
#[doc(no_inline)]
pub use verbs_subnet::ipc::published;
#[doc(no_inline)]
pub use verbs_wire::pcap;

/// The simulated subnet, of `verbs-subnet`: an HCA on one of its ports is an InfiniBand device.
///
/// ```
/// use std::sync::{Arc, mpsc};
///
/// use futures::executor::block_on;
/// use hca_sim::Hca;
/// use hca_sim::link::fabric::{PortRef, SharedSubnet, Subnet, SubnetConfig, Topology};
/// use verbs_core::mad::header::emit_header;
/// use verbs_core::mad::sm::{self, Hops, NodeInfo, NodeInfoView, PERMISSIVE_LID, SmpHeader};
/// use verbs_core::mad::{
///     Address, AttributeId, Class, Delivery, MadClient, MadHeader, MadService, Method, Retry,
/// };
/// use verbs_core::{Av, Qpn};
///
/// struct Client(mpsc::Sender<Delivery>);
/// impl MadClient for Client {
///     fn deliver(&self, delivery: Delivery) {
///         self.0.send(delivery).expect("somebody waits");
///     }
/// }
///
/// # fn main() -> Result<(), Box<dyn std::error::Error>> {
/// let mut topology = Topology::new();
/// let (switch, node) = (topology.switch("Sw", 4)?, topology.hca("A", 1)?);
/// topology.link((switch, 3), (node, 1))?;
/// let subnet = SharedSubnet::new(Subnet::new(&topology, SubnetConfig::default()));
/// let at = PortRef { node, port: 1 };
/// let device = Hca::over(subnet.attach(at, 1).expect("it is free")).open().wait()?;
///
/// // A client of the port's service asks the switch that the port's cable leads to what it is.
/// let service = block_on(MadService::of(&device, 1))?;
/// let (sender, deliveries) = mpsc::channel();
/// let client: Arc<dyn MadClient> = Arc::new(Client(sender));
/// let agent = service.register(Class::SUBN_DIRECTED, 1, &[], Arc::downgrade(&client))?;
/// let mut mad = [0; 256];
/// let header = MadHeader {
///     base_version: MadHeader::BASE_VERSION,
///     class: Class::SUBN_DIRECTED,
///     class_version: sm::CLASS_VERSION,
///     method: Method::GET,
///     attribute: AttributeId::NODE_INFO,
///     ..MadHeader::default()
/// };
/// emit_header(&header, &mut mad);
/// SmpHeader::directed(0).put(&mut mad);
/// Hops::put_path(&mut mad, &[1]).expect("one hop");
/// let there = Address {
///     av: Av::to_lid(1, PERMISSIVE_LID),
///     qpn: Qpn::new(0),
///     pkey_index: 0,
/// };
/// agent.request(there, &mad, Retry::default())?;
/// let Delivery::Response { mad, .. } = deliveries.recv()? else {
///     return Err("no answer".into());
/// };
/// let info = NodeInfoView::new(sm::attribute(&mad)).map(NodeInfo::parse).expect("64 bytes");
/// assert_eq!((info.node_type, info.ports, info.local_port), (sm::NodeType::SWITCH, 4, 3));
/// # Ok(())
/// # }
/// ```
pub mod fabric {
    #[doc(no_inline)]
    pub use verbs_link::ring;
    #[doc(no_inline)]
    pub use verbs_subnet::ipc::{RING_LEN, message, place, socket};
    #[doc(no_inline)]
    pub use verbs_subnet::{
        AttachError, Body, Bound, Carried, FatTree, Host, HostCounters, HostLimits, LinkFault,
        LinkSpec, MadPacket, NodeId, NodeSpec, Packet, PortRef, RemotePort, SharedSubnet, Subnet,
        SubnetConfig, SubnetEvent, SubnetPort, Topology, TopologyError,
    };
}
