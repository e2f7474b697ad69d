//! READs: the rights of their sinks (D11), and those that invalidate them (D10).

use std::sync::Arc;

use verbs_core::{
    Access, DeviceCap, Extent, FastMr, Memory, PostError, QpState, RKey, Read, Remote, SendWr,
    WcCause, WcOpcode, WcStatus, Write, read_with_invalidate,
};

use crate::support::{End, Host, address, connect, until};

/// A page for fast registration.
fn page(host: &Host) -> (FastMr, Arc<Memory>) {
    let memory = Arc::new(Memory::alloc(4096).unwrap());
    let mut mr = host.pd.alloc_mr(1).wait().unwrap();
    map(&mut mr, &memory);
    (mr, memory)
}

fn map(mr: &mut FastMr, memory: &Arc<Memory>) {
    let extent = Extent {
        memory,
        offset: 0,
        len: 4096,
    };
    assert_eq!(mr.map([extent]), Ok(1));
}

fn post<'w>(end: &mut End, wr: impl Into<SendWr<'w>>) -> Result<(), PostError> {
    end.qp.post_send(wr)
}

/// Goal: a sink without the right is refused when the READ is posted, which names the right, the key and the cure;
/// nothing is written to it, and the connection goes on. With the helper's rights it works.
#[test]
fn a_sink_needs_the_right_that_the_query_tells() {
    let mut client = Host::new(address(6, 1));
    let server = Host::new(address(6, 2));
    let (mut ours, _theirs) = connect(&client, &server);
    server.mr.write(0, b"fetched").unwrap();
    let need = client.device.query_provider(1).transport.read_sink();
    assert_eq!(need, Access::LOCAL_WRITE | Access::REMOTE_WRITE);

    let sink = |access| {
        let memory = Memory::alloc(4096).unwrap();
        client.pd.register(memory, access).wait().unwrap()
    };
    for had in [Access::empty(), Access::LOCAL_WRITE, Access::REMOTE_READ] {
        let short = sink(had);
        let read = Read::new(1, server.mr.remote(0)).into(short.slice(0..7));
        let refused = post(&mut ours, read.signaled()).unwrap_err();
        let (lkey, missing) = (short.lkey(), need.difference(had));
        assert_eq!(refused, PostError::ReadSink { lkey, missing });
        let text = refused.to_string();
        assert!(
            text.contains("REMOTE_WRITE") && text.contains("Device::read_sink"),
            "{text}"
        );
        let refused = post(&mut ours, read.invalidate().signaled()).unwrap_err();
        assert_eq!(refused, PostError::ReadSink { lkey, missing });
        let mut bytes = [0xff; 7];
        short.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, [0; 7], "nothing was written");
    }
    let right = sink(client.device.read_sink(Access::empty()));
    let read = Read::new(2, server.mr.remote(0)).into(right.slice(0..7));
    post(&mut ours, read.signaled()).unwrap();
    let done = client.completions(1)[0];
    assert_eq!((done.wr_id, done.status), (2, WcStatus::Success));
    let mut bytes = [0; 7];
    right.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"fetched");
}

/// Goal: memory that peers have no right to is filled by READs if it was registered for that, and by nothing else.
#[test]
fn a_guarded_sink_takes_what_was_asked_for_alone() {
    let mut client = Host::new(address(11, 1));
    let mut server = Host::new(address(11, 2));
    let (mut ours, mut theirs) = connect(&client, &server);
    server.mr.write(0, b"fetched").unwrap();
    let access = Access::LOCAL_WRITE | Access::READ_SINK;
    let memory = Memory::alloc(4096).unwrap();
    let sink = client.pd.register(memory, access).wait().unwrap();
    let read = Read::new(1, server.mr.remote(0)).into(sink.slice(0..7));
    post(&mut ours, read.signaled()).unwrap();
    assert_eq!(client.completions(1)[0].status, WcStatus::Success);
    let mut bytes = [0; 9];
    sink.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"fetched\0\0");
    // The peer knows the key now.
    let to = Remote {
        addr: sink.slice(0..7).addr,
        rkey: RKey::new(sink.lkey().value()),
    };
    let write = Write::new(2, to).inline(b"guessed").signaled();
    post(&mut theirs, write).unwrap();
    assert_eq!(server.completions(1)[0].status, WcStatus::Success);
    until("the connection has ended", || {
        ours.qp.query().wait().unwrap().state == QpState::Err
    });
    sink.read(0, &mut bytes).unwrap();
    assert_eq!(&bytes, b"fetched\0\0");
}

/// Goal: what the post cannot know, because a registration waits before the READ, a completion says.
#[test]
fn a_registration_that_waits_is_judged_by_the_completion() {
    let mut client = Host::new(address(7, 1));
    let server = Host::new(address(7, 2));
    for (access, status) in [
        (client.device.read_sink(Access::empty()), WcStatus::Success),
        (Access::LOCAL_WRITE, WcStatus::LocProtErr),
    ] {
        let (mut ours, _theirs) = connect(&client, &server);
        let (mut sink, memory) = page(&client);
        server.mr.write(0, b"fetched").unwrap();
        let register = sink.register(1, access);
        let read = Read::new(2, server.mr.remote(0)).into(sink.slice(0..7));
        let chain = [register.into(), SendWr::from(read.signaled())];
        let posted = ours.qp.send_queue().unwrap().post_batch(&chain);
        if let Err(error) = posted {
            // The registration was carried out at once.
            assert!(matches!(error.error, PostError::ReadSink { .. }), "{error}");
            assert_eq!((error.posted, status), (1, WcStatus::LocProtErr));
            continue;
        }
        let done = client.completions(1)[0];
        assert_eq!((done.wr_id, done.status), (2, status), "{access:?}");
        let mut bytes = [0; 7];
        memory.read(0, &mut bytes).unwrap();
        match status {
            WcStatus::Success => assert_eq!(&bytes, b"fetched"),
            _ => {
                assert_eq!(bytes, [0; 7]);
                assert_eq!(done.vendor_err, WcCause::NoRight.code());
            }
        }
    }
}

/// Goal: one work request reads, and its sink's key is gone when its completion is there: work requests that name it
/// end in error, and it can be mapped and registered again. The portable helper makes this one work request here.
#[test]
fn a_read_invalidates_its_sink() {
    let mut client = Host::new(address(8, 1));
    let server = Host::new(address(8, 2));
    let (mut ours, _theirs) = connect(&client, &server);
    let caps = client.device.query().wait().unwrap().caps;
    assert!(caps.contains(DeviceCap::READ_WITH_INV));
    let access = client.device.read_sink(Access::empty());
    let (mut sink, memory) = page(&client);
    for round in 0..3_u8 {
        let text = [round + 1; 3000];
        server.mr.write(0, &text).unwrap();
        let key = sink.next_key();
        post(&mut ours, sink.register(1, access).signaled()).unwrap();
        let read = Read::new(2, server.mr.remote(0)).into(sink.slice(0..3000));
        let wrs = read_with_invalidate(caps, read, key);
        assert_eq!(wrs.len(), 1);
        ours.qp.send_queue().unwrap().post_batch(&wrs).unwrap();
        let done = client.completions(2);
        assert!(done.iter().all(|wc| wc.is_ok()), "{done:?}");
        assert_eq!((done[1].wr_id, done[1].opcode), (2, WcOpcode::RdmaRead));
        assert_eq!(done[1].byte_len, 3000);
        let mut bytes = [0; 3000];
        memory.read(0, &mut bytes).unwrap();
        assert_eq!(bytes, text);
        // An invalid key gives its memory back, which a valid one does not. The thread that has told of the READ may be
        // inside for a moment.
        until("it is given back", || sink.unmap().is_ok());
        map(&mut sink, &memory);
    }
    let again = Read::new(3, server.mr.remote(0)).into(sink.slice(0..8));
    post(&mut ours, again.signaled()).unwrap();
    let done = client.completions(1)[0];
    assert_eq!((done.wr_id, done.status), (3, WcStatus::LocProtErr));
    assert_eq!(done.vendor_err, WcCause::KeyGone.code());
}

/// Goal: the key of an ordinary region cannot be invalidated, which the completion says.
#[test]
fn an_ordinary_region_stays() {
    let mut client = Host::new(address(9, 1));
    let server = Host::new(address(9, 2));
    let (mut ours, _theirs) = connect(&client, &server);
    let read = Read::new(1, server.mr.remote(0)).into(client.mr.slice(0..8));
    post(&mut ours, read.invalidate().signaled()).unwrap();
    let done = client.completions(1)[0];
    assert_eq!((done.wr_id, done.status), (1, WcStatus::LocQpOpErr));
    assert_eq!(done.vendor_err, WcCause::KeyState.code());
    // It can be read from and written to by others.
    let (mut ours, _theirs) = connect(&client, &server);
    let read = Read::new(2, server.mr.remote(0)).into(client.mr.slice(0..8));
    post(&mut ours, read.signaled()).unwrap();
    assert_eq!(client.completions(1)[0].status, WcStatus::Success);
}
