//! A list of blocks as one region whose addresses begin at zero: a server keeps the blocks of a file wherever there is room,
//! and a client reads and writes the file by offsets, with no idea of where its blocks are.
//!
//! The server then moves the blocks together. It makes the key invalid, and registers the new places under the next one, by
//! work requests; the client's offsets stay what they were.
//!
//! `cargo run -p verbs-rdma --example blocks`

use std::sync::Arc;

use verbs::cm::Connection;
use verbs::control::{Access, Cq, Extent, Layout, Memory, Mr, Pd, QpInit};
use verbs::sim::Network;
use verbs::wc::Wc;
use verbs::wr::{LocalInv, Read, Write};

type Error = Box<dyn std::error::Error + Send + Sync>;

/// Bytes of a block.
const BLOCK: usize = 512;
/// The blocks of the file, in the order of its bytes.
const SCATTERED: [usize; 4] = [41, 7, 19, 3];
/// The same when they have been moved.
const TOGETHER: [usize; 4] = [0, 1, 2, 3];
/// What is written, across the end of the first block.
const LINE: &[u8] = b"the first block ends here, and this is in the second";
/// Where it begins in the file.
const AT: usize = BLOCK - 25;

/// An end of the connection. Dropped in this order.
struct Host {
    connection: Connection,
    cq: Cq,
    buffer: Mr,
    pd: Pd,
    _net: verbs::Endpoint,
}

/// Two ends on hosts of their own, whose queue pairs the connection manager has connected.
async fn hosts(network: &Network) -> Result<[Host; 2], Error> {
    let server = network.host([127, 0, 0, 1]).open().await?;
    let client = network.host([127, 0, 0, 2]).open().await?;
    let mut parts = Vec::new();
    for net in [server, client] {
        let device = net.device();
        let pd = device.alloc_pd().await?;
        let cq = device.create_cq(16).await?;
        let access = device.read_sink(Access::LOCAL_WRITE);
        let buffer = pd.register(Memory::alloc(BLOCK)?, access).await?;
        let qp = pd.create_qp(QpInit::rc(&cq, &cq)).await?;
        parts.push((net, pd, cq, buffer, qp));
    }
    let (client, server) = parts.pop().zip(parts.pop()).ok_or("two hosts")?;
    let (manager, listening) = (client.0.manager(), server.0.manager());
    let mut listener = listening.listen("127.0.0.1:7471").await?;
    let accepted = async { listener.accept().await.accept(server.4).await };
    let connecting = manager.connect("127.0.0.1:7471", client.4).into_future();
    let (connected, accepted) = futures::future::join(connecting, accepted).await;
    let host = |connection, (net, pd, cq, buffer)| Host {
        connection,
        cq,
        buffer,
        pd,
        _net: net,
    };
    let server = host(accepted?, (server.0, server.1, server.2, server.3));
    let client = host(connected?, (client.0, client.1, client.2, client.3));
    Ok([server, client])
}

impl Host {
    /// Waits until the work request that was posted last has completed.
    async fn done(&mut self) -> Result<(), Error> {
        loop {
            match self.cq.poll(&mut [Wc::default()]) {
                [wc] if wc.is_ok() => return Ok(()),
                [wc] => return Err(wc.status.to_string().into()),
                _ => self.cq.ready().await?,
            }
        }
    }
}

/// These blocks of the disk, one behind the other.
fn blocks<'m>(disk: &'m Arc<Memory>, numbers: &[usize]) -> Vec<Extent<'m>> {
    let block = |number: &usize| Extent {
        memory: disk,
        offset: number * BLOCK,
        len: BLOCK as u32,
    };
    numbers.iter().map(block).collect()
}

fn text(disk: &Memory, at: usize, len: usize) -> Result<String, Error> {
    let mut bytes = vec![0; len];
    disk.read(at, &mut bytes)?;
    Ok(String::from_utf8(bytes)?)
}

async fn run() -> Result<(), Error> {
    let network = Network::from_env()?;
    let [mut server, mut client] = hosts(&network).await?;

    let disk = Arc::new(Memory::alloc(64 * BLOCK)?);
    let access = Access::LOCAL_WRITE | Access::REMOTE | Access::ZERO_BASED;
    let list = blocks(&disk, &SCATTERED);
    let registering = server
        .pd
        .register_pages(Layout::Blocks(BLOCK as u32), list, access);
    let mut file = registering.await?;
    let start = file.remote(0);
    println!("{} bytes from address {}", file.len(), start.addr);

    // A real server would send the key to its client. The address is an offset.
    client.buffer.write(0, LINE)?;
    let line = client.buffer.slice(0..LINE.len());
    let write = Write::new(1, file.remote(AT)).from(line);
    client.connection.post_send(write)?;
    // Over iWARP a WRITE has ended when it is on its way; a READ behind it arrives behind it.
    let probe = Read::new(2, file.remote(AT)).into(line).signaled();
    client.connection.post_send(probe)?;
    client.done().await?;
    let [first, second, ..] = SCATTERED;
    println!("{:?}", text(&disk, first * BLOCK + AT, BLOCK - AT)?);
    println!(
        "{:?}",
        text(&disk, second * BLOCK, LINE.len() + AT - BLOCK)?
    );

    let invalidate = LocalInv::new(3, file.rkey()).signaled();
    server.connection.post_send(invalidate)?;
    server.done().await?;
    let mut block = [0; BLOCK];
    for (from, to) in SCATTERED.into_iter().zip(TOGETHER) {
        disk.read(from * BLOCK, &mut block)?;
        disk.write(to * BLOCK, &block)?;
    }
    file.map(blocks(&disk, &TOGETHER))?;
    file.next_key();
    server
        .connection
        .post_send(file.register(4, access).signaled())?;
    server.done().await?;

    client.buffer.write(0, &block)?;
    let read = Read::new(5, file.remote(AT)).into(line).signaled();
    client.connection.post_send(read)?;
    client.done().await?;
    println!("{:?}", text(client.buffer.memory(), 0, LINE.len())?);
    Ok(())
}

fn main() -> Result<(), Error> {
    verbs::block_on(run())
}
