//! Creating an interface: its verbs objects, all of them before the first packet.

use verbs_cm::Manager;
use verbs_core::event::EventWatcher;
use verbs_core::sync::{Arc, AtomicWaker, Mutex, OnceLock, Weak};
use verbs_core::{
    Access, Arm, AsyncEvent, Cq, Device, EventType, Gid, Memory, Mr, ObjectKind, Pd, Qp, QpInit,
    Qpn, Srq, Subject, task,
};

use super::buffers::{DATAGRAM_STRIDE, MESSAGE_STRIDE, Pool, RECEIVE_STRIDE};
use super::receive::{LOT, Receiver};
use super::state::State;
use super::{Core, Kick, Over};
use crate::admin::Administration;
use crate::config::{CONNECTIONS_MAX, Config, Mode, TICK};
use crate::error::Error;
use crate::face::Face;
use crate::wire::{HardwareAddress, HardwareFlags};
use verbs_core::timer::Sleep;

/// Creates an interface. The link comes up by itself.
pub(crate) async fn open(
    device: Arc<Device>,
    admin: Arc<dyn Administration>,
    face: Arc<dyn Face>,
    config: Config,
) -> Result<Arc<Core>, Error> {
    let timer = device.target().provider_of().timer();
    let timer = timer.ok_or(Error::Unsupported("timer"))?;
    let door: Arc<OnceLock<Weak<Core>>> = Arc::default();
    let parts = Parts::make(&device, &config, &door).await?;
    let (qp, send, recv) = parts.qp.split().map_err(|_| Error::Closed)?;
    let state = State {
        own: own(&config, qp.qpn()),
        link: None,
        partition: (config.pkey, 0),
        send,
        recv,
        srq: parts.srq,
        datagrams: Pool::over(&parts.datagrams, DATAGRAM_STRIDE),
        messages: Pool::over(&parts.outgoing, MESSAGE_STRIDE),
        outbox: Default::default(),
        receiving: 0,
        sending: 0,
        reposts: false,
        neighbours: Default::default(),
        paths: Default::default(),
        groups: Default::default(),
        active: Default::default(),
        passive: Default::default(),
        actions: Vec::new(),
        is_awaited: false,
        is_closed: false,
        counters: Default::default(),
        config: config.clone(),
    };
    let (datagrams, outgoing) = (parts.datagrams, parts.outgoing);
    let core = Arc::new(Core {
        state: Mutex::new(state),
        qp,
        cq: Mutex::new(parts.cq),
        received: parts.received,
        messages: parts.messages,
        memory: [
            Arc::clone(datagrams.memory()),
            Arc::clone(outgoing.memory()),
        ],
        _sent: [datagrams, outgoing],
        pd: parts.pd,
        manager: Manager::of_port(&device, config.port),
        admin,
        face,
        timer,
        config,
        kick: Kick::default(),
        over: Over::default(),
        drained: AtomicWaker::new(),
        watcher: OnceLock::new(),
        device,
    });
    // It is set once, here.
    let _ = door.set(Arc::downgrade(&core));
    core.post_all_messages();
    core.watch();
    Ok(core)
}

/// The verbs objects of an interface.
struct Parts {
    qp: Qp,
    srq: Option<Srq>,
    cq: Cq,
    /// The regions that datagrams are received into and sent from, and the same for messages of connections.
    received: Mr,
    datagrams: Mr,
    messages: Option<Mr>,
    outgoing: Mr,
    pd: Pd,
}

impl Parts {
    async fn make(
        device: &Device,
        config: &Config,
        door: &Arc<OnceLock<Weak<Core>>>,
    ) -> Result<Self, Error> {
        let attr = device.query().await?;
        let is_connected = config.mode == Mode::Connected;
        if is_connected && attr.max_srq == 0 {
            return Err(Error::Unsupported(
                "shared receive queues, which connected mode needs",
            ));
        }
        let (sends, receives) = match is_connected {
            true => (config.connected_sends, config.connected_receives),
            false => (0, 0),
        };
        let pd = device.alloc_pd().await?;
        // The queue has room for every work request that may be in flight, and for the markers.
        let markers = CONNECTIONS_MAX as u32;
        let entries = config.sends + config.receives + sends + receives + markers;
        let mut cq = completions(device, entries, door).await?;
        // Nothing is posted yet, so no completion waits.
        let _empty = cq.arm(Arm::Next);
        let received = region(&pd, config.receives as usize * RECEIVE_STRIDE).await?;
        let datagrams = region(&pd, config.sends as usize * DATAGRAM_STRIDE).await?;
        let outgoing = region(&pd, sends as usize * MESSAGE_STRIDE).await?;
        let (messages, srq) = match is_connected {
            true => {
                let memory = region(&pd, receives as usize * MESSAGE_STRIDE).await?;
                (Some(memory), Some(pd.create_srq(receives, 1).await?))
            }
            false => (None, None),
        };
        let init = QpInit::ud(&cq, &cq).depth(config.sends, config.receives);
        Ok(Self {
            qp: pd.create_qp(init).await?,
            srq,
            cq,
            received,
            datagrams,
            messages,
            outgoing,
            pd,
        })
    }
}

/// The queue for all completions, with its handler.
async fn completions(
    device: &Device,
    entries: u32,
    door: &Arc<OnceLock<Weak<Core>>>,
) -> Result<Cq, Error> {
    let door = Arc::clone(door);
    let mut receiver = Receiver::default();
    let cq = device.create_cq(entries).handler(move || {
        if let Some(core) = door.get().and_then(Weak::upgrade) {
            receiver.turn(&core);
        }
    });
    Ok(cq.await?)
}

async fn region(pd: &Pd, len: usize) -> Result<Mr, Error> {
    let memory = Memory::alloc(len)?;
    Ok(pd.register(memory, Access::LOCAL_WRITE).await?)
}

fn own(config: &Config, qpn: Qpn) -> HardwareAddress {
    let flags = match config.mode {
        Mode::Connected => HardwareFlags::RC,
        Mode::Datagram => HardwareFlags::empty(),
    };
    HardwareAddress {
        flags,
        qpn,
        gid: Gid::default(),
    }
}

impl Core {
    /// Posts all receives of connections.
    fn post_all_messages(self: &Arc<Self>) {
        let indices: Vec<_> = (0..self.config.connected_receives).collect();
        self.with(|state, _| {
            for lot in indices.chunks(LOT) {
                self.post_messages(state, lot);
            }
        });
    }

    /// Subscribes to events and timers, and starts the keeper.
    fn watch(self: &Arc<Self>) {
        let watcher: Arc<dyn EventWatcher> = Arc::new(Watcher(Arc::downgrade(self)));
        self.device.target().watch_events(&watcher);
        // It is set once, here.
        let _ = self.watcher.set(watcher);
        let (timer, weak) = (Arc::clone(&self.timer), Arc::downgrade(self));
        task::detach(async move {
            loop {
                Sleep::new(&timer, TICK).await;
                let Some(core) = weak.upgrade() else { break };
                if core.is_closed() {
                    break;
                }
                core.with(State::tick);
            }
        });
        task::detach(Arc::clone(self).keep());
    }
}

/// Receives the device's events.
struct Watcher(Weak<Core>);

impl EventWatcher for Watcher {
    fn event(&self, event: AsyncEvent) {
        let Some(core) = self.0.upgrade() else {
            return;
        };
        match (event.event, event.subject) {
            (EventType::QpLastWqeReached, Subject::Object(id)) if id.kind == ObjectKind::Qp => {
                let waiting = core.with(|state, _| state.last_receive(id.number));
                if let Some(waiting) = waiting {
                    // The receiver is dropped when the interface is being closed.
                    let _gone = waiting.send(());
                }
            }
            (EventType::SmChange | EventType::ClientReregister, Subject::Port(port))
                if port == core.config.port =>
            {
                core.kick.set(Kick::REFRESH);
            }
            (
                EventType::PortErr
                | EventType::PortActive
                | EventType::LidChange
                | EventType::GidChange
                | EventType::PkeyChange,
                Subject::Port(port),
            ) if port == core.config.port => core.kick.set(Kick::RESTART),
            (EventType::DeviceFatal, _) => core.kick.set(Kick::RESTART),
            _ => {}
        }
    }
}
