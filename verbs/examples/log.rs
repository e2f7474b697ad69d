//! Ships a log: each record is written into a ring in the receiver's memory, and told by immediate data, so that it costs one
//! operation and no copy.
//!
//! The sender may be a ring ahead. The receiver says how many records it has taken, half a ring at a time.
//!
//! `cargo run --example log`

use verbs::prelude::*;

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Records that the ring has room for, and bytes of one.
const SLOTS: u32 = 64;
const SLOT: u64 = 256;

const RECORDS: u32 = 10_000;

/// The place of a record in the ring, in bytes.
fn place(record: u32) -> u64 {
    u64::from(record % SLOTS) * SLOT
}

/// Gives the ring to one sender, and takes its records in order.
async fn receive(net: &Endpoint, conn: Connection) -> Result<u32, Error> {
    let ring = net
        .region(SLOTS as usize * SLOT as usize, Access::REMOTE_WRITE)
        .await?;
    let mut offer = conn.buf().await;
    offer.fill_from(&ring.token(0..ring.len())?.to_bytes());
    conn.send(offer).await?;
    let mut taken = 0;
    while let Some(notice) = conn.recv().await? {
        let record = notice.imm().ok_or("a message of no record")?;
        assert_eq!(record, taken, "records come in order");
        let mut text = [0; SLOT as usize];
        ring.read_at(place(record) as usize, &mut text)?;
        assert!(text.starts_with(format!("record {record};").as_bytes()));
        taken += 1;
        if taken % (SLOTS / 2) == 0 {
            let mut credit = conn.buf().await;
            credit.fill_from(&taken.to_be_bytes());
            conn.send(credit).posted().await?;
        }
    }
    Ok(taken)
}

async fn send(net: &Endpoint) -> Result<(), Error> {
    let conn = net.connect("127.0.0.1:7471").await?;
    let ring = Token::from_bytes(&conn.recv().await?.ok_or("closed")?)?;
    let mut taken = 0;
    for record in 0..RECORDS {
        while record - taken >= SLOTS {
            let credit = conn.recv().await?.ok_or("closed")?;
            taken = u32::from_be_bytes(credit[..].try_into()?);
        }
        let mut text = conn.buf().await;
        text.fill_from(format!("record {record};").as_bytes());
        let slot = ring.slice(place(record)..place(record) + SLOT)?;
        conn.write_with_imm(text, slot, record).posted().await?;
    }
    Ok(conn.close().await?)
}

fn main() -> Result<(), Error> {
    verbs::block_on(async {
        let network = verbs::sim::Network::from_env()?;
        let receiver = network.host([127, 0, 0, 1]).open().await?;
        let sender = network.host([127, 0, 0, 2]).open().await?;
        let mut senders = receiver.listen("127.0.0.1:7471").await?;
        let receiving = async { receive(&receiver, senders.accept().await).await };
        let (taken, ()) = futures::try_join!(receiving, send(&sender))?;
        println!("{taken} records");
        Ok(())
    })
}
