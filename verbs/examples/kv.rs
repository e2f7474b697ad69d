//! A key-value store whose clients read and write it by themselves: the server's processor takes no part.
//!
//! A slot of the table is a word with a version, odd while a client writes, and 56 bytes of value. A client locks it by
//! compare and swap, writes the value, and unlocks by another; a reader reads the slot until the version is even.
//!
//! `cargo run --example kv`

use verbs::prelude::*;

type Error = Box<dyn std::error::Error + Send + Sync>;

const SLOTS: u64 = 64;
const SLOT: u64 = 64;

struct Store<'a> {
    conn: &'a Connection,
    table: Token,
}

impl Store<'_> {
    fn slot(&self, key: u64) -> Result<Token, verbs::Error> {
        let at = key % SLOTS * SLOT;
        self.table.slice(at..at + SLOT)
    }

    async fn put(&self, key: u64, value: &str) -> Result<(), Error> {
        let slot = self.slot(key)?;
        let version = slot.word(0)?;
        let free = loop {
            let seen = self.conn.fetch_add(version, 0).await?;
            let is_free = seen % 2 == 0;
            if is_free && self.conn.compare_swap(version, seen, seen + 1).await? == seen {
                break seen;
            }
        };
        let mut bytes = self.conn.buf().await;
        bytes.set_len(56);
        bytes.fill(0);
        bytes[..value.len()].copy_from_slice(value.as_bytes());
        self.conn.write(bytes, slot.slice(8..64)?).await?;
        self.conn.compare_swap(version, free + 1, free + 2).await?;
        Ok(())
    }

    async fn get(&self, key: u64) -> Result<String, Error> {
        let slot = self.slot(key)?;
        loop {
            let mut bytes = self.conn.buf().await;
            bytes.set_len(SLOT as usize);
            let bytes = self.conn.read(bytes, slot).await?;
            let version = u64::from_ne_bytes(bytes[..8].try_into()?);
            if version % 2 == 0 && self.conn.fetch_add(slot.word(0)?, 0).await? == version {
                let value = bytes[8..].split(|&byte| byte == 0).next();
                return Ok(String::from_utf8(value.unwrap_or_default().to_vec())?);
            }
        }
    }
}

/// Exposes a table to one client, by a token in a message, until the client closes.
async fn serve(net: &Endpoint, conn: Connection) -> Result<(), Error> {
    let rights = Access::REMOTE_READ | Access::REMOTE_WRITE | Access::REMOTE_ATOMIC;
    let table = net.region((SLOTS * SLOT) as usize, rights).await?;
    let mut offer = conn.buf().await;
    offer.fill_from(&table.token(0..table.len())?.to_bytes());
    conn.send(offer).await?;
    while conn.recv().await?.is_some() {}
    println!("version of key 7: {}", table.load(7 * SLOT as usize)?);
    Ok(())
}

async fn client(net: &Endpoint) -> Result<(), Error> {
    let conn = net.connect("127.0.0.1:7471").await?;
    let table = Token::from_bytes(&conn.recv().await?.ok_or("closed")?)?;
    let store = Store { conn: &conn, table };
    store.put(7, "seven").await?;
    store.put(8, "eight").await?;
    store.put(7, "sept").await?;
    println!("{} {}", store.get(7).await?, store.get(8).await?);
    Ok(conn.close().await?)
}

fn main() -> Result<(), Error> {
    verbs::block_on(async {
        let network = verbs::sim::Network::from_env()?;
        let server = network.host([127, 0, 0, 1]).open().await?;
        let net = network.host([127, 0, 0, 2]).open().await?;
        let mut clients = server.listen("127.0.0.1:7471").await?;
        let serving = async {
            let conn = clients.accept().await;
            serve(&server, conn).await
        };
        futures::try_join!(serving, client(&net))?;
        Ok(())
    })
}
