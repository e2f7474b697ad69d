//! Options of sockets: sizes before they are connected, flags, and values that are only remembered.

use std::collections::BTreeMap;
use std::ffi::c_int;
use std::time::Duration;

use crate::call::Errno;

/// `SOL_RDMA`, and its options.
const SOL_RDMA: c_int = 0x10000;
const SQSIZE: c_int = 0;
const RQSIZE: c_int = 1;
const INLINE: c_int = 2;
const IOMAPSIZE: c_int = 3;

/// Sizes of a stream.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Sizes {
    pub(super) sends: u16,
    pub(super) receives: u16,
    pub(super) inline: u32,
    pub(super) send_buffer: usize,
    pub(super) receive_buffer: usize,
    /// Maps of the peer's memory.
    pub(super) maps: u16,
}

impl Default for Sizes {
    /// The sizes of librdmacm, except that the buffers are eight times as large: each end that waits for the other costs
    /// a wake-up, which takes longer than a software HCA takes for half of librdmacm's buffer.
    fn default() -> Self {
        Self {
            sends: 384,
            receives: 384,
            inline: 64,
            send_buffer: 1 << 20,
            receive_buffer: 1 << 20,
            maps: 0,
        }
    }
}

/// `SO_LINGER`: 1 if it is set, and seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Linger {
    pub(super) is_on: c_int,
    pub(super) seconds: c_int,
}

/// Options of a socket.
#[derive(Default)]
pub(super) struct Options {
    pub(super) sizes: Sizes,
    pub(super) reuse_address: bool,
    /// `SO_LINGER`, as it was set.
    pub(super) linger: Linger,
    /// Options that are only returned again, and change nothing: `TCP_NODELAY`, `SO_KEEPALIVE` and the like.
    remembered: BTreeMap<(c_int, c_int), c_int>,
}

/// Options of that kind.
const REMEMBERED: [(c_int, c_int); 8] = [
    (libc::SOL_SOCKET, libc::SO_KEEPALIVE),
    (libc::SOL_SOCKET, libc::SO_OOBINLINE),
    (libc::SOL_SOCKET, libc::SO_BROADCAST),
    (libc::IPPROTO_TCP, libc::TCP_NODELAY),
    (libc::IPPROTO_TCP, libc::TCP_KEEPIDLE),
    (libc::IPPROTO_TCP, libc::TCP_KEEPCNT),
    (libc::IPPROTO_TCP, libc::TCP_KEEPINTVL),
    (libc::IPPROTO_IPV6, libc::IPV6_V6ONLY),
];

impl Options {
    /// The options that a connection inherits from its listener.
    pub(super) fn of_listener(&self) -> Self {
        Self {
            sizes: self.sizes,
            linger: self.linger,
            ..Self::default()
        }
    }

    /// How long a close waits for what was sent; 0: it does not arrive. `None`: the program has said nothing.
    pub(super) fn linger_time(&self) -> Option<Duration> {
        let seconds = u64::try_from(self.linger.seconds).unwrap_or(0);
        (self.linger.is_on != 0).then(|| Duration::from_secs(seconds))
    }

    /// Sets an option. Sizes are fixed once the socket is connecting.
    pub(super) fn set(
        &mut self,
        level: c_int,
        name: c_int,
        value: c_int,
        is_fixed: bool,
    ) -> Result<(), Errno> {
        let in_16_bits = |least: u16| -> Result<u16, Errno> {
            Ok(u16::try_from(value).map_err(|_| Errno::INVAL)?.max(least))
        };
        let bytes = || usize::try_from(value).map_err(|_| Errno::INVAL);
        let sizes = &mut self.sizes;
        match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address = value != 0,
            // After it is connected they change nothing, as with librdmacm.
            (libc::SOL_SOCKET, libc::SO_SNDBUF) if !is_fixed => {
                sizes.send_buffer = (bytes()? * 2).max(4096);
            }
            (libc::SOL_SOCKET, libc::SO_RCVBUF) if !is_fixed => {
                sizes.receive_buffer = (bytes()? * 2).max(4096);
            }
            (libc::SOL_SOCKET, libc::SO_SNDBUF | libc::SO_RCVBUF) => {}
            (SOL_RDMA, SQSIZE | RQSIZE | INLINE | IOMAPSIZE) if is_fixed => {
                return Err(Errno::INVAL);
            }
            (SOL_RDMA, SQSIZE) => sizes.sends = in_16_bits(16)?,
            (SOL_RDMA, RQSIZE) => sizes.receives = in_16_bits(16)?,
            (SOL_RDMA, INLINE) => {
                sizes.inline = u32::try_from(value).map_err(|_| Errno::INVAL)?.max(16);
            }
            (SOL_RDMA, IOMAPSIZE) => sizes.maps = round(in_16_bits(0)?),
            option if REMEMBERED.contains(&option) => {
                self.remembered.insert(option, value);
            }
            // As librdmacm.
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
                return Err(Errno::NOTSUP);
            }
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        }
        Ok(())
    }

    /// The value that was set.
    pub(super) fn get(&self, level: c_int, name: c_int) -> Result<c_int, Errno> {
        let int = |bytes: usize| c_int::try_from(bytes).unwrap_or(c_int::MAX);
        Ok(match (level, name) {
            (libc::SOL_SOCKET, libc::SO_REUSEADDR) => self.reuse_address.into(),
            (libc::SOL_SOCKET, libc::SO_SNDBUF) => int(self.sizes.send_buffer),
            (libc::SOL_SOCKET, libc::SO_RCVBUF) => int(self.sizes.receive_buffer),
            (libc::IPPROTO_TCP, libc::TCP_MAXSEG) => 2048,
            (SOL_RDMA, SQSIZE) => self.sizes.sends.into(),
            (SOL_RDMA, RQSIZE) => self.sizes.receives.into(),
            (SOL_RDMA, INLINE) => int(self.sizes.inline as usize),
            (SOL_RDMA, IOMAPSIZE) => self.sizes.maps.into(),
            option if REMEMBERED.contains(&option) => {
                self.remembered.get(&option).copied().unwrap_or(0)
            }
            (libc::SOL_SOCKET, libc::SO_RCVTIMEO | libc::SO_SNDTIMEO) => {
                return Err(Errno::NOTSUP);
            }
            _ => return Err(Errno(libc::ENOPROTOOPT)),
        })
    }
}

/// A number of maps that the protocol can express: up to 128, or a multiple of 256.
fn round(maps: u16) -> u16 {
    match maps {
        0..=128 => maps,
        129..=255 => 128,
        _ => (maps / 256).min(127) * 256,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_fixed_once_a_socket_connects() {
        let mut options = Options::default();
        assert_eq!(options.set(SOL_RDMA, SQSIZE, 8, false), Ok(()));
        assert_eq!(
            options.get(SOL_RDMA, SQSIZE),
            Ok(16),
            "the least that works"
        );
        assert_eq!(options.set(SOL_RDMA, SQSIZE, 32, true), Err(Errno::INVAL));
        assert_eq!(
            options.set(SOL_RDMA, RQSIZE, 70_000, false),
            Err(Errno::INVAL)
        );
        assert_eq!(options.set(SOL_RDMA, IOMAPSIZE, 300, false), Ok(()));
        assert_eq!(options.get(SOL_RDMA, IOMAPSIZE), Ok(256));
        assert_eq!(
            options.set(libc::SOL_SOCKET, libc::SO_SNDBUF, 5000, false),
            Ok(())
        );
        assert_eq!(options.get(libc::SOL_SOCKET, libc::SO_SNDBUF), Ok(10_000));
        assert_eq!(
            options.set(libc::IPPROTO_TCP, libc::TCP_NODELAY, 1, true),
            Ok(())
        );
        assert_eq!(options.get(libc::IPPROTO_TCP, libc::TCP_NODELAY), Ok(1));
        assert_eq!(options.set(99, 1, 1, false), Err(Errno(libc::ENOPROTOOPT)));
    }
}
