//! The socket of UDP of a socket for datagrams.

use std::ffi::c_int;
use std::io::ErrorKind;
use std::net::{IpAddr, SocketAddr, UdpSocket};
use std::os::fd::{AsRawFd, FromRawFd};

use crate::call::Errno;
use crate::rdmacm::address::sockaddr;
use crate::rsocket::options::Options;

/// A socket of UDP over IPv4 or IPv6, which never blocks. `None` when it is closed.
pub(super) struct Udp {
    socket: Option<UdpSocket>,
    fd: c_int,
    domain: c_int,
}

impl Udp {
    pub(super) fn new(domain: c_int) -> Result<Self, Errno> {
        let socket = made(domain)?;
        Ok(Self {
            fd: socket.as_raw_fd(),
            socket: Some(socket),
            domain,
        })
    }

    pub(super) fn fd(&self) -> c_int {
        self.fd
    }

    pub(super) fn is_v6(&self) -> bool {
        self.domain == libc::AF_INET6
    }

    /// The address in the form of this socket's family.
    pub(super) fn shown(&self, addr: SocketAddr) -> SocketAddr {
        match addr.ip() {
            IpAddr::V4(ip) if self.is_v6() => (ip.to_ipv6_mapped(), addr.port()).into(),
            _ => addr,
        }
    }

    /// Binds it. The other family is refused as the kernel refuses it.
    pub(super) fn bind(&self, addr: SocketAddr, options: &Options) -> Result<(), Errno> {
        let (addr, length) = sockaddr::to_c(self.shown(addr));
        let shares = c_int::from(options.reuse_address);
        // SAFETY: an open descriptor; a number and a complete address.
        let code = unsafe {
            let (level, name) = (libc::SOL_SOCKET, libc::SO_REUSEADDR);
            libc::setsockopt(self.fd, level, name, (&raw const shares).cast(), 4);
            libc::bind(self.fd, (&raw const addr).cast(), length as u32)
        };
        if code == 0 {
            Ok(())
        } else {
            Err(Errno::last())
        }
    }

    /// Makes it as it was before it was bound.
    pub(super) fn renew(&self) -> Result<(), Errno> {
        let fresh = made(self.domain)?;
        // SAFETY: two open descriptors.
        match unsafe { libc::dup3(fresh.as_raw_fd(), self.fd, libc::O_CLOEXEC) } {
            -1 => Err(Errno::last()),
            _ => Ok(()),
        }
    }

    fn open(&self) -> Result<&UdpSocket, Errno> {
        self.socket.as_ref().ok_or(Errno(libc::EBADF))
    }

    pub(super) fn local(&self) -> Result<SocketAddr, Errno> {
        let local = self.open()?.local_addr().map_err(errno_of)?;
        Ok(SocketAddr::new(local.ip().to_canonical(), local.port()))
    }

    pub(super) fn connect(&self, peer: SocketAddr) -> Result<(), Errno> {
        self.open()?.connect(self.shown(peer)).map_err(errno_of)
    }

    /// Sends both parts as one message.
    pub(super) fn send(&self, note: &[u8], data: &[u8], to: SocketAddr) -> Result<(), Errno> {
        let whole = [note, data].concat();
        let sent = self.open()?.send_to(&whole, self.shown(to));
        sent.map(|_| ()).map_err(errno_of)
    }

    /// The next message, if there is one.
    pub(super) fn receive(&self, room: &mut [u8]) -> Option<(usize, SocketAddr)> {
        let socket = self.open().ok()?;
        loop {
            match socket.recv_from(room) {
                Ok(received) => return Some(received),
                Err(error) if error.kind() == ErrorKind::WouldBlock => return None,
                // A host that refused what was sent before, which its next message may follow.
                Err(error) if error.kind() == ErrorKind::ConnectionRefused => {}
                Err(_) => return None,
            }
        }
    }

    pub(super) fn close(&mut self) {
        self.socket = None;
    }
}

fn made(domain: c_int) -> Result<UdpSocket, Errno> {
    let kind = libc::SOCK_DGRAM | libc::SOCK_CLOEXEC | libc::SOCK_NONBLOCK;
    // SAFETY: plain numbers; the new descriptor is owned by the result.
    unsafe {
        match libc::socket(domain, kind, 0) {
            -1 => Err(Errno::last()),
            fd => Ok(UdpSocket::from_raw_fd(fd)),
        }
    }
}

fn errno_of(error: std::io::Error) -> Errno {
    Errno(error.raw_os_error().unwrap_or(libc::EIO))
}
