//! A remote procedure call beside tonic's: the same procedure, called by 64 tasks, by gRPC and by messages of a connection.
//!
//! Over verbs a call is a message with a number in front of its argument. The server answers each in a task of its own, so
//! answers come in any order; the number says which task waits for one. By gRPC the argument goes as it is, without generated
//! code; over TCP, on 127.0.0.1.
//!
//! `VERBS_NETWORK=roce cargo run --release --example beside_tonic`; add a number of calls

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use bytes::{Buf as _, BufMut as _, Bytes};
use http::uri::PathAndQuery;
use tokio::sync::oneshot;
use tonic::codec::{Codec, DecodeBuf, Decoder, EncodeBuf, Encoder};
use tonic::transport::{Channel, Endpoint as GrpcEndpoint, Server, server::TcpIncoming};
use tonic::{Request, Response, Status};
use tower::service_fn;
use verbs::prelude::*;

type Error = Box<dyn std::error::Error + Send + Sync>;

const TASKS: usize = 64;
const SIZE: usize = 4096;
/// Bytes of a message: a number, and the argument or the answer.
const MESSAGE: u32 = 8 + SIZE as u32;

/// The procedure.
fn invert(bytes: &mut [u8]) {
    bytes.iter_mut().for_each(|byte| *byte = !*byte);
}

/// Calls under way, by number.
type Waiting = Mutex<BTreeMap<u64, oneshot::Sender<Bytes>>>;

/// The client's end of a connection: any number of tasks may call.
#[derive(Clone)]
struct Caller {
    conn: Arc<Connection>,
    waiting: Arc<Waiting>,
}

impl Caller {
    fn new(conn: Connection) -> Self {
        let caller = Self {
            conn: Arc::new(conn),
            waiting: Arc::default(),
        };
        tokio::spawn(caller.clone().hear());
        caller
    }

    /// Hands each answer to the task that waits for it. In the end nobody does: those that still wait get an error.
    async fn hear(self) {
        while let Ok(Some(answer)) = self.conn.recv().await {
            let (mut number, argument) = answer.split_at(8);
            let mut waiting = self.waiting.lock().expect("no panic");
            if let Some(waits) = waiting.remove(&number.get_u64()) {
                // A task that has given up has no use for it.
                let _ = waits.send(Bytes::copy_from_slice(argument));
            }
        }
        self.waiting.lock().expect("no panic").clear();
    }

    async fn call(&self, number: u64, argument: &[u8]) -> Result<Bytes, Error> {
        let (sender, answer) = oneshot::channel();
        self.waiting
            .lock()
            .expect("no panic")
            .insert(number, sender);
        let mut request = self.conn.buf().await;
        request.set_len(8 + argument.len());
        request[..8].copy_from_slice(&number.to_be_bytes());
        request[8..].copy_from_slice(argument);
        self.conn.send(request).posted().await?;
        Ok(answer.await?)
    }
}

/// Answers calls, each in a task, until the client closes.
async fn serve(conn: Connection) -> Result<(), Error> {
    let conn = Arc::new(conn);
    while let Some(mut request) = conn.recv().await? {
        let conn = Arc::clone(&conn);
        tokio::spawn(async move {
            invert(&mut request[8..]);
            conn.send(request).posted().await // the same buffer is the answer
        });
    }
    Ok(())
}

/// Bytes as they are: what generated code would make of a message.
#[derive(Clone, Copy, Default)]
struct Raw;

impl Codec for Raw {
    type Encode = Bytes;
    type Decode = Bytes;
    type Encoder = Self;
    type Decoder = Self;

    fn encoder(&mut self) -> Self {
        Self
    }

    fn decoder(&mut self) -> Self {
        Self
    }
}

impl Encoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn encode(&mut self, item: Bytes, to: &mut EncodeBuf<'_>) -> Result<(), Status> {
        to.put(item);
        Ok(())
    }
}

impl Decoder for Raw {
    type Item = Bytes;
    type Error = Status;

    fn decode(&mut self, from: &mut DecodeBuf<'_>) -> Result<Option<Bytes>, Status> {
        Ok(Some(from.copy_to_bytes(from.remaining())))
    }
}

async fn invert_by_grpc(request: Request<Bytes>) -> Result<Response<Bytes>, Status> {
    let mut bytes = request.into_inner().to_vec();
    invert(&mut bytes);
    Ok(Response::new(bytes.into()))
}

async fn call_by_grpc(channel: Channel, argument: Bytes) -> Result<Bytes, Error> {
    let mut client = tonic::client::Grpc::new(channel);
    client.ready().await?;
    let path = PathAndQuery::from_static("/example.Bytes/Invert");
    let answer = client.unary(Request::new(argument), path, Raw).await?;
    Ok(answer.into_inner())
}

/// Calls so often, by all tasks together; each looks at its answers. Returns how long that took.
async fn measure<C, F>(calls: usize, call: C) -> Result<Duration, Error>
where
    C: Fn(u64, Bytes) -> F + Clone + Send + 'static,
    F: Future<Output = Result<Bytes, Error>> + Send + 'static,
{
    let begun = Instant::now();
    let mut tasks = Vec::new();
    for task in 0..TASKS {
        let call = call.clone();
        let argument = Bytes::from(vec![task as u8; SIZE]);
        tasks.push(tokio::spawn(async move {
            for number in (task..calls).step_by(TASKS) {
                let answer = call(number as u64, argument.clone()).await?;
                assert!(answer.len() == SIZE && answer.iter().all(|&byte| byte == !(task as u8)));
            }
            Ok::<_, Error>(())
        }));
    }
    for task in tasks {
        task.await??;
    }
    Ok(begun.elapsed())
}

#[tokio::main]
async fn main() -> Result<(), Error> {
    let calls = std::env::args()
        .nth(1)
        .map_or(Ok(20_000), |text| text.parse())?;

    let incoming = TcpIncoming::bind("127.0.0.1:0".parse()?)?.with_nodelay(Some(true));
    let url = format!("http://{}", incoming.local_addr()?);
    let service = service_fn(async |request: http::Request<_>| {
        let procedure = service_fn(invert_by_grpc);
        Ok::<_, Infallible>(
            tonic::server::Grpc::new(Raw)
                .unary(procedure, request)
                .await,
        )
    });
    tokio::spawn(Server::builder().serve_with_incoming(service, incoming));
    let channel = GrpcEndpoint::from_shared(url)?.connect().await?;
    let grpc = measure(calls, move |_, argument| {
        call_by_grpc(channel.clone(), argument)
    })
    .await?;

    let network = verbs::sim::Network::from_env()?;
    let host = |last| {
        network
            .host([127, 0, 0, last])
            .message_size(MESSAGE)
            .window(TASKS as u32)
    };
    let (server, client) = (host(2).open().await?, host(1).open().await?);
    let mut listener = server.listen("127.0.0.2:7471").await?;
    let served = tokio::spawn(async move { serve(listener.accept().await).await });
    let caller = Caller::new(client.connect("127.0.0.2:7471").await?);
    let calls_by = caller.clone();
    let verbs = measure(calls, move |number, argument| {
        let caller = calls_by.clone();
        async move { caller.call(number, &argument).await }
    });
    let verbs = verbs.await?;
    caller.conn.close().await?;
    served.await??;

    let rate = |took: Duration| calls as f64 / took.as_secs_f64();
    println!("{calls} calls of {SIZE} bytes by {TASKS} tasks");
    println!("gRPC (tonic) {:>8.0} calls/s", rate(grpc));
    println!("verbs        {:>8.0} calls/s", rate(verbs));
    Ok(())
}
