//! Two connected ends.

use std::net::IpAddr;
use std::sync::Arc;

use futures::FutureExt;
use futures::future::{join, try_join};
use hca_sim::{Hca, Loopback, Udp};
use verbs_cm::resolver::Fixed;
use verbs_io::{Connection, Endpoint, Error, Opening};

pub(crate) const AT: &str = "10.0.0.2:7471";

/// Two ends, with the objects that they belong to.
pub(crate) struct Pair {
    pub(crate) a: Connection,
    pub(crate) b: Connection,
    pub(crate) nets: [Endpoint; 2],
    pub(crate) hcas: [Arc<Hca>; 2],
}

/// Opens endpoints with these options on two ports of one link, that know each other's addresses.
pub(crate) async fn endpoints(
    options: impl Fn(Opening) -> Opening,
) -> ([Endpoint; 2], [Arc<Hca>; 2]) {
    let link = Loopback::with_seed(7);
    let hcas = [(); 2].map(|()| Hca::on(&link).build());
    let table = hcas
        .iter()
        .zip(1..)
        .fold(Fixed::new(), |table, (hca, host)| {
            table.way(IpAddr::from([10, 0, 0, host]), hca.gid(), Some(hca.lid()))
        });
    let table = Arc::new(table);
    let open = async |hca: &Arc<Hca>| {
        let device = hca.open().await.unwrap();
        let opening = Endpoint::on(device).resolver(Arc::<Fixed>::clone(&table));
        options(opening).open().await.unwrap()
    };
    let nets = [open(&hcas[0]).await, open(&hcas[1]).await];
    (nets, hcas)
}

/// Connects the first to the second.
pub(crate) async fn meet(nets: &[Endpoint; 2], at: &str) -> (Connection, Connection) {
    let mut listener = nets[1].listen(at).await.unwrap();
    let accepted = async { Ok(listener.accept().await) };
    let asked = nets[0].connect(at).into_future();
    try_join(asked, accepted).await.unwrap()
}

/// A pair on a loopback link.
pub(crate) async fn pair_with(options: impl Fn(Opening) -> Opening) -> Pair {
    let (nets, hcas) = endpoints(options).await;
    let (a, b) = meet(&nets, AT).await;
    Pair { a, b, nets, hcas }
}

pub(crate) async fn pair() -> Pair {
    pair_with(|opening| opening).await
}

/// A pair over UDP of the machine's loopback interface: hosts 1 and 2 of that network.
pub(crate) async fn udp_pair(network: u8, options: impl Fn(Opening) -> Opening) -> Pair {
    let build = |addr| Hca::over(Udp::bind(&[addr]).unwrap()).build();
    pair_of(network, build, options).await
}

/// A pair over TCP of the machine's loopback interface.
pub(crate) async fn iwarp_pair(network: u8, options: impl Fn(Opening) -> Opening) -> Pair {
    let build = |addr| Hca::iwarp(&[addr]).unwrap().build();
    pair_of(network, build, options).await
}

/// A pair of such HCAs at hosts 1 and 2 of that network.
async fn pair_of(
    network: u8,
    build: impl Fn(IpAddr) -> Arc<Hca>,
    options: impl Fn(Opening) -> Opening,
) -> Pair {
    let open = async |host| {
        let hca = build(IpAddr::from([127, 0, network, host]));
        let device = hca.open().await.unwrap();
        (options(Endpoint::on(device)).open().await.unwrap(), hca)
    };
    let ((client, client_hca), (server, server_hca)) = (open(1).await, open(2).await);
    let nets = [client, server];
    let (a, b) = meet(&nets, &format!("127.0.{network}.2:7471")).await;
    let hcas = [client_hca, server_hca];
    Pair { a, b, nets, hcas }
}

impl Pair {
    /// Closes both ends; every buffer is back in its pool.
    pub(crate) async fn close(&self) -> Result<(), Error> {
        let Self { a, b, nets, .. } = self;
        let (first, second) = join(a.close(), b.close()).await;
        first?;
        second?;
        for net in nets {
            assert_eq!(net.usage().lent, 0);
            assert_eq!(net.usage().late, 0);
        }
        Ok(())
    }
}

/// A message of that text.
pub(crate) async fn message(conn: &Connection, text: &str) -> verbs_io::Buf {
    let mut buf = conn.buf().await;
    buf.fill_from(text.as_bytes());
    buf
}

/// The next message, as text.
pub(crate) async fn text(conn: &Connection) -> Option<String> {
    let message = conn.recv().await.unwrap()?;
    Some(String::from_utf8(message.to_vec()).unwrap())
}

/// Polls once.
pub(crate) fn poll<F: Future + Unpin>(future: &mut F) -> Option<F::Output> {
    future.now_or_never()
}
