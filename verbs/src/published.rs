//! What a program lets the user's other programs see.

use std::io;

use hca_sim::link::published;
use verbs_io::Endpoint;

pub use hca_sim::link::published::Published;

/// Lets `verbs connections` show the connections of these endpoints, and those that the process's connection managers have made
/// otherwise, to other programs of the same user, as long as what is returned is kept. That keeps the endpoints too.
///
/// A thread answers at a socket that only the user can reach. `None` where that cannot be: nothing else depends on it. A process
/// publishes once; a second call takes the place of the first.
///
/// ```
/// # async fn example() -> Result<(), verbs::Error> {
/// use verbs::prelude::*;
///
/// let net = Endpoint::udp([127, 0, 0, 1]).open().await?;
/// let _published = verbs::publish([&net]);
/// // `verbs connections` in another terminal has a line for each connection of `net`.
/// # Ok(())
/// # }
/// ```
///
/// # Context
/// Makes system calls that do not wait.
pub fn publish<'e>(endpoints: impl IntoIterator<Item = &'e Endpoint>) -> Option<Published> {
    let endpoints: Vec<Endpoint> = endpoints.into_iter().cloned().collect();
    published::publish(verbs_cm::Listed::PUBLISHED, move || {
        let of = endpoints.iter().map(|endpoint| {
            let device = endpoint.device();
            let provider = device.query_provider(1);
            // Devices that do not list their queue pairs have those of the connection manager.
            (provider, device.connected_qps().wait().unwrap_or_default())
        });
        serde_json::to_vec(&verbs_cm::listed(of)).map_err(io::Error::other)
    })
}
