//! A chat room: many clients at one endpoint, and each line goes to everybody else.
//!
//! Each member has a task that hears it and one that tells it what others say, over one connection. Lines for a member wait in
//! a queue of its own: who does not read holds up nobody else, and is let go when its queue is full.
//!
//! `cargo run --example chat`

use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};

use tokio::sync::{Barrier, mpsc};
use verbs::prelude::*;

type Error = Box<dyn std::error::Error + Send + Sync>;

const MEMBERS: usize = 12;
const LINES: usize = 50;
/// Lines that may wait for a member.
const QUEUE: usize = 1024;

type Queues = BTreeMap<usize, mpsc::Sender<Arc<str>>>;

/// Who is there.
#[derive(Default)]
struct Room(Mutex<Queues>);

impl Room {
    fn enter(&self, member: usize) -> mpsc::Receiver<Arc<str>> {
        let (queue, lines) = mpsc::channel(QUEUE);
        self.0.lock().expect("no panic").insert(member, queue);
        lines
    }

    fn leave(&self, member: usize) {
        self.0.lock().expect("no panic").remove(&member);
    }

    /// Tells everybody else; who is too far behind leaves.
    fn say(&self, member: usize, line: &str) {
        let line: Arc<str> = format!("{member}: {line}").into();
        let mut queues = self.0.lock().expect("no panic");
        queues.retain(|&other, queue| other == member || queue.try_send(Arc::clone(&line)).is_ok());
    }
}

/// The room's side of a member: until the member closes its connection, or has been let go.
async fn host(room: &Room, member: usize, conn: Connection, all: &Barrier) -> Result<(), Error> {
    let mut lines = room.enter(member);
    all.wait().await;
    let hears = async {
        while let Some(line) = conn.recv().await? {
            room.say(member, std::str::from_utf8(&line)?);
        }
        room.leave(member);
        Ok::<_, Error>(())
    };
    let tells = async {
        while let Some(line) = lines.recv().await {
            let mut buf = conn.buf().await;
            buf.fill_from(line.as_bytes());
            conn.send(buf).posted().await?;
        }
        Ok::<_, Error>(conn.close().await?)
    };
    tokio::try_join!(hears, tells)?;
    Ok(())
}

/// A member: says its lines, and hears those of all others, each one's in order.
async fn member(conn: Connection) -> Result<usize, Error> {
    let speaks = async {
        for line in 0..LINES {
            let mut buf = conn.buf().await;
            buf.fill_from(format!("line {line}").as_bytes());
            conn.send(buf).await?;
        }
        Ok::<_, Error>(())
    };
    let listens = async {
        let mut heard = BTreeMap::<String, usize>::new();
        for _ in 0..(MEMBERS - 1) * LINES {
            let line = conn.recv().await?.ok_or("the room has closed")?;
            let line = std::str::from_utf8(&line)?;
            let (who, said) = line.split_once(": ").ok_or("nobody said that")?;
            let next = heard.entry(who.to_owned()).or_default();
            assert_eq!(said, format!("line {next}"), "{who}");
            *next += 1;
        }
        Ok::<_, Error>(heard.values().sum())
    };
    let ((), heard) = tokio::try_join!(speaks, listens)?;
    conn.close().await?;
    Ok(heard)
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let network = verbs::sim::Network::from_env()?;
    let here = network.host([127, 0, 0, 1]).connections(MEMBERS as u32);
    let here = here.open().await?;
    let elsewhere = network.host([127, 0, 0, 2]).connections(MEMBERS as u32);
    let elsewhere = elsewhere.open().await?;
    let mut door = here.listen("127.0.0.1:7471").await?;
    let (room, all) = (Arc::<Room>::default(), Arc::new(Barrier::new(MEMBERS)));
    let hosts = tokio::spawn(async move {
        let mut hosts = Vec::new();
        for number in 0..MEMBERS {
            let (conn, room, all) = (door.accept().await, Arc::clone(&room), Arc::clone(&all));
            hosts.push(tokio::spawn(async move {
                host(&room, number, conn, &all).await
            }));
        }
        for host in hosts {
            host.await??;
        }
        Ok::<_, Error>(())
    });
    let mut members = Vec::new();
    for _ in 0..MEMBERS {
        let conn = elsewhere.connect("127.0.0.1:7471").await?;
        members.push(tokio::spawn(member(conn)));
    }
    for member in members {
        assert_eq!(member.await??, (MEMBERS - 1) * LINES);
    }
    hosts.await??;
    let heard = (MEMBERS - 1) * LINES;
    println!("{MEMBERS} members, and each has heard {heard} lines");
    Ok(())
}
